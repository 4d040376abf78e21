/* Causal self-attention with grouped queries: out = Wo attend(rope(Wq x), rope(Wk x), Wv x). The projections
 * of x may have biases, every head of q and k may be normalised before RoPE, and a layer may limit queries to
 * a sliding window of keys.
 *
 * A rank has num_heads / tp query heads and num_kv_heads / tp key-value heads. When tp > num_kv_heads every
 * key-value head is on tp / num_kv_heads consecutive ranks, which have different query heads: the gradients
 * of its weights are partial there (RK_PARAM_PARTIAL_GRAD).
 *
 * Packed sequences and the paged cache of the rollout engine differ after the projections: see attend().
 * Under context parallelism a rank has some tokens of every sequence; the keys and values of the other ranks
 * are gathered in the forward and again in the backward pass, so that only those of the rank's own tokens are
 * saved. */
#include "engine/nn/nn.h"

#include "base/rk_assert.h"

/* Dimensions of this rank. */
struct attention {
    struct rk_weight qkv; /* [q; k; v] */
    struct rk_weight o;
    bool has_qk_norm;                /* every head of q and k is normalised before RoPE */
    struct rk_weight q_norm, k_norm; /* [head_dim] */
    int64_t num_heads, num_kv_heads, head_dim;
    int32_t window; /* keys that a query attends to, itself included; 0: all before it */
    float scale;    /* of the scores */
};

struct saved {
    rk_tensor_t qkv; /* [T, (num_heads + 2 num_kv_heads) * head_dim] */
    /* [T, (num_heads + num_kv_heads) * head_dim]: queries and keys after RoPE, the input of attention.
     * Columns of qkv, or separate memory if the backward pass needs the input of their norm. */
    rk_tensor_t qk;
    rk_tensor_t q_rstd, k_rstd; /* stat [T, heads], of these norms; none without norms */
    rk_tensor_t out;            /* [T, num_heads, head_dim] */
    rk_tensor_t lse;            /* [num_heads, T] */
};

/* Indices of the declared tensors. */
enum { CACHE_K, CACHE_V, NUM_CACHES };
enum { QKV, QK, Q_RSTD, K_RSTD, OUT, LSE, DOUT, DQKV, NUM_ACTIVATIONS };
_Static_assert(NUM_CACHES <= RK_BLOCK_MAX_CACHES && NUM_ACTIVATIONS <= RK_BLOCK_MAX_ACTIVATIONS,
               "a declaration has room for them");

/* Views of shape [T, heads, head_dim]. */
struct qkv_view {
    rk_tensor_t q, k, v;
    rk_tensor_t qk; /* the heads of q, followed by the heads of k */
};

static rk_tensor_t heads_of(const struct attention *attention, rk_tensor_t fused, int64_t first,
                            int64_t count)
{
    int64_t head_dim = attention->head_dim;

    return rk_tensor_split_cols(rk_tensor_cols(fused, first * head_dim, count * head_dim), count, head_dim);
}

/* Views of a fused [T, q; k], and of the values of a fused [T, q; k; v]. */
static struct qkv_view split_qkv(const struct attention *attention, rk_tensor_t qk, rk_tensor_t qkv)
{
    int64_t num_heads = attention->num_heads, num_kv_heads = attention->num_kv_heads;

    RK_ASSERT(qkv.shape[1] == (num_heads + 2 * num_kv_heads) * attention->head_dim);
    return (struct qkv_view){
        .q = heads_of(attention, qk, 0, num_heads),
        .k = heads_of(attention, qk, num_heads, num_kv_heads),
        .v = heads_of(attention, qkv, num_heads + num_kv_heads, num_kv_heads),
        .qk = heads_of(attention, qk, 0, num_heads + num_kv_heads),
    };
}

static rk_tensor_t qk_columns(const struct attention *attention, rk_tensor_t qkv)
{
    return rk_tensor_cols(qkv, 0, (attention->num_heads + attention->num_kv_heads) * attention->head_dim);
}

static struct rk_status *check_heads(const struct rk_layer_values *values,
                                     const struct rk_param_table *params)
{
    int64_t num_kv_heads = values->num_kv_heads, tp = rk_params_tp_size(params);

    RK_TRY(rk_params_check_divides(params, RK_AXIS_TP, "num_attention_heads", values->num_heads));
    if (num_kv_heads % tp != 0 && tp % num_kv_heads != 0)
        return RK_FAIL(RK_INVALID_ARGUMENT,
                       "num_key_value_heads=%lld is neither a multiple nor a divisor of tp=%lld",
                       (long long)num_kv_heads, (long long)tp);
    return NULL;
}

