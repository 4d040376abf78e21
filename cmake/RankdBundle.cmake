# `cmake --build --target bundle`: a tar file that runs without the packages installed, also on
# other distributions with the same or a newer C library. Unpack it anywhere.
set(RK_BUNDLE_NAME rankd-${PROJECT_VERSION}-${CMAKE_SYSTEM_PROCESSOR})
add_custom_target(bundle
    COMMAND sh ${CMAKE_SOURCE_DIR}/tools/bundle.sh ${CMAKE_BINARY_DIR} ${RK_BUNDLE_NAME}
    COMMENT "Packing ${RK_BUNDLE_NAME}.tar.gz" VERBATIM)
