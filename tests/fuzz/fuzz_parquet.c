/* Goal: no Parquet file makes the reader crash, read beyond a page, or take more memory than a page and a
 * row: it gives rows, or an error. */
#include "tests/fuzz/fuzz.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/rk_assert.h"
#include "rl/data/parquet_internal.h"

#define ROWS_MAX 2000 /* runs of nulls may be rows without end */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    int fd = memfd_create("parquet", MFD_CLOEXEC);
    struct rk_parquet *file;
    struct rk_json *row = NULL;
    struct rk_status *st;

    RK_ASSERT(fd >= 0 && write(fd, data, bytes) == (ssize_t)bytes);
    st = rk_parquet_open(&file, fd);
    for (int i = 0; !st && i < ROWS_MAX; i++) {
        st = rk_parquet_next(file, &row);
        if (!row)
            break;
        rk_json_free(row);
    }
    if (st)
        RK_ASSERT(*rk_status_message(st));
    rk_status_free(st);
    rk_parquet_close(file);
    return 0;
}