/* The adjacent rows of q, k and v, of all weights (cols > 0) or all biases. Returns the first. */
static int64_t declare_qkv(struct rk_param_table *params, const struct rk_block_site *site, int64_t cols,
                           const char *kind)
{
    const struct rk_layer_values *values = site->values;
    struct rk_param_spec q = {.rows = values->num_heads * values->head_dim, .cols = cols};
    struct rk_param_spec kv = {.rows = values->num_kv_heads * values->head_dim,
                               .cols = cols,
                               .num_parts = (int32_t)RK_MIN(values->num_kv_heads, rk_params_tp_size(params)),
                               .flags = RK_PARAM_FUSED | RK_PARAM_PARTIAL_GRAD};
    long long layer = (long long)site->layer;
    int64_t first = rk_params_add(params, &q, "model.layers.%lld.%s.q_proj.%s", layer, site->module, kind);

    rk_params_add(params, &kv, "model.layers.%lld.%s.k_proj.%s", layer, site->module, kind);
    rk_params_add(params, &kv, "model.layers.%lld.%s.v_proj.%s", layer, site->module, kind);
    return first;
}

/* Every rank has the whole norms and applies them to its own heads: their gradients are partial. */
static void declare_qk_norm(struct attention *attention, struct rk_param_table *params,
                            const struct rk_block_site *site)
{
    struct rk_param_spec spec = {
        .rows = attention->head_dim, .split_dim = -1, .flags = RK_PARAM_PARTIAL_GRAD};
    long long layer = (long long)site->layer;

    attention->has_qk_norm = true;
    attention->q_norm.rows = attention->k_norm.rows = attention->head_dim;
    attention->q_norm.param =
        rk_params_add(params, &spec, "model.layers.%lld.%s.q_norm.weight", layer, site->module);
    attention->k_norm.param =
        rk_params_add(params, &spec, "model.layers.%lld.%s.k_norm.weight", layer, site->module);
}

static struct rk_activation_decl activation(const char *name, rk_activation_life_t life, int64_t columns)
{
    return (struct rk_activation_decl){.name = name, .life = life, .columns = columns};
}

static struct rk_activation_decl statistic(const char *name, int64_t columns)
{
    return (struct rk_activation_decl){
        .name = name, .life = RK_ACTIVATION_KEPT, .is_stat = true, .columns = columns};
}

static void declare_shapes(struct rk_block *block, const struct rk_layer_values *values)
{
    const struct attention *attention = block->own;
    int64_t heads = attention->num_heads, kv_heads = attention->num_kv_heads, head_dim = attention->head_dim;
    int64_t normed = attention->has_qk_norm ? 1 : 0;
    struct rk_block_decl *decl = &block->decl;

    decl->rope = values->rope;
    decl->num_caches = NUM_CACHES;
    decl->caches[CACHE_K] = (struct rk_cache_decl){"k", kv_heads, head_dim};
    decl->caches[CACHE_V] = (struct rk_cache_decl){"v", kv_heads, head_dim};
    decl->num_activations = NUM_ACTIVATIONS;
    decl->activations[QKV] = activation("qkv", RK_ACTIVATION_SAVED, attention->qkv.rows);
    decl->activations[QK] = activation("qk", RK_ACTIVATION_KEPT, normed * (heads + kv_heads) * head_dim);
    decl->activations[Q_RSTD] = statistic("q_rstd", normed * heads);
    decl->activations[K_RSTD] = statistic("k_rstd", normed * kv_heads);
    decl->activations[OUT] = activation("out", RK_ACTIVATION_SAVED, heads * head_dim);
    decl->activations[LSE] = statistic("lse", heads);
    decl->activations[DOUT] = activation("dout", RK_ACTIVATION_BACKWARD, heads * head_dim);
    decl->activations[DQKV] = activation("dqkv", RK_ACTIVATION_BACKWARD, attention->qkv.rows);
}

