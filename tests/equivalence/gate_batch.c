/* The data of every case: sequences, their micro-batches, losses. */
#include "tests/equivalence/gate.h"

#include <math.h>

#include "base/rk_assert.h"
#include "base/rk_rng.h"
#include "tests/support/test.h"

#define VOCAB_SIZE    131
#define ENTROPY_COEFF 0.01

static const int32_t seq_lens[RK_GATE_NUM_SEQS] = {1, 97, 5, 64, 33, 2, 80, 17, 50, 9, 71, 40};

void rk_gate_batch_make(struct rk_gate_batch *batch)
{
    struct rk_rng rng;

    *batch = (struct rk_gate_batch){0};
    rk_rng_init(&rng, rk_test_seed(), 0);
    for (int32_t s = 0; s < RK_GATE_NUM_SEQS; s++) {
        batch->begin[s + 1] = batch->begin[s] + seq_lens[s];
        batch->advantage[s] = rk_rng_next_normal(&rng);
        for (int32_t t = batch->begin[s]; t < batch->begin[s + 1]; t++) {
            batch->tokens[t] = (int32_t)rk_rng_next_below(&rng, VOCAB_SIZE);
            batch->old_log_probs[t] = -4.9 + 0.1 * rk_rng_next_normal(&rng);
        }
        /* The first third is the prompt; the last token has no label. */
        for (int32_t t = batch->begin[s]; t < batch->begin[s + 1]; t++) {
            bool is_scored = t >= batch->begin[s] + seq_lens[s] / 3 && t + 1 < batch->begin[s + 1];

            batch->labels[t] = is_scored ? batch->tokens[t + 1] : RK_LABEL_NONE;
            batch->num_labels += is_scored;
        }
    }
    RK_ASSERT(batch->begin[RK_GATE_NUM_SEQS] == RK_GATE_NUM_TOKENS);
}

static void add_sequence(struct rk_gate_micro *micro, int32_t s, int32_t length)
{
    const struct rk_gate_batch *batch = micro->batch;
    struct rk_packed *packed = &micro->packed;

    for (int32_t i = 0; i < length; i++) {
        int64_t t = packed->num_tokens++;
        int32_t from = i < seq_lens[s] ? batch->begin[s] + i : -1;

        micro->source[t] = from;
        micro->sequence[t] = s;
        micro->tokens[t] = from < 0 ? 0 : batch->tokens[from];
        micro->labels[t] = from < 0 ? RK_LABEL_NONE : batch->labels[from];
        micro->positions[t] = i;
    }
    packed->max_seqlen = RK_MAX(packed->max_seqlen, length);
    micro->cu_seqlens[++packed->num_seqs] = (int32_t)packed->num_tokens;
}

/* Other experts for neighbouring tokens and layers; of padding, the same for all. */
static void give_routes(struct rk_gate_micro *micro)
{
    const struct rk_gate_model *model = micro->model;
    uint16_t *next = micro->routed_experts;

    RK_ASSERT(model->num_routes * model->top_k <= RK_GATE_ROUTES_MAX);
    for (int64_t t = 0; t < micro->packed.num_tokens; t++) {
        for (int32_t layer = 0; layer < model->num_routes; layer++) {
            for (int32_t k = 0; k < model->top_k; k++)
                *next++ = (uint16_t)((5 * (micro->source[t] + 1) + 3 * layer + k * (1 + layer)) %
                                     model->num_experts);
        }
    }
    micro->packed.routed_experts = micro->routed_experts;
}

