# Build options and the flags that every target gets.
option(RK_TESTS "build the tests" ON)
option(RK_WERROR "treat warnings as errors" ON)
option(RK_FAULTS "compile the named fault points in (RANKD_FAULTS)" OFF)
option(RK_FUZZ "build libFuzzer targets (needs clang); without it the corpora are only replayed" OFF)
if("driver-cli" IN_LIST RK_MODULES) # in the cache of a build directory of an older version
    unset(RK_MODULES CACHE)
endif()
set(RK_MODULES "base;proto;kernels;engine;dispatch;worker;daemon;text;driver;rl;cmd;deploy" CACHE STRING
    "modules to build, lower layers first; a prefix of the list is enough to work on one layer")
set(RK_SYSTEMD "AUTO" CACHE STRING "sd_notify through libsystemd: ON, OFF or AUTO (on where it is found)")
set(RK_SANITIZE "" CACHE STRING "sanitizers, e.g. address;undefined or thread")

set(CMAKE_C_STANDARD 11)
set(CMAKE_C_STANDARD_REQUIRED ON)
set(CMAKE_C_EXTENSIONS OFF)
set(CMAKE_CXX_STANDARD 17)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_C_VISIBILITY_PRESET hidden)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
set(CMAKE_LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/lib)
set(CMAKE_ARCHIVE_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/lib)
if(NOT CMAKE_BUILD_TYPE)
    set(CMAKE_BUILD_TYPE Release)
endif()

add_library(rk_flags INTERFACE)
target_compile_definitions(rk_flags INTERFACE _GNU_SOURCE
    $<$<CONFIG:Debug>:RK_DEBUG=1> $<$<BOOL:${RK_FAULTS}>:RK_FAULTS=1>)
# -ffp-contract=off: results do not depend on where the compiler contracts a multiply-add.
target_compile_options(rk_flags INTERFACE
    -Wall -Wextra -Wshadow -Wpointer-arith -Wwrite-strings -Wvla -Wundef -Wformat=2
    -Wimplicit-fallthrough -fno-common -fstack-protector-strong -ffp-contract=off
    $<$<COMPILE_LANGUAGE:C>:-Wstrict-prototypes -Wmissing-prototypes>
    $<$<CXX_COMPILER_ID:GNU>:-fstack-clash-protection>
    $<$<BOOL:${RK_WERROR}>:-Werror>)
# Removes the build path from logs and messages, and makes builds of equal sources identical on all
# machines. Ninja passes sources relative to the build directory. If several prefixes match, the
# last is used: the build directory may be inside the source directory. A debug build keeps the
# paths in its debug information, for debuggers.
file(RELATIVE_PATH rk_source_path ${CMAKE_BINARY_DIR} ${CMAKE_SOURCE_DIR})
foreach(path IN ITEMS ${CMAKE_SOURCE_DIR} ${rk_source_path} ${CMAKE_BINARY_DIR})
    string(REGEX REPLACE "/$" "" path "${path}")
    add_compile_options($<IF:$<CONFIG:Debug>,-fmacro-prefix-map,-ffile-prefix-map>=${path}/=)
endforeach()
if(RK_SANITIZE)
    list(JOIN RK_SANITIZE "," rk_sanitizers)
    # -O1 halves the run time of tests in a debug build, and debugging still works. With sanitizers
    # GCC warns about impossible code paths, so these warnings are only on in the release build.
    target_compile_options(rk_flags INTERFACE -fsanitize=${rk_sanitizers} -fno-omit-frame-pointer $<$<CONFIG:Debug>:-O1>
        $<$<C_COMPILER_ID:GNU>:-Wno-maybe-uninitialized;-Wno-format-truncation>)
    target_link_options(rk_flags INTERFACE -fsanitize=${rk_sanitizers})
    if("undefined" IN_LIST RK_SANITIZE)
        target_compile_options(rk_flags INTERFACE -fno-sanitize-recover=undefined)
    endif()
else()
    target_compile_options(rk_flags INTERFACE $<$<CONFIG:Release>:-U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=2>)
endif()
if(RK_FUZZ)
    target_compile_options(rk_flags INTERFACE -fsanitize=fuzzer-no-link) # coverage instrumentation for libFuzzer
endif()
target_link_options(rk_flags INTERFACE -Wl,-z,relro,-z,now -Wl,-z,noexecstack)

# Installed programs find the libraries in ../lib of their directory (tools/bundle.sh). DT_RPATH and
# not DT_RUNPATH, because only DT_RPATH also applies to the libraries of those libraries.
set(CMAKE_INSTALL_RPATH "$ORIGIN/../lib")
# The build has the same directory layout. By default CMake pads the entry of a build with colons to
# fit the installed one, and an empty element means the current directory.
set(CMAKE_BUILD_WITH_INSTALL_RPATH ON)
target_link_options(rk_flags INTERFACE -Wl,--disable-new-dtags)
