/* Speed of the operators of one device on the shapes of a 1.5B and a 7B model: time, bytes or operations a
 * second, and what part of the ceiling that is. Host time over many calls between two synchronisations;
 * inputs rotate through more memory than any cache holds.
 *
 *   ops_bench [DEVICE [FILTER]]        DEVICE cuda:0 by default, FILTER a part of an operator's name */
#include "base/rk_alloc.h"
#include "base/rk_rng.h"
#include "base/rk_time.h"
#include "engine/rk_plugin.h"
#include "kernels/rk_kernels.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Measured on an H200: device to device copy, read and written; a large bf16 product on random data. */
#define PEAK_BYTES 4.3e12
#define PEAK_FLOPS 790e12

#define SETS_BYTES ((size_t)512 << 20) /* of the rotating inputs of one operator */
#define MAX_SETS   64
#define BATCH_NS   20000000
#define BATCHES    5

static struct rk_device *device;
static struct rk_stream *stream;
static const char *filter;

static void check(struct rk_status *st)
{
    if (!st)
        return;
    fprintf(stderr, "ops_bench: %s\n", rk_status_message(st));
    exit(1);
}

static rk_tensor_t bf16_2d(int64_t rows, int64_t cols)
{
    return rk_tensor_2d(NULL, RK_DTYPE_BF16, rows, cols);
}

static rk_tensor_t stat_1d(int64_t count)
{
    return rk_tensor_1d(NULL, RK_DTYPE_F32, count);
}

static rk_tensor_t ints(int64_t count)
{
    return rk_tensor_1d(NULL, RK_DTYPE_I32, count);
}

/* The tensors of one operator. Copies of all of them, `num_sets` times, lie in one block of memory. */
struct sets {
    rk_tensor_t tensors[10];
    int num_tensors, num_sets, next;
    size_t set_bytes, offsets[10];
    char *memory;
};

static int add_tensor(struct sets *sets, rk_tensor_t t)
{
    int i = sets->num_tensors++;

    sets->tensors[i] = t;
    sets->offsets[i] = sets->set_bytes;
    sets->set_bytes += rk_round_up(rk_tensor_bytes(t), 256);
    return i;
}

#define CHUNK 262144

/* Elements that all tensors of a dtype are filled with: normal numbers, or token ids. Pinned. */
static void *source_of(rk_dtype_t dtype)
{
    static void *sources[RK_DTYPE_COUNT];
    static double values[CHUNK];

    if (sources[dtype])
        return sources[dtype];
    for (int i = 0; i < CHUNK && dtype != RK_DTYPE_I32; i++)
        values[i] = rk_rng_normal(7, 0, (uint64_t)i);
    check(rk_device_host_alloc(device, &sources[dtype], CHUNK * sizeof(double), "source"));
    for (int i = 0; i < CHUNK && dtype == RK_DTYPE_I32; i++)
        ((int32_t *)sources[dtype])[i] = (int32_t)(rk_rng_token_word(7, 0, 0, (uint32_t)i) % 1000);
    if (dtype != RK_DTYPE_I32)
        rk_store_f64(sources[dtype], dtype, values, CHUNK);
    return sources[dtype];
}

static void fill(rk_tensor_t t)
{
    int64_t count = rk_tensor_num_elements(t);
    size_t elem_bytes = rk_dtype_bytes(t.dtype);

    for (int64_t begin = 0; begin < count; begin += CHUNK)
        check(rk_stream_copy(stream, (char *)t.data + (size_t)begin * elem_bytes, source_of(t.dtype),
                             (size_t)RK_MIN(CHUNK, count - begin) * elem_bytes, RK_COPY_H2D));
}

