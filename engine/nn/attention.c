/* Causal self-attention with grouped queries: out = Wo attend(rope(Wq x), rope(Wk x), Wv x). The projections
 * of x may have biases, and a layer may let a query see a window of keys only.
 *
 * A rank has num_heads / tp query heads and num_kv_heads / tp key-value heads. When tp > num_kv_heads every
 * key-value head stands on tp / num_kv_heads consecutive ranks, which see different query heads: the
 * gradients of its weights are partial there (RK_PARAM_PARTIAL_GRAD).
 *
 * Packed sequences and the paged cache of the rollout engine differ in what follows the projection: attend().
 */
#include "engine/nn/nn_internal.h"

#include <math.h>

#include "base/rk_assert.h"

/* Views of a fused [T, q; k; v] as [T, heads, head_dim]. */
struct qkv_view {
    rk_tensor_t q, k, v;
    rk_tensor_t qk; /* the heads of q, then those of k */
};

static struct qkv_view split_qkv(const struct rk_attention *attention, rk_tensor_t qkv)
{
    int64_t q_cols = attention->num_heads * attention->head_dim;
    int64_t kv_cols = attention->num_kv_heads * attention->head_dim;

    RK_ASSERT(qkv.shape[1] == q_cols + 2 * kv_cols);
    return (struct qkv_view){
        .qk = rk_tensor_split_cols(rk_tensor_cols(qkv, 0, q_cols + kv_cols),
                                   attention->num_heads + attention->num_kv_heads, attention->head_dim),
        .q = rk_tensor_split_cols(rk_tensor_cols(qkv, 0, q_cols), attention->num_heads, attention->head_dim),
        .k = rk_tensor_split_cols(rk_tensor_cols(qkv, q_cols, kv_cols), attention->num_kv_heads,
                                  attention->head_dim),
        .v = rk_tensor_split_cols(rk_tensor_cols(qkv, q_cols + kv_cols, kv_cols), attention->num_kv_heads,
                                  attention->head_dim),
    };
}

static struct rk_status *check_heads(const struct rk_model_config *config,
                                     const struct rk_param_table *params)
{
    int64_t num_kv_heads = config->num_kv_heads, tp = rk_params_tp_size(params);

    RK_TRY(rk_params_check_divides(params, "num_attention_heads", config->num_heads));
    if (num_kv_heads % tp != 0 && tp % num_kv_heads != 0)
        return RK_FAIL(RK_INVALID_ARGUMENT,
                       "num_key_value_heads=%lld is neither a multiple nor a divisor of tp=%lld",
                       (long long)num_kv_heads, (long long)tp);
    return NULL;
}

/* The rows of q, k and v, which follow each other without a gap, of all weights (cols > 0) or all biases.
 * Returns the first. */
static int64_t declare_qkv(struct rk_param_table *params, const struct rk_block_site *site, int64_t cols,
                           const char *kind)
{
    const struct rk_model_config *config = site->config;
    struct rk_param_spec q = {.rows = config->num_heads * config->head_dim, .cols = cols};
    struct rk_param_spec kv = {.rows = config->num_kv_heads * config->head_dim,
                               .cols = cols,
                               .num_parts = (int32_t)RK_MIN(config->num_kv_heads, rk_params_tp_size(params)),
                               .flags = RK_PARAM_FUSED | RK_PARAM_PARTIAL_GRAD};
    long long layer = (long long)site->layer;
    int64_t first = rk_params_add(params, &q, "model.layers.%lld.%s.q_proj.%s", layer, site->module, kind);

    rk_params_add(params, &kv, "model.layers.%lld.%s.k_proj.%s", layer, site->module, kind);
    rk_params_add(params, &kv, "model.layers.%lld.%s.v_proj.%s", layer, site->module, kind);
    return first;
}

static struct rk_status *attention_declare(struct rk_block *block, struct rk_param_table *params,
                                           const struct rk_block_site *site)
{
    const struct rk_model_config *config = site->config;
    struct rk_attention *attention = &block->attention;
    int64_t tp_size = rk_params_tp_size(params);
    struct rk_param_spec o = {
        .rows = config->hidden_size, .cols = config->num_heads * config->head_dim, .split_dim = 1};

    RK_TRY(check_heads(config, params));
    attention->num_heads = config->num_heads / tp_size;
    attention->num_kv_heads = config->num_kv_heads / RK_MIN(config->num_kv_heads, tp_size);
    attention->head_dim = config->head_dim;
    if (config->sliding_window > 0 && site->layer >= config->max_window_layers)
        attention->window = config->sliding_window;
    attention->qkv.rows = (attention->num_heads + 2 * attention->num_kv_heads) * config->head_dim;
    attention->qkv.cols = config->hidden_size;
    attention->qkv.param = declare_qkv(params, site, config->hidden_size, "weight");
    attention->qkv.has_bias = config->has_qkv_bias;
    if (config->has_qkv_bias)
        attention->qkv.bias_param = declare_qkv(params, site, 0, "bias");
    attention->o.rows = config->hidden_size;
    attention->o.cols = attention->num_heads * config->head_dim;
    attention->o.param =
        rk_params_add(params, &o, "model.layers.%lld.%s.o_proj.weight", (long long)site->layer, site->module);
    return NULL;
}

