# Writes two headers into OUT. Runs in every build, not at configuration, because commits may be
# made in between. A header with unchanged content is not rewritten, so it causes no rebuild.
set(commit "unknown")
if(GIT AND EXISTS ${SOURCE}/.git)
    execute_process(COMMAND ${GIT} --no-optional-locks describe --always --dirty --abbrev=12 --exclude=*
        WORKING_DIRECTORY ${SOURCE} OUTPUT_VARIABLE described OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET
        RESULT_VARIABLE rc)
    if(rc EQUAL 0)
        set(commit ${described})
    endif()
endif()
file(CONFIGURE OUTPUT ${OUT}/rk_version.h CONTENT "/* Made by cmake/generate.cmake. */
#define RK_VERSION    \"${VERSION}\"
#define RK_GIT_COMMIT \"${commit}\" /* \"-dirty\": with changes that are in no commit */
")

# Program and plug-in must be built from equal headers of these modules. The commit is not part of
# it, so that a rebuilt program works with a plug-in that was not rebuilt.
file(GLOB_RECURSE headers ${SOURCE}/base/*.h ${SOURCE}/kernels/*.h ${SOURCE}/engine/*.h)
list(SORT headers)
set(digests)
foreach(header IN LISTS headers)
    file(SHA256 ${header} digest)
    string(APPEND digests ${digest})
endforeach()
string(SHA256 digest "${digests}")
string(SUBSTRING ${digest} 0 16 digest)
file(CONFIGURE OUTPUT ${OUT}/rk_interface.h CONTENT "/* Made by cmake/generate.cmake. */
#define RK_INTERFACE \"${VERSION}-${digest}\"
")
