# Run by cpack after it has installed each component into a directory and before it packs them.
# Debian's policy asks for a copyright and a changelog in every package, and for no search path in
# programs: the loader knows /usr/lib.
set(PROJECT_VERSION ${CPACK_PACKAGE_VERSION})
set(RK_PACKAGE_VERSION ${CPACK_RK_PACKAGE_VERSION})
set(RK_PACKAGE_MAINTAINER ${CPACK_RK_PACKAGE_MAINTAINER})

function(rk_git out fallback)
    execute_process(COMMAND git -C ${CPACK_RK_SOURCE_DIR} ${ARGN} OUTPUT_VARIABLE text ERROR_QUIET
        OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE failed)
    if(failed)
        set(text "${fallback}")
    endif()
    set(${out} "${text}" PARENT_SCOPE)
endfunction()
set(rk_data_file OWNER_READ OWNER_WRITE GROUP_READ WORLD_READ)
# The time of the commit, so that equal sources give equal packages.
rk_git(RK_PACKAGE_COMMIT unknown rev-parse --short HEAD)
rk_git(RK_PACKAGE_DATE "Thu, 01 Jan 1970 00:00:00 +0000" log -1 --format=%cD)

function(rk_compress path)
    execute_process(COMMAND gzip -9nf ${path} COMMAND_ERROR_IS_FATAL ANY)
endfunction()

function(rk_add_policy_files component)
    set(root ${CPACK_TEMPORARY_DIRECTORY}/${component})
    string(TOUPPER ${component} upper)
    set(doc ${root}/usr/share/doc/${CPACK_DEBIAN_${upper}_PACKAGE_NAME})
    file(COPY ${CPACK_RK_DEBIAN_DIR}/copyright DESTINATION ${doc} FILE_PERMISSIONS ${rk_data_file})
    configure_file(${CPACK_RK_DEBIAN_DIR}/changelog.in ${doc}/changelog.Debian @ONLY)
    file(CHMOD ${doc}/changelog.Debian PERMISSIONS ${rk_data_file})
    rk_compress(${doc}/changelog.Debian)
    file(GLOB_RECURSE programs ${root}/usr/bin/* ${root}/usr/lib/*.so*)
    foreach(program IN LISTS programs)
        if(NOT IS_SYMLINK ${program})
            file(RPATH_REMOVE FILE ${program})
        endif()
    endforeach()
    file(GLOB pages ${root}/usr/share/man/man*/*)
    foreach(page IN LISTS pages)
        rk_compress(${page})
    endforeach()
endfunction()

foreach(component IN LISTS CPACK_COMPONENTS_ALL)
    rk_add_policy_files(${component})
endforeach()

set(root ${CPACK_TEMPORARY_DIRECTORY}/rankd)
file(COPY ${CPACK_RK_DEBIAN_DIR}/rankd.json DESTINATION ${root}/etc/rankd FILE_PERMISSIONS ${rk_data_file})
file(REMOVE ${root}/usr/share/doc/rankd/LICENSE) # the file `copyright` contains it
file(RENAME ${root}/usr/share/zsh/site-functions ${root}/usr/share/zsh/vendor-completions)