static void sets_init(struct sets *sets)
{
    void *memory;

    sets->num_sets = (int)RK_MIN(SETS_BYTES / sets->set_bytes + 2, (size_t)MAX_SETS);
    check(rk_device_alloc(device, &memory, sets->set_bytes * (size_t)sets->num_sets, "inputs"));
    sets->memory = memory;
    for (int s = 0; s < sets->num_sets; s++) {
        for (int i = 0; i < sets->num_tensors; i++) {
            rk_tensor_t t = sets->tensors[i];

            t.data = sets->memory + (size_t)s * sets->set_bytes + sets->offsets[i];
            fill(t);
        }
    }
}

/* Points the tensors at the next set. */
static const rk_tensor_t *sets_next(struct sets *sets)
{
    int s = sets->next++ % sets->num_sets;

    for (int i = 0; i < sets->num_tensors; i++)
        sets->tensors[i].data = sets->memory + (size_t)s * sets->set_bytes + sets->offsets[i];
    return sets->tensors;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return x < y ? -1 : x > y;
}

struct op {
    const char *name;
    int64_t rows, cols;
    double bytes, flops; /* of one call; one of them is 0 */
    struct rk_status *(*run)(const struct op *op, const rk_tensor_t *t);
    bool strict;
    int64_t inner; /* of a product; 0: none */
};

static void run_many(const struct op *op, struct sets *sets, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        check(op->run(op, sets_next(sets)));
    check(rk_stream_sync(stream));
}

static void measure(const struct op *op, struct sets *sets)
{
    double seconds[BATCHES], median;
    int64_t count = 3, begin;

    if (filter && !strstr(op->name, filter))
        return;
    sets_init(sets);
    run_many(op, sets, RK_MAX(3, sets->num_sets));
    begin = rk_time_now_ns();
    run_many(op, sets, count);
    count = RK_MAX(3, count * BATCH_NS / RK_MAX(rk_time_now_ns() - begin, 1));
    for (int b = 0; b < BATCHES; b++) {
        begin = rk_time_now_ns();
        run_many(op, sets, count);
        seconds[b] = (double)(rk_time_now_ns() - begin) * 1e-9 / (double)count;
    }
    qsort(seconds, BATCHES, sizeof(*seconds), compare);
    median = seconds[BATCHES / 2];
    if (op->inner > 0)
        printf("k=%-6lld ", (long long)op->inner);
    if (op->flops > 0)
        printf("%-24s %7lld x %-7lld %9.1f us %8.1f TFLOP/s %5.1f%%", op->name, (long long)op->rows,
               (long long)op->cols, median * 1e6, op->flops / median * 1e-12,
               100 * op->flops / median / PEAK_FLOPS);
    else
        printf("%-24s %7lld x %-7lld %9.1f us", op->name, (long long)op->rows, (long long)op->cols,
               median * 1e6);
    if (op->bytes > 0)
        printf(" %8.0f GB/s %5.1f%%", op->bytes / median * 1e-9, 100 * op->bytes / median / PEAK_BYTES);
    printf("   spread %.1f%%\n", 100 * (seconds[BATCHES - 1] - seconds[0]) / median);
    rk_device_free(device, sets->memory);
}

/* --- operators. Tensors come in the order in which bench_* adds them. --- */

static struct rk_status *run_rmsnorm_fwd(const struct op *op, const rk_tensor_t *t)
{
    (void)op;
    return rk_rmsnorm_fwd(
        stream,
        &(struct rk_rmsnorm_fwd_args){
            .y = t[0], .rstd = t[1], .x = t[2], .residual = t[3], .sum = t[4], .weight = t[5], .eps = 1e-6f});
}

static struct rk_status *run_rmsnorm_bwd(const struct op *op, const rk_tensor_t *t)
{
    (void)op;
    return rk_rmsnorm_bwd(stream, &(struct rk_rmsnorm_bwd_args){.dx = t[0],
                                                                .dweight = t[1],
                                                                .dy = t[2],
                                                                .x = t[3],
                                                                .dresidual = t[4],
                                                                .weight = t[5],
                                                                .rstd = t[6]});
}

