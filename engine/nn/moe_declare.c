/* The declaration of a layer of experts: parameters and activations of this rank.
 *
 * The rows of the parameter table have Hugging Face's names of single experts. Those of [gate; up] of all
 * experts follow one another without a gap, and those of down: each is one allocation, the operand of the
 * grouped GEMMs. Router and gate of the shared expert are the same on all tp ranks, each of which has the
 * summand of their gradients that comes from its part of the experts. */
#include "engine/nn/moe_internal.h"

#include <stdio.h>

struct site {
    struct rk_param_table *params;
    const struct rk_block_site *at;
};

/* The name under which newer files have the experts' matrices as one tensor: module mlp for all families. */
static void set_stack(struct rk_param_spec *spec, char *name, size_t room, const struct site *site,
                      const char *tensor)
{
    snprintf(name, room, "model.layers.%lld.mlp.experts.%s", (long long)site->at->layer, tensor);
    spec->stack.name = name;
}

static int64_t experts_per_rank(const struct site *site, const struct rk_moe_config *config)
{
    return config->num_experts / rk_mesh_axis_size(site->params->mesh, RK_AXIS_EP);
}

/* The first expert of this rank. */
static int64_t first_expert(const struct site *site, const struct rk_moe_config *config)
{
    return site->params->coords.axis[RK_AXIS_EP] * experts_per_rank(site, config);
}

static void add_gate_up(struct rk_moe *moe, const struct site *site)
{
    const struct rk_moe_config *config = &moe->config;
    const char *const names[2] = {config->names->gate, config->names->up};
    struct rk_param_spec spec = {
        .rows = config->intermediate_size, .cols = moe->hidden_size, .is_expert = true};
    char stack[96];

    set_stack(&spec, stack, sizeof(stack), site, "gate_up_proj");
    spec.stack.rows = 2 * config->intermediate_size;
    spec.stack.count = config->num_experts;
    moe->gate_up = (struct rk_expert_weight){.num_experts = experts_per_rank(site, config),
                                             .rows = 2 * moe->intermediate_size,
                                             .cols = moe->hidden_size};
    for (int64_t e = 0; e < config->num_experts; e++) {
        spec.ep_rank = (int32_t)(e / experts_per_rank(site, config));
        for (int i = 0; i < 2; i++) {
            int64_t row;

            spec.stack.first_row = (2 * e + i) * config->intermediate_size;
            row = rk_params_add(site->params, &spec, "model.layers.%lld.%s.experts.%lld.%s.weight",
                                (long long)site->at->layer, site->at->module, (long long)e, names[i]);
            if (e == first_expert(site, config) && i == 0)
                moe->gate_up.param = row;
            spec.flags |= RK_PARAM_FUSED;
        }
    }
}

static void add_down(struct rk_moe *moe, const struct site *site)
{
    const struct rk_moe_config *config = &moe->config;
    struct rk_param_spec spec = {
        .rows = moe->hidden_size, .cols = config->intermediate_size, .split_dim = 1, .is_expert = true};
    char stack[96];

    set_stack(&spec, stack, sizeof(stack), site, "down_proj");
    spec.stack.rows = moe->hidden_size;
    spec.stack.count = config->num_experts;
    moe->down = (struct rk_expert_weight){.num_experts = experts_per_rank(site, config),
                                          .rows = moe->hidden_size,
                                          .cols = moe->intermediate_size};
    for (int64_t e = 0; e < config->num_experts; e++) {
        int64_t row;

        spec.ep_rank = (int32_t)(e / experts_per_rank(site, config));
        spec.stack.first_row = e * moe->hidden_size;
        row = rk_params_add(site->params, &spec, "model.layers.%lld.%s.experts.%lld.%s.weight",
                            (long long)site->at->layer, site->at->module, (long long)e, config->names->down);
        if (e == first_expert(site, config))
            moe->down.param = row;
        spec.flags |= RK_PARAM_FUSED;
    }
}

static uint32_t partial_over_tp(const struct site *site)
{
    return rk_params_tp_size(site->params) > 1 ? RK_PARAM_PARTIAL_GRAD : 0;
}

