/* The layout never changes the result: one table of layouts, each against one rank.
 *
 * Every case trains the same random model on the same 12 packed sequences for four steps. Compared are the
 * loss, log-prob, entropy and sum of squared probabilities of every token, every gradient of the first step
 * (gathered to the whole tensor), the gradient norms, and every parameter after the last step. A new parallel
 * feature adds rows. */
#include "tests/support/test.h"

#include <math.h>
#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_config.h"
#include "base/rk_mesh.h"
#include "base/rk_rng.h"
#include "tests/support/device.h"
#include "tests/support/fake_nccl.h"
#include "tests/support/models.h"
#include "tests/support/ranks.h"

#define NUM_SEQS          12
#define NUM_STEPS         4
#define NUM_TOKENS        469 /* sum of seq_lens */
#define ELEMENTS_MAX      200000
#define VOCAB_SIZE        131 /* divisible by nothing */
#define TEMPERATURE       0.8
#define ENTROPY_COEFF     0.01
#define RUN_TIMEOUT_S     120
#define BUCKET_ELEMENTS   5000 /* several a layer, and layers that share one */
#define INITIALIZER_RANGE 0.1  /* of the configurations below */

static const int32_t seq_lens[NUM_SEQS] = {1, 97, 5, 64, 33, 2, 80, 17, 50, 9, 71, 40};

#define CONFIG(type, tie)                                                              \
    "{\"model_type\": \"" type                                                         \
    "\", \"hidden_size\": 64, \"intermediate_size\": 128, \"num_hidden_layers\": 4,"   \
    " \"num_attention_heads\": 8, \"num_key_value_heads\": 2, \"vocab_size\": 131,"    \
    " \"head_dim\": 8,"                                                                \
    " \"use_sliding_window\": true, \"sliding_window\": 20, \"max_window_layers\": 2," \
    " \"max_position_embeddings\": 128, \"initializer_range\": 0.1, \"tie_word_embeddings\": " tie "}"
#define LLAMA      CONFIG("llama", "false") /* has no window */
#define LLAMA_TIED CONFIG("llama", "true")
#define QWEN2      CONFIG("qwen2", "false")
#define MISTRAL    CONFIG("mistral", "false")
#define QWEN3      CONFIG("qwen3", "false") /* norms whose gradients are partial on every tp rank */

#define SP                .sequence_parallel = true
#define CP(n)             .cp = (n)
#define VALUE             .head = "value"
#define PP(n)             .pp = (n)
#define VPP(n)            .vpp = (n)
#define ENDS(first, last) .num_first = (first), .num_last = (last)

struct layout_case {
    const char *label;
    int32_t tp, dp, num_micro_batches;
    const char *config;
    rk_numerics_t numerics;
    rk_dtype_t dtype;
    int64_t recompute_num_layers;
    bool sequence_parallel;
    int32_t cp;                  /* 0: 1 */
    const char *head;            /* NULL: "lm" */
    int32_t pp, vpp;             /* 0: 1 */
    int32_t num_first, num_last; /* layers of these stages; 0: as many as the others */
};

