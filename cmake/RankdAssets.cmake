# rk_assets: link it to include a "generated/" header of rk_add_assets.
add_library(rk_assets INTERFACE)
target_include_directories(rk_assets INTERFACE ${CMAKE_BINARY_DIR})

# rk_add_assets(HEADER FILE ...): writes generated/HEADER with one string constant per text file
# (rk_report_css for report.css), and rewrites it when a file changes.
function(rk_add_assets header)
    set(assets "/* Made by cmake/RankdAssets.cmake. */\n")
    foreach(file IN LISTS ARGN)
        set(path ${CMAKE_CURRENT_SOURCE_DIR}/${file})
        set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${path})
        file(READ ${path} text)
        string(REPLACE "\\" "\\\\" text "${text}")
        string(REPLACE "\"" "\\\"" text "${text}")
        string(REPLACE "\n" "\\n\"\n    \"" text "${text}")
        get_filename_component(name ${file} NAME)
        string(MAKE_C_IDENTIFIER ${name} name)
        string(APPEND assets "static const char rk_${name}[] =\n    \"${text}\";\n")
    endforeach()
    set(path ${CMAKE_BINARY_DIR}/generated/${header})
    set(before)
    if(EXISTS ${path})
        file(READ ${path} before)
    endif()
    if(NOT "${before}" STREQUAL "${assets}") # an unchanged header rebuilds nothing
        file(WRITE ${path} "${assets}")
    endif()
endfunction()
