/* Operators over rows of the residual stream and of the MLP. dims: tokens, columns (and others where noted).
 * Costs count every tensor once; an operator that re-reads data must get it from a cache. */
#include "bench/op_bench.h"

#include "kernels/rk_kernels.h"

#define ROWS_AND_COLS    \
    {                    \
        "tokens", "cols" \
    }
#define MAX_POSITIONS 4096

static double elements(const int64_t *dims)
{
    return (double)dims[0] * (double)dims[1];
}

static void add_many(struct bench_tensors *tensors, const int64_t *dims, int count)
{
    for (int i = 0; i < count; i++)
        bench_add(tensors, bench_bf16(dims[0], dims[1]));
}

/* --- RMSNorm with residual --- */

enum { Y, RSTD, X, RESIDUAL, SUM, WEIGHT };

static void declare_norm_fwd(struct bench_tensors *tensors, const int64_t *dims)
{
    add_many(tensors, dims, 1);
    bench_add(tensors, bench_f32(dims[0]));
    add_many(tensors, dims, 3);
    bench_add(tensors, rk_tensor_1d(NULL, RK_DTYPE_BF16, dims[1]));
}

static struct rk_status *run_norm_fwd(const struct bench_op_call *call)
{
    return rk_rmsnorm_fwd(call->stream, &(struct rk_rmsnorm_fwd_args){.y = call->t[Y],
                                                                      .rstd = call->t[RSTD],
                                                                      .x = call->t[X],
                                                                      .residual = call->t[RESIDUAL],
                                                                      .sum = call->t[SUM],
                                                                      .weight = call->t[WEIGHT],
                                                                      .eps = 1e-6f});
}

/* Reads x and the residual, writes their sum and y; backward reads dy, x and dresidual, writes dx. */
static struct bench_cost cost_norm(const int64_t *dims)
{
    return (struct bench_cost){.bytes = 8 * elements(dims), .items = (double)dims[0]};
}

const struct bench_op bench_op_rmsnorm_fwd = {
    .dim_names = ROWS_AND_COLS, .declare = declare_norm_fwd, .run = run_norm_fwd, .cost = cost_norm};

enum { DX, DWEIGHT, DY, BWD_X, DRESIDUAL, BWD_WEIGHT, BWD_RSTD };

static void declare_norm_bwd(struct bench_tensors *tensors, const int64_t *dims)
{
    add_many(tensors, dims, 1);
    bench_add(tensors, bench_f32(dims[1]));
    add_many(tensors, dims, 3);
    bench_add(tensors, rk_tensor_1d(NULL, RK_DTYPE_BF16, dims[1]));
    bench_add(tensors, bench_f32(dims[0]));
}

static struct rk_status *run_norm_bwd(const struct bench_op_call *call)
{
    return rk_rmsnorm_bwd(call->stream, &(struct rk_rmsnorm_bwd_args){.dx = call->t[DX],
                                                                      .dweight = call->t[DWEIGHT],
                                                                      .dy = call->t[DY],
                                                                      .x = call->t[BWD_X],
                                                                      .dresidual = call->t[DRESIDUAL],
                                                                      .weight = call->t[BWD_WEIGHT],
                                                                      .rstd = call->t[BWD_RSTD]});
}

const struct bench_op bench_op_rmsnorm_bwd = {
    .dim_names = ROWS_AND_COLS, .declare = declare_norm_bwd, .run = run_norm_bwd, .cost = cost_norm};

/* --- RMSNorm of every head: dims tokens, heads, head_dim --- */

static rk_tensor_t bf16_heads(const int64_t *dims)
{
    return rk_tensor_3d(NULL, RK_DTYPE_BF16, dims[0], dims[1], dims[2]);
}

static void declare_head_norm(struct bench_tensors *tensors, const int64_t *dims)
{
    for (int i = 0; i < 3; i++) /* y or dx, x, dy */
        bench_add(tensors, bf16_heads(dims));
    bench_add(tensors, rk_tensor_2d(NULL, RK_DTYPE_F32, dims[0], dims[1]));
    bench_add(tensors, rk_tensor_1d(NULL, RK_DTYPE_BF16, dims[2]));
    bench_add(tensors, bench_f32(dims[2]));
}

static struct rk_status *run_head_norm_fwd(const struct bench_op_call *call)
{
    return rk_head_norm_fwd(
        call->stream,
        &(struct rk_head_norm_fwd_args){
            .y = call->t[0], .rstd = call->t[3], .x = call->t[1], .weight = call->t[4], .eps = 1e-6f});
}

static struct rk_status *run_head_norm_bwd(const struct bench_op_call *call)
{
    return rk_head_norm_bwd(call->stream, &(struct rk_head_norm_bwd_args){.dx = call->t[0],
                                                                          .dweight = call->t[5],
                                                                          .dy = call->t[2],
                                                                          .x = call->t[1],
                                                                          .weight = call->t[4],
                                                                          .rstd = call->t[3]});
}