static const struct layout_case cases[] = {
    {.label = "f32 two micro-batches", 1, 1, 2, LLAMA, RK_NUMERICS_FAST, RK_DTYPE_F32, 0},
    {.label = "f32 strict", 1, 1, 1, LLAMA, RK_NUMERICS_STRICT, RK_DTYPE_F32, 0},
    {.label = "f32 tp=2", 2, 1, 1, LLAMA, RK_NUMERICS_FAST, RK_DTYPE_F32, 0},
    {.label = "f32 tp=4, kv heads replicated", 4, 1, 2, LLAMA, RK_NUMERICS_FAST, RK_DTYPE_F32, 0},
    {.label = "f32 dp=2", 1, 2, 1, LLAMA, RK_NUMERICS_FAST, RK_DTYPE_F32, 0},
    {.label = "f32 dp=4, empty micro-batches", 1, 4, 2, LLAMA, RK_NUMERICS_FAST, RK_DTYPE_F32, 0},
    {.label = "f32 tp=2 dp=2", 2, 2, 2, LLAMA, RK_NUMERICS_FAST, RK_DTYPE_F32, 0},
    {.label = "f32 strict tp=2 dp=2", 2, 2, 1, LLAMA, RK_NUMERICS_STRICT, RK_DTYPE_F32, 0},
    {.label = "f32 tied tp=2 dp=2", 2, 2, 2, LLAMA_TIED, RK_NUMERICS_FAST, RK_DTYPE_F32, 0},
    {.label = "f32 qwen2 tp=2 dp=2, recompute", 2, 2, 2, QWEN2, RK_NUMERICS_FAST, RK_DTYPE_F32, 3},
    {.label = "f32 qwen3 tp=4, kv heads replicated", 4, 1, 2, QWEN3, RK_NUMERICS_FAST, RK_DTYPE_F32, 0},
    {.label = "f32 qwen3 tp=2 dp=2, recompute", 2, 2, 2, QWEN3, RK_NUMERICS_FAST, RK_DTYPE_F32, 3},
    {.label = "bf16 qwen2 two micro-batches", 1, 1, 2, QWEN2, RK_NUMERICS_FAST, RK_DTYPE_BF16, 0},
    {.label = "bf16 qwen2 tp=4, kv heads replicated", 4, 1, 2, QWEN2, RK_NUMERICS_FAST, RK_DTYPE_BF16, 0},
    {.label = "bf16 qwen2 dp=2", 1, 2, 1, QWEN2, RK_NUMERICS_FAST, RK_DTYPE_BF16, 0},
    {.label = "bf16 qwen2 strict tp=2 dp=2", 2, 2, 2, QWEN2, RK_NUMERICS_STRICT, RK_DTYPE_BF16, 0},
    {.label = "bf16 qwen3 dp=2, recompute", 1, 2, 2, QWEN3, RK_NUMERICS_FAST, RK_DTYPE_BF16, 2},
    {.label = "f64 two micro-batches", 1, 1, 2, LLAMA, RK_NUMERICS_FAST, RK_DTYPE_F64, 0},
    {.label = "f64 tp=2", 2, 1, 1, LLAMA, RK_NUMERICS_FAST, RK_DTYPE_F64, 0},
    {.label = "f64 tp=4, kv heads replicated", 4, 1, 2, LLAMA, RK_NUMERICS_FAST, RK_DTYPE_F64, 0},
    {.label = "f64 dp=2", 1, 2, 1, LLAMA, RK_NUMERICS_FAST, RK_DTYPE_F64, 0},
    {.label = "f64 dp=3, not a power of two", 1, 3, 1, LLAMA, RK_NUMERICS_FAST, RK_DTYPE_F64, 0},
    {.label = "f64 dp=4, empty micro-batches", 1, 4, 2, LLAMA, RK_NUMERICS_FAST, RK_DTYPE_F64, 0},
    {.label = "f64 tp=2 dp=2", 2, 2, 2, LLAMA, RK_NUMERICS_FAST, RK_DTYPE_F64, 0},
    {.label = "f64 tp=4 dp=2", 4, 2, 2, LLAMA, RK_NUMERICS_FAST, RK_DTYPE_F64, 0},
    {.label = "f64 qwen2 tp=4 dp=2, recompute", 4, 2, 2, QWEN2, RK_NUMERICS_FAST, RK_DTYPE_F64, 1},
    {.label = "f64 qwen3 tp=4 dp=2, recompute", 4, 2, 2, QWEN3, RK_NUMERICS_FAST, RK_DTYPE_F64, 1},
    {.label = "f64 tied tp=4 dp=2", 4, 2, 2, LLAMA_TIED, RK_NUMERICS_FAST, RK_DTYPE_F64, 0},
    /* Sequence parallelism; 469 tokens, and the micro-batches of them, are no multiples of 2 or 4. */
    {.label = "f32 tp=2 sp", 2, 1, 1, LLAMA, RK_NUMERICS_FAST, RK_DTYPE_F32, 0, SP},
    {.label = "f32 tp=4 sp, kv replicated", 4, 1, 2, LLAMA, RK_NUMERICS_FAST, RK_DTYPE_F32, 0, SP},
    {.label = "f32 strict tp=2 dp=2 sp", 2, 2, 1, LLAMA, RK_NUMERICS_STRICT, RK_DTYPE_F32, 0, SP},
    {.label = "f32 tied tp=2 dp=2 sp, recompute", 2, 2, 2, LLAMA_TIED, RK_NUMERICS_FAST, RK_DTYPE_F32, 3, SP},
    {.label = "f32 qwen3 tp=4 sp, kv replicated", 4, 1, 2, QWEN3, RK_NUMERICS_FAST, RK_DTYPE_F32, 0, SP},
    {.label = "bf16 qwen2 strict tp=2 dp=2 sp", 2, 2, 2, QWEN2, RK_NUMERICS_STRICT, RK_DTYPE_BF16, 0, SP},
    {.label = "bf16 qwen2 tp=4 sp, recompute", 4, 1, 2, QWEN2, RK_NUMERICS_FAST, RK_DTYPE_BF16, 2, SP},
    {.label = "f64 tp=2 sp", 2, 1, 1, LLAMA, RK_NUMERICS_FAST, RK_DTYPE_F64, 0, SP},
    {.label = "f64 tp=2 sp, recompute", 2, 1, 1, LLAMA, RK_NUMERICS_FAST, RK_DTYPE_F64, 1, SP},
    {.label = "f64 tp=4 sp", 4, 1, 2, LLAMA, RK_NUMERICS_FAST, RK_DTYPE_F64, 0, SP},
    {.label = "f64 tied tp=4 dp=2 sp, empty", 4, 2, 2, LLAMA_TIED, RK_NUMERICS_FAST, RK_DTYPE_F64, 0, SP},
    {.label = "f64 mistral tp=2 sp", 2, 1, 2, MISTRAL, RK_NUMERICS_FAST, RK_DTYPE_F64, 0, SP},
    {.label = "f64 qwen2 tp=4 dp=2 sp, recompute", 4, 2, 2, QWEN2, RK_NUMERICS_FAST, RK_DTYPE_F64, 1, SP},
    {.label = "f64 qwen2 tp=2 sp", 2, 1, 2, QWEN2, RK_NUMERICS_FAST, RK_DTYPE_F64, 0, SP},
    {.label = "f64 qwen3 tp=4 dp=2 sp, recompute", 4, 2, 2, QWEN3, RK_NUMERICS_FAST, RK_DTYPE_F64, 1, SP},
    {.label = "f64 qwen3 tp=2 sp", 2, 1, 2, QWEN3, RK_NUMERICS_FAST, RK_DTYPE_F64, 0, SP},
    {.label = "f64 value tp=4", 4, 1, 2, LLAMA, RK_NUMERICS_FAST, RK_DTYPE_F64, 0, VALUE},
    {.label = "f64 value tp=2 sp", 2, 1, 2, LLAMA, RK_NUMERICS_FAST, RK_DTYPE_F64, 0, SP, VALUE},
    {.label = "f64 value tp=4 dp=2 sp", 4, 2, 2, LLAMA, RK_NUMERICS_FAST, RK_DTYPE_F64, 1, SP, VALUE},
    {.label = "f32 value tp=4 sp", 4, 1, 2, LLAMA, RK_NUMERICS_FAST, RK_DTYPE_F32, 0, SP, VALUE},
    /* Context parallelism; windows reach over chunks, sequences need padding. */
    {.label = "f32 cp=2", 1, 1, 1, LLAMA, RK_NUMERICS_FAST, RK_DTYPE_F32, 0, CP(2)},
    {.label = "f32 cp=4", 1, 1, 2, LLAMA, RK_NUMERICS_FAST, RK_DTYPE_F32, 0, CP(4)},
    {.label = "f32 tp=2 cp=2 sp", 2, 1, 2, LLAMA, RK_NUMERICS_FAST, RK_DTYPE_F32, 0, SP, CP(2)},
    {.label = "f32 qwen3 cp=2 dp=2, recompute", 1, 2, 2, QWEN3, RK_NUMERICS_FAST, RK_DTYPE_F32, 3, CP(2)},
    {.label = "bf16 qwen2 cp=2", 1, 1, 2, QWEN2, RK_NUMERICS_FAST, RK_DTYPE_BF16, 0, CP(2)},
    {.label = "bf16 qwen2 strict t2 c2 sp", 2, 1, 2, QWEN2, RK_NUMERICS_STRICT, RK_DTYPE_BF16, 0, SP, CP(2)},
    {.label = "f64 cp=2", 1, 1, 1, LLAMA, RK_NUMERICS_FAST, RK_DTYPE_F64, 0, CP(2)},
    {.label = "f64 cp=3, not a power of two", 1, 1, 1, LLAMA, RK_NUMERICS_FAST, RK_DTYPE_F64, 0, CP(3)},
    {.label = "f64 cp=4", 1, 1, 1, LLAMA, RK_NUMERICS_FAST, RK_DTYPE_F64, 0, CP(4)},
    {.label = "f64 cp=2 dp=2, empty micro-batches", 1, 2, 2, LLAMA, RK_NUMERICS_FAST, RK_DTYPE_F64, 0, CP(2)},
    {.label = "f64 tp=2 cp=2 dp=2 sp", 2, 2, 1, LLAMA, RK_NUMERICS_FAST, RK_DTYPE_F64, 0, SP, CP(2)},
    {.label = "f64 tied tp=2 cp=2", 2, 1, 2, LLAMA_TIED, RK_NUMERICS_FAST, RK_DTYPE_F64, 0, CP(2)},
    {.label = "f64 mistral cp=4", 1, 1, 1, MISTRAL, RK_NUMERICS_FAST, RK_DTYPE_F64, 0, CP(4)},
    {.label = "f64 qwen2 tp=2 cp=2, recompute", 2, 1, 2, QWEN2, RK_NUMERICS_FAST, RK_DTYPE_F64, 1, CP(2)},
    {.label = "f64 qwen3 t2 c2 sp, recompute", 2, 1, 2, QWEN3, RK_NUMERICS_FAST, RK_DTYPE_F64, 3, SP, CP(2)},
    {.label = "f64 value tp=2 cp=2 sp", 2, 1, 2, LLAMA, RK_NUMERICS_FAST, RK_DTYPE_F64, 0, SP, VALUE, CP(2)},
    /* Pipelines; rank 1 of dp has empty micro-batches. */
    {.label = "f32 pp=2", 1, 1, 4, LLAMA, RK_NUMERICS_FAST, RK_DTYPE_F32, 0, PP(2)},
    {.label = "f32 pp=4, fewer micro-batches", 1, 1, 2, LLAMA, RK_NUMERICS_FAST, RK_DTYPE_F32, 0, PP(4)},
    {.label = "f32 pp=4", 1, 1, 6, QWEN3, RK_NUMERICS_FAST, RK_DTYPE_F32, 0, PP(4)},
    {.label = "f32 pp=3, uneven", 1, 1, 5, LLAMA, RK_NUMERICS_FAST, RK_DTYPE_F32, 0, PP(3), ENDS(1, 1)},
    {.label = "f32 pp=2 vpp=2", 1, 1, 4, LLAMA, RK_NUMERICS_FAST, RK_DTYPE_F32, 0, PP(2), VPP(2)},
    {.label = "f32 tp=2 pp=2 sp", 2, 1, 3, LLAMA, RK_NUMERICS_FAST, RK_DTYPE_F32, 0, SP, PP(2)},
    {.label = "f32 strict tp=2 pp=2 sp", 2, 1, 3, LLAMA, RK_NUMERICS_STRICT, RK_DTYPE_F32, 0, SP, PP(2)},
    {.label = "f32 tied pp=2 dp=2", 1, 2, 3, LLAMA_TIED, RK_NUMERICS_FAST, RK_DTYPE_F32, 0, PP(2)},
    {.label = "bf16 qwen2 pp=2, recompute", 1, 1, 3, QWEN2, RK_NUMERICS_FAST, RK_DTYPE_BF16, 1, PP(2)},
    {.label = "bf16 qwen2 pp=2 vpp=2 tied",
     1,
     1,
     4,
     LLAMA_TIED,
     RK_NUMERICS_FAST,
     RK_DTYPE_BF16,
     0,
     PP(2),
     VPP(2)},
    {.label = "f64 pp=2", 1, 1, 1, LLAMA, RK_NUMERICS_FAST, RK_DTYPE_F64, 0, PP(2)},
    {.label = "f64 pp=2 vpp=2, recompute", 1, 1, 6, LLAMA, RK_NUMERICS_FAST, RK_DTYPE_F64, 1, PP(2), VPP(2)},
    {.label = "f64 pp=4 dp=2, empty", 1, 2, 4, LLAMA, RK_NUMERICS_FAST, RK_DTYPE_F64, 0, PP(4)},
    {.label = "f64 tied pp=2 vpp=2 dp=2",
     1,
     2,
     2,
     LLAMA_TIED,
     RK_NUMERICS_FAST,
     RK_DTYPE_F64,
     0,
     PP(2),
     VPP(2)},
    {.label = "f64 tied tp=2 pp=2 dp=2 sp",
     2,
     2,
     3,
     LLAMA_TIED,
     RK_NUMERICS_FAST,
     RK_DTYPE_F64,
     0,
     SP,
     PP(2)},
    {.label = "f64 cp=2 pp=2 dp=2", 1, 2, 3, LLAMA, RK_NUMERICS_FAST, RK_DTYPE_F64, 0, CP(2), PP(2)},
    {.label = "f64 tp=2 cp=2 pp=2 sp", 2, 1, 3, QWEN3, RK_NUMERICS_FAST, RK_DTYPE_F64, 1, SP, CP(2), PP(2)},
    {.label = "f64 mistral pp=2 vpp=2", 1, 1, 2, MISTRAL, RK_NUMERICS_FAST, RK_DTYPE_F64, 0, PP(2), VPP(2)},
    {.label = "f64 qwen2 tp=2 pp=2", 2, 1, 3, QWEN2, RK_NUMERICS_FAST, RK_DTYPE_F64, 0, PP(2)},
    {.label = "f64 value pp=2", 1, 1, 3, LLAMA, RK_NUMERICS_FAST, RK_DTYPE_F64, 0, VALUE, PP(2)},
    {.label = "f64 value tp=2 pp=2 vpp=2 sp",
     2,
     1,
     2,
     LLAMA,
     RK_NUMERICS_FAST,
     RK_DTYPE_F64,
     1,
     SP,
     VALUE,
     PP(2),
     VPP(2)},
};

