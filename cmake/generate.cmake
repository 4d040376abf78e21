# Writes two headers into OUT. A step of every build, not of the configuration: in between there are commits. A header
# whose content is the same is left alone, so nothing is rebuilt for it.
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

# What program and plug-in have to agree about is written in the headers of these modules. Not the commit: the two
# halves of a working tree stay together while only one is built anew.
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
