/* The declaration of latent attention: parameters, cache and activations of this rank. latent.c has the
 * formulas and says which weights are split over tp. */
#include "engine/nn/latent_internal.h"

#include "base/rk_assert.h"

/* Large enough for GEMMs that fill a GPU, and small compared with a cache. */
#define EXPANDED_BYTES ((int64_t)256 << 20)

static struct rk_activation_decl tokens(const char *name, rk_activation_life_t life, int64_t columns)
{
    return (struct rk_activation_decl){.name = name, .life = life, .columns = columns};
}

static struct rk_activation_decl rows(const char *name, rk_activation_life_t life, int64_t columns)
{
    return (struct rk_activation_decl){.name = name, .life = life, .of_rows = true, .columns = columns};
}

static struct rk_activation_decl statistic(const char *name, bool of_rows, int64_t columns)
{
    return (struct rk_activation_decl){
        .name = name, .life = RK_ACTIVATION_KEPT, .is_stat = true, .of_rows = of_rows, .columns = columns};
}

static void declare_shapes(struct rk_block *block, const struct rk_block_site *site)
{
    const struct rk_latent *latent = block->own;
    int64_t heads = latent->num_heads, width = rk_latent_width(latent), q_rank = latent->q_rank;
    int64_t q_columns = heads * rk_latent_head_dim(latent), out_columns = heads * latent->v_head_dim;
    struct rk_block_decl *decl = &block->decl;
    struct rk_activation_decl *list = decl->activations;

    decl->rope = site->values->rope;
    decl->num_caches = 1;
    decl->caches[0] = (struct rk_cache_decl){"latent", 1, width};
    decl->num_activations = RK_LATENT_NUM_ACTIVATIONS;
    list[RK_LATENT_DOWN] = rows("down", RK_ACTIVATION_SAVED, q_rank + width);
    list[RK_LATENT_Q_RSTD] = statistic("q_rstd", true, q_rank ? 1 : 0);
    list[RK_LATENT_KV_RSTD] = statistic("kv_rstd", true, 1);
    list[RK_LATENT_Q] = tokens("q", RK_ACTIVATION_SAVED, q_rank ? 0 : q_columns);
    list[RK_LATENT_OUT] = tokens("out", RK_ACTIVATION_SAVED, out_columns);
    list[RK_LATENT_LSE] = statistic("lse", false, heads);
    list[RK_LATENT_Q_LATENT] = rows("q_latent", RK_ACTIVATION_FORWARD, q_rank);
    list[RK_LATENT_LATENT] = rows("latent", RK_ACTIVATION_FORWARD, width);
    list[RK_LATENT_Q_UP] = tokens("q_up", RK_ACTIVATION_FORWARD, q_rank ? q_columns : 0);
    list[RK_LATENT_Q_LATENT_AGAIN] = rows("q_latent_again", RK_ACTIVATION_BACKWARD, q_rank);
    list[RK_LATENT_LATENT_AGAIN] = rows("latent_again", RK_ACTIVATION_BACKWARD, width);
    list[RK_LATENT_Q_UP_AGAIN] = tokens("q_up_again", RK_ACTIVATION_BACKWARD, q_rank ? q_columns : 0);
    list[RK_LATENT_DOUT] = tokens("dout", RK_ACTIVATION_BACKWARD, out_columns);
    list[RK_LATENT_DQ] = tokens("dq", RK_ACTIVATION_BACKWARD, q_columns);
    list[RK_LATENT_DQ_LATENT] = rows("dq_latent", RK_ACTIVATION_BACKWARD, q_rank);
    list[RK_LATENT_DLATENT] = rows("dlatent", RK_ACTIVATION_BACKWARD, width);
    list[RK_LATENT_DDOWN] = rows("ddown", RK_ACTIVATION_BACKWARD, q_rank + width);
    list[RK_LATENT_DX] = rows("dx", RK_ACTIVATION_BACKWARD, q_rank ? 0 : site->hidden_size);
}

