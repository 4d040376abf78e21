/* Goal: for every name that a client of the reflection service requests, the walk over the descriptors stays
 * in bounds, and the result is a file with all of its imports. */
#include "tests/fuzz/fuzz.h"

#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_assert.h"
#include "daemon/rpc/descriptors_internal.h"

#define NAME_CHARACTERS "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_."

static void check_file(int32_t file)
{
    int32_t files[RK_DESCRIPTOR_FILES_MAX], count;

    if (file == RK_DESCRIPTOR_NONE)
        return;
    RK_ASSERT(rk_descriptor_get(file).bytes > 0);
    count = rk_descriptor_list_imports(files, file);
    RK_ASSERT(count >= 1);
    RK_ASSERT(count <= RK_DESCRIPTOR_FILES_MAX);
    RK_ASSERT(files[0] == file);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    char *name = rk_strndup((const char *)data, strnlen((const char *)data, bytes));
    int32_t file = rk_descriptor_find_symbol(name);

    check_file(file);
    check_file(rk_descriptor_find_file(name));
    if (rk_descriptor_has_message(name))
        RK_ASSERT(file != RK_DESCRIPTOR_NONE);
    if (file != RK_DESCRIPTOR_NONE)
        RK_ASSERT(name[strspn(name, NAME_CHARACTERS)] == '\0');
    rk_free(name);
    return 0;
}
