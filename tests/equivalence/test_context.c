/* Context parallelism against one rank: the results of a cp group for a shared packed micro-batch, the tokens
 * at the ends of chunks, and losses over whole sequences. test_layouts.c has its training runs. */
#include "tests/support/test.h"

#include <math.h>
#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_log.h"
#include "base/rk_rng.h"
#include "tests/support/device.h"
#include "tests/support/models.h"
#include "tests/support/ranks.h"

#define NUM_SEQS      4
#define NUM_TOKENS    118
#define VOCAB_SIZE    131
#define NUM_IDS       3
#define MAX_CP        4
#define TEMPERATURE   0.8
#define ELEMENTS_MAX  60000
#define RUN_TIMEOUT_S 120

static const int32_t seq_lens[NUM_SEQS] = {16, 64, 1, 37};

#define CONFIG(type)                                                                                     \
    "{\"model_type\": \"" type                                                                           \
    "\", \"hidden_size\": 32, \"intermediate_size\": 64, \"num_hidden_layers\": 2,"                      \
    " \"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"vocab_size\": 131, \"head_dim\": 8,"     \
    " \"use_sliding_window\": true, \"sliding_window\": 9, \"max_window_layers\": 1, \"num_labels\": 1," \
    " \"max_position_embeddings\": 64, \"initializer_range\": 0.2, \"tie_word_embeddings\": false}"

struct context_case {
    const char *label, *config, *head;
    rk_numerics_t numerics;
    rk_dtype_t dtype;
    int32_t tp, cp;
};

/* Results of one rank; in memory that the ranks share. */
struct outcome {
    double of[RK_HEAD_OUTPUT_COUNT][NUM_TOKENS];
    double id_log_probs[NUM_TOKENS * NUM_IDS], top_log_probs[NUM_TOKENS * NUM_IDS];
    int32_t top_ids[NUM_TOKENS * NUM_IDS];
    double logits[NUM_TOKENS * VOCAB_SIZE];
    double loss, grads[ELEMENTS_MAX];
    int64_t num_elements;
    int32_t num_warnings;
};

/* The micro-batch, with the labels of a test. */
struct batch {
    struct rk_packed packed;
    int32_t tokens[NUM_TOKENS], positions[NUM_TOKENS], labels[NUM_TOKENS], cu_seqlens[NUM_SEQS + 1];
    int32_t ids[NUM_TOKENS * NUM_IDS];
    double old_log_probs[NUM_TOKENS];
};

typedef struct rk_status *(*body_fn_t)(struct rk_model *model, const struct batch *batch,
                                       struct outcome *outcome);

struct run {
    const struct context_case *row;
    const struct batch *batch;
    struct outcome *outcomes; /* [ranks], shared */
    struct rk_test_rendezvous *rendezvous;
    body_fn_t body;
};

/* Every token but the last of a sequence has the next one as its label. */
static void make_batch(struct batch *batch)
{
    int32_t t = 0;
    struct rk_rng rng;

    *batch = (struct batch){.packed = {.num_seqs = NUM_SEQS,
                                       .num_tokens = NUM_TOKENS,
                                       .max_seqlen = 64,
                                       .tokens = batch->tokens,
                                       .positions = batch->positions,
                                       .cu_seqlens = batch->cu_seqlens,
                                       .labels = batch->labels}};
    rk_rng_init(&rng, rk_test_seed(), 5);
    for (int32_t i = 0; i < NUM_TOKENS; i++) {
        batch->tokens[i] = (int32_t)rk_rng_next_below(&rng, VOCAB_SIZE);
        batch->old_log_probs[i] = -4.9 + 0.1 * rk_rng_next_normal(&rng);
    }
    for (int32_t i = 0; i < NUM_TOKENS * NUM_IDS; i++)
        batch->ids[i] = (int32_t)rk_rng_next_below(&rng, VOCAB_SIZE);
    for (int32_t s = 0; s < NUM_SEQS; s++) {
        for (int32_t i = 0; i < seq_lens[s]; i++, t++) {
            batch->positions[t] = i;
            batch->labels[t] = i + 1 < seq_lens[s] ? batch->tokens[t + 1] : RK_LABEL_NONE;
        }
        batch->cu_seqlens[s + 1] = t;
    }
}

