/* Goal: operators can be composed: the gradient of log-probs and entropy with respect to every parameter of a
 * one-layer transformer, with fused projections, grouped heads, packed sequences and a vocabulary in two
 * parts, matches differences in f64. */
#include "tests/kernels/kernel_test.h"

#define HIDDEN       6
#define HEADS        4
#define KV_HEADS     2
#define HEAD_DIM     2
#define INTERMEDIATE 5
#define QKV          ((HEADS + 2 * KV_HEADS) * HEAD_DIM)
#define TOKENS       7
#define VOCAB        9
#define PART         5 /* rows of the first part of the vocabulary; the second has one of padding */

enum param { TABLE, NORM1, W_QKV, B_QKV, W_O, NORM2, W_GATE_UP, W_DOWN, NORM3, HEAD, NUM_PARAMS };

static const struct {
    const char *label;
    int64_t rows, cols; /* rows 0: a vector */
} param_shapes[NUM_PARAMS] = {
    [TABLE] = {"embedding", VOCAB, HIDDEN},
    [NORM1] = {"norm before attention", 0, HIDDEN},
    [W_QKV] = {"qkv weight", QKV, HIDDEN},
    [B_QKV] = {"qkv bias", 0, QKV},
    [W_O] = {"o weight", HIDDEN, HEADS *HEAD_DIM},
    [NORM2] = {"norm before mlp", 0, HIDDEN},
    [W_GATE_UP] = {"gate and up weight", 2 * INTERMEDIATE, HIDDEN},
    [W_DOWN] = {"down weight", HIDDEN, INTERMEDIATE},
    [NORM3] = {"last norm", 0, HIDDEN},
    [HEAD] = {"head", 2 * PART, HIDDEN},
};

/* Activations have the names of their gradients. */
struct activations {
    rk_tensor_t h0, a, qkv, attn, o, h1, m, gate_up, act, down, h2, x, logits[2];
};

struct model {
    rk_tensor_t param[NUM_PARAMS], grad[NUM_PARAMS];
    struct activations act, d;
    rk_tensor_t rstd1, rstd2, rstd3, lse, parts, stats, log_probs, entropy;
    rk_tensor_t tokens, labels, positions, cu_seqlens, cos, sin;
    rk_tensor_t dlog_probs, dentropy; /* the projection */
};

static rk_tensor_t zeros(struct kt *kt, int64_t rows, int64_t cols)
{
    return rows ? kt_zeros_2d(kt, RK_DTYPE_F64, rows, cols) : kt_zeros_1d(kt, RK_DTYPE_F64, cols);
}

static void make_activations(struct kt *kt, struct activations *act)
{
    act->h0 = zeros(kt, TOKENS, HIDDEN);
    act->a = zeros(kt, TOKENS, HIDDEN);
    act->qkv = zeros(kt, TOKENS, QKV);
    act->attn = zeros(kt, TOKENS, HEADS * HEAD_DIM);
    act->o = zeros(kt, TOKENS, HIDDEN);
    act->h1 = zeros(kt, TOKENS, HIDDEN);
    act->m = zeros(kt, TOKENS, HIDDEN);
    act->gate_up = zeros(kt, TOKENS, 2 * INTERMEDIATE);
    act->act = zeros(kt, TOKENS, INTERMEDIATE);
    act->down = zeros(kt, TOKENS, HIDDEN);
    act->h2 = zeros(kt, TOKENS, HIDDEN);
    act->x = zeros(kt, TOKENS, HIDDEN);
    for (int i = 0; i < 2; i++)
        act->logits[i] = zeros(kt, TOKENS, PART);
}

