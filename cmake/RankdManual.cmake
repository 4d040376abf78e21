# Manual pages and completions, generated from the tables by programs of this build.
set(rk_manual_dir ${CMAKE_BINARY_DIR}/manual)
file(MAKE_DIRECTORY ${rk_manual_dir})
set(rk_manual_files)
foreach(page IN ITEMS rankctl.1 rankd-bench.1 rankd-job.5 rankd.8 rankd.conf.5 rankd.bash rankd.zsh)
    set(program rankd_manual)
    if(page MATCHES "rankctl|job")
        set(program rankctl_manual)
    elseif(page MATCHES "bench")
        set(program rankd_bench_manual)
    endif()
    add_custom_command(OUTPUT ${rk_manual_dir}/${page} COMMAND ${program} ${page} ${rk_manual_dir}/${page}
        DEPENDS ${program} VERBATIM)
    list(APPEND rk_manual_files ${rk_manual_dir}/${page})
endforeach()
foreach(shell IN ITEMS bash zsh)
    add_custom_command(OUTPUT ${rk_manual_dir}/rankctl.${shell}
        COMMAND rankctl completion ${shell} > ${rk_manual_dir}/rankctl.${shell} DEPENDS rankctl VERBATIM)
    list(APPEND rk_manual_files ${rk_manual_dir}/rankctl.${shell})
endforeach()
add_custom_target(manual ALL DEPENDS ${rk_manual_files})

foreach(page IN ITEMS rankctl.1 rankd-bench.1 rankd-job.5 rankd.8 rankd.conf.5)
    string(REGEX MATCH "[0-9]$" section ${page})
    install(FILES ${rk_manual_dir}/${page} DESTINATION share/man/man${section} COMPONENT rankd)
endforeach()
foreach(program IN ITEMS rankctl rankd)
    install(FILES ${rk_manual_dir}/${program}.bash DESTINATION share/bash-completion/completions RENAME ${program}
        COMPONENT rankd)
    install(FILES ${rk_manual_dir}/${program}.zsh DESTINATION share/zsh/site-functions RENAME _${program}
        COMPONENT rankd)
endforeach()