static struct rk_status *rotate(const struct rk_pass *pass, rk_tensor_t x, bool inverse)
{
    return rk_rope(pass->stream, &(struct rk_rope_args){
                                     .x = x,
                                     .cos = pass->rope_cos,
                                     .sin = pass->rope_sin,
                                     .positions = pass->positions,
                                     .inverse = inverse,
                                 });
}

static struct rk_attn_varlen_args varlen_args(const struct rk_pass *pass,
                                              const struct rk_attention *attention,
                                              const struct rk_attention_saved *saved)
{
    struct qkv_view view = split_qkv(attention, saved->qkv);

    return (struct rk_attn_varlen_args){
        .out = saved->out,
        .lse = saved->lse,
        .q = view.q,
        .k = view.k,
        .v = view.v,
        .cu_seqlens = pass->cu_seqlens,
        .max_seqlen = pass->max_seqlen,
        .window = attention->window,
        .scale = (float)(1.0 / sqrt((double)attention->head_dim)),
    };
}

static struct rk_status *attend_paged(const struct rk_pass *pass, int64_t layer,
                                      const struct rk_attn_varlen_args *args)
{
    const struct rk_paged_step *paged = pass->paged;

    RK_TRY(rk_rope_kv_write(pass->stream, &(struct rk_rope_kv_write_args){
                                              .q = args->q,
                                              .cos = pass->rope_cos,
                                              .sin = pass->rope_sin,
                                              .positions = pass->positions,
                                              .kv = {.k_cache = paged->k_cache[layer],
                                                     .v_cache = paged->v_cache[layer],
                                                     .k = args->k,
                                                     .v = args->v,
                                                     .slot_mapping = paged->slot_mapping},
                                              .places_are_settled = true,
                                          }));
    return rk_attn_paged(pass->stream, &(struct rk_attn_paged_args){
                                           .out = args->out,
                                           .q = args->q,
                                           .k_cache = paged->k_cache[layer],
                                           .v_cache = paged->v_cache[layer],
                                           .block_table = paged->block_table,
                                           .cu_q = paged->cu_q,
                                           .seq_lens = paged->seq_lens,
                                           .window = args->window,
                                           .past_is_settled = true,
                                           .scale = args->scale,
                                       });
}

static struct rk_status *attend(const struct rk_pass *pass, const struct rk_block *block,
                                const struct rk_attention_saved *saved)
{
    struct rk_attn_varlen_args args = varlen_args(pass, &block->attention, saved);

    if (pass->paged)
        return attend_paged(pass, block->layer, &args);
    RK_TRY(rotate(pass, split_qkv(&block->attention, saved->qkv).qk, false));
    return rk_attn_varlen_fwd(pass->stream, &args);
}

static struct rk_status *attention_forward(struct rk_pass *pass, const struct rk_block *block, rk_tensor_t x,
                                           rk_tensor_t out, struct rk_block_saved *block_saved)
{
    const struct rk_attention *attention = &block->attention;
    struct rk_attention_saved *saved = &block_saved->attention;

    *saved = (struct rk_attention_saved){0};
    RK_TRY(rk_step_2d(pass->arena, &saved->qkv, pass->dtype, pass->num_tokens, attention->qkv.rows));
    RK_TRY(rk_step_3d(pass->arena, &saved->out, pass->dtype, pass->num_tokens, attention->num_heads,
                      attention->head_dim));
    if (pass->keeps_activations)
        RK_TRY(
            rk_step_2d(pass->arena, &saved->lse, pass->stat_dtype, attention->num_heads, pass->num_tokens));
    RK_TRY(rk_linear_fwd(pass, &attention->qkv, x, saved->qkv));
    RK_TRY(attend(pass, block, saved));
    if (!out.data)
        return NULL;
    return rk_linear_row_fwd(pass, &attention->o, rk_tensor_merge_cols(saved->out), out);
}

static struct rk_status *attention_backward(struct rk_pass *pass, const struct rk_block *block,
                                            const struct rk_block_saved *block_saved, rk_tensor_t x,
                                            rk_tensor_t dout, rk_tensor_t dx)
{
    const struct rk_attention *attention = &block->attention;
    const struct rk_attention_saved *saved = &block_saved->attention;
    rk_tensor_t dattended, dqkv;
    struct qkv_view view;

    RK_TRY(rk_step_3d(pass->arena, &dattended, pass->dtype, pass->num_tokens, attention->num_heads,
                      attention->head_dim));
    RK_TRY(rk_step_2d(pass->arena, &dqkv, pass->dtype, pass->num_tokens, attention->qkv.rows));
    view = split_qkv(attention, dqkv);
    RK_TRY(rk_linear_bwd(pass, &attention->o, rk_tensor_merge_cols(saved->out), dout,
                         rk_tensor_merge_cols(dattended)));
    RK_TRY(rk_attn_varlen_bwd(pass->stream, &(struct rk_attn_varlen_bwd_args){
                                                .fwd = varlen_args(pass, attention, saved),
                                                .dq = view.q,
                                                .dk = view.k,
                                                .dv = view.v,
                                                .dout = dattended,
                                            }));
    RK_TRY(rotate(pass, view.qk, true));
    return rk_linear_column_bwd(pass, &attention->qkv, x, dqkv, dx);
}

const struct rk_block_ops rk_block_attention = {
    .name = "attention",
    .declare = attention_declare,
    .forward = attention_forward,
    .backward = attention_backward,
};
