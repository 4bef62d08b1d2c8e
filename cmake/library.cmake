# libetch: one set of objects, a shared and a static library, the header made from the operator table.

# Cutting a long name short in a fixed buffer is meant wherever it happens.
set(ETCH_WARNINGS -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes
  -Wno-format-truncation)
# Another compiler warns of other things, and that is no reason for a user's build to fail.
if(ETCH_WERROR)
  list(APPEND ETCH_WARNINGS -Werror)
endif()
# No contraction, no reordering of float arithmetic: eager and compiled code give the same bits.
set(ETCH_NUMERIC_FLAGS -ffp-contract=off -fno-math-errno -fwrapv -fno-strict-aliasing)
if(ETCH_SANITIZE)
  list(APPEND ETCH_WARNINGS -Wno-maybe-uninitialized) # false alarms in instrumented code
  # No null check: gcc 12 reads its flags after an add that the linker turns into a lea when it
  # relaxes a thread-local's address. AddressSanitizer reports null pointers anyway.
  add_compile_options(-fsanitize=${ETCH_SANITIZE} -fno-sanitize=null -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${ETCH_SANITIZE})
endif()

# The table of operators -> the public header etch/ops.h and the functions behind it.
set(ETCH_GENERATED ${CMAKE_BINARY_DIR}/generated)
add_executable(gen_ops tools/gen_ops/gen_ops.c)
target_include_directories(gen_ops PRIVATE ${CMAKE_SOURCE_DIR})
target_compile_options(gen_ops PRIVATE ${ETCH_WARNINGS})
add_custom_command(
  OUTPUT ${ETCH_GENERATED}/operators.def ${ETCH_GENERATED}/etch/ops.h
         ${ETCH_GENERATED}/ops_functions.c
  COMMAND ${CMAKE_COMMAND} -E make_directory ${ETCH_GENERATED}/etch
  COMMAND gen_ops ${ETCH_GENERATED}/operators.def ${ETCH_GENERATED}/etch/ops.h
          ${ETCH_GENERATED}/ops_functions.c
  DEPENDS gen_ops core/ops/ops.def)
add_custom_target(etch_generated DEPENDS ${ETCH_GENERATED}/operators.def ${ETCH_GENERATED}/etch/ops.h)

# Texts that the library carries, as the bytes of an array each: the page of ETCH_TRACE, the functions
# for CUDA C, and device code, without what is there for its readers only.
set(ETCH_EMBEDDED "")
function(etch_embed from)
  cmake_path(GET from FILENAME name)
  add_custom_command(
    OUTPUT ${ETCH_GENERATED}/embedded/${name}.inc
    COMMAND ${CMAKE_COMMAND} -DFROM=${CMAKE_SOURCE_DIR}/${from} ${ARGN}
            -DTO=${ETCH_GENERATED}/embedded/${name}.inc -P ${CMAKE_SOURCE_DIR}/cmake/embed.cmake
    DEPENDS ${from} ${ETCH_DEVICE_HEADERS} cmake/embed.cmake)
  list(APPEND ETCH_EMBEDDED ${ETCH_GENERATED}/embedded/${name}.inc)
  set(ETCH_EMBEDDED ${ETCH_EMBEDDED} PARENT_SCOPE)