static int run_rank(int32_t rank, int32_t num_ranks, void *user)
{
    const struct run *run = user;
    struct rk_test_model_spec spec = {.config = run->row->config,
                                      .seed = 11,
                                      .head = run->row->head,
                                      .dtype = run->row->dtype,
                                      .numerics = run->row->numerics,
                                      .tp = run->row->tp,
                                      .cp = run->row->cp,
                                      .stream = rk_test_rank_stream(rank)};
    struct rk_test_model test;

    if (num_ranks > 1)
        RK_RANK_OK(rk_test_world_create(&spec.world, run->rendezvous, rank, num_ranks, "unix", NULL));
    RK_RANK_OK(rk_test_model_open(&test, &spec));
    RK_RANK_OK(run->body(test.model, run->batch, &run->outcomes[rank]));
    rk_test_model_close(&test);
    rk_comm_world_destroy(spec.world);
    return 0;
}

/* The outcomes of all ranks; free with outcomes_free. */
static struct outcome *run_case(const struct context_case *row, const struct batch *batch, body_fn_t body)
{
    struct run run = {.row = row,
                      .batch = batch,
                      .outcomes = rk_test_shared_alloc(RK_TEST_MAX_RANKS * sizeof(struct outcome)),
                      .body = body};

    run.rendezvous = rk_test_rendezvous_create();
    print_message("  %s\n", row->label);
    if (rk_test_run_ranks(row->tp * row->cp, run_rank, &run, RUN_TIMEOUT_S) != 0)
        fail_msg("%s: ranks failed", row->label);
    rk_test_rendezvous_destroy(run.rendezvous);
    return run.outcomes;
}

/* Runs the body of the case with cp = 1. */
static struct outcome *run_alone(const struct context_case *row, const struct batch *batch, body_fn_t body)
{
    struct context_case alone = *row;

    alone.label = "without cp";
    alone.cp = 1;
    return run_case(&alone, batch, body);
}

static void outcomes_free(struct outcome *outcomes)
{
    rk_test_shared_free(outcomes, RK_TEST_MAX_RANKS * sizeof(*outcomes));
}

static bool is_run(const struct context_case *row)
{
    bool fits = row->tp * row->cp <= rk_test_device_max_ranks();

    if (!fits)
        rk_test_skip_part("%s: needs %d devices", row->label, row->tp * row->cp);
    return fits;
}

/* The row in the widest dtype of the device: F64 on the CPU. */
static struct context_case in_widest_dtype(const struct context_case *row)
{
    struct context_case wide = *row;

    wide.dtype = rk_test_device_dtype();
    return wide;
}

/* For sums in that dtype. */
static double tolerance(void)
{
    return rk_test_device_dtype() == RK_DTYPE_F64 ? RK_TOL_F64_SUM : RK_TOL_F32_SUM;
}

/* --- outputs --- */

static struct rk_status *forward(struct rk_model *model, const struct batch *batch, struct outcome *outcome)
{
    bool is_lm = rk_model_head_outputs(model) & RK_HEAD_BIT(RK_HEAD_LOG_PROBS);
    struct rk_head_arrays out = {.ids = {0}};

    for (int i = 0; i < RK_HEAD_OUTPUT_COUNT; i++) {
        if (rk_model_head_outputs(model) & RK_HEAD_BIT(i))
            out.of[i] = outcome->of[i];
    }
    if (is_lm)
        out.ids = (struct rk_head_ids){.num_ids = NUM_IDS,
                                       .ids = batch->ids,
                                       .log_probs = outcome->id_log_probs,
                                       .top_ids = outcome->top_ids,
                                       .top_log_probs = outcome->top_log_probs};
    RK_TRY(rk_model_forward(model, &batch->packed, TEMPERATURE, NULL, &out));
    return is_lm ? rk_model_logits(model, &batch->packed, outcome->logits) : NULL;
}