void rk_gate_micro_make(struct rk_gate_micro *micro, const struct rk_gate_layout *layout, int32_t index)
{
    int32_t dp = RK_MAX(layout->dp, 1), num_micro_batches = RK_MAX(layout->num_micro_batches, 1);

    micro->packed = (struct rk_packed){.tokens = micro->tokens,
                                       .positions = micro->positions,
                                       .cu_seqlens = micro->cu_seqlens,
                                       .labels = micro->labels};
    micro->cu_seqlens[0] = 0;
    for (int32_t i = 0; i < RK_GATE_NUM_SEQS; i++) {
        int32_t s = layout->is_reversed ? RK_GATE_NUM_SEQS - 1 - i : i;
        int32_t place = micro->dp_rank == 1 ? 0 : s / dp % num_micro_batches;

        if (s % dp == micro->dp_rank && place == index)
            add_sequence(micro, s, layout->is_padded ? RK_GATE_SEQ_LEN_MAX : seq_lens[s]);
    }
    if (micro->model->num_routes > 0)
        give_routes(micro);
}

void rk_gate_record(double (*to)[RK_GATE_NUM_TOKENS], const struct rk_gate_micro *micro,
                    const struct rk_head_arrays *outputs)
{
    for (int k = 0; k < RK_HEAD_OUTPUT_COUNT; k++) {
        for (int64_t t = 0; outputs->of[k] && t < micro->packed.num_tokens; t++) {
            if (micro->source[t] >= 0)
                to[k][micro->source[t]] = outputs->of[k][t];
        }
    }
}

static void record_term(const struct rk_gate_micro *micro, int64_t t, double term, double slope)
{
    if (!micro->records)
        return;
    micro->outcome->loss_terms[micro->source[t]] = term;
    micro->outcome->loss_slopes[micro->source[t]] = slope;
}

/* -1/N sum_t (A exp(log p - old) + coeff (H - sum_pi_squared)): a policy gradient with entropy bonuses, N
 * over the whole batch. */
struct rk_status *rk_gate_policy_loss(void *user, const struct rk_head_arrays *outputs,
                                      const struct rk_head_arrays *grads)
{
    const double *log_probs = outputs->of[RK_HEAD_LOG_PROBS], *entropy = outputs->of[RK_HEAD_ENTROPY];
    const double *sum_pi_squared = outputs->of[RK_HEAD_SUM_PI_SQUARED];
    struct rk_gate_micro *micro = user;
    const struct rk_gate_batch *batch = micro->batch;

    for (int64_t t = 0; t < micro->packed.num_tokens; t++) {
        double surrogate, bonus;

        if (micro->labels[t] == RK_LABEL_NONE)
            continue;
        surrogate =
            batch->advantage[micro->sequence[t]] * exp(log_probs[t] - batch->old_log_probs[micro->source[t]]);
        bonus = ENTROPY_COEFF * (entropy[t] - sum_pi_squared[t]);
        grads->of[RK_HEAD_LOG_PROBS][t] = -surrogate / batch->num_labels;
        grads->of[RK_HEAD_ENTROPY][t] = -ENTROPY_COEFF / batch->num_labels;
        grads->of[RK_HEAD_SUM_PI_SQUARED][t] = ENTROPY_COEFF / batch->num_labels;
        record_term(micro, t, -(surrogate + bonus) / batch->num_labels, -surrogate / batch->num_labels);
    }
    if (micro->records)
        rk_gate_record(micro->outcome->trained, micro, outputs);
    return NULL;
}

/* 1/(2N) sum_t (v - old)^2, where there is a label. */
struct rk_status *rk_gate_value_loss(void *user, const struct rk_head_arrays *outputs,
                                     const struct rk_head_arrays *grads)
{
    const double *values = outputs->of[RK_HEAD_VALUES];
    struct rk_gate_micro *micro = user;
    const struct rk_gate_batch *batch = micro->batch;

    for (int64_t t = 0; t < micro->packed.num_tokens; t++) {
        double error;

        if (micro->labels[t] == RK_LABEL_NONE)
            continue;
        error = values[t] - batch->old_log_probs[micro->source[t]];
        grads->of[RK_HEAD_VALUES][t] = error / batch->num_labels;
        record_term(micro, t, error * error / (2 * batch->num_labels), error / batch->num_labels);
    }
    if (micro->records)
        rk_gate_record(micro->outcome->trained, micro, outputs);
    return NULL;
}