static void bench_norm(int64_t rows, int64_t cols)
{
    struct sets fwd = {0}, bwd = {0};
    double elements = (double)rows * (double)cols;

    add_tensor(&fwd, bf16_2d(rows, cols));
    add_tensor(&fwd, stat_1d(rows));
    for (int i = 0; i < 3; i++)
        add_tensor(&fwd, bf16_2d(rows, cols));
    add_tensor(&fwd, rk_tensor_1d(NULL, RK_DTYPE_BF16, cols));
    measure(&(struct op){"rmsnorm_fwd + residual", rows, cols, 8 * elements, 0, run_rmsnorm_fwd, false, 0},
            &fwd);
    add_tensor(&bwd, bf16_2d(rows, cols));
    add_tensor(&bwd, stat_1d(cols));
    for (int i = 0; i < 3; i++)
        add_tensor(&bwd, bf16_2d(rows, cols));
    add_tensor(&bwd, rk_tensor_1d(NULL, RK_DTYPE_BF16, cols));
    add_tensor(&bwd, stat_1d(rows));
    measure(&(struct op){"rmsnorm_bwd + residual", rows, cols, 8 * elements, 0, run_rmsnorm_bwd, false, 0},
            &bwd);
}

static struct rk_status *run_rope(const struct op *op, const rk_tensor_t *t)
{
    return rk_rope(stream, &(struct rk_rope_args){.x = rk_tensor_split_cols(t[0], op->cols / 128, 128),
                                                  .cos = t[1],
                                                  .sin = t[2],
                                                  .positions = t[3]});
}

static void bench_rope(int64_t rows, int64_t heads)
{
    struct sets sets = {0};

    add_tensor(&sets, bf16_2d(rows, heads * 128));
    add_tensor(&sets, rk_tensor_2d(NULL, RK_DTYPE_F32, 4096, 64));
    add_tensor(&sets, rk_tensor_2d(NULL, RK_DTYPE_F32, 4096, 64));
    add_tensor(&sets, ints(rows));
    measure(
        &(struct op){"rope", rows, heads * 128, 4.0 * (double)(rows * heads * 128), 0, run_rope, false, 0},
        &sets);
}

static struct rk_status *run_swiglu_fwd(const struct op *op, const rk_tensor_t *t)
{
    return rk_swiglu_fwd(stream,
                         &(struct rk_swiglu_fwd_args){.y = t[0],
                                                      .gate = rk_tensor_cols(t[1], 0, op->cols),
                                                      .up = rk_tensor_cols(t[1], op->cols, op->cols)});
}

static struct rk_status *run_swiglu_bwd(const struct op *op, const rk_tensor_t *t)
{
    rk_tensor_t gate = rk_tensor_cols(t[1], 0, op->cols), up = rk_tensor_cols(t[1], op->cols, op->cols);

    return rk_swiglu_bwd(
        stream, &(struct rk_swiglu_bwd_args){.dgate = gate, .dup = up, .dy = t[0], .gate = gate, .up = up});
}

static void bench_swiglu(int64_t rows, int64_t cols)
{
    struct sets sets = {0}, again = {0};
    double elements = (double)rows * (double)cols;

    add_tensor(&sets, bf16_2d(rows, cols));
    add_tensor(&sets, bf16_2d(rows, 2 * cols));
    again = sets;
    measure(&(struct op){"swiglu_fwd", rows, cols, 6 * elements, 0, run_swiglu_fwd, false, 0}, &sets);
    measure(&(struct op){"swiglu_bwd", rows, cols, 10 * elements, 0, run_swiglu_bwd, false, 0}, &again);
}

static struct rk_status *run_embed_fwd(const struct op *op, const rk_tensor_t *t)
{
    (void)op;
    return rk_embed_fwd(stream, &(struct rk_embed_fwd_args){.out = t[0], .table = t[1], .tokens = t[2]});
}

static struct rk_status *run_embed_bwd(const struct op *op, const rk_tensor_t *t)
{
    (void)op;
    return rk_embed_bwd(stream, &(struct rk_embed_bwd_args){.dtable = t[1], .dout = t[0], .tokens = t[2]});
}

