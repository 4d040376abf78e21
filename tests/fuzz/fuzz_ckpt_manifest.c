/* Goal: no input makes the manifest parser read beyond it, and accepted manifests are valid: names stay below
 * the directory, and writing gives the same text again. Mutations invalidate the checksum, so the text is
 * also tried with the right one. */
#include "tests/fuzz/fuzz.h"

#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_assert.h"
#include "base/format/rk_ckpt_dir.h"
#include "base/rk_str.h"

static void check_accepted(const struct rk_ckpt_manifest *manifest)
{
    struct rk_ckpt_manifest again;
    char *text = rk_ckpt_manifest_format(manifest), *same;

    RK_ASSERT(manifest->global_step >= 0);
    for (int64_t i = 0; i < manifest->files.count; i++) {
        const char *name = manifest->files.items[i].name;

        RK_ASSERT(name[0] != '/' && name[0] != '.');
        RK_ASSERT(!strstr(name, "/."));
    }
    RK_ASSERT(!rk_ckpt_manifest_parse(&again, text, strlen(text), "again"));
    same = rk_ckpt_manifest_format(&again);
    RK_ASSERT(strcmp(text, same) == 0);
    rk_ckpt_manifest_fini(&again);
    rk_free(same);
    rk_free(text);
}

/* Returns the text with the right checksum, or NULL if the checksum is not the error. */
static char *try_text(const char *text, size_t bytes)
{
    struct rk_ckpt_manifest manifest;
    struct rk_status *st = rk_ckpt_manifest_parse(&manifest, text, bytes, "fuzz");
    const char *message = rk_status_message(st), *key = "\"checksum\": \"";
    char *mended = NULL, *at;

    if (!st)
        check_accepted(&manifest);
    else
        RK_ASSERT(manifest.role == NULL && manifest.files.count == 0);
    if (strcmp(rk_status_reason(st), "CHECKSUM") == 0) {
        mended = rk_strndup(text, bytes);
        at = strstr(mended, key);
        if (at && strlen(at) >= strlen(key) + 8)
            memcpy(at + strlen(key), message + strlen(message) - 8, 8);
    }
    if (!st)
        rk_ckpt_manifest_fini(&manifest);
    rk_status_free(st);
    return mended;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    char *mended = try_text((const char *)data, bytes);

    if (mended)
        rk_free(try_text(mended, strlen(mended)));
    rk_free(mended);
    return 0;
}