/* Reads x, writes y; backward reads dy and x, writes dx. */
static struct bench_cost cost_head_norm_fwd(const int64_t *dims)
{
    return (struct bench_cost){.bytes = 4 * elements(dims) * (double)dims[2], .items = (double)dims[0]};
}

static struct bench_cost cost_head_norm_bwd(const int64_t *dims)
{
    return (struct bench_cost){.bytes = 6 * elements(dims) * (double)dims[2], .items = (double)dims[0]};
}

#define HEAD_DIMS                     \
    {                                 \
        "tokens", "heads", "head_dim" \
    }

const struct bench_op bench_op_head_norm_fwd = {.dim_names = HEAD_DIMS,
                                                .declare = declare_head_norm,
                                                .run = run_head_norm_fwd,
                                                .cost = cost_head_norm_fwd};

const struct bench_op bench_op_head_norm_bwd = {.dim_names = HEAD_DIMS,
                                                .declare = declare_head_norm,
                                                .run = run_head_norm_bwd,
                                                .cost = cost_head_norm_bwd};

/* --- gradient of a bias --- */

static void declare_bias_bwd(struct bench_tensors *tensors, const int64_t *dims)
{
    bench_add(tensors, bench_f32(dims[1]));
    add_many(tensors, dims, 1);
}

static struct rk_status *run_bias_bwd(const struct bench_op_call *call)
{
    return rk_bias_bwd(call->stream, &(struct rk_bias_bwd_args){.dbias = call->t[0], .dy = call->t[1]});
}

static struct bench_cost cost_bias_bwd(const int64_t *dims)
{
    return (struct bench_cost){.bytes = 2 * elements(dims), .items = (double)dims[0]};
}

const struct bench_op bench_op_bias_bwd = {
    .dim_names = ROWS_AND_COLS, .declare = declare_bias_bwd, .run = run_bias_bwd, .cost = cost_bias_bwd};

/* --- narrow projection: dims tokens, columns, labels --- */

static void declare_project(struct bench_tensors *tensors, const int64_t *dims)
{
    add_many(tensors, dims, 2); /* dx, x */
    bench_add(tensors, rk_tensor_2d(NULL, RK_DTYPE_BF16, dims[2], dims[1]));
    bench_add(tensors, rk_tensor_2d(NULL, RK_DTYPE_F32, dims[0], dims[2]));
    bench_add(tensors, rk_tensor_2d(NULL, RK_DTYPE_F32, dims[2], dims[1]));
}

static struct rk_status *run_project_fwd(const struct bench_op_call *call)
{
    return rk_project_fwd(call->stream, &(struct rk_project_fwd_args){
                                            .scores = call->t[3], .x = call->t[1], .weight = call->t[2]});
}

static struct rk_status *run_project_bwd(const struct bench_op_call *call)
{
    return rk_project_bwd(call->stream, &(struct rk_project_bwd_args){.dx = call->t[0],
                                                                      .dweight = call->t[4],
                                                                      .dscores = call->t[3],
                                                                      .x = call->t[1],
                                                                      .weight = call->t[2]});
}

/* Reads x, writes dx. */
static struct bench_cost cost_project_bwd(const int64_t *dims)
{
    return (struct bench_cost){.bytes = 4 * elements(dims), .items = (double)dims[0]};
}

#define PROJECT_DIMS               \
    {                              \
        "tokens", "cols", "labels" \
    }

const struct bench_op bench_op_project_fwd = {
    .dim_names = PROJECT_DIMS, .declare = declare_project, .run = run_project_fwd, .cost = cost_bias_bwd};
const struct bench_op bench_op_project_bwd = {
    .dim_names = PROJECT_DIMS, .declare = declare_project, .run = run_project_bwd, .cost = cost_project_bwd};

/* --- RoPE: dims tokens, heads, head_dim --- */

static void declare_rope(struct bench_tensors *tensors, const int64_t *dims)
{
    bench_add(tensors, bf16_heads(dims));
    bench_add(tensors, rk_tensor_2d(NULL, RK_DTYPE_F32, MAX_POSITIONS, dims[2] / 2));
    bench_add(tensors, rk_tensor_2d(NULL, RK_DTYPE_F32, MAX_POSITIONS, dims[2] / 2));
    bench_add_ints(tensors, bench_i32(dims[0]),
                   (struct bench_fill){.kind = BENCH_RAMP, .step = 1, .modulus = MAX_POSITIONS / 2});
}

static struct rk_status *run_rope(const struct bench_op_call *call)
{
    return rk_rope(call->stream,
                   &(struct rk_rope_args){
                       .x = call->t[0], .cos = call->t[1], .sin = call->t[2], .positions = call->t[3]});
}

static struct bench_cost cost_rope(const int64_t *dims)
{
    return (struct bench_cost){.bytes = 4 * elements(dims) * (double)dims[2], .items = (double)dims[0]};
}

const struct bench_op bench_op_rope = {
    .dim_names = HEAD_DIMS, .declare = declare_rope, .run = run_rope, .cost = cost_rope};