static void bench_embed(int64_t rows, int64_t cols)
{
    struct sets fwd = {0}, bwd = {0};
    double elements = (double)rows * (double)cols;

    add_tensor(&fwd, bf16_2d(rows, cols));
    add_tensor(&fwd, bf16_2d(1000, cols));
    add_tensor(&fwd, ints(rows));
    measure(&(struct op){"embed_fwd", rows, cols, 4 * elements, 0, run_embed_fwd, false, 0}, &fwd);
    add_tensor(&bwd, bf16_2d(rows, cols));
    add_tensor(&bwd, rk_tensor_2d(NULL, RK_DTYPE_F32, 1000, cols));
    add_tensor(&bwd, ints(rows));
    measure(
        &(struct op){"embed_bwd", rows, cols, 2 * elements + 8e3 * (double)cols, 0, run_embed_bwd, false, 0},
        &bwd);
}

static struct rk_status *run_vocab_stats(const struct op *op, const rk_tensor_t *t)
{
    return rk_vocab_stats(
        stream,
        &(struct rk_vocab_stats_args){
            .stats = t[1], .logits = t[0], .labels = t[2], .num_valid = op->cols, .inv_temperature = 1.0f});
}

static struct rk_status *run_vocab_bwd(const struct op *op, const rk_tensor_t *t)
{
    return rk_vocab_stats_bwd(stream, &(struct rk_vocab_stats_bwd_args){.dlogits = t[0],
                                                                        .logits = t[0],
                                                                        .stats = t[1],
                                                                        .dlog_probs = t[3],
                                                                        .dentropy = t[3],
                                                                        .labels = t[2],
                                                                        .num_valid = op->cols,
                                                                        .inv_temperature = 1.0f});
}

static void bench_vocab(int64_t rows, int64_t cols)
{
    struct sets sets = {0}, again;
    double elements = (double)rows * (double)cols;

    add_tensor(&sets, bf16_2d(rows, cols));
    add_tensor(&sets, rk_tensor_2d(NULL, RK_DTYPE_F64, rows, 4));
    add_tensor(&sets, ints(rows));
    add_tensor(&sets, stat_1d(rows));
    again = sets;
    measure(&(struct op){"vocab_stats", rows, cols, 2 * elements, 0, run_vocab_stats, false, 0}, &sets);
    measure(&(struct op){"vocab_stats_bwd", rows, cols, 4 * elements, 0, run_vocab_bwd, false, 0}, &again);
}

static struct rk_sample_params *sample_params; /* device memory */

static struct rk_status *run_sample(const struct op *op, const rk_tensor_t *t)
{
    return rk_sample(stream, &(struct rk_sample_args){.tokens = t[1],
                                                      .log_probs = t[2],
                                                      .logits = t[0],
                                                      .vocab_size = op->cols,
                                                      .params = sample_params});
}

static void bench_sample(const char *name, int64_t rows, int64_t cols, int32_t top_k, float top_p)
{
    struct rk_sample_params params[256] = {{0}};
    struct sets sets = {0};
    void *memory;

    for (int64_t r = 0; r < rows; r++)
        params[r] = (struct rk_sample_params){1.0f, top_k, top_p, (int32_t)r, 1, 2};
    check(rk_device_alloc(device, &memory, sizeof(params), "parameters"));
    sample_params = memory;
    check(rk_stream_copy(stream, memory, params, sizeof(params), RK_COPY_H2D));
    add_tensor(&sets, bf16_2d(rows, cols));
    add_tensor(&sets, ints(rows));
    add_tensor(&sets, stat_1d(rows));
    measure(&(struct op){name, rows, cols, 2 * (double)rows * (double)cols, 0, run_sample, false, 0}, &sets);
    rk_device_free(device, memory);
}