endfunction()
etch_embed(tracer/tell/report_page.html)
etch_embed(core/ops/functions.h)
file(GLOB ETCH_DEVICE_CODE CONFIGURE_DEPENDS RELATIVE ${CMAKE_SOURCE_DIR}
  backends/cuda/device/*.cu backends/cuda/device/*.cuh jit/cuda/*.cuh)
set(ETCH_DEVICE_HEADERS ${ETCH_DEVICE_CODE})
list(FILTER ETCH_DEVICE_HEADERS INCLUDE REGEX "[.]cuh$") # any may be part of a kernel's text
foreach(file ${ETCH_DEVICE_CODE})
  etch_embed(${file} -DDEVICE=1)
endforeach()
add_custom_target(etch_embedded DEPENDS ${ETCH_EMBEDDED})

file(GLOB ETCH_SOURCES CONFIGURE_DEPENDS
  core/*/*.c guards/*.c jit/ir/*.c jit/fuse/*.c jit/loop/*.c jit/plan/*.c jit/cuda/*.c jit/store/*.c
  opcheck/*.c start/*.c tracer/*/*.c transforms/*.c backends/*.c backends/cpu/*.c backends/cuda/*.c modes/*.c nn/*.c
  export/*.c)
# These set errors as a user would: a call of etch_set_error in tail position would look like one.
file(GLOB ETCH_LIKE_USERS CONFIGURE_DEPENDS modes/*.c nn/*.c opcheck/*.c)
set_source_files_properties(${ETCH_LIKE_USERS} PROPERTIES
  COMPILE_OPTIONS -fno-optimize-sibling-calls)
add_library(etch_objects OBJECT ${ETCH_SOURCES} ${ETCH_GENERATED}/ops_functions.c)
add_dependencies(etch_objects etch_generated etch_embedded)

# The strip kernels are compiled once an instruction set; the process picks one at load. They are most
# of what there is to optimise: builds for debugging and sanitizers do without, the bits are the same.
# Loops lie at the same places of cache lines whatever else a file holds.
set(ETCH_ISA_OPTIMISE -O3 -falign-functions=64)
if(ETCH_SANITIZE OR CMAKE_BUILD_TYPE STREQUAL "Debug")
  set(ETCH_ISA_OPTIMISE "")
elseif(CMAKE_C_COMPILER_ID STREQUAL "GNU")
  # Long chains of arithmetic: those of two vectors are mixed before registers are given out.
  set_source_files_properties(backends/cpu/isa/functions.c PROPERTIES
    COMPILE_OPTIONS "-fschedule-insns;-fsched-pressure")
endif()
set(ETCH_ISA_FLAGS_baseline -march=x86-64)
set(ETCH_ISA_FLAGS_avx2 -march=x86-64-v3)
set(ETCH_ISA_FLAGS_avx512 -march=x86-64-v4 -mprefer-vector-width=512)
file(GLOB ETCH_ISA_SOURCES CONFIGURE_DEPENDS backends/cpu/isa/*.c)
set(ETCH_OBJECTS $<TARGET_OBJECTS:etch_objects>)
set(ETCH_OBJECT_TARGETS etch_objects)
foreach(isa baseline avx2 avx512)
  if(ETCH_ISA_SOURCES)
    add_library(etch_${isa} OBJECT ${ETCH_ISA_SOURCES})
    target_compile_definitions(etch_${isa} PRIVATE ETCH_ISA=${isa} ETCH_ISA_${isa}=1)
    target_compile_options(etch_${isa} PRIVATE ${ETCH_ISA_FLAGS_${isa}} ${ETCH_ISA_OPTIMISE})
    add_dependencies(etch_${isa} etch_generated)
    list(APPEND ETCH_OBJECTS $<TARGET_OBJECTS:etch_${isa}>)
    list(APPEND ETCH_OBJECT_TARGETS etch_${isa})
  endif()
endforeach()

# Frames on the stack of a user's call are small; kernels and drivers run where there is room for
# theirs (core/base/stack.h, include/etch/base.h). No array there may grow with a number of the user's.
if(NOT ETCH_SANITIZE AND NOT CMAKE_BUILD_TYPE STREQUAL "Debug")
  target_compile_options(etch_objects PRIVATE -Wframe-larger-than=4096 -Wvla)
  file(GLOB ETCH_LARGE_FRAMES CONFIGURE_DEPENDS backends/cpu/*.c backends/cuda/*.c)
  set_source_files_properties(${ETCH_LARGE_FRAMES} PROPERTIES
    COMPILE_OPTIONS "-Wframe-larger-than=65536;-Wno-vla")
endif()

foreach(target ${ETCH_OBJECT_TARGETS})
  target_include_directories(${target} PRIVATE
    ${CMAKE_SOURCE_DIR} ${CMAKE_SOURCE_DIR}/include ${ETCH_GENERATED} ${DNNL_INCLUDE}
    ${OPENBLAS_INCLUDE} ${XXHASH_INCLUDE})
  target_compile_definitions(${target} PRIVATE ETCH_BUILDING=1 _GNU_SOURCE=1
    $<$<BOOL:${ETCH_GCCJIT}>:ETCH_HAVE_GCCJIT=1>)
  target_compile_options(${target} PRIVATE ${ETCH_WARNINGS} ${ETCH_NUMERIC_FLAGS})
endforeach()

set(ETCH_LINK_LIBRARIES ${DNNL_LIBRARY} ${OPENBLAS_LIBRARY} ${XXHASH_LIBRARY} gomp m dl
  Threads::Threads)

# The static library keeps internal symbols visible to the tests; every object is one that programs
# need, since kernels, backends and the tracer register themselves at load: see etch_whole.
add_library(etch_shared SHARED ${ETCH_OBJECTS})
set_target_properties(etch_shared PROPERTIES OUTPUT_NAME etch VERSION ${PROJECT_VERSION}
  SOVERSION ${PROJECT_VERSION_MAJOR})
target_link_libraries(etch_shared PRIVATE ${ETCH_LINK_LIBRARIES})
# Threads' destructors, handlers of fork and exit, and code of users point into it: once loaded it stays.
target_link_options(etch_shared PRIVATE -Wl,-z,nodelete)

# One relocatable object, so that a static program links all of it or nothing. Its code lies in a
# section of its own, so that the library knows which addresses are its own (core/base/site.c).
set(ETCH_CODE_SECTIONS "")
foreach(suffix "" .startup .exit .hot .unlikely)
  list(APPEND ETCH_CODE_SECTIONS --rename-section .text${suffix}=etch_text)
endforeach()
add_custom_command(
  OUTPUT ${CMAKE_BINARY_DIR}/etch_whole.o
  COMMAND ${CMAKE_LINKER} -r -o ${CMAKE_BINARY_DIR}/etch_whole.o ${ETCH_OBJECTS}
  COMMAND ${CMAKE_OBJCOPY} ${ETCH_CODE_SECTIONS} ${CMAKE_BINARY_DIR}/etch_whole.o
  DEPENDS ${ETCH_OBJECT_TARGETS} ${ETCH_OBJECTS}
  COMMAND_EXPAND_LISTS VERBATIM)
add_library(etch_static STATIC ${CMAKE_BINARY_DIR}/etch_whole.o)
set_target_properties(etch_static PROPERTIES OUTPUT_NAME etch LINKER_LANGUAGE C)
target_link_libraries(etch_static INTERFACE ${ETCH_LINK_LIBRARIES})

foreach(target etch_shared etch_static)
  add_dependencies(${target} etch_generated)
  target_include_directories(${target} INTERFACE
    $<BUILD_INTERFACE:${CMAKE_SOURCE_DIR}/include>
    $<BUILD_INTERFACE:${ETCH_GENERATED}>
    $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
endforeach()
add_library(etch::etch ALIAS etch_shared)
add_library(etch::etch_static ALIAS etch_static)

if(ETCH_GCCJIT AND EXISTS ${CMAKE_SOURCE_DIR}/jit/helper/CMakeLists.txt)
  add_subdirectory(jit/helper)
endif()
