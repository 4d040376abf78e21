#include "tests/unit/engine/mixed_family.h"

#include <math.h>

#include "base/rk_assert.h"
#include "engine/model/model.h"

#define WIDTH   RK_TEST_LATENT_WIDTH
#define VALUES  RK_TEST_LATENT_VALUES
#define ROTATED 64

/* Activations of the declaration. */
enum { QC, OUT, LSE, DOUT, DQC, DC, DVALUES, DVALUES_WIDE, NUM_ACTIVATIONS };

/* Weights and heads of this rank. */
struct latent {
    struct rk_weight qc; /* [q; c]: queries and the cached tensor */
    struct rk_weight o;
    int64_t num_heads;
};

struct saved {
    rk_tensor_t qc; /* [T, (num_heads + 1) * WIDTH], rotated */
    rk_tensor_t out, lse;
};

static void declare_shapes(struct rk_block *block)
{
    const struct latent *latent = block->own;
    int64_t heads = latent->num_heads;

    block->decl = (struct rk_block_decl){
        .rope = {.width = ROTATED, .theta = 500.0},
        .num_caches = 1,
        .caches = {{"latent", 1, WIDTH}},
        .num_activations = NUM_ACTIVATIONS,
        .activations =
            {
                [QC] = {"qc", RK_ACTIVATION_SAVED, false, (heads + 1) * WIDTH},
                [OUT] = {"out", RK_ACTIVATION_SAVED, false, heads * VALUES},
                [LSE] = {"lse", RK_ACTIVATION_KEPT, true, heads},
                [DOUT] = {"dout", RK_ACTIVATION_BACKWARD, false, heads * VALUES},
                [DQC] = {"dqc", RK_ACTIVATION_BACKWARD, false, (heads + 1) * WIDTH},
                [DC] = {"dc", RK_ACTIVATION_BACKWARD, false, WIDTH},
                [DVALUES] = {"dvalues", RK_ACTIVATION_BACKWARD, false, VALUES},
                [DVALUES_WIDE] = {"dvalues_wide", RK_ACTIVATION_BACKWARD, false, WIDTH},
            },
    };
}

static struct rk_status *latent_declare(struct rk_block *block, struct rk_param_table *params,
                                        const struct rk_block_site *site)
{
    int64_t num_heads = site->values->num_heads, hidden_size = site->hidden_size;
    struct latent *latent = block->own;
    struct rk_param_spec q = {.rows = num_heads * WIDTH, .cols = hidden_size};
    struct rk_param_spec c = {
        .rows = WIDTH, .cols = hidden_size, .num_parts = 1, .flags = RK_PARAM_FUSED | RK_PARAM_PARTIAL_GRAD};
    struct rk_param_spec o = {.rows = hidden_size, .cols = num_heads * VALUES, .split_dim = 1};
    long long layer = (long long)site->layer;

    RK_TRY(rk_params_check_divides(params, RK_AXIS_TP, "num_attention_heads", num_heads));
    latent->num_heads = num_heads / rk_params_tp_size(params);
    latent->qc = (struct rk_weight){.rows = (latent->num_heads + 1) * WIDTH, .cols = hidden_size};
    latent->qc.param = rk_params_add(params, &q, "model.layers.%lld.%s.q_proj.weight", layer, site->module);
    rk_params_add(params, &c, "model.layers.%lld.%s.kv_proj.weight", layer, site->module);
    latent->o = (struct rk_weight){.rows = hidden_size, .cols = latent->num_heads * VALUES};
    latent->o.param = rk_params_add(params, &o, "model.layers.%lld.%s.o_proj.weight", layer, site->module);
    declare_shapes(block);
    return NULL;
}

static struct rk_status *odd_declare(struct rk_block *block, struct rk_param_table *params,
                                     const struct rk_block_site *site)
{
    RK_TRY(latent_declare(block, params, site));
    block->decl.rope.width = ROTATED - 1;
    return NULL;
}

static rk_tensor_t heads_of(rk_tensor_t qc, int64_t first, int64_t count, int64_t width)
{
    return rk_tensor_split_cols(rk_tensor_cols(qc, first * WIDTH, count * width), count, width);
}