static struct rk_status *run_gather(const struct op *op, const rk_tensor_t *t)
{
    (void)op;
    return rk_gather_rows(stream, &(struct rk_rows_args){.out = t[0], .x = t[1], .index = t[2]});
}

static struct rk_status *run_kv_write(const struct op *op, const rk_tensor_t *t)
{
    int64_t heads = op->cols / 128;

    return rk_kv_write(stream, &(struct rk_kv_write_args){.k_cache = t[0],
                                                          .v_cache = t[1],
                                                          .k = rk_tensor_split_cols(t[2], heads, 128),
                                                          .v = rk_tensor_split_cols(t[3], heads, 128),
                                                          .slot_mapping = t[4]});
}

static void bench_rows(int64_t rows, int64_t cols)
{
    struct sets gather = {0}, kv = {0};
    double elements = (double)rows * (double)cols;

    add_tensor(&gather, bf16_2d(rows, cols));
    add_tensor(&gather, bf16_2d(rows, cols));
    add_tensor(&gather, ints(rows));
    measure(&(struct op){"gather_rows", rows, cols, 4 * elements, 0, run_gather, false, 0}, &gather);
    for (int i = 0; i < 2; i++)
        add_tensor(&kv, rk_tensor_4d(NULL, RK_DTYPE_BF16, 64, 4, 16, 128));
    for (int i = 0; i < 2; i++)
        add_tensor(&kv, bf16_2d(rows, 4 * 128));
    add_tensor(&kv, ints(rows));
    measure(&(struct op){"kv_write", rows, 4 * 128, 8.0 * (double)rows * 512, 0, run_kv_write, false, 0},
            &kv);
}

static struct rk_status *run_axpby(const struct op *op, const rk_tensor_t *t)
{
    return rk_axpby(stream, &(struct rk_axpby_args){.y = t[0], .x = t[1], .alpha = 1, .beta = op->strict});
}

static struct rk_status *run_sum_squares(const struct op *op, const rk_tensor_t *t)
{
    (void)op;
    return rk_sum_squares(stream, &(struct rk_sum_squares_args){.out = t[1], .x = t[0]});
}

static struct rk_status *run_adamw(const struct op *op, const rk_tensor_t *t)
{
    (void)op;
    return rk_adamw(stream, &(struct rk_adamw_args){.param = t[0],
                                                    .master = t[1],
                                                    .m = t[2],
                                                    .v = t[3],
                                                    .grad = t[4],
                                                    .lr = 1e-6,
                                                    .beta1 = 0.9,
                                                    .beta2 = 0.95,
                                                    .eps = 1e-8,
                                                    .weight_decay = 0.1,
                                                    .correction1 = 0.1,
                                                    .correction2 = 0.05,
                                                    .grad_scale = 1});
}

static void bench_flat(int64_t count)
{
    struct sets cast = {0}, add = {0}, sum = {0}, adam = {0};
    double n = (double)count;

    add_tensor(&cast, rk_tensor_1d(NULL, RK_DTYPE_BF16, count));
    add_tensor(&cast, stat_1d(count));
    measure(&(struct op){"axpby f32 to bf16", count, 1, 6 * n, 0, run_axpby, false, 0}, &cast);
    add_tensor(&add, rk_tensor_1d(NULL, RK_DTYPE_BF16, count));
    add_tensor(&add, rk_tensor_1d(NULL, RK_DTYPE_BF16, count));
    measure(&(struct op){"axpby bf16 += bf16", count, 1, 6 * n, 0, run_axpby, true, 0}, &add);
    add_tensor(&sum, stat_1d(count));
    add_tensor(&sum, rk_tensor_1d(NULL, RK_DTYPE_F64, 2));
    measure(&(struct op){"sum_squares f32", count, 1, 4 * n, 0, run_sum_squares, false, 0}, &sum);
    add_tensor(&adam, rk_tensor_1d(NULL, RK_DTYPE_BF16, count));
    for (int i = 0; i < 4; i++)
        add_tensor(&adam, stat_1d(count));
    measure(&(struct op){"adamw bf16", count, 1, 30 * n, 0, run_adamw, false, 0}, &adam);
}