static struct model make_model(struct kt *kt)
{
    static const int32_t tokens[TOKENS] = {3, 1, 8, 3, 0, 5, 2}, labels[TOKENS] = {1, 8, 3, 4, 5, 2, 7};
    static const int32_t positions[TOKENS] = {0, 1, 2, 3, 0, 1, 2}, cu_seqlens[3] = {0, 4, 7};
    struct model model = {
        .rstd1 = zeros(kt, 0, TOKENS),
        .rstd2 = zeros(kt, 0, TOKENS),
        .rstd3 = zeros(kt, 0, TOKENS),
        .lse = zeros(kt, HEADS, TOKENS),
        .parts = kt_zeros_3d(kt, RK_DTYPE_F64, 2, TOKENS, 4),
        .stats = zeros(kt, TOKENS, 4),
        .log_probs = zeros(kt, 0, TOKENS),
        .entropy = zeros(kt, 0, TOKENS),
        .tokens = kt_ints(kt, tokens, TOKENS),
        .labels = kt_ints(kt, labels, TOKENS),
        .positions = kt_ints(kt, positions, TOKENS),
        .cu_seqlens = kt_ints(kt, cu_seqlens, 3),
        .cos = kt_randomize(kt, kt_zeros_2d(kt, RK_DTYPE_F32, 4, HEAD_DIM / 2), 1.0),
        .sin = kt_randomize(kt, kt_zeros_2d(kt, RK_DTYPE_F32, 4, HEAD_DIM / 2), 1.0),
        .dlog_probs = kt_randomize(kt, zeros(kt, 0, TOKENS), 1.0),
        .dentropy = kt_randomize(kt, zeros(kt, 0, TOKENS), 1.0),
    };

    for (int i = 0; i < NUM_PARAMS; i++) {
        model.param[i] = kt_randomize(kt, zeros(kt, param_shapes[i].rows, param_shapes[i].cols), 0.7);
        model.grad[i] = zeros(kt, param_shapes[i].rows, param_shapes[i].cols);
    }
    make_activations(kt, &model.act);
    make_activations(kt, &model.d);
    return model;
}

static rk_tensor_t heads_of(rk_tensor_t qkv, int64_t first, int64_t count)
{
    return rk_tensor_split_cols(rk_tensor_cols(qkv, first * HEAD_DIM, count * HEAD_DIM), count, HEAD_DIM);
}

/* Y = X W^T + b */
static void linear(struct kt *kt, rk_tensor_t y, rk_tensor_t x, rk_tensor_t w, rk_tensor_t bias)
{
    assert_ok(rk_gemm(kt->stream, &(struct rk_gemm_args){
                                      .c = y, .a = x, .b = w, .bias = bias, .trans_b = true, .alpha = 1.0f}));
}

/* dX = dY W (added to where `beta` is 1), dW += dY^T X */
static void linear_bwd(struct kt *kt, rk_tensor_t dx, rk_tensor_t dw, rk_tensor_t dy, rk_tensor_t x,
                       rk_tensor_t w, float beta)
{
    assert_ok(
        rk_gemm(kt->stream, &(struct rk_gemm_args){.c = dx, .a = dy, .b = w, .alpha = 1.0f, .beta = beta}));
    assert_ok(rk_gemm(
        kt->stream,
        &(struct rk_gemm_args){.c = dw, .a = dy, .b = x, .trans_a = true, .alpha = 1.0f, .beta = 1.0f}));
}

static void norm(struct kt *kt, rk_tensor_t y, rk_tensor_t rstd, rk_tensor_t x, rk_tensor_t residual,
                 rk_tensor_t sum, rk_tensor_t weight)
{
    assert_ok(rk_rmsnorm_fwd(
        kt->stream,
        &(struct rk_rmsnorm_fwd_args){
            .y = y, .rstd = rstd, .x = x, .residual = residual, .sum = sum, .weight = weight, .eps = 0.1f}));
}

static void rotate(struct kt *kt, const struct model *model, rk_tensor_t qkv, bool inverse)
{
    assert_ok(rk_rope(kt->stream, &(struct rk_rope_args){.x = heads_of(qkv, 0, HEADS + KV_HEADS),
                                                         .cos = model->cos,
                                                         .sin = model->sin,
                                                         .positions = model->positions,
                                                         .inverse = inverse}));
}

static struct rk_attn_varlen_args attention_of(const struct model *model)
{
    return (struct rk_attn_varlen_args){
        .out = rk_tensor_split_cols(model->act.attn, HEADS, HEAD_DIM),
        .lse = model->lse,
        .q = heads_of(model->act.qkv, 0, HEADS),
        .k = heads_of(model->act.qkv, HEADS, KV_HEADS),
        .v = heads_of(model->act.qkv, HEADS + KV_HEADS, KV_HEADS),
        .cu_seqlens = model->cu_seqlens,
        .max_seqlen = 4,
        .scale = 0.7f,
    };
}

