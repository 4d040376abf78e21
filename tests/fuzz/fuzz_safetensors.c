/* Goal: no input makes the header parser read beyond it or allocate much more than its size, and accepted
 * headers cover the file. */
#include "tests/fuzz/fuzz.h"

#include "base/rk_assert.h"
#include "base/format/rk_safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct rk_st_file *file;
    struct rk_status *st = rk_st_parse(&file, data, bytes, bytes, "fuzz");
    uint64_t covered = 0;

    if (st) {
        RK_ASSERT(file == NULL);
        rk_status_free(st);
        return 0;
    }
    for (int64_t i = 0; i < rk_st_count(file); i++) {
        const struct rk_st_tensor *tensor = rk_st_at(file, i);
        uint64_t needed = rk_dtype_bytes(tensor->dtype);

        for (int32_t d = 0; d < tensor->rank; d++)
            needed *= (uint64_t)tensor->shape[d];
        RK_ASSERT(needed == tensor->bytes);
        RK_ASSERT(tensor->offset + tensor->bytes <= bytes);
        RK_ASSERT(rk_st_find(file, tensor->name) == tensor);
        if (i == 0)
            covered = tensor->offset;
        RK_ASSERT(tensor->offset == covered);
        covered += tensor->bytes;
    }
    RK_ASSERT(rk_st_count(file) == 0 || covered == bytes);
    rk_st_close(file);
    return 0;
}