static int32_t num_ranks_of(const struct layout_case *row)
{
    return row->tp * RK_MAX(row->cp, 1) * row->dp * RK_MAX(row->pp, 1);
}

static bool has_values(const struct layout_case *row)
{
    return row->head && strcmp(row->head, "value") == 0;
}

/* What a run computes; in memory that the ranks share. */
struct outcome {
    double loss[RK_TEST_MAX_RANKS]; /* the share of every dp rank */
    double log_probs[NUM_TOKENS];   /* or values */
    double entropy[NUM_TOKENS], sum_pi_squared[NUM_TOKENS];
    double grad_norm[NUM_STEPS];
    int64_t num_params;
    int64_t param_begin[64]; /* of every parameter in grads and params */
    double grads[ELEMENTS_MAX], params[ELEMENTS_MAX];
};

/* The whole batch; each rank takes its sequences from it. */
struct batch {
    int32_t begin[NUM_SEQS + 1];
    int32_t tokens[NUM_TOKENS], labels[NUM_TOKENS];
    double advantage[NUM_SEQS], old_log_probs[NUM_TOKENS];
    double num_labels;
};

/* The sequences of one rank's micro-batch, packed. */
struct micro_batch {
    struct rk_packed packed;
    int32_t tokens[NUM_TOKENS], positions[NUM_TOKENS], labels[NUM_TOKENS], cu_seqlens[NUM_SEQS + 1];
    int32_t source[NUM_TOKENS]; /* where in the batch a token comes from */
    int32_t sequence[NUM_TOKENS];
    const struct batch *batch;
    struct outcome *outcome;
    int32_t dp_rank;
    bool records; /* one rank of a replica, in the first step */
};

