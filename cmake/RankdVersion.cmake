# rk_version: link it to include "generated/rk_version.h" or "generated/rk_interface.h".
find_package(Git QUIET)
set(rk_generated ${CMAKE_BINARY_DIR}/generated)
add_custom_target(rk_generate
    COMMAND ${CMAKE_COMMAND} -DSOURCE=${CMAKE_SOURCE_DIR} -DOUT=${rk_generated} -DVERSION=${PROJECT_VERSION}
        -DGIT=${GIT_EXECUTABLE} -P ${CMAKE_SOURCE_DIR}/cmake/generate.cmake
    BYPRODUCTS ${rk_generated}/rk_version.h ${rk_generated}/rk_interface.h VERBATIM)
add_library(rk_version INTERFACE)
target_include_directories(rk_version INTERFACE ${CMAKE_BINARY_DIR})
add_dependencies(rk_version rk_generate)