/* The last columns of every head. */
static struct rk_status *rotate(const struct rk_pass *pass, const struct rk_block *block, rk_tensor_t qc,
                                bool inverse)
{
    const struct rk_rope_tables *rope = rk_block_rope(pass, block);

    for (int64_t begin = WIDTH - ROTATED; begin < qc.shape[1]; begin += WIDTH)
        RK_TRY(rk_rope(pass->stream,
                       &(struct rk_rope_args){
                           .x = rk_tensor_split_cols(rk_tensor_cols(qc, begin, ROTATED), 1, ROTATED),
                           .cos = rope->cos,
                           .sin = rope->sin,
                           .positions = pass->positions,
                           .inverse = inverse,
                       }));
    return NULL;
}

static struct rk_attn_varlen_args varlen_args(const struct rk_pass *pass, const struct latent *latent,
                                              const struct saved *saved)
{
    return (struct rk_attn_varlen_args){
        .out = saved->out,
        .lse = saved->lse,
        .q = heads_of(saved->qc, 0, latent->num_heads, WIDTH),
        .k = heads_of(saved->qc, latent->num_heads, 1, WIDTH),
        .v = heads_of(saved->qc, latent->num_heads, 1, VALUES),
        .cu_seqlens = pass->cu_seqlens,
        .max_seqlen = pass->max_seqlen,
        .scale = (float)(1.0 / sqrt((double)WIDTH)),
    };
}

static struct rk_status *attend_paged(const struct rk_pass *pass, const struct rk_block *block,
                                      const struct rk_attn_varlen_args *args)
{
    const struct rk_paged_step *paged = pass->paged;
    rk_tensor_t cache = rk_block_cache(pass, block, 0);

    RK_TRY(rk_kv_write(
        pass->stream,
        &(struct rk_kv_write_args){.k_cache = cache, .k = args->k, .slot_mapping = paged->slot_mapping}));
    return rk_attn_paged(pass->stream, &(struct rk_attn_paged_args){
                                           .out = args->out,
                                           .q = args->q,
                                           .k_cache = cache,
                                           .block_table = paged->block_table,
                                           .cu_q = paged->cu_q,
                                           .seq_lens = paged->seq_lens,
                                           .scale = args->scale,
                                       });
}

static struct rk_status *latent_forward(struct rk_pass *pass, const struct rk_block *block, rk_tensor_t x,
                                        rk_tensor_t out, void *block_saved)
{
    const struct latent *latent = block->own;
    struct saved *saved = block_saved;
    struct rk_attn_varlen_args args;
    rk_tensor_t attended;

    RK_ASSERT(!pass->context);
    *saved = (struct saved){0};
    RK_TRY(rk_activation_make(pass, block, QC, &saved->qc));
    RK_TRY(rk_activation_make(pass, block, OUT, &attended));
    saved->out = rk_tensor_split_cols(attended, latent->num_heads, VALUES);
    if (pass->keeps_activations) {
        RK_TRY(rk_activation_make(pass, block, LSE, &saved->lse));
        saved->lse = rk_tensor_2d(saved->lse.data, pass->stat_dtype, latent->num_heads, pass->num_tokens);
    }
    RK_TRY(rk_linear_column_fwd(pass, &latent->qc, x, saved->qc));
    RK_TRY(rotate(pass, block, saved->qc, false));
    args = varlen_args(pass, latent, saved);
    RK_TRY(pass->paged ? attend_paged(pass, block, &args) : rk_attn_varlen_fwd(pass->stream, &args));
    return out.data ? rk_linear_row_fwd(pass, &latent->o, attended, out) : NULL;
}

/* dc = dkeys, plus dvalues in the first columns. */
static struct rk_status *add_values(const struct rk_pass *pass, const struct rk_block *block,
                                    rk_tensor_t dkeys, rk_tensor_t dvalues, rk_tensor_t dc)
{
    rk_tensor_t wide;

    RK_TRY(rk_activation_make(pass, block, DVALUES_WIDE, &wide));
    RK_TRY(rk_stream_zero(pass->stream, wide.data, rk_tensor_bytes(wide)));
    RK_TRY(rk_copy_2d(pass->stream, &(struct rk_copy_2d_args){rk_tensor_cols(wide, 0, VALUES), dvalues}));
    RK_TRY(rk_axpby(pass->stream, &(struct rk_axpby_args){.y = wide, .x = dkeys, .alpha = 1, .beta = 1}));
    return rk_copy_2d(pass->stream, &(struct rk_copy_2d_args){dc, wide});
}