static void make_batch(struct batch *batch)
{
    struct rk_rng rng;

    *batch = (struct batch){0};
    rk_rng_init(&rng, rk_test_seed(), 0);
    for (int32_t s = 0; s < NUM_SEQS; s++) {
        batch->begin[s + 1] = batch->begin[s] + seq_lens[s];
        batch->advantage[s] = rk_rng_next_normal(&rng);
        for (int32_t t = batch->begin[s]; t < batch->begin[s + 1]; t++) {
            batch->tokens[t] = (int32_t)rk_rng_next_below(&rng, VOCAB_SIZE);
            batch->old_log_probs[t] = -4.9 + 0.1 * rk_rng_next_normal(&rng);
        }
        /* The first third is the prompt; the last token predicts nothing. */
        for (int32_t t = batch->begin[s]; t < batch->begin[s + 1]; t++) {
            bool is_scored = t >= batch->begin[s] + seq_lens[s] / 3 && t + 1 < batch->begin[s + 1];

            batch->labels[t] = is_scored ? batch->tokens[t + 1] : RK_LABEL_NONE;
            batch->num_labels += is_scored;
        }
    }
}

/* Sequence s goes to dp rank s % dp. Rank 1 puts all of its own into its first micro-batch: the others are
 * empty. */
static void make_micro_batch(struct micro_batch *micro, const struct layout_case *row, int32_t index)
{
    struct rk_packed *packed = &micro->packed;

    *packed = (struct rk_packed){.tokens = micro->tokens,
                                 .positions = micro->positions,
                                 .cu_seqlens = micro->cu_seqlens,
                                 .labels = micro->labels};
    micro->cu_seqlens[0] = 0;
    for (int32_t s = micro->dp_rank; s < NUM_SEQS; s += row->dp) {
        int32_t place = micro->dp_rank == 1 ? 0 : s / row->dp % row->num_micro_batches;

        if (place != index)
            continue;
        for (int32_t i = 0; i < seq_lens[s]; i++) {
            int64_t t = packed->num_tokens++;

            micro->source[t] = micro->batch->begin[s] + i;
            micro->sequence[t] = s;
            micro->tokens[t] = micro->batch->tokens[micro->source[t]];
            micro->labels[t] = micro->batch->labels[micro->source[t]];
            micro->positions[t] = i;
        }
        packed->max_seqlen = RK_MAX(packed->max_seqlen, seq_lens[s]);
        micro->cu_seqlens[++packed->num_seqs] = (int32_t)packed->num_tokens;
    }
}

