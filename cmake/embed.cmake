# Writes the bytes of FROM to TO as the elements of a C array. DEVICE: of a file of device code, what
# it says and includes for its readers is left out.
file(READ ${FROM} text)
if(DEVICE)
  string(REGEX REPLACE "^/[*]([^*]|[*][^/])*[*]/\n" "" text "${text}")
  string(REGEX REPLACE "#include \"[^\n]*\n" "" text "${text}")
  string(REGEX REPLACE "^\n" "" text "${text}")
endif()
string(HEX "${text}" bytes)
string(REGEX REPLACE "(................................)" "\\1\n" bytes "${bytes}")
string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${bytes}")
file(WRITE ${TO} "${bytes}\n")
