# rk_add_module(NAME PUBLIC_HEADERS ... SOURCES ... DEPENDS ... THIRD_PARTY ...)
#   Without SOURCES: all .c files of the folder and of those below it.
#   -> static library rk_NAME with the project's flags, plus a check that compiles every public header alone,
#      in C and in C++. DEPENDS must match the include table of docs/architecture.md (tools/check_includes.sh).
function(rk_add_module name)
    cmake_parse_arguments(M "" "" "PUBLIC_HEADERS;SOURCES;DEPENDS;THIRD_PARTY" ${ARGN})
    string(REPLACE "-" "_" target "rk_${name}")
    if(NOT M_SOURCES)
        file(GLOB_RECURSE M_SOURCES CONFIGURE_DEPENDS *.c)
    endif()
    add_library(${target} STATIC ${M_SOURCES})
    target_include_directories(${target} PUBLIC ${CMAKE_SOURCE_DIR} PRIVATE ${CMAKE_CURRENT_BINARY_DIR})
    target_link_libraries(${target} PUBLIC ${M_DEPENDS} PRIVATE rk_flags ${M_THIRD_PARTY})
    rk_check_headers(${target} ${M_PUBLIC_HEADERS})
endfunction()

function(rk_check_headers target)
    set(sources)
    foreach(header IN LISTS ARGN)
        file(RELATIVE_PATH path ${CMAKE_SOURCE_DIR} ${CMAKE_CURRENT_SOURCE_DIR}/${header})
        string(MAKE_C_IDENTIFIER ${path} id)
        foreach(ext c cpp)
            set(file ${CMAKE_CURRENT_BINARY_DIR}/header_check/${id}.${ext})
            file(CONFIGURE OUTPUT ${file} CONTENT "#include \"${path}\"\ntypedef int rk_header_check_${id};\n")
            list(APPEND sources ${file})
        endforeach()
    endforeach()
    if(sources)
        add_library(${target}_headers OBJECT ${sources})
        target_include_directories(${target}_headers PRIVATE ${CMAKE_SOURCE_DIR})
        target_link_libraries(${target}_headers PRIVATE rk_flags)
    endif()
endfunction()

# Headers for C programs that link librankd_driver or librankd_rl, and the headers that they include.
set(RK_INSTALLED_HEADERS
    base/rk_arena.h base/rk_compiler.h base/rk_dtype.h base/rk_json.h base/rk_log.h base/layout/rk_mesh.h
    base/rk_status.h base/rk_str.h
    proto/limits.h proto/messages.def proto/methods.def proto/rk_messages.h proto/rk_methods.h proto/rk_proto.h proto/rk_rpcs.h
    proto/rk_stream.h proto/rpcs.def
    dispatch/rk_batch.h dispatch/rk_dispatch.h dispatch/rk_modes.h dispatch/rk_plan.h dispatch/rk_recording.h
    driver/rk_driver.h text/rk_chat.h text/rk_tokenizer.h
    rl/rk_algo.h rl/rk_dataset.h rl/rk_examples.h rl/rk_reward.h)

# rk_write_exports(MAP MODULE ...): a linker script that exports the functions that the installed headers of these
# modules declare: at the beginning of a line, and not inline.
function(rk_write_exports map)
    list(JOIN ARGN "|" modules)
    set(headers ${RK_INSTALLED_HEADERS})
    list(FILTER headers INCLUDE REGEX "^(${modules})/.*[.]h$")
    set(names)
    foreach(header IN LISTS headers)
        set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/${header})
        file(STRINGS ${CMAKE_SOURCE_DIR}/${header} lines REGEX "^[a-z].*[ *]rk_[a-z0-9_]+[(]")
        list(FILTER lines EXCLUDE REGEX "^(static|typedef) ")
        list(TRANSFORM lines REPLACE "^[^(]*[ *](rk_[a-z0-9_]+)[(].*" "\\1")
        list(APPEND names ${lines})
    endforeach()
    list(FILTER names INCLUDE REGEX "^rk_[a-z0-9_]+$") # the rest of a line is behind its semicolon
    list(JOIN names ";\n        " names)
    file(CONFIGURE OUTPUT ${map} CONTENT "{\n    global:\n        @names@;\n    local:\n        *;\n};\n" @ONLY)
endfunction()

# rk_add_shared(NAME DESCRIPTION MODULE ...): libNAME.so of these modules for programs of others, with all of base, proto and
# dispatch that their headers offer, and NAME.pc. It exports what the installed headers of all these declare.
function(rk_add_shared name description)
    set(modules ${ARGN})
    list(TRANSFORM modules PREPEND rk_)
    set_target_properties(rk_base rk_proto rk_dispatch ${modules} PROPERTIES C_VISIBILITY_PRESET default)
    file(CONFIGURE OUTPUT ${CMAKE_CURRENT_BINARY_DIR}/${name}.c CONTENT "typedef int rk_${name};\n")
    add_library(${name} SHARED ${CMAKE_CURRENT_BINARY_DIR}/${name}.c)
    target_include_directories(${name} INTERFACE ${CMAKE_SOURCE_DIR})
    target_link_libraries(${name} PRIVATE
        -Wl,--whole-archive rk_proto rk_dispatch ${modules} -Wl,--no-whole-archive rk_base rk_flags)
    set(map ${CMAKE_CURRENT_BINARY_DIR}/lib${name}.map)
    rk_write_exports(${map} base proto dispatch ${ARGN})
    target_link_options(${name} PRIVATE -Wl,--version-script=${map})
    file(STRINGS ${CMAKE_SOURCE_DIR}/driver/rk_driver.h abi REGEX "^#define RK_DRIVER_ABI [0-9]+$")
    string(REGEX REPLACE ".* " "" RK_DRIVER_ABI "${abi}")
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/driver/rk_driver.h)
    set_target_properties(${name} PROPERTIES VERSION ${RK_DRIVER_ABI}.${PROJECT_VERSION} SOVERSION ${RK_DRIVER_ABI}
        LINK_DEPENDS ${map})
    install(TARGETS ${name} LIBRARY COMPONENT driver NAMELINK_COMPONENT dev)

    # pkg-config: paths relative to the file, so that an installation may be moved.
    file(RELATIVE_PATH RK_PC_PREFIX /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
    string(REGEX REPLACE "/$" "" RK_PC_PREFIX "${RK_PC_PREFIX}")
    configure_file(${CMAKE_SOURCE_DIR}/cmake/library.pc.in ${name}.pc @ONLY)
    install(FILES ${CMAKE_CURRENT_BINARY_DIR}/${name}.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT dev)
endfunction()