static struct rk_status *run_gemm(const struct op *op, const rk_tensor_t *t)
{
    return rk_gemm(stream,
                   &(struct rk_gemm_args){
                       .c = t[0], .a = t[1], .b = t[2], .trans_b = true, .strict = op->strict, .alpha = 1});
}

static struct rk_status *run_gemm_dx(const struct op *op, const rk_tensor_t *t)
{
    (void)op;
    return rk_gemm(stream, &(struct rk_gemm_args){.c = t[1], .a = t[0], .b = t[2], .alpha = 1});
}

static struct rk_status *run_gemm_dw(const struct op *op, const rk_tensor_t *t)
{
    (void)op;
    return rk_gemm(stream, &(struct rk_gemm_args){
                               .c = t[3], .a = t[0], .b = t[1], .trans_a = true, .alpha = 1, .beta = 1});
}

/* Y = X W^T and, for training sizes, the two products of its backward pass. */
static void bench_gemm(int64_t m, int64_t n, int64_t k)
{
    double flops = 2.0 * (double)m * (double)n * (double)k, bytes = 2.0 * (double)(m * n + m * k + n * k);
    struct op ops[] = {
        {"gemm fast", m, n, 0, flops, run_gemm, false, k},
        {"gemm strict", m, n, 0, flops, run_gemm, true, k},
        {"gemm dX", m, n, 0, flops, run_gemm_dx, false, k},
        {"gemm dW += (f32)", m, n, 0, flops, run_gemm_dw, false, k},
    };

    for (size_t i = 0; i < RK_ARRAY_LEN(ops); i++) {
        struct sets sets = {0};

        if (m < 1024 && i >= 2)
            break;
        if (m < 1024) {
            ops[i].flops = 0;
            ops[i].bytes = bytes;
        }
        add_tensor(&sets, bf16_2d(m, n));
        add_tensor(&sets, bf16_2d(m, k));
        add_tensor(&sets, bf16_2d(n, k));
        add_tensor(&sets, rk_tensor_2d(NULL, RK_DTYPE_F32, n, k));
        measure(&ops[i], &sets);
    }
}

static void bench_all(void)
{
    static const int64_t weights[][2] = {{1536, 1536},  {17920, 1536}, {1536, 8960},  {4608, 3584},
                                         {37888, 3584}, {3584, 18944}, {151936, 1536}};
    static const int64_t hidden[] = {1536, 3584}, intermediate[] = {8960, 18944};

    for (int i = 0; i < 2; i++) {
        bench_norm(8192, hidden[i]);
        bench_rope(8192, hidden[i] / 128);
        bench_swiglu(8192, intermediate[i]);
        bench_embed(8192, hidden[i]);
        bench_rows(8192, hidden[i]);
    }
    bench_vocab(2048, 151936);
    bench_sample("sample", 64, 151936, 0, 1.0f);
    bench_sample("sample top-k 50", 64, 151936, 50, 1.0f);
    bench_sample("sample top-p 0.95", 64, 151936, 0, 0.95f);
    bench_flat((int64_t)1 << 27);
    for (size_t i = 0; i < RK_ARRAY_LEN(weights); i++) {
        bench_gemm(64, weights[i][0], weights[i][1]);
        if (i < 6)
            bench_gemm(8192, weights[i][0], weights[i][1]);
    }
    bench_gemm(8192, 8192, 8192);
}

int main(int argc, char **argv)
{
    struct rk_device_config config = {.struct_size = sizeof(config), .name = argc > 1 ? argv[1] : "cuda:0"};

    filter = argc > 2 ? argv[2] : NULL;
    check(rk_plugin_load(config.name, NULL));
    check(rk_device_open(&device, &config));
    check(rk_stream_create(&stream, device, "bench"));
    bench_all();
    return 0; /* what is still held goes with the process */
}
