/* Time of the operators in a decode step: a graph with the operators of all layers of Qwen2.5 1.5B or 7B,
 * each layer with its own weights and cache. Prints the total, the time saved by leaving out each operator,
 * and for every GEMM the kernel with the shortest total.
 *
 *   layer_time [1.5b|7b [SEQUENCES [CONTEXT [LAYERS]]]]      1.5b, 64 sequences of 1088 tokens, 28 layers
 *
 * The time that an operator adds is less than its time alone, because it overlaps with adjacent operators. */
#include "bench/lab/lab_cuda.h"

#include <string.h>

#include "base/rk_alloc.h"

#define MAX_LAYERS   64
#define BLOCK_TOKENS 16
#define HEAD_DIM     128
#define NUM_RUNS     12

enum op { NORM, QKV, ROPE, ATTN, O, NORM2, GATE_UP, DOWN, HEAD, SAMPLE, NUM_OPS };

static const char *const op_names[NUM_OPS] = {"norm",   "qkv",     "rope", "attn", "o",
                                              "norm 2", "gate_up", "down", "head", "sample"};

static struct rk_cuda_device *dev;
static struct rk_cuda_stream *stream;

static struct {
    int64_t hidden, inner, heads, kv_heads, vocab, seqs, context, layers, max_blocks;
} shape = {1536, 8960, 12, 2, 151936, 64, 1088, 28, 0};

static struct {
    void *weight[NUM_OPS], *k_cache, *v_cache;
} layers[MAX_LAYERS];

static struct {
    rk_tensor_t x, normed, qkv, attended, out, gate_up, activated, logits, norm_weight, bias, cos, sin;
    rk_tensor_t positions, slots, table, cu_q, seq_lens, tokens, log_probs;
    struct rk_sample_params *params;
} state;

static bool skipped[NUM_OPS], is_strict, reads_ahead = true;

static void *take(size_t bytes)
{
    void *memory;

    must(cudaMalloc(&memory, bytes));
    return memory;
}

/* Small normal numbers in bf16, one block repeated. */
static void *take_random(int64_t count)
{
    enum { BLOCK = 1 << 22 };
    static void *block;
    size_t bytes = (size_t)count * 2, part;
    char *memory = take(bytes);

    if (!block) {
        uint16_t *values = rk_calloc(BLOCK, 2);

        fill_bf16(values, BLOCK, 0.02F);
        block = take(2 * (size_t)BLOCK);
        must(cudaMemcpy(block, values, 2 * (size_t)BLOCK, cudaMemcpyHostToDevice));
        rk_free(values);
    }
    for (size_t done = 0; done < bytes; done += part) {
        part = bytes - done < 2 * (size_t)BLOCK - 8198 ? bytes - done : 2 * (size_t)BLOCK - 8198;
        must(cudaMemcpy(memory + done, block, part, cudaMemcpyDeviceToDevice));
    }
    return memory;
}

static rk_tensor_t matrix(int64_t rows, int64_t cols)
{
    return rk_tensor_2d(take_random(rows * cols), RK_DTYPE_BF16, rows, cols);
}

static rk_tensor_t numbers(const int32_t *values, int64_t count)
{
    void *memory = take((size_t)count * 4);

    must(cudaMemcpy(memory, values, (size_t)count * 4, cudaMemcpyHostToDevice));
    return rk_tensor_1d(memory, RK_DTYPE_I32, count);
}

/* Dimensions of a GEMM's weight. */
static void size_of(enum op op, int64_t *n, int64_t *k)
{
    int64_t width = shape.heads * HEAD_DIM;

    *n = op == QKV       ? width + 2 * shape.kv_heads * HEAD_DIM
         : op == GATE_UP ? 2 * shape.inner
         : op == HEAD    ? shape.vocab
                         : shape.hidden;
    *k = op == O ? width : op == DOWN ? shape.inner : shape.hidden;
}

static void init_sequences(void)
{
    int64_t num = shape.seqs;
    int32_t *table = rk_calloc((size_t)(num * shape.max_blocks), 4), *values = rk_calloc((size_t)num + 1, 4);

    for (int64_t i = 0; i < num * shape.max_blocks; i++)
        table[i] = (int32_t)(i * 37 % (num * shape.max_blocks));
    state.table =
        rk_tensor_2d(numbers(table, num * shape.max_blocks).data, RK_DTYPE_I32, num, shape.max_blocks);
    for (int64_t i = 0; i <= num; i++)
        values[i] = (int32_t)i;
    state.cu_q = numbers(values, num + 1);
    for (int64_t i = 0; i < num; i++)
        values[i] = (int32_t)shape.context;
    state.seq_lens = numbers(values, num);
    for (int64_t i = 0; i < num; i++)
        values[i] = (int32_t)shape.context - 1;
    state.positions = numbers(values, num);
    for (int64_t i = 0; i < num; i++) {
        int64_t last = shape.context - 1;

        values[i] =
            table[i * shape.max_blocks + last / BLOCK_TOKENS] * BLOCK_TOKENS + (int32_t)(last % BLOCK_TOKENS);
    }
    state.slots = numbers(values, num);
    rk_free(table);
    rk_free(values);
}