static struct rk_status *attention_declare(struct rk_block *block, struct rk_param_table *params,
                                           const struct rk_block_site *site)
{
    const struct rk_layer_values *values = site->values;
    struct attention *attention = block->own;
    int64_t tp_size = rk_params_tp_size(params);
    struct rk_param_spec o = {
        .rows = site->hidden_size, .cols = values->num_heads * values->head_dim, .split_dim = 1};

    RK_TRY(check_heads(values, params));
    attention->num_heads = values->num_heads / tp_size;
    attention->num_kv_heads = values->num_kv_heads / RK_MIN(values->num_kv_heads, tp_size);
    attention->head_dim = values->head_dim;
    attention->window = values->window;
    attention->scale = (float)values->softmax_scale;
    attention->qkv.rows = (attention->num_heads + 2 * attention->num_kv_heads) * values->head_dim;
    attention->qkv.cols = site->hidden_size;
    attention->qkv.param = declare_qkv(params, site, site->hidden_size, "weight");
    attention->qkv.has_bias = values->has_qkv_bias;
    if (values->has_qkv_bias)
        attention->qkv.bias_param = declare_qkv(params, site, 0, "bias");
    if (values->has_qk_norm)
        declare_qk_norm(attention, params, site);
    attention->o.rows = site->hidden_size;
    attention->o.cols = attention->num_heads * values->head_dim;
    attention->o.param =
        rk_params_add(params, &o, "model.layers.%lld.%s.o_proj.weight", (long long)site->layer, site->module);
    declare_shapes(block, values);
    return NULL;
}

static struct rk_status *rotate(const struct rk_pass *pass, const struct rk_block *block, rk_tensor_t x,
                                bool inverse)
{
    const struct rk_rope_tables *rope = rk_block_rope(pass, block);

    return rk_rope(pass->stream, &(struct rk_rope_args){
                                     .x = x,
                                     .cos = rope->cos,
                                     .sin = rope->sin,
                                     .positions = pass->positions,
                                     .inverse = inverse,
                                 });
}

static struct rk_attn_varlen_args varlen_args(const struct rk_pass *pass, const struct attention *attention,
                                              const struct saved *saved)
{
    struct qkv_view view = split_qkv(attention, saved->qk, saved->qkv);

    return (struct rk_attn_varlen_args){
        .out = saved->out,
        .lse = saved->lse,
        .q = view.q,
        .k = view.k,
        .v = view.v,
        .cu_seqlens = pass->cu_seqlens,
        .max_seqlen = pass->max_seqlen,
        .window = attention->window,
        .scale = attention->scale,
    };
}

/* Allocates *kv for the keys and values, or their gradients, of the whole micro-batch, side by side; sets the
 * views of both, shaped like *k and *v. */
static struct rk_status *alloc_kv(const struct rk_pass *pass, rk_tensor_t *kv, rk_tensor_t *k, rk_tensor_t *v)
{
    int64_t k_columns = k->shape[1] * k->shape[2], v_columns = v->shape[1] * v->shape[2];

    RK_TRY(rk_step_2d(pass->arena, kv, pass->dtype, pass->context->num_keys, k_columns + v_columns));
    *k = rk_tensor_split_cols(rk_tensor_cols(*kv, 0, k_columns), k->shape[1], k->shape[2]);
    *v = rk_tensor_split_cols(rk_tensor_cols(*kv, k_columns, v_columns), v->shape[1], v->shape[2]);
    return NULL;
}

/* Replaces this rank's keys and values by the keys and values of all cp ranks, in the arena. */
static struct rk_status *gather_keys(const struct rk_pass *pass, struct rk_attn_varlen_args *args)
{
    rk_tensor_t mine[] = {rk_tensor_merge_cols(args->k), rk_tensor_merge_cols(args->v)};
    rk_tensor_t kv;

    RK_TRY(alloc_kv(pass, &kv, &args->k, &args->v));
    RK_TRY(rk_context_gather(pass, mine, 2, kv));
    args->k_begin = pass->context->k_begin;
    args->k_lens = pass->context->k_lens[RK_ZIGZAG_BOTH];
    return NULL;
}

/* The two chunks of a sequence on this rank share keys: one call each; their gradients of keys and values are
 * summed. */
static struct rk_status *context_bwd(const struct rk_pass *pass, struct rk_attn_varlen_bwd_args *args)
{
    rk_tensor_t mine[] = {rk_tensor_merge_cols(args->dk), rk_tensor_merge_cols(args->dv)}, dkv[2];