static int64_t add(struct rk_param_table *params, const struct rk_block_site *site,
                   const struct rk_param_spec *spec, const char *name)
{
    return rk_params_add(params, spec, "model.layers.%lld.%s.%s.weight", (long long)site->layer, site->module,
                         name);
}

/* Declares a replicated weight that is applied to the rank's rows of the residual stream. */
static struct rk_weight add_whole(struct rk_param_table *params, const struct rk_block_site *site,
                                  const char *name, int64_t num_rows, int64_t cols, uint32_t flags)
{
    struct rk_param_spec spec = {
        .rows = num_rows, .cols = cols, .split_dim = -1, .flags = flags, .sees_rows = true};

    return (struct rk_weight){.param = add(params, site, &spec, name), .rows = num_rows, .cols = cols};
}

/* Declares rows of all heads, split over the ranks by heads. */
static struct rk_weight add_up(struct rk_param_table *params, const struct rk_block_site *site,
                               const char *name, int64_t head_columns, int64_t cols)
{
    struct rk_param_spec spec = {.rows = site->values->num_heads * head_columns, .cols = cols};

    return (struct rk_weight){
        .param = add(params, site, &spec, name), .rows = spec.rows / rk_params_tp_size(params), .cols = cols};
}

static void declare_weights(struct rk_latent *latent, struct rk_param_table *params,
                            const struct rk_block_site *site)
{
    int64_t hidden = site->hidden_size, head_dim = rk_latent_head_dim(latent);
    int64_t width = rk_latent_width(latent), q_rank = latent->q_rank;
    struct rk_param_spec o = {
        .rows = hidden, .cols = site->values->num_heads * latent->v_head_dim, .split_dim = 1};
    struct rk_weight kv_a;

    if (q_rank > 0)
        latent->down = add_whole(params, site, "q_a_proj", q_rank, hidden, 0);
    kv_a = add_whole(params, site, "kv_a_proj_with_mqa", width, hidden, q_rank > 0 ? RK_PARAM_FUSED : 0);
    if (q_rank == 0)
        latent->down = kv_a;
    latent->down.rows = q_rank + width;
    if (q_rank > 0)
        latent->q_norm = add_whole(params, site, "q_a_layernorm", q_rank, 0, 0);
    latent->kv_norm = add_whole(params, site, "kv_a_layernorm", latent->kv_rank, 0, 0);
    latent->q = q_rank > 0 ? add_up(params, site, "q_b_proj", head_dim, q_rank)
                           : add_up(params, site, "q_proj", head_dim, hidden);
    latent->kv = add_up(params, site, "kv_b_proj", rk_latent_kv_dim(latent), latent->kv_rank);
    latent->o = (struct rk_weight){.param = add(params, site, &o, "o_proj"),
                                   .rows = hidden,
                                   .cols = latent->num_heads * latent->v_head_dim};
}

struct rk_status *rk_latent_declare(struct rk_block *block, struct rk_param_table *params,
                                    const struct rk_block_site *site)
{
    const struct rk_layer_values *values = site->values;
    const struct rk_latent_config *shape = &values->latent;
    struct rk_latent *latent = block->own;

    RK_ASSERT(shape->kv_lora_rank > 0);
    RK_TRY(rk_params_check_divides(params, RK_AXIS_TP, "num_attention_heads", values->num_heads));
    latent->num_heads = values->num_heads / rk_params_tp_size(params);
    latent->q_rank = shape->q_lora_rank;
    latent->kv_rank = shape->kv_lora_rank;
    latent->nope = shape->qk_nope_head_dim;
    latent->rope = shape->qk_rope_head_dim;
    latent->v_head_dim = shape->v_head_dim;
    latent->is_interleaved = shape->rope_interleave;
    latent->scale = (float)values->softmax_scale;
    latent->expanded_bytes = EXPANDED_BYTES;
    declare_weights(latent, params, site);
    declare_shapes(block, site);
    return NULL;
}