static void init_state(void)
{
    int64_t m = shape.seqs, n, k, num_positions = shape.context + 1;
    struct rk_sample_params *params = rk_calloc((size_t)m, sizeof(*params));

    size_of(QKV, &n, &k);
    state.x = matrix(m, shape.hidden);
    state.normed = matrix(m, shape.hidden);
    state.qkv = matrix(m, n);
    state.attended = matrix(m, shape.heads * HEAD_DIM);
    state.out = matrix(m, shape.hidden);
    state.gate_up = matrix(m, 2 * shape.inner);
    state.activated = matrix(m, shape.inner);
    state.logits = matrix(m, shape.vocab);
    state.norm_weight = rk_tensor_1d(take_random(shape.hidden), RK_DTYPE_BF16, shape.hidden);
    state.bias = rk_tensor_1d(take_random(n), RK_DTYPE_BF16, n);
    state.cos =
        rk_tensor_2d(take_random(num_positions * HEAD_DIM), RK_DTYPE_F32, num_positions, HEAD_DIM / 2);
    state.sin =
        rk_tensor_2d(take_random(num_positions * HEAD_DIM), RK_DTYPE_F32, num_positions, HEAD_DIM / 2);
    state.tokens = rk_tensor_1d(take((size_t)m * 4), RK_DTYPE_I32, m);
    state.log_probs = rk_tensor_1d(take((size_t)m * 4), RK_DTYPE_F32, m);
    for (int64_t i = 0; i < m; i++)
        params[i] = (struct rk_sample_params){.temperature = 1, .top_p = 1, .stream = (uint64_t)i};
    state.params = take((size_t)m * sizeof(*params));
    must(cudaMemcpy(state.params, params, (size_t)m * sizeof(*params), cudaMemcpyHostToDevice));
    rk_free(params);
    init_sequences();
}

static void init_layers(void)
{
    static const enum op products[] = {QKV, O, GATE_UP, DOWN};
    int64_t cache = shape.seqs * shape.max_blocks * shape.kv_heads * BLOCK_TOKENS * HEAD_DIM, n, k;

    for (int64_t i = 0; i < shape.layers; i++) {
        for (size_t p = 0; p < 4; p++) {
            size_of(products[p], &n, &k);
            layers[i].weight[products[p]] = take_random(n * k);
        }
        layers[i].k_cache = take_random(cache);
        layers[i].v_cache = take_random(cache);
    }
    size_of(HEAD, &n, &k);
    layers[0].weight[HEAD] = take_random(n * k);
}

static struct rk_status *multiply(enum op op, int64_t layer)
{
    struct rk_gemm_args args = {
        .trans_b = true, .strict = is_strict, .b_is_settled = reads_ahead, .alpha = 1.0F};
    int64_t n, k;

    size_of(op, &n, &k);
    args.b = rk_tensor_2d(layers[layer].weight[op], RK_DTYPE_BF16, n, k);
    args.a = op == O ? state.attended : op == DOWN ? state.activated : state.normed;
    args.c = op == QKV ? state.qkv : op == GATE_UP ? state.gate_up : op == HEAD ? state.logits : state.out;
    if (op == QKV)
        args.bias = state.bias;
    if (op == GATE_UP)
        args.swiglu = state.activated;
    return rk_cuda_op_gemm(dev, stream, &args);
}

static struct rk_status *norm(void)
{
    return rk_cuda_op_rmsnorm_fwd(dev, stream,
                                  &(struct rk_rmsnorm_fwd_args){.y = state.normed,
                                                                .x = state.out,
                                                                .residual = state.x,
                                                                .sum = state.x,
                                                                .weight = state.norm_weight,
                                                                .weight_is_settled = reads_ahead,
                                                                .eps = 1e-6F});
}

static rk_tensor_t heads_of(int64_t first, int64_t count)
{
    return rk_tensor_split_cols(rk_tensor_cols(state.qkv, first * HEAD_DIM, count * HEAD_DIM), count,
                                HEAD_DIM);
}

static rk_tensor_t cache_of(void *data)
{
    return rk_tensor_4d(data, RK_DTYPE_BF16, shape.seqs * shape.max_blocks, shape.kv_heads, BLOCK_TOKENS,
                        HEAD_DIM);
}