/* -1/N sum_t (A exp(log p - old) + coeff (H - sum_pi_squared)): a policy gradient with bonuses for spread, N
 * over the whole batch. */
static struct rk_status *loss_fn(void *user, const struct rk_head_arrays *outputs,
                                 const struct rk_head_arrays *grads)
{
    const double *log_probs = outputs->of[RK_HEAD_LOG_PROBS], *entropy = outputs->of[RK_HEAD_ENTROPY];
    const double *sum_pi_squared = outputs->of[RK_HEAD_SUM_PI_SQUARED];
    double *dlog_probs = grads->of[RK_HEAD_LOG_PROBS], *dentropy = grads->of[RK_HEAD_ENTROPY];
    double *dsum_pi_squared = grads->of[RK_HEAD_SUM_PI_SQUARED];
    struct micro_batch *micro = user;
    const struct batch *batch = micro->batch;

    for (int64_t t = 0; t < micro->packed.num_tokens; t++) {
        int32_t from = micro->source[t];
        double surrogate =
            batch->advantage[micro->sequence[t]] * exp(log_probs[t] - batch->old_log_probs[from]);

        dlog_probs[t] = -surrogate / batch->num_labels;
        dentropy[t] = -ENTROPY_COEFF / batch->num_labels;
        dsum_pi_squared[t] = -dentropy[t];
        if (!micro->records)
            continue;
        micro->outcome->log_probs[from] = log_probs[t];
        micro->outcome->entropy[from] = entropy[t];
        micro->outcome->sum_pi_squared[from] = sum_pi_squared[t];
        if (micro->labels[t] != RK_LABEL_NONE)
            micro->outcome->loss[micro->dp_rank] -=
                (surrogate + ENTROPY_COEFF * (entropy[t] - sum_pi_squared[t])) / batch->num_labels;
    }
    return NULL;
}