static struct rk_vocab_stats_args head_part(const struct model *model, int part)
{
    return (struct rk_vocab_stats_args){
        .stats = rk_tensor_2d(rk_tensor_rows(model->parts, part, 1).data, RK_DTYPE_F64, TOKENS, 4),
        .logits = model->act.logits[part],
        .labels = model->labels,
        .vocab_begin = part * PART,
        .num_valid = part ? VOCAB - PART : PART,
        .inv_temperature = 1.25f,
    };
}

static double forward(struct kt *kt, void *user)
{
    static const rk_tensor_t none;
    struct model *model = user;
    struct activations *act = &model->act;
    const rk_tensor_t *w = model->param;
    struct rk_attn_varlen_args attention = attention_of(model);

    assert_ok(rk_embed_fwd(
        kt->stream, &(struct rk_embed_fwd_args){.out = act->h0, .table = w[TABLE], .tokens = model->tokens}));
    norm(kt, act->a, model->rstd1, act->h0, none, none, w[NORM1]);
    linear(kt, act->qkv, act->a, w[W_QKV], w[B_QKV]);
    rotate(kt, model, act->qkv, false);
    assert_ok(rk_attn_varlen_fwd(kt->stream, &attention));
    linear(kt, act->o, act->attn, w[W_O], none);
    norm(kt, act->m, model->rstd2, act->o, act->h0, act->h1, w[NORM2]);
    linear(kt, act->gate_up, act->m, w[W_GATE_UP], none);
    assert_ok(rk_swiglu_fwd(kt->stream, &(struct rk_swiglu_fwd_args){
                                            .y = act->act,
                                            .gate = rk_tensor_cols(act->gate_up, 0, INTERMEDIATE),
                                            .up = rk_tensor_cols(act->gate_up, INTERMEDIATE, INTERMEDIATE)}));
    linear(kt, act->down, act->act, w[W_DOWN], none);
    norm(kt, act->x, model->rstd3, act->down, act->h1, act->h2, w[NORM3]);
    for (int i = 0; i < 2; i++) {
        struct rk_vocab_stats_args part = head_part(model, i);

        linear(kt, act->logits[i], act->x, rk_tensor_rows(w[HEAD], i * PART, PART), none);
        assert_ok(rk_vocab_stats(kt->stream, &part));
    }
    assert_ok(
        rk_vocab_stats_merge(kt->stream, &(struct rk_vocab_stats_merge_args){.stats = model->stats,
                                                                             .parts = model->parts,
                                                                             .log_probs = model->log_probs,
                                                                             .entropy = model->entropy}));
    return kt_project(kt, model->log_probs, model->dlog_probs) +
           kt_project(kt, model->entropy, model->dentropy);
}

static void norm_bwd(struct kt *kt, rk_tensor_t dx, rk_tensor_t dweight, rk_tensor_t dy, rk_tensor_t x,
                     rk_tensor_t dresidual, const rk_tensor_t weight_and_rstd[2])
{
    assert_ok(rk_rmsnorm_bwd(kt->stream, &(struct rk_rmsnorm_bwd_args){.dx = dx,
                                                                       .dweight = dweight,
                                                                       .dy = dy,
                                                                       .x = x,
                                                                       .dresidual = dresidual,
                                                                       .weight = weight_and_rstd[0],
                                                                       .rstd = weight_and_rstd[1]}));
}