static struct rk_status *rope(int64_t layer)
{
    return rk_cuda_op_rope_kv_write(
        dev, stream,
        &(struct rk_rope_kv_write_args){.q = heads_of(0, shape.heads),
                                        .cos = state.cos,
                                        .sin = state.sin,
                                        .positions = state.positions,
                                        .kv = {.k_cache = cache_of(layers[layer].k_cache),
                                               .v_cache = cache_of(layers[layer].v_cache),
                                               .k = heads_of(shape.heads, shape.kv_heads),
                                               .v = heads_of(shape.heads + shape.kv_heads, shape.kv_heads),
                                               .slot_mapping = state.slots},
                                        .places_are_settled = reads_ahead});
}

static struct rk_status *attend(int64_t layer)
{
    return rk_cuda_op_attn_paged(
        dev, stream,
        &(struct rk_attn_paged_args){.out = rk_tensor_split_cols(state.attended, shape.heads, HEAD_DIM),
                                     .q = heads_of(0, shape.heads),
                                     .k_cache = cache_of(layers[layer].k_cache),
                                     .v_cache = cache_of(layers[layer].v_cache),
                                     .block_table = state.table,
                                     .cu_q = state.cu_q,
                                     .seq_lens = state.seq_lens,
                                     .past_is_settled = reads_ahead,
                                     .scale = 0.088F});
}

static struct rk_status *sample(void)
{
    return rk_cuda_op_sample(dev, stream,
                             &(struct rk_sample_args){.tokens = state.tokens,
                                                      .log_probs = state.log_probs,
                                                      .logits = state.logits,
                                                      .vocab_size = shape.vocab,
                                                      .params = state.params});
}

static struct rk_status *run_op(enum op op, int64_t layer)
{
    switch (op) {
    case NORM:
    case NORM2:
        return norm();
    case ROPE:
        return rope(layer);
    case ATTN:
        return attend(layer);
    case SAMPLE:
        return sample();
    default:
        return multiply(op, layer);
    }
}

static void run_step(void)
{
    for (int64_t layer = 0; layer < shape.layers; layer++)
        for (int op = 0; op < HEAD; op++)
            if (!skipped[op])
                check(run_op((enum op)op, layer));
    for (int op = HEAD; op < NUM_OPS; op++)
        if (!skipped[op])
            check(run_op((enum op)op, 0));
}

/* Median microseconds of a step. */
static double time_step(void)
{
    float ms[NUM_RUNS], swap;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    cudaEvent_t events[2];

    run_step();
    must(cudaStreamSynchronize(stream->stream));
    must(cudaStreamBeginCapture(stream->stream, cudaStreamCaptureModeThreadLocal));
    run_step();
    must(cudaStreamEndCapture(stream->stream, &graph));
    must(cudaGraphInstantiate(&exec, graph, 0));
    for (int i = 0; i < 2; i++)
        must(cudaEventCreate(&events[i]));
    for (int run = 0; run < NUM_RUNS; run++) {
        must(cudaEventRecord(events[0], stream->stream));
        must(cudaGraphLaunch(exec, stream->stream));
        must(cudaEventRecord(events[1], stream->stream));
        must(cudaEventSynchronize(events[1]));
        must(cudaEventElapsedTime(&ms[run], events[0], events[1]));
        for (int i = run; i > 0 && ms[i] < ms[i - 1]; i--) {
            swap = ms[i];
            ms[i] = ms[i - 1];
            ms[i - 1] = swap;
        }
    }
    for (int i = 0; i < 2; i++)
        must(cudaEventDestroy(events[i]));
    must(cudaGraphExecDestroy(exec));
    must(cudaGraphDestroy(graph));
    return (double)ms[NUM_RUNS / 2] * 1e3;
}

static void print_parts(const char *title)
{
    double whole = time_step();

    printf("%s: %.1f us a step, %.0f tok/s; without", title, whole, (double)shape.seqs / whole * 1e6);
    for (int op = 0; op < NUM_OPS; op++) {
        skipped[op] = true;
        printf(" %s %.2f%s", op_names[op], (whole - time_step()) / (double)(op < HEAD ? shape.layers : 1),
               op < NUM_OPS - 1 ? "," : " us less each\n");
        skipped[op] = false;
    }
    fflush(stdout);
}

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "7b") == 0) {
        shape.hidden = 3584;
        shape.inner = 18944;
        shape.heads = 28;
        shape.kv_heads = 4;
        shape.vocab = 152064;
    }
    shape.seqs = argc > 2 ? number(argv[2]) : shape.seqs;
    shape.context = argc > 3 ? number(argv[3]) : shape.context;
    shape.layers = argc > 4 ? RK_MIN(number(argv[4]), (int64_t)MAX_LAYERS) : shape.layers;
    shape.max_blocks = (shape.context + 64) / BLOCK_TOKENS;
    open_device(&dev, &stream);
    init_layers();
    init_state();
    print_parts("fast");
    is_strict = true;
    print_parts("strict");
    reads_ahead = false;
    print_parts("strict, nothing read ahead");
    is_strict = false;
    print_parts("fast, nothing read ahead");
    return 0;
}