/* 1/(2N) sum_t (v - old)^2, where there is a label. */
static struct rk_status *value_loss_fn(void *user, const struct rk_head_arrays *outputs,
                                       const struct rk_head_arrays *grads)
{
    const double *values = outputs->of[RK_HEAD_VALUES];
    struct micro_batch *micro = user;
    const struct batch *batch = micro->batch;

    for (int64_t t = 0; t < micro->packed.num_tokens; t++) {
        int32_t from = micro->source[t];
        double error = values[t] - batch->old_log_probs[from];

        grads->of[RK_HEAD_VALUES][t] = error / batch->num_labels;
        if (!micro->records)
            continue;
        micro->outcome->log_probs[from] = values[t];
        if (micro->labels[t] != RK_LABEL_NONE)
            micro->outcome->loss[micro->dp_rank] += error * error / (2 * batch->num_labels);
    }
    return NULL;
}

static struct rk_status *gather(struct rk_model *model, rk_param_kind_t kind, struct outcome *outcome,
                                double *out, bool records)
{
    int64_t position = 0;
    double *values = rk_calloc(ELEMENTS_MAX, sizeof(*values));
    struct rk_status *st = NULL;

    for (int64_t i = 0; !st && i < rk_model_num_params(model); i++) {
        const struct rk_param *param = rk_model_param_at(model, i);

        st = rk_model_gather_param(model, i, kind, values + position);
        if (records)
            outcome->param_begin[i] = position;
        position += param->shape[0] * param->shape[1];
    }
    if (records) {
        outcome->num_params = rk_model_num_params(model);
        outcome->param_begin[outcome->num_params] = position;
        memcpy(out, values, (size_t)position * sizeof(*values));
    }
    rk_free(values);
    return st;
}

struct run {
    const struct layout_case *row;
    const struct batch *batch;
    struct outcome *outcome; /* shared */
    struct rk_test_rendezvous *rendezvous;
};

struct training {
    struct rk_model *model;
    const struct run *run;
    struct micro_batch *micro;
};

static struct rk_status *bind_micro_batch(void *user, int64_t i, struct rk_train_micro *out)
{
    const struct training *training = user;

    make_micro_batch(training->micro, training->run->row, (int32_t)i);
    *out = (struct rk_train_micro){.packed = &training->micro->packed,
                                   .temperature = TEMPERATURE,
                                   .outputs = rk_model_head_outputs(training->model),
                                   .loss_fn = has_values(training->run->row) ? value_loss_fn : loss_fn,
                                   .user = training->micro};
    return NULL;
}

static struct rk_status *train(struct rk_model *model, const struct run *run, struct micro_batch *micro,
                               bool is_first)
{
    struct training training = {.model = model, .run = run, .micro = micro};
    struct rk_train_work work = {
        .count = run->row->num_micro_batches, .bind = bind_micro_batch, .user = &training};
    bool is_tp_first = micro->records;

    for (int step = 0; step < NUM_STEPS; step++) {
        struct rk_step_stats stats;

        RK_TRY(rk_train_begin(model));
        micro->records = is_tp_first && step == 0;
        /* The first step gathers the gradients of all ranks; in the others their sums run beside the pass. */
        work.is_last = step > 0;
        RK_TRY(rk_train_micro_batches(model, &work));
        if (step == 0)
            RK_TRY(gather(model, RK_PARAM_GRADIENT, run->outcome, run->outcome->grads, is_first));
        RK_TRY(rk_train_step(model, &stats));
        if (is_first)
            run->outcome->grad_norm[step] = stats.grad_norm;
    }
    return gather(model, RK_PARAM_VALUE, run->outcome, run->outcome->params, is_first);
}

static int run_rank(int32_t rank, int32_t num_ranks, void *user)
{
    const struct run *run = user;
    const struct layout_case *row = run->row;
    struct rk_optim_config optim = rk_test_adamw(1e-3, 0.1, 0.5);
    struct rk_test_model_spec spec = {.config = row->config,
                                      .seed = 7,
                                      .dtype = row->dtype,
                                      .numerics = row->numerics,
                                      .recompute_num_layers = row->recompute_num_layers,
                                      .tp = row->tp,
                                      .cp = row->cp,
                                      .dp = row->dp,
                                      .pp = row->pp,
                                      .vpp = row->vpp,
                                      .num_first = row->num_first,
                                      .num_last = row->num_last,
                                      .sequence_parallel = row->sequence_parallel,
                                      .head = row->head,
                                      .stream = rk_test_rank_stream(rank)};
    struct micro_batch *micro = rk_calloc(1, sizeof(*micro));
    const struct rk_mesh_coords *coords;
    struct rk_test_model test;
    int64_t num_compared;

    if (num_ranks > 1)
        RK_RANK_OK(rk_test_world_create(&spec.world, run->rendezvous, rank, num_ranks, "unix", NULL));
    RK_RANK_OK(rk_test_model_open(&test, &spec));
    coords = rk_mesh_comms_coords(test.comms);
    micro->batch = run->batch;
    micro->outcome = run->outcome;
    micro->dp_rank = coords->axis[RK_AXIS_DP];
    micro->records = coords->axis[RK_AXIS_TP] == 0 && coords->axis[RK_AXIS_CP] == 0;
    optim.bucket_elements = row->dp * RK_MAX(row->cp, 1) > 1 ? BUCKET_ELEMENTS : 0;
    RK_RANK_OK(rk_train_enable(test.model, &optim));
    RK_RANK_OK(train(test.model, run, micro, rank == 0));
    RK_RANK_CHECK(rk_model_weight_version(test.model) == NUM_STEPS, "%s", row->label);
    RK_RANK_OK(rk_model_verify_replicas(test.model, NULL, &num_compared));
    RK_RANK_CHECK(num_ranks == RK_MAX(row->pp, 1) || num_compared > 0, "%s: no copies", row->label);
    rk_test_model_close(&test);
    rk_comm_world_destroy(spec.world);
    rk_free(micro);
    return 0;
}

