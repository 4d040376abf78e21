/* Heads with one number per position: value = x . weight[last] + bias[last].
 *
 * "value", of a critic: one label; initialised at random if the files lack it (a language model's). "score",
 * of a reward model: num_labels of config.json, of which the last one is used; the files must have it.
 * Parameter names are those of Hugging Face's token and sequence classification; aliases are TRL's. Weights
 * and hidden states are the same on all tp ranks, and so are values and gradients. */
#include "engine/nn/nn.h"

static void declare_labels(struct rk_head *head, struct rk_param_table *params,
                           const struct rk_head_site *site, int64_t num_labels, uint32_t weight_flags)
{
    struct rk_param_spec weight = {
        .rows = num_labels,
        .cols = site->config->hidden_size,
        .split_dim = -1,
        .flags = weight_flags,
        .alias = "v_head.summary.weight",
    };
    struct rk_param_spec bias = {
        .rows = num_labels,
        .split_dim = -1,
        .flags = RK_PARAM_OPTIONAL, /* sequence classification has no bias */
        .alias = "v_head.summary.bias",
    };

    head->weight.param = rk_params_add(params, &weight, "score.weight");
    head->weight.rows = num_labels;
    head->weight.cols = weight.cols;
    head->weight.has_bias = true;
    head->weight.bias_param = rk_params_add(params, &bias, "score.bias");
}

static void declare_value(struct rk_head *head, struct rk_param_table *params,
                          const struct rk_head_site *site)
{
    declare_labels(head, params, site, 1, RK_PARAM_OPTIONAL);
}

static void declare_score(struct rk_head *head, struct rk_param_table *params,
                          const struct rk_head_site *site)
{
    declare_labels(head, params, site, site->config->num_labels, 0);
}

static rk_tensor_t last_row(rk_tensor_t weight)
{
    return rk_tensor_rows(weight, weight.shape[0] - 1, 1);
}

static rk_tensor_t last_element(rk_tensor_t bias)
{
    size_t offset = (size_t)(bias.shape[0] - 1) * rk_dtype_bytes(bias.dtype);

    return rk_tensor_1d((char *)bias.data + offset, bias.dtype, 1);
}

static struct rk_weight bias_of(const struct rk_head *head)
{
    return (struct rk_weight){.param = head->weight.bias_param, .rows = head->weight.rows};
}

static rk_tensor_t as_column(rk_tensor_t values)
{
    return rk_tensor_2d(values.data, values.dtype, values.shape[0], 1);
}

static struct rk_status *forward(const struct rk_pass *pass, const struct rk_head *head, rk_tensor_t hidden,
                                 uint32_t wanted, struct rk_head_saved *saved, struct rk_head_out *out)
{
    struct rk_weight bias = bias_of(head);
    int64_t count = saved->index.shape[0];

    (void)wanted;
    RK_TRY(rk_step_2d(pass->kept, &saved->x, pass->dtype, count, pass->hidden_size));
    RK_TRY(rk_step_1d(pass->kept, &out->of[RK_HEAD_VALUES], pass->stat_dtype, count));
    RK_TRY(rk_head_gather(pass, hidden, saved));
    return rk_project_fwd(pass->stream, &(struct rk_project_fwd_args){
                                            .scores = as_column(out->of[RK_HEAD_VALUES]),
                                            .x = saved->x,
                                            .weight = last_row(rk_weight_value(pass, &head->weight)),
                                            .bias = last_element(rk_weight_value(pass, &bias)),
                                        });
}

/* Sums in the dtype of scores, which is wider than 16 bits; a 16-bit gradient gets the rounded sum
 * afterwards. */
static struct rk_status *bias_bwd(const struct rk_pass *pass, const struct rk_weight *bias,
                                  rk_tensor_t dscores)
{
    rk_tensor_t grad, sum;
    bool is_narrow;

    RK_TRY(rk_weight_grad_or_scratch(pass, bias, &grad));
    grad = sum = last_element(grad);
    is_narrow = grad.dtype != dscores.dtype;
    if (is_narrow) {
        RK_TRY(rk_step_1d(pass->arena, &sum, dscores.dtype, 1));
        RK_TRY(rk_stream_zero(pass->stream, sum.data, rk_tensor_bytes(sum)));
    }
    RK_TRY(rk_bias_bwd(pass->stream, &(struct rk_bias_bwd_args){.dbias = sum, .dy = dscores}));
    if (!is_narrow)
        return NULL;
    return rk_axpby(pass->stream, &(struct rk_axpby_args){.y = grad, .x = sum, .alpha = 1, .beta = 1});
}

static struct rk_status *backward(const struct rk_pass *pass, const struct rk_head *head,
                                  const struct rk_head_saved *saved, const struct rk_head_out *dout,
                                  rk_tensor_t dhidden)
{
    struct rk_step_mark mark = rk_step_arena_mark(pass->arena);
    rk_tensor_t dscores = as_column(dout->of[RK_HEAD_VALUES]), dx, dweight;
    struct rk_weight bias = bias_of(head);

    RK_TRY(rk_step_2d(pass->arena, &dx, pass->dtype, saved->x.shape[0], pass->hidden_size));
    RK_TRY(rk_weight_grad_or_scratch(pass, &head->weight, &dweight));
    if (pass->overwrites_grads && head->weight.rows > 1) /* rows of unused labels have no gradient */
        RK_TRY(rk_stream_zero(pass->stream, dweight.data, rk_tensor_bytes(dweight)));
    RK_TRY(rk_project_bwd(pass->stream, &(struct rk_project_bwd_args){
                                            .dx = dx,
                                            .dweight = last_row(dweight),
                                            .dscores = dscores,
                                            .x = saved->x,
                                            .weight = last_row(rk_weight_value(pass, &head->weight)),
                                            .overwrites_dweight = pass->overwrites_grads,
                                        }));
    RK_TRY(bias_bwd(pass, &bias, dscores));
    RK_TRY(rk_head_scatter(pass, saved, dx, dhidden));
    rk_step_arena_release(pass->arena, mark);
    return NULL;
}

static const char *const value_architectures[] = {"ForCausalLM", "ForTokenClassification",
                                                  "ForSequenceClassification", NULL};
static const char *const score_architectures[] = {"ForSequenceClassification", "ForTokenClassification",
                                                  NULL};

const struct rk_head_ops rk_head_value = {
    .name = "value",
    .outputs = RK_HEAD_BIT(RK_HEAD_VALUES),
    .architectures = value_architectures,
    .declare = declare_value,
    .forward = forward,
    .backward = backward,
};

const struct rk_head_ops rk_head_score = {
    .name = "score",
    .outputs = RK_HEAD_BIT(RK_HEAD_VALUES),
    .architectures = score_architectures,
    .declare = declare_score,
    .forward = forward,
    .backward = backward,
};
