/* Clip-Cov: some of the tokens with a large covariance of advantage and log-prob get no gradient. With
 * d = log_prob - old, not clamped, and r = e^d:
 *
 *   l = max(-A r, -A clamp(r, 1 - low, 1 + high)), and 0 for the chosen tokens; no dual clip
 *
 * Up to max(1, floor(clip_cov_ratio * tokens)) tokens are chosen among those with clip_cov_lb < cov <
 * clip_cov_ub that are not clipped; cov.h defines the covariance and says why it is that of a micro-batch.
 * verl draws the tokens at random. Here a hash of (position in the sequence, old_log_prob) orders them, so
 * that runs are reproducible and independent of the order of the rows. Metrics: pg_clipfrac of the chosen
 * tokens, ppo_kl. Cui et al., arXiv:2505.22617; names as in verl. */
#include "engine/loss/cov.h"

#include <string.h>

#include "base/rk_rng.h"

struct config {
    struct rk_clip_config clip;
    RK_CLIP_COV_KNOBS(RK_KNOB_FIELD, , , )
};

static const struct rk_knob knobs[] = {
    RK_CLIP_KNOBS(RK_KNOB_ROW, struct rk_clip_config, , ) /* first member of struct config */
    RK_CLIP_COV_KNOBS(RK_KNOB_ROW, struct config, , )};

static struct rk_status *check(void *opaque)
{
    struct config *config = opaque;

    if (!(config->clip_cov_lb < config->clip_cov_ub))
        return RK_FAIL(RK_INVALID_ARGUMENT,
                       "policy_loss.clip_cov_lb: expected less than policy_loss.clip_cov_ub (%g), got %g",
                       config->clip_cov_ub, config->clip_cov_lb);
    return rk_clip_check(&config->clip);
}

static struct rk_pg_token token_loss(const struct config *config, const struct rk_loss_in *in, int64_t t)
{
    double d = in->outputs[RK_HEAD_LOG_PROBS][t] - in->columns[RK_LOSS_OLD_LOG_PROBS][t];
    struct rk_pg_token token = rk_pg_clipped(&config->clip, exp(d), in->columns[RK_LOSS_ADVANTAGES][t]);

    token.kl = -d;
    return token;
}

static uint64_t order(const struct rk_cov *cov, int32_t seq, int64_t t, const void *opaque)
{
    const uint32_t key[2] = {0x636c6970, 0x5f636f76}; /* "clip_cov" */
    const struct config *config = opaque;
    double value = rk_cov_at(cov, t);
    rk_philox_block_t block;
    uint64_t bits, hash;

    if (!(value > config->clip_cov_lb && value < config->clip_cov_ub) ||
        token_loss(config, cov->in, t).is_clipped)
        return RK_COV_NEVER;
    memcpy(&bits, &cov->in->columns[RK_LOSS_OLD_LOG_PROBS][t], sizeof(bits));
    block = rk_philox4x32(
        (uint32_t[4]){(uint32_t)(t - cov->in->cu_seqlens[seq]), 0, (uint32_t)bits, (uint32_t)(bits >> 32)},
        key);
    hash = (uint64_t)block.word[1] << 32 | block.word[0];
    return hash < RK_COV_NEVER ? hash : RK_COV_NEVER - 1;
}

static void forward_backward(struct rk_loss_out *out, const struct rk_loss_in *in, const void *opaque)
{
    const struct config *config = opaque;
    struct rk_cov cov = rk_cov_begin(in);
    struct rk_cov_choice choice =
        rk_cov_choose(&cov, rk_cov_count(&cov, config->clip_cov_ratio), order, config);

    for (int32_t i = 0; i < in->num_seqs; i++) {
        for (int64_t t = in->cu_seqlens[i]; t < in->cu_seqlens[i + 1]; t++) {
            struct rk_pg_token token;

            if (!in->mask[t])
                continue;
            token = token_loss(config, in, t);
            token.is_clipped = rk_cov_is_chosen(&choice, order(&cov, i, t, config));
            if (token.is_clipped)
                token.loss = token.grad = 0.0;
            rk_pg_add(out, in, in->weight, t, &token);
        }
    }
}

const struct rk_loss_ops rk_loss_clip_cov = {
    RK_PG_FIELDS,
    .knobs = knobs,
    .num_knobs = RK_ARRAY_LEN(knobs),
    .config_bytes = sizeof(struct config),
    .check = check,
    .num_metrics = RK_PG_CLIPFRAC + 1,
    .forward_backward = forward_backward,
};