static void add_router(struct rk_moe *moe, const struct site *site)
{
    struct rk_param_spec weight = {.rows = moe->config.num_experts,
                                   .cols = moe->hidden_size,
                                   .split_dim = -1,
                                   .flags = partial_over_tp(site) | RK_PARAM_ROUTER};
    struct rk_param_spec bias = {.rows = RK_PARAM_WIDE_PARTS * moe->config.num_experts,
                                 .split_dim = -1,
                                 .flags = RK_PARAM_FROZEN | RK_PARAM_ROUTER | RK_PARAM_WIDE};
    long long layer = (long long)site->at->layer;
    char alias[64];

    snprintf(alias, sizeof(alias), "model.layers.%lld.mlp.gate.weight", layer);
    weight.alias = alias;
    moe->router = (struct rk_weight){.rows = weight.rows, .cols = weight.cols};
    moe->router.param =
        rk_params_add(site->params, &weight, "model.layers.%lld.%s.gate.weight", layer, site->at->module);
    moe->bias = (struct rk_weight){.rows = bias.rows};
    if (moe->config.has_correction_bias)
        moe->bias.param =
            rk_params_add(site->params, &bias, "model.layers.%lld.%s.gate.e_score_correction_bias", layer,
                          site->at->module);
}

static int64_t add_shared_matrix(const struct rk_moe *moe, const struct site *site,
                                 const struct rk_param_spec *spec, const char *name)
{
    return rk_params_add(site->params, spec, "model.layers.%lld.%s.%s.%s.weight", (long long)site->at->layer,
                         site->at->module, moe->config.names->shared, name);
}

static void add_shared(struct rk_moe *moe, const struct site *site)
{
    int64_t size = moe->config.shared_intermediate_size, hidden_size = moe->hidden_size;
    struct rk_param_spec gate = {.rows = size, .cols = hidden_size};
    struct rk_param_spec up = {.rows = size, .cols = hidden_size, .flags = RK_PARAM_FUSED};
    struct rk_param_spec down = {.rows = hidden_size, .cols = size, .split_dim = 1};
    struct rk_param_spec score = {
        .rows = 1, .cols = hidden_size, .split_dim = -1, .flags = partial_over_tp(site) | RK_PARAM_ROUTER};

    moe->shared.gate_up = (struct rk_weight){.rows = 2 * moe->shared.intermediate_size, .cols = hidden_size};
    moe->shared.gate_up.param = add_shared_matrix(moe, site, &gate, "gate_proj");
    add_shared_matrix(moe, site, &up, "up_proj");
    moe->shared.down = (struct rk_weight){.rows = hidden_size, .cols = moe->shared.intermediate_size};
    moe->shared.down.param = add_shared_matrix(moe, site, &down, "down_proj");
    if (!moe->config.has_shared_gate)
        return;
    moe->shared.score = (struct rk_weight){.rows = 1, .cols = hidden_size};
    moe->shared.score.param =
        rk_params_add(site->params, &score, "model.layers.%lld.%s.%s_gate.weight", (long long)site->at->layer,
                      site->at->module, moe->config.names->shared);
}

static void declare_shared_activations(struct rk_block *block)
{
    const struct rk_moe *moe = block->own;
    struct rk_activation_decl *list = block->decl.activations;
    int64_t size = moe->shared.intermediate_size, hidden_size = moe->hidden_size;

    if (size == 0)
        return;
    list[RK_MOE_SHARED_GATE_UP] = (struct rk_activation_decl){.name = "shared_gate_up", .columns = 2 * size};
    list[RK_MOE_SHARED_ACTIVATED] = (struct rk_activation_decl){
        .name = "shared_activated", .life = RK_ACTIVATION_FORWARD, .columns = size};
    list[RK_MOE_SHARED_OUT] = (struct rk_activation_decl){
        .name = "shared_out", .life = RK_ACTIVATION_FORWARD, .columns = hidden_size};
    list[RK_MOE_SHARED_DACTIVATED] = (struct rk_activation_decl){
        .name = "shared_dactivated", .life = RK_ACTIVATION_BACKWARD, .columns = size};
    if (!moe->config.has_shared_gate)
        return;
    list[RK_MOE_SHARED_SCORE] =
        (struct rk_activation_decl){.name = "shared_score", .is_stat = true, .columns = 1};
    list[RK_MOE_SHARED_PROB] =
        (struct rk_activation_decl){.name = "shared_prob", .is_stat = true, .columns = 1};
    list[RK_MOE_SHARED_DPROB] = (struct rk_activation_decl){
        .name = "shared_dprob", .life = RK_ACTIVATION_BACKWARD, .is_stat = true, .columns = 1};
    list[RK_MOE_SHARED_DSCORE] = (struct rk_activation_decl){
        .name = "shared_dscore", .life = RK_ACTIVATION_BACKWARD, .is_stat = true, .columns = 1};
}