/* Goal: in strict numerics, on every rank, all outputs of all tokens are bit-identical to those without
 * context parallelism. Method: several heads and families, sequences that need padding, and one with fewer
 * tokens than ranks; compared with the same tp, because tp rounds partial sums. */
static void test_forward_has_the_bits_of_a_run_without_cp(void **state)
{
    static const struct context_case rows[] = {
        {"llama f32 cp=2", CONFIG("llama"), "lm", RK_NUMERICS_STRICT, RK_DTYPE_F32, 1, 2},
        {"qwen2 f32 tp=2 cp=2, window", CONFIG("qwen2"), "lm", RK_NUMERICS_STRICT, RK_DTYPE_F32, 2, 2},
        {"qwen3 bf16 cp=4, window", CONFIG("qwen3"), "lm", RK_NUMERICS_STRICT, RK_DTYPE_BF16, 1, 4},
        {"mistral bf16 cp=3, window", CONFIG("mistral"), "lm", RK_NUMERICS_STRICT, RK_DTYPE_BF16, 1, 3},
        {"llama f32 cp=4, value", CONFIG("llama"), "value", RK_NUMERICS_STRICT, RK_DTYPE_F32, 1, 4},
    };
    struct batch batch;

    (void)state;
    make_batch(&batch);
    for (size_t i = 0; i < RK_ARRAY_LEN(rows); i++) {
        struct outcome *expected, *actual;
        double sum = 0;

        if (!is_run(&rows[i]))
            continue;
        expected = run_alone(&rows[i], &batch, forward);
        actual = run_case(&rows[i], &batch, forward);
        for (int k = 0; k < RK_HEAD_OUTPUT_COUNT; k++) {
            for (int32_t t = 0; t < NUM_TOKENS; t++)
                sum += fabs(expected->of[k][t]);
        }
        assert_true(sum > 1);
        for (int32_t rank = 0; rank < rows[i].tp * rows[i].cp; rank++)
            assert_memory_equal(&actual[rank], expected, sizeof(*expected));
        outcomes_free(expected);
        outcomes_free(actual);
    }
}

/* --- the ends of chunks --- */

static void forget_labels(struct batch *batch)
{
    for (int32_t t = 0; t < NUM_TOKENS; t++)
        batch->labels[t] = RK_LABEL_NONE;
}

/* Labels at the last token of every chunk, whose label is a token on another rank, and at the first. For the
 * sequence of 64 tokens: C = 64 / 2c. */
static int32_t label_chunk_ends(struct batch *batch, int32_t cp)
{
    int32_t begin = batch->cu_seqlens[1], step = 64 / (2 * cp), count = 0;

    forget_labels(batch);
    for (int32_t t = 0; t < 63; t++) {
        if ((t + 1) % step > 1)
            continue;
        batch->labels[begin + t] = batch->tokens[begin + t + 1];
        count++;
    }
    return count;
}

static double log_prob_of(const double *logits, int32_t id)
{
    double largest = -INFINITY, sum = 0;

    for (int32_t v = 0; v < VOCAB_SIZE; v++)
        largest = fmax(largest, logits[v]);
    for (int32_t v = 0; v < VOCAB_SIZE; v++)
        sum += exp((logits[v] - largest) / TEMPERATURE);
    return (logits[id] - largest) / TEMPERATURE - log(sum);
}

/* Goal: at the end of a chunk the label is the next token of the sequence, which is on another rank. Method:
 * only such positions have labels; their log-probs are compared with the softmax of the logits of a run
 * without cp. */
