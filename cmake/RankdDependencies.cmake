# Third-party libraries, all from the distribution (names of the packages: scripts/packages.txt).
# gRPC is found by library and header, because its pkg-config file lists 56 libraries.
find_package(PkgConfig REQUIRED)
find_package(Threads REQUIRED)

pkg_check_modules(JANSSON REQUIRED IMPORTED_TARGET jansson>=2.13)
pkg_check_modules(OPENSSL REQUIRED IMPORTED_TARGET openssl>=3.0)
pkg_check_modules(UV REQUIRED IMPORTED_TARGET libuv>=1.43)
pkg_check_modules(MICROHTTPD REQUIRED IMPORTED_TARGET libmicrohttpd>=0.9.71)
pkg_check_modules(OPENBLAS REQUIRED IMPORTED_TARGET openblas)
pkg_check_modules(CURL REQUIRED IMPORTED_TARGET libcurl>=7.85)
pkg_check_modules(PCRE2 REQUIRED IMPORTED_TARGET libpcre2-8)
pkg_check_modules(UTF8PROC REQUIRED IMPORTED_TARGET libutf8proc)
pkg_check_modules(COMPRESSION REQUIRED IMPORTED_TARGET zlib libzstd liblz4 libbrotlidec) # of Parquet's pages
find_package(OpenMP REQUIRED COMPONENTS C)

find_library(RK_GRPC_LIBRARY grpc REQUIRED)
find_library(RK_GPR_LIBRARY gpr REQUIRED)
find_path(RK_GRPC_INCLUDE grpc/grpc.h REQUIRED)
add_library(rk_grpc INTERFACE)
target_include_directories(rk_grpc SYSTEM INTERFACE ${RK_GRPC_INCLUDE})
target_link_libraries(rk_grpc INTERFACE ${RK_GRPC_LIBRARY} ${RK_GPR_LIBRARY})

# Debian's snappy has no pkg-config file.
find_library(RK_SNAPPY_LIBRARY snappy REQUIRED)
find_path(RK_SNAPPY_INCLUDE snappy-c.h REQUIRED)
add_library(rk_compression INTERFACE)
target_include_directories(rk_compression SYSTEM INTERFACE ${RK_SNAPPY_INCLUDE})
target_link_libraries(rk_compression INTERFACE PkgConfig::COMPRESSION ${RK_SNAPPY_LIBRARY})

set(RK_HAVE_SYSTEMD OFF)
if(NOT RK_SYSTEMD STREQUAL "OFF")
    pkg_check_modules(SYSTEMD IMPORTED_TARGET libsystemd)
    if(SYSTEMD_FOUND)
        set(RK_HAVE_SYSTEMD ON)
    elseif(RK_SYSTEMD STREQUAL "ON")
        message(FATAL_ERROR "RK_SYSTEMD=ON but libsystemd was not found")
    endif()
endif()

find_program(RK_PROTOC protoc REQUIRED)
if(RK_TESTS)
    pkg_check_modules(CMOCKA REQUIRED IMPORTED_TARGET cmocka)
    pkg_check_modules(PROTOBUFC REQUIRED IMPORTED_TARGET libprotobuf-c) # another codec, to compare with
    find_program(RK_PROTOC_C protoc-c REQUIRED)
    find_program(RK_PYTHON python3 REQUIRED) # for reward functions and test servers
    # The interpreter of the distribution's packages (python3-grpcio and others).
    find_program(RK_SYSTEM_PYTHON python3 PATHS /usr/bin NO_DEFAULT_PATH REQUIRED)
endif()
