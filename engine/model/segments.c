/* The tokens over which routers have metrics and losses: segments are sequences, or all of a micro-batch. */
#include "engine/model/model.h"

/* The token of the caller's micro-batch; -1: padding. */
static int64_t source_of(const struct rk_pass *pass, const struct rk_packed *packed, int64_t t)
{
    const struct rk_context *context = pass->context;

    if (context)
        return context->tokens[rk_comm_group_rank(context->group) * pass->num_tokens + t];
    return t < packed->num_tokens ? t : -1;
}

/* The sequence of a token of the caller's micro-batch. */
static int32_t sequence_of(const struct rk_packed *packed, int64_t source)
{
    int32_t first = 0, last = packed->num_seqs - 1;

    while (first < last) { /* cu_seqlens[first] <= source, and last is not before the sequence */
        int32_t middle = first + (last - first + 1) / 2;

        if (packed->cu_seqlens[middle] <= source)
            first = middle;
        else
            last = middle - 1;
    }
    return first;
}

static struct rk_status *upload_segments(struct rk_pass *pass, const struct rk_packed *packed,
                                         bool is_per_sequence)
{
    int32_t *segments;

    RK_TRY(rk_pass_alloc_host(pass, &segments, pass->num_tokens, sizeof(*segments)));
    for (int64_t t = 0; t < pass->num_tokens; t++) {
        int64_t source = source_of(pass, packed, t);

        segments[t] = source < 0 ? -1 : is_per_sequence ? sequence_of(packed, source) : 0;
    }
    return rk_step_upload(pass->kept, pass->stream, &pass->routers.segments, RK_DTYPE_I32, segments,
                          pass->num_tokens);
}

/* The weight of the balance loss of a segment of count tokens: E / (K count^2) of the definition, times the
 * coefficient and the segment's share of the step (docs/models.md). */
static double weight_of(const struct rk_moe_config *moe, const struct rk_router_losses *losses,
                        const struct rk_step_totals *totals, double count)
{
    double share = losses->is_per_sequence ? 1.0 / totals->num_seqs : count / totals->num_tokens;

    if (count == 0.0)
        return 0.0;
    return losses->balance_coeff * share * (double)moe->num_experts /
           ((double)moe->num_experts_per_tok * count * count);
}

static struct rk_status *upload_weights(const struct rk_model_core *core, struct rk_pass *pass,
                                        const struct rk_packed *packed, const struct rk_router_losses *losses,
                                        const struct rk_step_totals *totals)
{
    int64_t num_segments = losses->is_per_sequence ? packed->num_seqs : 1;
    double *weights;
    void *raw;

    RK_TRY(rk_pass_alloc_host(pass, &weights, num_segments, sizeof(*weights)));
    RK_TRY(rk_pass_alloc_host(pass, &raw, num_segments, rk_dtype_bytes(pass->stat_dtype)));
    for (int64_t s = 0; s < num_segments; s++) {
        int64_t count =
            losses->is_per_sequence ? packed->cu_seqlens[s + 1] - packed->cu_seqlens[s] : packed->num_tokens;

        weights[s] = weight_of(&core->config.moe, losses, totals, (double)count);
    }
    rk_store_f64(raw, pass->stat_dtype, weights, num_segments);
    return rk_step_upload(pass->kept, pass->stream, &pass->routers.weights, pass->stat_dtype, raw,
                          num_segments);
}

struct rk_status *rk_model_upload_segments(const struct rk_model_core *core, struct rk_pass *pass,
                                           const struct rk_packed *packed,
                                           const struct rk_step_totals *totals)
{
    struct rk_router_losses losses = rk_router_losses_of(&core->moe);

    RK_TRY(upload_segments(pass, packed, losses.is_per_sequence));
    if (losses.z_coeff > 0.0)
        pass->routers.z_weight = losses.z_coeff / RK_MAX(totals->num_tokens, 1.0);
    if (losses.balance_coeff == 0.0 || packed->num_tokens == 0)
        return NULL;
    return upload_weights(core, pass, packed, &losses, totals);
}