/* Runs a case in processes of its own; the outcome is shared memory. */
static struct outcome *run_case(const struct layout_case *row, const struct batch *batch)
{
    struct run run = {.row = row, .batch = batch, .outcome = rk_test_shared_alloc(sizeof(struct outcome))};

    run.rendezvous = rk_test_rendezvous_create();
    print_message("  %s\n", row->label);
    if (rk_test_run_ranks(num_ranks_of(row), run_rank, &run, RUN_TIMEOUT_S) != 0)
        fail_msg("%s: ranks failed", row->label);
    rk_test_rendezvous_destroy(run.rendezvous);
    return run.outcome;
}

static void outcome_free(struct outcome *outcome)
{
    if (outcome)
        rk_test_shared_free(outcome, sizeof(*outcome));
}

/* By the largest element, or by the size of weights: biases start at 0, and four steps of Adam make a few
 * thousandths of them, out of gradients that are nearly 0 for keys, whose bias the softmax hardly sees. */
static double value_error(const double *actual, const double *expected, int64_t count)
{
    double largest = 0;

    for (int64_t i = 0; i < count; i++)
        largest = fmax(largest, fabs(expected[i]));
    return rk_test_error_by_max(actual, expected, count) * largest / fmax(largest, INITIALIZER_RANGE);
}

static void compare_tensors(const struct layout_case *row, const struct outcome *actual,
                            const struct outcome *expected, double tolerance)
{
    char label[160];

    assert_int_equal(actual->num_params, expected->num_params);
    for (int64_t i = 0; i < expected->num_params; i++) {
        int64_t begin = expected->param_begin[i], count = expected->param_begin[i + 1] - begin;

        snprintf(label, sizeof(label), "%s: gradient of parameter %lld", row->label, (long long)i);
        assert_below(label, rk_test_error_by_max(actual->grads + begin, expected->grads + begin, count),
                     tolerance);
        snprintf(label, sizeof(label), "%s: value of parameter %lld", row->label, (long long)i);
        assert_below(label, value_error(actual->params + begin, expected->params + begin, count), tolerance);
    }
}

static void compare(const struct layout_case *row, const struct outcome *actual,
                    const struct outcome *expected)
{
    double tolerance = row->dtype == RK_DTYPE_F64    ? RK_TOL_F64_SUM
                       : row->dtype == RK_DTYPE_BF16 ? RK_TOL_BF16_MODEL
                                                     : RK_TOL_F32_SUM;
    double loss = 0;

    for (int32_t r = 0; r < row->dp; r++)
        loss += actual->loss[r];
    assert_true(fabs(expected->loss[0]) > 0.01);
    assert_below(row->label, rk_test_error_by_max(&loss, &expected->loss[0], 1), tolerance);
    assert_below(row->label, rk_test_error_by_max(actual->log_probs, expected->log_probs, NUM_TOKENS),
                 tolerance);
    if (!has_values(row)) {
        assert_below(row->label, rk_test_error_by_max(actual->entropy, expected->entropy, NUM_TOKENS),
                     tolerance);
        assert_below(row->label,
                     rk_test_error_by_max(actual->sum_pi_squared, expected->sum_pi_squared, NUM_TOKENS),
                     tolerance);
    }
    assert_below(row->label, rk_test_error_by_max(actual->grad_norm, expected->grad_norm, NUM_STEPS),
                 tolerance);
    compare_tensors(row, actual, expected, tolerance);
}

/* F64 is the CPU's, the machine may have fewer GPUs than a layout has ranks, and the library that stands for
 * NCCL on the CPU is slow: there it is shown what NCCL's other sums do. */