/* An activation with K rows per token. */
static struct rk_activation_decl of_rows(const struct rk_moe *moe, const char *name,
                                         rk_activation_life_t life, int64_t columns)
{
    return (struct rk_activation_decl){
        .name = name, .life = life, .columns = columns, .rows_per_token = moe->config.num_experts_per_tok};
}

/* Rows of an exchange, whose number does not depend on the tokens of a pass. */
static void declare_received(struct rk_block *block)
{
    const struct rk_moe *moe = block->own;
    struct rk_activation_decl *list = block->decl.activations;
    int64_t num_rows = moe->dispatch_rows;

    if (!moe->keeps_rows)
        return;
    list[RK_MOE_GATE_UP] = (struct rk_activation_decl){
        .name = "gate_up", .columns = 2 * moe->intermediate_size, .num_rows = num_rows};
    list[RK_MOE_RECEIVED_X] =
        (struct rk_activation_decl){.name = "received_x", .columns = moe->hidden_size, .num_rows = num_rows};
    list[RK_MOE_RECEIVED_PROBS] = (struct rk_activation_decl){
        .name = "received_probs", .is_stat = true, .columns = 1, .num_rows = num_rows};
    list[RK_MOE_RECEIVED_ORDER] = (struct rk_activation_decl){
        .name = "received_order", .is_index = true, .columns = 1, .num_rows = num_rows};
    list[RK_MOE_RECEIVED_PLACES] = (struct rk_activation_decl){
        .name = "received_places", .is_index = true, .columns = 1, .num_rows = num_rows};
    list[RK_MOE_RECEIVED_OFFSETS] = (struct rk_activation_decl){
        .name = "received_offsets", .is_index = true, .columns = 1, .num_rows = moe->config.num_experts + 1};
}

static void declare_rows(struct rk_block *block)
{
    const struct rk_moe *moe = block->own;
    struct rk_activation_decl *list = block->decl.activations;
    int64_t size = moe->intermediate_size;

    list[RK_MOE_TOKENS] = of_rows(moe, "tokens", RK_ACTIVATION_SAVED, 1);
    list[RK_MOE_TOKENS].is_index = true;
    list[RK_MOE_ROW_PROBS] = of_rows(moe, "row_probs", RK_ACTIVATION_SAVED, 1);
    list[RK_MOE_ROW_PROBS].is_stat = true;
    list[RK_MOE_ROWS] = of_rows(moe, "rows", RK_ACTIVATION_FORWARD, moe->hidden_size);
    list[RK_MOE_DROWS] = of_rows(moe, "drows", RK_ACTIVATION_BACKWARD, moe->hidden_size);
    list[RK_MOE_DROW_PROBS] = of_rows(moe, "drow_probs", RK_ACTIVATION_BACKWARD, 1);
    list[RK_MOE_DROW_PROBS].is_stat = true;
    if (moe->gate_up.num_experts < moe->config.num_experts && (!moe->is_wide || moe->is_by_rows)) {
        declare_received(block); /* the experts work on the rows of an exchange */
        return;
    }
    list[RK_MOE_GATE_UP] = of_rows(moe, "gate_up", RK_ACTIVATION_SAVED, 2 * size);
    list[RK_MOE_ACTIVATED] = of_rows(moe, "activated", RK_ACTIVATION_FORWARD, size);
    list[RK_MOE_DACTIVATED] = of_rows(moe, "dactivated", RK_ACTIVATION_BACKWARD, size);
}

static void declare_activations(struct rk_block *block)
{
    const struct rk_moe *moe = block->own;
    struct rk_activation_decl *list = block->decl.activations;
    int64_t experts = moe->config.num_experts, top_k = moe->config.num_experts_per_tok;

    block->decl.num_activations = RK_MOE_NUM_ACTIVATIONS;
    list[RK_MOE_LOGITS] = (struct rk_activation_decl){.name = "logits", .is_stat = true, .columns = experts};
    list[RK_MOE_IDS] = (struct rk_activation_decl){.name = "ids", .is_index = true, .columns = top_k};
    list[RK_MOE_PLACES] = (struct rk_activation_decl){.name = "places", .is_index = true, .columns = top_k};
    list[RK_MOE_OFFSETS] = (struct rk_activation_decl){
        .name = "offsets", .is_index = true, .columns = 1, .num_rows = experts + 1};
    list[RK_MOE_PROBS] = (struct rk_activation_decl){
        .name = "probs", .life = RK_ACTIVATION_FORWARD, .is_stat = true, .columns = top_k};
    list[RK_MOE_DPROBS] = (struct rk_activation_decl){
        .name = "dprobs", .life = RK_ACTIVATION_BACKWARD, .is_stat = true, .columns = top_k};
    list[RK_MOE_DLOGITS] = (struct rk_activation_decl){
        .name = "dlogits", .life = RK_ACTIVATION_BACKWARD, .is_stat = true, .columns = experts};
    list[RK_MOE_DX] = (struct rk_activation_decl){
        .name = "dx", .life = RK_ACTIVATION_BACKWARD, .columns = moe->hidden_size};
    declare_rows(block);
    declare_shared_activations(block);
}

