# The installed tree: headers, both libraries, the helper, a CMake package and a pkg-config file.
# Every path in it is relative to the file that names it, so the tree may be moved.

include(CMakePackageConfigHelpers)

# What a static program links besides libetch, by name: the paths of the build machine
# (ETCH_LINK_LIBRARIES) would tie the installed package to it.
set(ETCH_LINK_NAMES "")
foreach(library ${ETCH_LINK_LIBRARIES})
  if(NOT library STREQUAL "Threads::Threads")
    get_filename_component(name ${library} NAME_WE)
    string(REGEX REPLACE "^lib" "" name ${name})
    list(APPEND ETCH_LINK_NAMES ${name})
  endif()
endforeach()
set_target_properties(etch_shared PROPERTIES EXPORT_NAME etch)
set_target_properties(etch_static PROPERTIES EXPORT_NAME etch_static INTERFACE_LINK_LIBRARIES
  "$<BUILD_INTERFACE:${ETCH_LINK_LIBRARIES}>;$<INSTALL_INTERFACE:${ETCH_LINK_NAMES};Threads::Threads>")

install(DIRECTORY ${CMAKE_SOURCE_DIR}/include/etch DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
  FILES_MATCHING PATTERN "*.h" PATTERN "*.def")
install(FILES ${ETCH_GENERATED}/etch/ops.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/etch)
install(TARGETS etch_shared etch_static EXPORT etchTargets
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
# The helper is installed where it is built: the library looks for it relative to its own place.

set(ETCH_CMAKE_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/etch)
install(EXPORT etchTargets NAMESPACE etch:: DESTINATION ${ETCH_CMAKE_DIR})
configure_package_config_file(cmake/etchConfig.cmake.in ${CMAKE_BINARY_DIR}/etchConfig.cmake
  INSTALL_DESTINATION ${ETCH_CMAKE_DIR})
write_basic_package_version_file(${CMAKE_BINARY_DIR}/etchConfigVersion.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/etchConfig.cmake ${CMAKE_BINARY_DIR}/etchConfigVersion.cmake
  DESTINATION ${ETCH_CMAKE_DIR})

file(RELATIVE_PATH ETCH_PC_PREFIX "/${CMAKE_INSTALL_LIBDIR}/pkgconfig" "/")
string(REGEX REPLACE "/$" "" ETCH_PC_PREFIX "${ETCH_PC_PREFIX}")
list(TRANSFORM ETCH_LINK_NAMES PREPEND "-l" OUTPUT_VARIABLE ETCH_PC_PRIVATE)
list(JOIN ETCH_PC_PRIVATE " " ETCH_PC_PRIVATE)
configure_file(cmake/etch.pc.in ${CMAKE_BINARY_DIR}/etch.pc @ONLY)
install(FILES ${CMAKE_BINARY_DIR}/etch.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