static void test_labels_at_chunk_ends_are_the_next_tokens(void **state)
{
    struct context_case row = {"llama", CONFIG("llama"), "lm", RK_NUMERICS_FAST, rk_test_device_dtype(), 1,
                               1};

    (void)state;
    for (row.cp = 2; row.cp <= MAX_CP && is_run(&row); row.cp *= 2) {
        int32_t num_labels = 0, begin;
        struct outcome *expected, *actual;
        struct batch batch;

        make_batch(&batch);
        assert_int_equal(label_chunk_ends(&batch, row.cp), 4 * row.cp - 1);
        begin = batch.cu_seqlens[1];
        expected = run_alone(&row, &batch, forward);
        actual = run_case(&row, &batch, forward);
        for (int32_t t = 0; t < NUM_TOKENS; t++) {
            const double *log_probs = actual[row.cp - 1].of[RK_HEAD_LOG_PROBS];
            double next, after;

            if (batch.labels[t] == RK_LABEL_NONE) {
                assert_true(log_probs[t] == 0);
                continue;
            }
            num_labels++;
            assert_in_range(t, begin, begin + 62);
            next = log_prob_of(expected->logits + t * VOCAB_SIZE, batch.tokens[t + 1]);
            after = log_prob_of(expected->logits + t * VOCAB_SIZE, batch.tokens[t + 2]);
            assert_true(fabs(log_probs[t] - next) < tolerance() * fabs(next));
            assert_true(fabs(log_probs[t] - after) > tolerance() * fabs(next) ||
                        batch.tokens[t + 1] == batch.tokens[t + 2]);
        }
        assert_int_equal(num_labels, 4 * row.cp - 1);
        outcomes_free(expected);
        outcomes_free(actual);
    }
}

/* --- losses over sequences --- */

struct loss {
    const struct batch *batch;
    double value;
};

/* GSPO: sum over sequences of s exp(mean of log p - old), where s depends on the sequence. */
static struct rk_status *loss_fn(void *user, const struct rk_head_arrays *outputs,
                                 const struct rk_head_arrays *grads)
{
    const double *log_probs = outputs->of[RK_HEAD_LOG_PROBS];
    struct loss *loss = user;
    const struct batch *batch = loss->batch;

    for (int32_t s = 0; s < NUM_SEQS; s++) {
        double sum = 0, count = 0, term;

        for (int32_t t = batch->cu_seqlens[s]; t < batch->cu_seqlens[s + 1]; t++) {
            if (batch->labels[t] == RK_LABEL_NONE)
                continue;
            sum += log_probs[t] - batch->old_log_probs[t];
            count++;
        }
        if (count == 0)
            continue;
        term = (s - 1.5) * exp(sum / count);
        loss->value += term;
        for (int32_t t = batch->cu_seqlens[s]; t < batch->cu_seqlens[s + 1]; t++)
            grads->of[RK_HEAD_LOG_PROBS][t] = batch->labels[t] == RK_LABEL_NONE ? 0 : term / count;
    }
    return NULL;
}

static struct rk_status *train(struct rk_model *model, const struct batch *batch, struct outcome *outcome)
{
    struct rk_optim_config optim = rk_test_adamw(1e-3, 0, 1);
    struct loss loss = {.batch = batch};
    const struct rk_train_micro micro = {.packed = &batch->packed,
                                         .temperature = TEMPERATURE,
                                         .outputs = RK_HEAD_BIT(RK_HEAD_LOG_PROBS),
                                         .loss_fn = loss_fn,
                                         .user = &loss};

    RK_TRY(rk_test_enable_training(model, &optim));
    RK_TRY(rk_trainer_begin(rk_model_trainer(model)));
    RK_TRY(rk_trainer_micro_batch(rk_model_trainer(model), &micro));
    outcome->loss = loss.value;
    for (int64_t i = 0; i < rk_model_num_params(model); i++) {
        RK_TRY(rk_trainer_gather_grad(rk_model_trainer(model), i, outcome->grads + outcome->num_elements));
        outcome->num_elements += rk_param_num_elements(rk_model_param_at(model, i));
    }
    return NULL;
}