    RK_TRY(gather_keys(pass, &args->fwd));
    for (int half = 0; half < 2; half++) {
        RK_TRY(alloc_kv(pass, &dkv[half], &args->dk, &args->dv));
        args->fwd.k_lens = pass->context->k_lens[1u << half];
        RK_TRY(rk_attn_varlen_bwd(pass->stream, args));
    }
    RK_TRY(rk_axpby(pass->stream, &(struct rk_axpby_args){.y = dkv[0], .x = dkv[1], .alpha = 1, .beta = 1}));
    return rk_context_reduce(pass, dkv[0], mine, 2);
}

static struct rk_status *attend_paged(const struct rk_pass *pass, const struct rk_block *block,
                                      const struct rk_attn_varlen_args *args)
{
    const struct rk_paged_step *paged = pass->paged;
    const struct rk_rope_tables *rope = rk_block_rope(pass, block);
    rk_tensor_t k_cache = rk_block_cache(pass, block, CACHE_K),
                v_cache = rk_block_cache(pass, block, CACHE_V);

    RK_TRY(rk_rope_kv_write(pass->stream, &(struct rk_rope_kv_write_args){
                                              .q = args->q,
                                              .cos = rope->cos,
                                              .sin = rope->sin,
                                              .positions = pass->positions,
                                              .kv = {.k_cache = k_cache,
                                                     .v_cache = v_cache,
                                                     .k = args->k,
                                                     .v = args->v,
                                                     .slot_mapping = paged->slot_mapping},
                                              .places_are_settled = true,
                                          }));
    return rk_attn_paged(pass->stream, &(struct rk_attn_paged_args){
                                           .out = args->out,
                                           .q = args->q,
                                           .k_cache = k_cache,
                                           .v_cache = v_cache,
                                           .block_table = paged->block_table,
                                           .cu_q = paged->cu_q,
                                           .seq_lens = paged->seq_lens,
                                           .window = args->window,
                                           .past_is_settled = true,
                                           .scale = args->scale,
                                       });
}

static struct rk_status *attend(const struct rk_pass *pass, const struct rk_block *block,
                                const struct saved *saved)
{
    struct rk_attn_varlen_args args = varlen_args(pass, block->own, saved);
    struct rk_step_mark mark = rk_step_arena_mark(pass->arena);

    if (pass->paged)
        return attend_paged(pass, block, &args);
    RK_TRY(rotate(pass, block, split_qkv(block->own, saved->qk, saved->qkv).qk, false));
    if (pass->context)
        RK_TRY(gather_keys(pass, &args));
    RK_TRY(rk_attn_varlen_fwd(pass->stream, &args));
    rk_step_arena_release(pass->arena, mark);
    return NULL;
}

/* Fills saved->qk; in place when no backward pass follows. */
static struct rk_status *normalise_qk(const struct rk_pass *pass, const struct rk_block *block,
                                      struct saved *saved)
{
    const struct attention *attention = block->own;
    rk_tensor_t columns = qk_columns(attention, saved->qkv);
    struct qkv_view from = split_qkv(attention, columns, saved->qkv), to;

    saved->qk = columns;
    if (!attention->has_qk_norm)
        return NULL;
    if (pass->keeps_activations) {
        RK_TRY(rk_activation_make(pass, block, QK, &saved->qk));
        RK_TRY(rk_activation_make(pass, block, Q_RSTD, &saved->q_rstd));
        RK_TRY(rk_activation_make(pass, block, K_RSTD, &saved->k_rstd));
    }
    to = split_qkv(attention, saved->qk, saved->qkv);
    RK_TRY(rk_head_norm_fwd(pass->stream, &(struct rk_head_norm_fwd_args){
                                              .y = to.q,
                                              .rstd = saved->q_rstd,
                                              .x = from.q,
                                              .weight = rk_weight_value(pass, &attention->q_norm),
                                              .eps = pass->norm_eps,
                                          }));
    return rk_head_norm_fwd(pass->stream, &(struct rk_head_norm_fwd_args){
                                              .y = to.k,
                                              .rstd = saved->k_rstd,
                                              .x = from.k,
                                              .weight = rk_weight_value(pass, &attention->k_norm),
                                              .eps = pass->norm_eps,
                                          });
}

