# The CUDA plug-in, librankd_cuda.so: nvcc compiles CUDA sources, the C++ compiler links. The
# runtime is linked statically and the driver is looked up at run time; only cuBLASLt must be found
# by the loader.
set(RK_CUDA "AUTO" CACHE STRING "the CUDA plug-in: ON, OFF or AUTO (on where nvcc is found)")
# sm_80 is the oldest with bf16 matrix instructions; 90a is Hopper with its own instructions; later
# GPUs run the code for sm_80.
set(RK_CUDA_ARCHS "AUTO" CACHE STRING "GPU architectures of the plug-in; AUTO: 80;90a, and 100 where nvcc knows it")

set(RK_HAVE_CUDA OFF)
if(NOT RK_CUDA STREQUAL "OFF")
    find_program(RK_NVCC nvcc PATHS /usr/local/cuda/bin)
    if(RK_NVCC)
        get_filename_component(rk_cuda_root ${RK_NVCC} REALPATH)
        get_filename_component(rk_cuda_root ${rk_cuda_root}/../.. ABSOLUTE)
        find_path(RK_CUDA_INCLUDE cublasLt.h HINTS ${rk_cuda_root}/include)
        find_library(RK_CUDART_LIBRARY cudart_static HINTS ${rk_cuda_root}/lib64)
        find_library(RK_CUBLASLT_LIBRARY cublasLt HINTS ${rk_cuda_root}/lib64)
    endif()
    if(RK_NVCC AND RK_CUDA_INCLUDE AND RK_CUDART_LIBRARY AND RK_CUBLASLT_LIBRARY)
        set(RK_HAVE_CUDA ON)
    elseif(RK_CUDA STREQUAL "ON")
        message(FATAL_ERROR "RK_CUDA=ON, but nvcc, cublasLt.h, libcudart_static.a or libcublasLt.so was not found")
    endif()
endif()

set(rk_cuda_archs ${RK_CUDA_ARCHS})
if(RK_HAVE_CUDA AND RK_CUDA_ARCHS STREQUAL "AUTO")
    set(rk_cuda_archs 80 90a)
    execute_process(COMMAND ${RK_NVCC} --list-gpu-arch OUTPUT_VARIABLE rk_known_archs)
    if(rk_known_archs MATCHES "compute_100")
        list(APPEND rk_cuda_archs 100)
    endif()
endif()
if(RK_HAVE_CUDA)
    message(STATUS "CUDA plug-in: on, for the architectures ${rk_cuda_archs}, by ${RK_NVCC}")
elseif(RK_CUDA STREQUAL "OFF")
    message(STATUS "CUDA plug-in: off (RK_CUDA=OFF)")
elseif(RK_NVCC)
    message(STATUS "CUDA plug-in: off, cublasLt.h, libcudart_static.a or libcublasLt.so was not found beside ${RK_NVCC}")
else()
    message(STATUS "CUDA plug-in: off, nvcc was not found")
endif()

set(RK_NVCC_FLAGS -std=c++17 -O3 -lineinfo --expt-relaxed-constexpr --extended-lambda
    -Xcompiler=-fPIC,-fvisibility=hidden,-Wall,-Wextra,-Wno-unused-parameter)
if(RK_WERROR)
    list(APPEND RK_NVCC_FLAGS -Werror all-warnings)
endif()
foreach(arch IN LISTS rk_cuda_archs)
    list(APPEND RK_NVCC_FLAGS -gencode=arch=compute_${arch},code=sm_${arch})
endforeach()

# rk_add_cuda_objects(OUT FLAGS flags... SOURCES file.cu...): compiles the sources with nvcc and
# appends the objects to OUT.
function(rk_add_cuda_objects out)
    cmake_parse_arguments(C "" "" "FLAGS;SOURCES" ${ARGN})
    set(objects ${${out}})
    foreach(source IN LISTS C_SOURCES)
        get_filename_component(name ${source} NAME_WE)
        set(object ${CMAKE_CURRENT_BINARY_DIR}/${name}.cu.o)
        add_custom_command(OUTPUT ${object}
            COMMAND ${RK_NVCC} ${RK_NVCC_FLAGS} ${C_FLAGS} -I${CMAKE_SOURCE_DIR} -MD -MF ${object}.d
                -c ${CMAKE_CURRENT_SOURCE_DIR}/${source} -o ${object}
            DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/${source} DEPFILE ${object}.d
            COMMENT "Building CUDA object ${name}.cu.o" VERBATIM COMMAND_EXPAND_LISTS)
        list(APPEND objects ${object})
    endforeach()
    set(${out} ${objects} PARENT_SCOPE)
endfunction()

# rk_add_plugin(NAME SOURCES ... LIBS ...) -> librankd_NAME.so, a target of the same name. rankd's
# own functions stay undefined: the program that loads it provides them (engine/rk_plugin.h).
function(rk_add_plugin name)
    cmake_parse_arguments(P "" "" "SOURCES;LIBS" ${ARGN})
    add_library(rankd_${name} MODULE ${P_SOURCES})
    target_include_directories(rankd_${name} PRIVATE ${CMAKE_SOURCE_DIR})
    target_link_libraries(rankd_${name} PRIVATE rk_flags ${P_LIBS})
    target_link_options(rankd_${name} PRIVATE -Wl,--version-script=${CMAKE_SOURCE_DIR}/cmake/plugin.map)
    # Search path: the plug-in's directory, then CUDA's directory of NVIDIA's packages, then that of
    # this build.
    set_target_properties(rankd_${name} PROPERTIES LINK_DEPENDS ${CMAKE_SOURCE_DIR}/cmake/plugin.map
        LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/lib
        INSTALL_RPATH "$ORIGIN/../lib;/usr/local/cuda/lib64" INSTALL_RPATH_USE_LINK_PATH ON)
endfunction()
