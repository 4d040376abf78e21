# rk_add_test(NAME LABEL label SOURCES ... LIBS ... [TIMEOUT s] [ARGS ...] [FIXTURES dir])
# One cmocka binary, one ctest entry; the label is the test's folder.
function(rk_add_test name)
    cmake_parse_arguments(T "" "LABEL;TIMEOUT" "SOURCES;LIBS;ARGS;ENVIRONMENT" ${ARGN})
    add_executable(${name} ${T_SOURCES})
    target_include_directories(${name} PRIVATE ${CMAKE_SOURCE_DIR})
    target_link_libraries(${name} PRIVATE ${T_LIBS} rk_test_support PkgConfig::CMOCKA rk_flags)
    target_compile_definitions(${name} PRIVATE RK_TEST_SOURCE_DIR="${CMAKE_SOURCE_DIR}"
        RK_TEST_BINARY_DIR="${CMAKE_BINARY_DIR}")
    set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
    add_test(NAME ${name} COMMAND ${name} ${T_ARGS})
    if(NOT T_TIMEOUT)
        set(T_TIMEOUT 60)
    endif()
    set_tests_properties(${name} PROPERTIES LABELS ${T_LABEL} TIMEOUT ${T_TIMEOUT}
        ENVIRONMENT "CMOCKA_MESSAGE_OUTPUT=STDOUT;${T_ENVIRONMENT}")
endfunction()