static bool is_run(const struct layout_case *row)
{
    bool is_asynchronous = strcmp(rk_env("RK_TEST_DEVICE") ? rk_env("RK_TEST_DEVICE") : "", "graphs") == 0;

    /* Its collectives have no order between streams, which NCCL gives those of a communicator. Where dp is 1,
     * keys and gradients are exchanged over one. */
    if (is_asynchronous && row->cp > 1 && row->dp == 1)
        return false;
    if (rk_env("RK_TEST_COMM") && (row->dtype != RK_DTYPE_BF16 || num_ranks_of(row) == 1))
        return false;
    if (row->dtype == RK_DTYPE_F64 && rk_test_device_dtype() != RK_DTYPE_F64)
        return false;
    return num_ranks_of(row) <= rk_test_device_max_ranks();
}

/* Goal: losses, gradients and parameters do not depend on the layout. Method: the table above. */
static void test_train_on_layouts_equals_one_rank(void **state)
{
    struct layout_case one = {0};
    struct outcome *expected = NULL;
    struct batch batch;

    (void)state;
    make_batch(&batch);
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        struct outcome *actual;

        if (!is_run(&cases[i]))
            continue;
        if (!expected || one.dtype != cases[i].dtype || one.config != cases[i].config ||
            one.head != cases[i].head) {
            one = (struct layout_case){.label = "one rank",
                                       .tp = 1,
                                       .dp = 1,
                                       .num_micro_batches = 1,
                                       .config = cases[i].config,
                                       .numerics = RK_NUMERICS_FAST,
                                       .dtype = cases[i].dtype,
                                       .head = cases[i].head};
            outcome_free(expected);
            expected = run_case(&one, &batch);
        }
        actual = run_case(&cases[i], &batch);
        compare(&cases[i], actual, expected);
        outcome_free(actual);
    }
    outcome_free(expected);
}

/* Goal: runs repeat. Method: the same layout and seed twice gives the same bits everywhere. */
static void test_train_twice_gives_identical_bits(void **state)
{
    static const struct layout_case rows[] = {
        {.label = "again: tp=2 dp=2", 2, 2, 2, LLAMA, RK_NUMERICS_FAST, RK_DTYPE_F32, 0},
        {.label = "again: dp=2", 1, 2, 2, LLAMA, RK_NUMERICS_FAST, RK_DTYPE_F32, 0},
        {.label = "again: cp=2 dp=2", 1, 2, 1, LLAMA, RK_NUMERICS_FAST, RK_DTYPE_F32, 0, CP(2)},
        {.label = "again: tp=4", 4, 1, 1, LLAMA_TIED, RK_NUMERICS_STRICT, RK_DTYPE_F32, 0},
        {.label = "again: tp=2 dp=2 sp", 2, 2, 2, QWEN3, RK_NUMERICS_FAST, RK_DTYPE_F32, 0, SP},
    };
    struct batch batch;

    (void)state;
    make_batch(&batch);
    for (size_t i = 0; i < RK_ARRAY_LEN(rows); i++) {
        struct outcome *first, *second;

        if (num_ranks_of(&rows[i]) > rk_test_device_max_ranks())
            continue;
        first = run_case(&rows[i], &batch);
        second = run_case(&rows[i], &batch);
        assert_memory_equal(first, second, sizeof(*first));
        outcome_free(first);
        outcome_free(second);
    }
}

/* Goal: in strict numerics sequence parallelism leaves every bit of the outputs as it is: what is divided is
 * computed by row, and its sums over tp are in rank order. */
static void test_strict_outputs_have_the_bits_of_runs_without_sequence_parallelism(void **state)
{
    static const struct layout_case rows[] = {
        {.label = "strict: f32 tp=2", 2, 1, 1, LLAMA, RK_NUMERICS_STRICT, RK_DTYPE_F32, 0},
        {.label = "strict: bf16 qwen3 tp=4", 4, 1, 2, QWEN3, RK_NUMERICS_STRICT, RK_DTYPE_BF16, 0},
        {.label = "strict: bf16 value tp=4", 4, 1, 1, QWEN2, RK_NUMERICS_STRICT, RK_DTYPE_BF16, 0, VALUE},
    };
    struct batch batch;

    (void)state;
    make_batch(&batch);
    for (size_t i = 0; i < RK_ARRAY_LEN(rows); i++) {
        struct layout_case divided = rows[i];
        struct outcome *whole_outcome, *divided_outcome;

        divided.sequence_parallel = true;
        if (rows[i].tp > rk_test_device_max_ranks())
            continue;
        whole_outcome = run_case(&rows[i], &batch);
        divided_outcome = run_case(&divided, &batch);
        assert_memory_equal(whole_outcome->log_probs, divided_outcome->log_probs,
                            sizeof(whole_outcome->log_probs));
        assert_memory_equal(whole_outcome->entropy, divided_outcome->entropy, sizeof(whole_outcome->entropy));
        outcome_free(whole_outcome);
        outcome_free(divided_outcome);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_train_on_layouts_equals_one_rank),
        cmocka_unit_test(test_train_twice_gives_identical_bits),
        cmocka_unit_test(test_strict_outputs_have_the_bits_of_runs_without_sequence_parallelism),
    };

    rk_test_device_need_ranks(2);
    rk_fake_nccl_setup();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
