/* Token embedding over this rank's part of the vocabulary. A token of another rank's part gives zeros, so
 * that the sum over the ranks is the result. */
#include "kernels/cpu/cpu_internal.h"

#include <string.h>

/* Row of `token` in a table of `rows` rows that starts at vocab_begin; -1 when the token is in another
 * part. */
static int64_t local_row(int32_t token, int64_t vocab_begin, int64_t rows)
{
    int64_t row = (int64_t)token - vocab_begin;

    return row >= 0 && row < rows ? row : -1;
}

struct rk_status *rk_cpu_embed_fwd(void *dev, void *stream, const struct rk_embed_fwd_args *args)
{
    const struct rk_cpu_device *cpu = dev;
    const int32_t *tokens = rk_cpu_i32(args->tokens);
    size_t row_bytes = (size_t)args->table.shape[1] * rk_dtype_bytes(args->table.dtype);

    (void)stream;
#pragma omp parallel for num_threads(rk_cpu_threads_over(cpu, args->out, RK_WORK_COPY))
    for (int64_t t = 0; t < args->out.shape[0]; t++) {
        int64_t row = local_row(tokens[t], args->vocab_begin, args->table.shape[0]);

        if (row >= 0)
            memcpy(rk_cpu_at(args->out, t, 0), rk_cpu_at(args->table, row, 0), row_bytes);
        else
            memset(rk_cpu_at(args->out, t, 0), 0, row_bytes);
    }
    return NULL;
}

/* One thread: equal tokens add to the same row, in ascending t. */
struct rk_status *rk_cpu_embed_bwd(void *dev, void *stream, const struct rk_embed_bwd_args *args)
{
    struct rk_cpu_device *cpu = dev;
    const int32_t *tokens = rk_cpu_i32(args->tokens);
    int64_t hidden_size = args->dout.shape[1];
    double *sum, *dout;

    (void)stream;
    RK_TRY(rk_cpu_scratch_reserve(cpu, 2 * hidden_size));
    sum = rk_cpu_scratch(cpu);
    dout = sum + hidden_size;
    for (int64_t t = 0; t < args->dout.shape[0]; t++) {
        int64_t row = local_row(tokens[t], args->vocab_begin, args->dtable.shape[0]);

        if (row < 0)
            continue;
        rk_cpu_load(sum, args->dtable, row, 0, hidden_size);
        rk_cpu_load(dout, args->dout, t, 0, hidden_size);
        for (int64_t c = 0; c < hidden_size; c++)
            sum[c] += dout[c];
        rk_cpu_store(args->dtable, row, 0, sum, hidden_size);
    }
    return NULL;
}
