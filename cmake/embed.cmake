# Writes the bytes of FROM to TO as a C array that is called by the file, NAME_text of NAME.cu, and
# ends in 0. DEVICE: of a file of device code, what it says for its readers is left out, and with it
# what it includes; but the texts of .cuh files stand in the place of their includes, if they are not
# of those that backends/cuda/text.c puts before every kernel.
function(read_device_code path to)
  file(READ ${path} text)
  string(REGEX REPLACE "^/[*]([^*]|[*][^/])*[*]/\n" "" text "${text}")
  get_filename_component(folder ${path} DIRECTORY)
  string(REGEX MATCHALL "#include \"[a-z_]+[.]cuh\"\n" includes "${text}")
  foreach(include IN LISTS includes)
    string(REGEX REPLACE "#include \"([a-z_]+)[.]cuh\"\n" "\\1" file "${include}")
    if(NOT file MATCHES "^(halves|elements|faults)$")
      read_device_code(${folder}/${file}.cuh part)
      string(REPLACE "${include}" "${part}" text "${text}")
    endif()
  endforeach()
  string(REGEX REPLACE "#include \"[^\n]*\n" "" text "${text}")
  string(REGEX REPLACE "^\n" "" text "${text}")
  set(${to} "${text}" PARENT_SCOPE)
endfunction()

if(DEVICE)
  read_device_code(${FROM} text)
else()
  file(READ ${FROM} text)
endif()
get_filename_component(name ${FROM} NAME_WE)
string(HEX "${text}" bytes)
string(REGEX REPLACE "(................................)" "\\1\n" bytes "${bytes}")
string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${bytes}")
string(REGEX REPLACE "0x[89a-f]" "(char)\\0" bytes "${bytes}") # of UTF-8
file(WRITE ${TO} "static const char ${name}_text[] = {\n${bytes}\n0};\n")
