# rk_add_test(NAME LABEL label... SOURCES ... LIBS ... [TIMEOUT s] [ARGS ...] [FIXTURES dir])
# One cmocka binary, one ctest entry; the label is the test's directory (the additional labels
# "learn" and "bundle": release only). Tests with a longer time limit start earlier, so that none
# runs alone at the end.
function(rk_add_test name)
    cmake_parse_arguments(T "" "TIMEOUT" "LABEL;SOURCES;LIBS;ARGS;ENVIRONMENT" ${ARGN})
    add_executable(${name} ${T_SOURCES})
    foreach(source ${T_SOURCES})
        set_property(GLOBAL APPEND PROPERTY RK_TEST_SOURCES ${CMAKE_CURRENT_SOURCE_DIR}/${source})
    endforeach()
    target_include_directories(${name} PRIVATE ${CMAKE_SOURCE_DIR})
    target_link_libraries(${name} PRIVATE ${T_LIBS} rk_test_support PkgConfig::CMOCKA rk_flags)
    target_compile_definitions(${name} PRIVATE RK_TEST_SOURCE_DIR="${CMAKE_SOURCE_DIR}"
        RK_TEST_BINARY_DIR="${CMAKE_BINARY_DIR}")
    set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
    add_test(NAME ${name} COMMAND ${name} ${T_ARGS})
    if(NOT T_TIMEOUT)
        set(T_TIMEOUT 60)
    endif()
    set_tests_properties(${name} PROPERTIES LABELS "${T_LABEL}" TIMEOUT ${T_TIMEOUT} COST ${T_TIMEOUT}
        ENVIRONMENT "CMOCKA_MESSAGE_OUTPUT=STDOUT;${T_ENVIRONMENT}")
endfunction()

# Runs the test of that name again on the first GPU, label gpu; skipped without a GPU
# (tests/support/device.h).
function(rk_add_gpu_test name)
    if(NOT RK_HAVE_CUDA)
        return()
    endif()
    add_test(NAME gpu_${name} COMMAND ${name})
    set_tests_properties(gpu_${name} PROPERTIES LABELS gpu TIMEOUT 120 SKIP_RETURN_CODE 77
        ENVIRONMENT "CMOCKA_MESSAGE_OUTPUT=STDOUT;RK_TEST_DEVICE=cuda:0")
    set_property(TEST gpu_${name} PROPERTY RESOURCE_LOCK gpu)
endfunction()

# Runs the test of that name again, as PREFIX_name, with ENVIRONMENT.
function(rk_add_again prefix name environment)
    get_test_property(${name} LABELS labels)
    get_test_property(${name} TIMEOUT timeout)
    add_test(NAME ${prefix}_${name} COMMAND ${name})
    set_tests_properties(${prefix}_${name} PROPERTIES LABELS "${labels}" TIMEOUT ${timeout} COST ${timeout}
        ENVIRONMENT "CMOCKA_MESSAGE_OUTPUT=STDOUT;${environment}")
endfunction()

# Runs the test with the NCCL backend over the fake NCCL of the tests, on the CPU, which executes
# operations in the call (tests/support/fake_nccl.c).
function(rk_add_fake_nccl_test name)
    rk_add_again(nccl ${name} "RK_TEST_COMM=nccl")
endfunction()

# Runs the test on the tests' CPU device with graphs and streams (tests/support/graph_device.h);
# several ranks use the fake NCCL.
function(rk_add_graphs_test name)
    rk_add_again(graphs ${name} "RK_TEST_COMM=nccl;RK_TEST_DEVICE=graphs")
endfunction()

# Runs the test of that name again with one GPU per rank, label gpu; skipped if the machine has too
# few GPUs.
function(rk_add_gpus_test name)
    if(NOT RK_HAVE_CUDA)
        return()
    endif()
    get_test_property(${name} TIMEOUT timeout)
    add_test(NAME gpus_${name} COMMAND ${name})
    set_tests_properties(gpus_${name} PROPERTIES LABELS gpu TIMEOUT ${timeout} SKIP_RETURN_CODE 77
        ENVIRONMENT "CMOCKA_MESSAGE_OUTPUT=STDOUT;RK_TEST_DEVICE=cuda" RESOURCE_LOCK gpu)
endfunction()

# The same, labels gpu and long, as PREFIX_name, with ENVIRONMENT.
function(rk_add_long_gpus_again prefix name environment)
    if(NOT RK_HAVE_CUDA)
        return()
    endif()
    rk_add_again(${prefix} ${name} "RK_TEST_DEVICE=cuda;${environment}")
    set_tests_properties(${prefix}_${name} PROPERTIES LABELS "gpu;long" TIMEOUT 1200 SKIP_RETURN_CODE 77
        RESOURCE_LOCK gpu)
endfunction()

# The same, as long_gpus_name, with the ENVIRONMENT of the optional last argument.
function(rk_add_long_gpus_test name)
    rk_add_long_gpus_again(long_gpus ${name} "${ARGN}")
endfunction()

function(rk_add_nccl_test name)
    rk_add_fake_nccl_test(${name})
    rk_add_gpus_test(${name})
endfunction()
