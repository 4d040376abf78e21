/* Gated MLP: out = Wdown (silu(Wgate x) * (Wup x)), the intermediate size split over tp. silu(gate) * up is
 * not saved for the backward pass: swiglu_bwd recomputes it in the memory of its gradient.
 */
#include "engine/nn/nn.h"

/* Dimensions of this rank. */
struct mlp {
    struct rk_weight gate_up; /* [gate; up] */
    struct rk_weight down;
    int64_t intermediate_size;
};

struct saved {
    rk_tensor_t gate_up; /* [T, 2 * intermediate_size] */
};

/* Indices of the declared activations. */
enum { GATE_UP, ACTIVATED, DACTIVATED, NUM_ACTIVATIONS };

static rk_tensor_t gate_of(const struct mlp *mlp, rk_tensor_t gate_up)
{
    return rk_tensor_cols(gate_up, 0, mlp->intermediate_size);
}

static rk_tensor_t up_of(const struct mlp *mlp, rk_tensor_t gate_up)
{
    return rk_tensor_cols(gate_up, mlp->intermediate_size, mlp->intermediate_size);
}

static void declare_activations(struct rk_block *block)
{
    const struct mlp *mlp = block->own;
    struct rk_block_decl *decl = &block->decl;

    decl->num_activations = NUM_ACTIVATIONS;
    decl->activations[GATE_UP] =
        (struct rk_activation_decl){.name = "gate_up", .columns = 2 * mlp->intermediate_size};
    decl->activations[ACTIVATED] = (struct rk_activation_decl){
        .name = "activated", .life = RK_ACTIVATION_FORWARD, .columns = mlp->intermediate_size};
    decl->activations[DACTIVATED] = (struct rk_activation_decl){
        .name = "dactivated", .life = RK_ACTIVATION_BACKWARD, .columns = mlp->intermediate_size};
}

static struct rk_status *swiglu_declare(struct rk_block *block, struct rk_param_table *params,
                                        const struct rk_block_site *site)
{
    int64_t hidden_size = site->hidden_size, intermediate_size = site->values->intermediate_size;
    struct mlp *mlp = block->own;
    struct rk_param_spec gate = {.rows = intermediate_size, .cols = hidden_size};
    struct rk_param_spec up = {.rows = intermediate_size, .cols = hidden_size, .flags = RK_PARAM_FUSED};
    struct rk_param_spec down = {.rows = hidden_size, .cols = intermediate_size, .split_dim = 1};
    long long layer = (long long)site->layer;

    RK_TRY(rk_params_check_divides(params, RK_AXIS_TP, "intermediate_size", intermediate_size));
    mlp->intermediate_size = intermediate_size / rk_params_tp_size(params);
    mlp->gate_up.rows = 2 * mlp->intermediate_size;
    mlp->gate_up.cols = hidden_size;
    mlp->gate_up.param =
        rk_params_add(params, &gate, "model.layers.%lld.%s.gate_proj.weight", layer, site->module);
    rk_params_add(params, &up, "model.layers.%lld.%s.up_proj.weight", layer, site->module);
    mlp->down.rows = hidden_size;
    mlp->down.cols = mlp->intermediate_size;
    mlp->down.param =
        rk_params_add(params, &down, "model.layers.%lld.%s.down_proj.weight", layer, site->module);
    declare_activations(block);
    return NULL;
}

/* The projection and its activation: fused when no backward pass follows; without the activation if
 * `activated` is none. */
static struct rk_status *project(struct rk_pass *pass, const struct mlp *mlp, rk_tensor_t x,
                                 rk_tensor_t gate_up, rk_tensor_t activated)
{
    if (activated.data && !pass->keeps_activations)
        return rk_linear_column_swiglu_fwd(pass, &mlp->gate_up, x, gate_up, activated);
    RK_TRY(rk_linear_column_fwd(pass, &mlp->gate_up, x, gate_up));
    if (!activated.data)
        return NULL;
    return rk_swiglu_fwd(pass->stream, &(struct rk_swiglu_fwd_args){.y = activated,
                                                                    .gate = gate_of(mlp, gate_up),
                                                                    .up = up_of(mlp, gate_up)});
}

static struct rk_status *swiglu_forward(struct rk_pass *pass, const struct rk_block *block, rk_tensor_t x,
                                        rk_tensor_t out, void *block_saved)
{
    const struct mlp *mlp = block->own;
    struct saved *saved = block_saved;
    rk_tensor_t activated = {0};
    struct rk_step_mark mark;

    RK_TRY(rk_activation_make(pass, block, GATE_UP, &saved->gate_up));
    mark = rk_step_arena_mark(pass->arena);
    if (out.data)
        RK_TRY(rk_activation_make(pass, block, ACTIVATED, &activated));
    RK_TRY(project(pass, mlp, x, saved->gate_up, activated));
    if (out.data)
        RK_TRY(rk_linear_row_fwd(pass, &mlp->down, activated, out));
    rk_step_arena_release(pass->arena, mark);
    return NULL;
}

static struct rk_status *swiglu_backward(struct rk_pass *pass, const struct rk_block *block,
                                         const void *block_saved, rk_tensor_t x, rk_tensor_t dout,
                                         rk_tensor_t dx)
{
    const struct mlp *mlp = block->own;
    const struct saved *saved = block_saved;
    rk_tensor_t gate_up = saved->gate_up;
    rk_tensor_t gate = gate_of(mlp, gate_up), up = up_of(mlp, gate_up);
    rk_tensor_t activated; /* first its gradient, then the recomputed activation */
    struct rk_step_mark mark;

    RK_TRY(rk_activation_make(pass, block, DACTIVATED, &activated));
    mark = rk_step_arena_mark(pass->arena);
    RK_TRY(rk_sp_gather(pass, dout, &dout));
    RK_TRY(rk_linear_bwd_input(pass, &mlp->down, dout, activated));
    /* The gradients overwrite gate and up. */
    RK_TRY(rk_swiglu_bwd(
        pass->stream,
        &(struct rk_swiglu_bwd_args){
            .dgate = gate, .dup = up, .dy = activated, .gate = gate, .up = up, .y = activated}));
    RK_TRY(rk_linear_bwd_weight(pass, &mlp->down, activated, dout));
    rk_step_arena_release(pass->arena, mark);
    return rk_linear_column_bwd(pass, &mlp->gate_up, x, gate_up, dx);
}

const struct rk_block_ops rk_block_swiglu = {
    .name = "swiglu",
    .block_bytes = sizeof(struct mlp),
    .saved_bytes = sizeof(struct saved),
    .declare = swiglu_declare,
    .forward = swiglu_forward,
    .backward = swiglu_backward,
};