/* Gradients of q and k, in place: from gradients of the normalised q and k to gradients of the projection. */
static struct rk_status *normalise_qk_bwd(const struct rk_pass *pass, const struct attention *attention,
                                          const struct saved *saved, const struct qkv_view *grads)
{
    struct qkv_view x = split_qkv(attention, qk_columns(attention, saved->qkv), saved->qkv);
    struct rk_step_mark mark = rk_step_arena_mark(pass->arena);
    rk_tensor_t dq_norm, dk_norm;

    if (!attention->has_qk_norm)
        return NULL;
    RK_TRY(rk_weight_grad_or_scratch(pass, &attention->q_norm, &dq_norm));
    RK_TRY(rk_weight_grad_or_scratch(pass, &attention->k_norm, &dk_norm));
    RK_TRY(rk_head_norm_bwd(pass->stream, &(struct rk_head_norm_bwd_args){
                                              .dx = grads->q,
                                              .dweight = dq_norm,
                                              .dy = grads->q,
                                              .x = x.q,
                                              .weight = rk_weight_value(pass, &attention->q_norm),
                                              .rstd = saved->q_rstd,
                                          }));
    RK_TRY(rk_head_norm_bwd(pass->stream, &(struct rk_head_norm_bwd_args){
                                              .dx = grads->k,
                                              .dweight = dk_norm,
                                              .dy = grads->k,
                                              .x = x.k,
                                              .weight = rk_weight_value(pass, &attention->k_norm),
                                              .rstd = saved->k_rstd,
                                          }));
    rk_step_arena_release(pass->arena, mark);
    return NULL;
}

static struct rk_status *attention_forward(struct rk_pass *pass, const struct rk_block *block, rk_tensor_t x,
                                           rk_tensor_t out, void *block_saved)
{
    const struct attention *attention = block->own;
    struct saved *saved = block_saved;
    rk_tensor_t attended;

    *saved = (struct saved){0};
    RK_TRY(rk_activation_make(pass, block, QKV, &saved->qkv));
    RK_TRY(rk_activation_make(pass, block, OUT, &attended));
    saved->out = rk_tensor_split_cols(attended, attention->num_heads, attention->head_dim);
    if (pass->keeps_activations) {
        RK_TRY(rk_activation_make(pass, block, LSE, &saved->lse));
        saved->lse = rk_tensor_2d(saved->lse.data, pass->stat_dtype, attention->num_heads, pass->num_tokens);
    }
    RK_TRY(rk_linear_column_fwd(pass, &attention->qkv, x, saved->qkv));
    RK_TRY(normalise_qk(pass, block, saved));
    RK_TRY(attend(pass, block, saved));
    if (!out.data)
        return NULL;
    return rk_linear_row_fwd(pass, &attention->o, rk_tensor_merge_cols(saved->out), out);
}

static struct rk_status *attention_backward(struct rk_pass *pass, const struct rk_block *block,
                                            const void *block_saved, rk_tensor_t x, rk_tensor_t dout,
                                            rk_tensor_t dx)
{
    const struct attention *attention = block->own;
    const struct saved *saved = block_saved;
    struct rk_attn_varlen_bwd_args args;
    rk_tensor_t dattended, dqkv;
    struct qkv_view view;

    RK_TRY(rk_activation_make(pass, block, DOUT, &dattended));
    RK_TRY(rk_activation_make(pass, block, DQKV, &dqkv));
    view = split_qkv(attention, qk_columns(attention, dqkv), dqkv);
    RK_TRY(rk_linear_row_bwd(pass, &attention->o, rk_tensor_merge_cols(saved->out), dout, dattended));
    args = (struct rk_attn_varlen_bwd_args){
        .fwd = varlen_args(pass, attention, saved),
        .dq = view.q,
        .dk = view.k,
        .dv = view.v,
        .dout = rk_tensor_split_cols(dattended, attention->num_heads, attention->head_dim),
    };
    RK_TRY(pass->context ? context_bwd(pass, &args) : rk_attn_varlen_bwd(pass->stream, &args));
    RK_TRY(rotate(pass, block, view.qk, true));
    RK_TRY(normalise_qk_bwd(pass, attention, saved, &view));
    return rk_linear_column_bwd(pass, &attention->qkv, x, dqkv, dx);
}

const struct rk_block_ops rk_block_attention = {
    .name = "attention",
    .block_bytes = sizeof(struct attention),
    .saved_bytes = sizeof(struct saved),
    .declare = attention_declare,
    .forward = attention_forward,
    .backward = attention_backward,
};