static void backward_head(struct kt *kt, struct model *model)
{
    struct activations *act = &model->act, *d = &model->d;

    for (int i = 0; i < 2; i++) {
        struct rk_vocab_stats_args part = head_part(model, i);

        assert_ok(rk_vocab_stats_bwd(kt->stream, &(struct rk_vocab_stats_bwd_args){
                                                     .dlogits = d->logits[i],
                                                     .logits = act->logits[i],
                                                     .stats = model->stats,
                                                     .dlog_probs = model->dlog_probs,
                                                     .dentropy = model->dentropy,
                                                     .labels = part.labels,
                                                     .vocab_begin = part.vocab_begin,
                                                     .num_valid = part.num_valid,
                                                     .inv_temperature = part.inv_temperature,
                                                 }));
        linear_bwd(kt, d->x, rk_tensor_rows(model->grad[HEAD], i * PART, PART), d->logits[i], act->x,
                   rk_tensor_rows(model->param[HEAD], i * PART, PART), i ? 1.0f : 0.0f);
    }
}

static void backward(struct kt *kt, struct model *model)
{
    static const rk_tensor_t none;
    struct activations *act = &model->act, *d = &model->d;
    rk_tensor_t *w = model->param, *g = model->grad, ones = zeros(kt, 1, TOKENS);
    double one[TOKENS] = {1, 1, 1, 1, 1, 1, 1};

    backward_head(kt, model);
    norm_bwd(kt, d->h2, g[NORM3], d->x, act->h2, none, (rk_tensor_t[]){w[NORM3], model->rstd3});
    linear_bwd(kt, d->act, g[W_DOWN], d->h2, act->act, w[W_DOWN], 0.0f);
    assert_ok(rk_swiglu_bwd(kt->stream, &(struct rk_swiglu_bwd_args){
                                            .dgate = rk_tensor_cols(d->gate_up, 0, INTERMEDIATE),
                                            .dup = rk_tensor_cols(d->gate_up, INTERMEDIATE, INTERMEDIATE),
                                            .dy = d->act,
                                            .gate = rk_tensor_cols(act->gate_up, 0, INTERMEDIATE),
                                            .up = rk_tensor_cols(act->gate_up, INTERMEDIATE, INTERMEDIATE)}));
    linear_bwd(kt, d->m, g[W_GATE_UP], d->gate_up, act->m, w[W_GATE_UP], 0.0f);
    norm_bwd(kt, d->h1, g[NORM2], d->m, act->h1, d->h2, (rk_tensor_t[]){w[NORM2], model->rstd2});
    linear_bwd(kt, d->attn, g[W_O], d->h1, act->attn, w[W_O], 0.0f);
    assert_ok(rk_attn_varlen_bwd(kt->stream, &(struct rk_attn_varlen_bwd_args){
                                                 .fwd = attention_of(model),
                                                 .dq = heads_of(d->qkv, 0, HEADS),
                                                 .dk = heads_of(d->qkv, HEADS, KV_HEADS),
                                                 .dv = heads_of(d->qkv, HEADS + KV_HEADS, KV_HEADS),
                                                 .dout = rk_tensor_split_cols(d->attn, HEADS, HEAD_DIM)}));
    rotate(kt, model, d->qkv, true);
    linear_bwd(kt, d->a, g[W_QKV], d->qkv, act->a, w[W_QKV], 0.0f);
    kt_write(kt, ones, one); /* the bias gradient is the column sum of dY */
    assert_ok(rk_gemm(
        kt->stream,
        &(struct rk_gemm_args){
            .c = rk_tensor_2d(g[B_QKV].data, RK_DTYPE_F64, 1, QKV), .a = ones, .b = d->qkv, .alpha = 1.0f}));
    norm_bwd(kt, d->h0, g[NORM1], d->a, act->h0, d->h1, (rk_tensor_t[]){w[NORM1], model->rstd1});
    assert_ok(rk_embed_bwd(
        kt->stream, &(struct rk_embed_bwd_args){.dtable = g[TABLE], .dout = d->h0, .tokens = model->tokens}));
}

static void test_one_layer_model_every_parameter_gradient_matches(void **state)
{
    struct kt *kt = *state;
    struct model model = make_model(kt);

    forward(kt, &model);
    backward(kt, &model);
    for (int i = 0; i < NUM_PARAMS; i++)
        kt_expect_gradient(kt, param_shapes[i].label, model.param[i], model.grad[i], forward, &model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        kt_test(test_one_layer_model_every_parameter_gradient_matches),
    };

    return cmocka_run_group_tests_name("kernels/grad_model", tests, NULL, NULL);
}