static struct rk_status *latent_backward(struct rk_pass *pass, const struct rk_block *block,
                                         const void *block_saved, rk_tensor_t x, rk_tensor_t dout,
                                         rk_tensor_t dx)
{
    const struct latent *latent = block->own;
    const struct saved *saved = block_saved;
    int64_t heads = latent->num_heads;
    rk_tensor_t dattended, dqc, dc, dvalues;

    RK_TRY(rk_activation_make(pass, block, DOUT, &dattended));
    RK_TRY(rk_activation_make(pass, block, DQC, &dqc));
    RK_TRY(rk_activation_make(pass, block, DC, &dc));
    RK_TRY(rk_activation_make(pass, block, DVALUES, &dvalues));
    RK_TRY(rk_linear_row_bwd(pass, &latent->o, rk_tensor_merge_cols(saved->out), dout, dattended));
    RK_TRY(rk_attn_varlen_bwd(pass->stream, &(struct rk_attn_varlen_bwd_args){
                                                .fwd = varlen_args(pass, latent, saved),
                                                .dq = heads_of(dqc, 0, heads, WIDTH),
                                                .dk = rk_tensor_split_cols(dc, 1, WIDTH),
                                                .dv = rk_tensor_split_cols(dvalues, 1, VALUES),
                                                .dout = rk_tensor_split_cols(dattended, heads, VALUES),
                                            }));
    RK_TRY(add_values(pass, block, dc, dvalues, rk_tensor_cols(dqc, heads * WIDTH, WIDTH)));
    RK_TRY(rotate(pass, block, dqc, true));
    return rk_linear_column_bwd(pass, &latent->qc, x, dqc, dx);
}

static const struct rk_block_ops block_latent = {
    .name = "latent",
    .block_bytes = sizeof(struct latent),
    .saved_bytes = sizeof(struct saved),
    .declare = latent_declare,
    .forward = latent_forward,
    .backward = latent_backward,
};

static const struct rk_block_ops block_odd = {
    .name = "odd",
    .block_bytes = sizeof(struct latent),
    .saved_bytes = sizeof(struct saved),
    .declare = odd_declare,
    .forward = latent_forward,
    .backward = latent_backward,
};

enum { KIND_DENSE, KIND_LATENT, KIND_ODD };

static const struct rk_block_desc dense_blocks[] = {
    {&rk_block_attention, "input_layernorm", "self_attn"},
    {&rk_block_swiglu, "post_attention_layernorm", "mlp"},
    {0},
};

/* Without an MLP: layers may differ in their number of blocks. */
static const struct rk_block_desc latent_blocks[] = {{&block_latent, "input_layernorm", "self_attn"}, {0}};

static const struct rk_block_desc odd_blocks[] = {{&block_odd, "input_layernorm", "self_attn"}, {0}};

static const struct rk_layer_kind layer_kinds[] = {
    [KIND_DENSE] = {"dense", dense_blocks},
    [KIND_LATENT] = {"latent", latent_blocks},
    [KIND_ODD] = {"odd", odd_blocks},
    {0},
};

static void set_kind(struct rk_model_config *out, const struct rk_json *hf_config, const char *key,
                     uint8_t kind)
{
    const struct rk_json *layers = rk_json_find(hf_config, key);

    for (int64_t i = 0; i < rk_json_count(layers); i++)
        out->layer_kinds[rk_json_as_int(rk_json_at(layers, i), 0)] = kind;
}

static struct rk_status *mixed_parse_config(struct rk_model_config *out, const struct rk_json *hf_config)
{
    RK_TRY(rk_family_llama.parse_config(out, hf_config));
    set_kind(out, hf_config, "latent_layers", KIND_LATENT);
    set_kind(out, hf_config, "odd_layers", KIND_ODD);
    return NULL;
}

const struct rk_model_family rk_test_mixed_family = {
    .name = "mixed",
    .parse_config = mixed_parse_config,
    .layer_kinds = layer_kinds,
};