static void compare_training(const struct context_case *row, const struct batch *batch)
{
    struct outcome *expected = run_alone(row, batch, train), *actual = run_case(row, batch, train);

    for (int32_t rank = 0; rank < row->tp * row->cp; rank++) {
        assert_int_equal(actual[rank].num_elements, expected->num_elements);
        assert_below(row->label, rk_test_error_by_max(&actual[rank].loss, &expected->loss, 1), tolerance());
        assert_below(row->label,
                     rk_test_error_by_max(actual[rank].grads, expected->grads, expected->num_elements),
                     tolerance());
    }
    outcomes_free(expected);
    outcomes_free(actual);
}

/* Goal: every cp rank computes the loss of whole sequences, and the gradients sum to those without cp, also
 * when one rank has all labels and others none. Method: a loss that is not a sum over tokens; labels
 * everywhere, at the ends of chunks, and only within the first chunk of a sequence. */
static void test_loss_over_sequences_equals_a_run_without_cp(void **state)
{
    static const struct context_case rows[] = {
        {"llama cp=2", CONFIG("llama"), "lm", RK_NUMERICS_FAST, RK_DTYPE_F64, 1, 2},
        {"qwen3 tp=2 cp=2", CONFIG("qwen3"), "lm", RK_NUMERICS_FAST, RK_DTYPE_F64, 2, 2},
        {"qwen2 cp=4", CONFIG("qwen2"), "lm", RK_NUMERICS_FAST, RK_DTYPE_F64, 1, 4},
    };

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(rows); i++) {
        struct context_case row = in_widest_dtype(&rows[i]);
        struct batch batch;

        if (!is_run(&row))
            continue;
        make_batch(&batch);
        compare_training(&row, &batch);
        label_chunk_ends(&batch, row.cp);
        compare_training(&row, &batch);
        forget_labels(&batch);
        for (int32_t t = batch.cu_seqlens[1]; t < batch.cu_seqlens[1] + 5; t++)
            batch.labels[t] = batch.tokens[t + 1];
        compare_training(&row, &batch);
    }
}

/* --- padding --- */

static void count_warning(rk_log_level_t level, const char *line, void *user)
{
    struct outcome *outcome = user;

    outcome->num_warnings += level == RK_LOG_WARN && strstr(line, "padding") != NULL;
}

static struct rk_status *forward_twice(struct rk_model *model, const struct batch *batch,
                                       struct outcome *outcome)
{
    struct rk_status *st;

    rk_log_set_sink(count_warning, outcome);
    st = forward(model, batch, outcome);
    if (!st)
        st = forward(model, batch, outcome);
    rk_log_set_sink(NULL, NULL);
    return st;
}

/* Goal: a model warns once when most of a pass is padding. Method: two passes of sequences of one token, and
 * two of longer ones. */
static void test_short_sequences_are_warned_of_once(void **state)
{
    static const struct context_case row = {
        "llama f32 cp=2", CONFIG("llama"), "lm", RK_NUMERICS_FAST, RK_DTYPE_F32, 1, 2};
    struct batch batch;
    struct outcome *outcomes;

    (void)state;
    make_batch(&batch);
    outcomes = run_case(&row, &batch, forward_twice);
    assert_int_equal(outcomes[0].num_warnings, 0);
    outcomes_free(outcomes);
    batch.packed.num_seqs = batch.packed.num_tokens = 3;
    batch.packed.max_seqlen = 1;
    for (int32_t s = 0; s <= 3; s++)
        batch.cu_seqlens[s] = s;
    outcomes = run_case(&row, &batch, forward_twice);
    assert_int_equal(outcomes[0].num_warnings, 1);
    assert_int_equal(outcomes[1].num_warnings, 1);
    outcomes_free(outcomes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_forward_has_the_bits_of_a_run_without_cp),
        cmocka_unit_test(test_labels_at_chunk_ends_are_the_next_tokens),
        cmocka_unit_test(test_loss_over_sequences_equals_a_run_without_cp),
        cmocka_unit_test(test_short_sequences_are_warned_of_once),
    };

    rk_test_device_need_ranks(2);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