/* --- SwiGLU over a fused [gate; up] --- */

static void declare_swiglu(struct bench_tensors *tensors, const int64_t *dims)
{
    bench_add(tensors, bench_bf16(dims[0], dims[1]));
    bench_add(tensors, bench_bf16(dims[0], 2 * dims[1]));
}

static struct rk_status *run_swiglu_fwd(const struct bench_op_call *call)
{
    int64_t cols = call->dims[1];

    return rk_swiglu_fwd(call->stream,
                         &(struct rk_swiglu_fwd_args){.y = call->t[0],
                                                      .gate = rk_tensor_cols(call->t[1], 0, cols),
                                                      .up = rk_tensor_cols(call->t[1], cols, cols)});
}

static struct rk_status *run_swiglu_bwd(const struct bench_op_call *call)
{
    rk_tensor_t gate = rk_tensor_cols(call->t[1], 0, call->dims[1]);
    rk_tensor_t up = rk_tensor_cols(call->t[1], call->dims[1], call->dims[1]);

    return rk_swiglu_bwd(
        call->stream,
        &(struct rk_swiglu_bwd_args){.dgate = gate, .dup = up, .dy = call->t[0], .gate = gate, .up = up});
}

static struct bench_cost cost_swiglu_fwd(const int64_t *dims)
{
    return (struct bench_cost){.bytes = 6 * elements(dims), .items = (double)dims[0]};
}

static struct bench_cost cost_swiglu_bwd(const int64_t *dims)
{
    return (struct bench_cost){.bytes = 10 * elements(dims), .items = (double)dims[0]};
}

const struct bench_op bench_op_swiglu_fwd = {
    .dim_names = ROWS_AND_COLS, .declare = declare_swiglu, .run = run_swiglu_fwd, .cost = cost_swiglu_fwd};
const struct bench_op bench_op_swiglu_bwd = {
    .dim_names = ROWS_AND_COLS, .declare = declare_swiglu, .run = run_swiglu_bwd, .cost = cost_swiglu_bwd};

/* --- embedding: dims tokens, columns, rows of the table; random ids, so nearly all rows differ ---
 */

static void declare_embed(struct bench_tensors *tensors, const int64_t *dims, rk_dtype_t table)
{
    bench_add(tensors, bench_bf16(dims[0], dims[1]));
    bench_add(tensors, rk_tensor_2d(NULL, table, dims[2], dims[1]));
    bench_add_ints(tensors, bench_i32(dims[0]), (struct bench_fill){.kind = BENCH_BELOW, .modulus = dims[2]});
}

static void declare_embed_fwd(struct bench_tensors *tensors, const int64_t *dims)
{
    declare_embed(tensors, dims, RK_DTYPE_BF16);
}

static void declare_embed_bwd(struct bench_tensors *tensors, const int64_t *dims)
{
    declare_embed(tensors, dims, RK_DTYPE_F32);
}

static struct rk_status *run_embed_fwd(const struct bench_op_call *call)
{
    return rk_embed_fwd(call->stream, &(struct rk_embed_fwd_args){
                                          .out = call->t[0], .table = call->t[1], .tokens = call->t[2]});
}

static struct rk_status *run_embed_bwd(const struct bench_op_call *call)
{
    return rk_embed_bwd(call->stream, &(struct rk_embed_bwd_args){
                                          .dtable = call->t[1], .dout = call->t[0], .tokens = call->t[2]});
}

static struct bench_cost cost_embed_fwd(const int64_t *dims)
{
    return (struct bench_cost){.bytes = 4 * elements(dims), .items = (double)dims[0]};
}

static struct bench_cost cost_embed_bwd(const int64_t *dims)
{
    return (struct bench_cost){.bytes = 10 * elements(dims), .items = (double)dims[0]};
}

const struct bench_op bench_op_embed_fwd = {.dim_names = {"tokens", "cols", "vocab"},
                                            .declare = declare_embed_fwd,
                                            .run = run_embed_fwd,
                                            .cost = cost_embed_fwd};
const struct bench_op bench_op_embed_bwd = {.dim_names = {"tokens", "cols", "vocab"},
                                            .declare = declare_embed_bwd,
                                            .run = run_embed_bwd,
                                            .cost = cost_embed_bwd};

/* --- row moves --- */

static void declare_gather(struct bench_tensors *tensors, const int64_t *dims)
{
    add_many(tensors, dims, 2);
    bench_add_ints(tensors, bench_i32(dims[0]), (struct bench_fill){.kind = BENCH_BELOW, .modulus = dims[0]});
}

static struct rk_status *run_gather(const struct bench_op_call *call)
{
    return rk_gather_rows(call->stream,
                          &(struct rk_rows_args){.out = call->t[0], .x = call->t[1], .index = call->t[2]});
}

const struct bench_op bench_op_gather_rows = {
    .dim_names = ROWS_AND_COLS, .declare = declare_gather, .run = run_gather, .cost = cost_embed_fwd};