/* Kept rows take memory for each layer, so that their number must be known. */
static struct rk_status *check_kept_rows(const struct rk_model_layout *layout, int32_t ep_size)
{
    if (layout->moe_keep_dispatched && ep_size > 1 && layout->moe_dispatch_tokens == 0)
        return RK_FAIL(RK_INVALID_ARGUMENT, RK_KNOB_KEEP_DISPATCHED
                       "=true: expected a number of tokens in " RK_KNOB_DISPATCH_TOKENS ", got null");
    return NULL;
}

/* Checks etp; the check that it divides tp is made with the model. */
static struct rk_status *check_etp(const struct rk_param_table *params)
{
    int32_t tp_size = rk_params_tp_size(params), etp_size = rk_mesh_axis_size(params->mesh, RK_AXIS_ETP);

    if (etp_size < tp_size && !params->splits_rows && !rk_mesh_ep_is_tp(params->mesh))
        return RK_FAIL(RK_UNIMPLEMENTED,
                       "etp=%d (expert_tensor_parallel_size) with tp=%d: expected etp=%d, or "
                       "megatron.sequence_parallel=true, or etp=1 with ep=%d",
                       etp_size, tp_size, tp_size, tp_size);
    return NULL;
}

static struct rk_status *check_mesh(const struct rk_param_table *params, const struct rk_moe_config *config)
{
    int32_t ep_size = rk_mesh_axis_size(params->mesh, RK_AXIS_EP);
    bool is_wide = rk_mesh_axis_size(params->mesh, RK_AXIS_ETP) < rk_params_tp_size(params);

    RK_TRY(check_etp(params));
    if (config->num_experts % ep_size != 0)
        return RK_FAIL(
            RK_INVALID_ARGUMENT,
            "ep=%d (expert_model_parallel_size): expected a divisor of the %lld experts of a layer", ep_size,
            (long long)config->num_experts);
    RK_TRY(rk_params_check_divides(params, is_wide ? RK_AXIS_ETP : RK_AXIS_TP, "moe_intermediate_size",
                                   config->intermediate_size));
    return rk_params_check_divides(params, RK_AXIS_TP, "shared_expert_intermediate_size",
                                   config->shared_intermediate_size);
}

struct rk_status *rk_moe_declare(struct rk_block *block, struct rk_param_table *params,
                                 const struct rk_block_site *at)
{
    const struct rk_moe_config *config = &at->values->moe;
    int32_t etp_size = rk_mesh_axis_size(params->mesh, RK_AXIS_ETP);
    int32_t ep_size = rk_mesh_axis_size(params->mesh, RK_AXIS_EP);
    struct site site = {.params = params, .at = at};
    struct rk_moe *moe = block->own;

    RK_TRY(check_mesh(params, config));
    RK_TRY(check_kept_rows(at->layout, ep_size));
    block->decl.has_routes = true;
    moe->config = *config;
    moe->dispatch_rows = at->layout->moe_dispatch_tokens * config->num_experts_per_tok;
    moe->hidden_size = at->hidden_size;
    moe->first_expert = first_expert(&site, config);
    moe->is_wide = etp_size < rk_params_tp_size(params);
    moe->is_by_rows = moe->is_wide && params->splits_rows;
    moe->keeps_rows = at->layout->moe_keep_dispatched && ep_size > 1 && (!moe->is_wide || moe->is_by_rows);
    moe->intermediate_size = config->intermediate_size / etp_size;
    moe->shared.intermediate_size = config->shared_intermediate_size / rk_params_tp_size(params);
    add_router(moe, &site);
    add_gate_up(moe, &site);
    add_down(moe, &site);
    if (moe->shared.intermediate_size > 0)
        add_shared(moe, &site);
    declare_activations(block);
    return NULL;
}
