# `cmake --build --target product`: everything that `cmake --install` copies, and so what the bundle
# needs; part of `all`. test_product holds this list against the install rules.
add_custom_target(product ALL COMMAND ${CMAKE_COMMAND} -E touch ${CMAKE_BINARY_DIR}/product.built VERBATIM)
foreach(target rankd rankctl rankd_driver rankd_rl rankd_cuda rankd-bench manual python_client)
    if(TARGET ${target})
        add_dependencies(product ${target})
    endif()
endforeach()
add_dependencies(bundle product)
