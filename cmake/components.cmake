# The libraries that Etch stands on, each with the Debian package that brings it.

find_package(Threads REQUIRED)

# etch_component(VAR header library package): finds one, or says what to install.
function(etch_component var header library package)
  find_path(${var}_INCLUDE ${header} ${ARGN})
  find_library(${var}_LIBRARY ${library})
  if(NOT ${var}_INCLUDE OR NOT ${var}_LIBRARY)
    message(FATAL_ERROR "Etch needs ${library} (${header}): install the package ${package}")
  endif()
endfunction()

etch_component(DNNL oneapi/dnnl/dnnl.h dnnl libdnnl-dev)
etch_component(OPENBLAS cblas.h openblas libopenblas-dev PATH_SUFFIXES x86_64-linux-gnu openblas)
etch_component(XXHASH xxhash.h xxhash libxxhash-dev)

if(ETCH_GCCJIT)
  # libgccjit's header and library lie in gcc's own folder (Debian, Ubuntu) or in the system's.
  execute_process(COMMAND ${CMAKE_C_COMPILER} -print-file-name=include
                  OUTPUT_VARIABLE ETCH_GCC_INCLUDE OUTPUT_STRIP_TRAILING_WHITESPACE)
  get_filename_component(ETCH_GCC_DIR ${ETCH_GCC_INCLUDE} DIRECTORY)
  find_path(GCCJIT_INCLUDE libgccjit.h HINTS ${ETCH_GCC_INCLUDE})
  find_library(GCCJIT_LIBRARY NAMES gccjit libgccjit.so.0 HINTS ${ETCH_GCC_DIR})
  if(NOT GCCJIT_INCLUDE OR NOT GCCJIT_LIBRARY)
    string(REGEX MATCH "^[0-9]+" ETCH_GCC_MAJOR "${CMAKE_C_COMPILER_VERSION}")
    message(FATAL_ERROR "Etch needs libgccjit for compiled code: install the package "
                        "libgccjit-${ETCH_GCC_MAJOR}-dev (Fedora: libgccjit-devel), "
                        "or configure with -DETCH_GCCJIT=OFF (eager only)")
  endif()
endif()
