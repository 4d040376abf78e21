/* A model on one rank: passes, their arguments, gradients against finite differences, steps, memory. */
#include "tests/support/test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_rng.h"
#include "engine/optim/trainer.h"
#include "engine/rk_memory.h"
#include "tests/support/models.h"

#define CONFIG                                                                                              \
    "{\"model_type\": \"llama\", \"hidden_size\": 32, \"intermediate_size\": 48, \"num_hidden_layers\": 2," \
    " \"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"vocab_size\": 67, "                         \
    "\"max_position_embeddings\": 64,"                                                                      \
    " \"initializer_range\": 0.15, \"tie_word_embeddings\": "
#define UNTIED CONFIG "false}"
#define TIED   CONFIG "true}"
/* The second layer sees a window of 5 tokens. */
#define QWEN2                                                                                               \
    "{\"model_type\": \"qwen2\", \"hidden_size\": 32, \"intermediate_size\": 48, \"num_hidden_layers\": 2," \
    " \"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"vocab_size\": 67, "                         \
    "\"max_position_embeddings\": 64, \"initializer_range\": 0.15, \"use_sliding_window\": true,"           \
    " \"sliding_window\": 5, \"max_window_layers\": 1}"
#define VOCAB_SIZE 67
#define NUM_SEQS   3
#define NUM_TOKENS 30

static const int32_t cu_seqlens[NUM_SEQS + 1] = {0, 1, 18, NUM_TOKENS};

struct batch {
    struct rk_packed packed;
    int32_t tokens[NUM_TOKENS], positions[NUM_TOKENS], labels[NUM_TOKENS];
    double entropy_coeff;
    double loss;       /* of the last call of loss_fn */
    double scale;      /* factor of the gradient: NaN makes the step's gradients non-finite */
    uint32_t measured; /* outputs that are only measured */
};

static void make_batch(struct batch *batch)
{
    struct rk_rng rng;

    *batch = (struct batch){.entropy_coeff = 0.1, .scale = 1};
    rk_rng_init(&rng, rk_test_seed(), 1);
    for (int32_t s = 0; s < NUM_SEQS; s++) {
        for (int32_t t = cu_seqlens[s]; t < cu_seqlens[s + 1]; t++) {
            batch->tokens[t] = (int32_t)rk_rng_next_below(&rng, VOCAB_SIZE);
            batch->positions[t] = t - cu_seqlens[s];
            batch->labels[t] = t % 4 == 0 ? RK_LABEL_NONE : (int32_t)rk_rng_next_below(&rng, VOCAB_SIZE);
        }
    }
    batch->packed = (struct rk_packed){.num_seqs = NUM_SEQS,
                                       .num_tokens = NUM_TOKENS,
                                       .max_seqlen = 17,
                                       .tokens = batch->tokens,
                                       .positions = batch->positions,
                                       .cu_seqlens = cu_seqlens,
                                       .labels = batch->labels};
}

#define ALL_OUTPUTS \
    (RK_HEAD_BIT(RK_HEAD_LOG_PROBS) | RK_HEAD_BIT(RK_HEAD_ENTROPY) | RK_HEAD_BIT(RK_HEAD_SUM_PI_SQUARED))
#define SQUARES_COEFF 0.7

/* sum_t log p + coeff sum_t H + SQUARES_COEFF sum_t sum_pi_squared, all with a weight that differs from token
 * to token. */
static struct rk_status *loss_fn(void *user, const struct rk_head_arrays *outputs,
                                 const struct rk_head_arrays *grads)
{
    const double *log_probs = outputs->of[RK_HEAD_LOG_PROBS], *entropy = outputs->of[RK_HEAD_ENTROPY];
    const double *sum_pi_squared = outputs->of[RK_HEAD_SUM_PI_SQUARED];
    double *dlog_probs = grads->of[RK_HEAD_LOG_PROBS], *dentropy = grads->of[RK_HEAD_ENTROPY];
    double *dsum_pi_squared = grads->of[RK_HEAD_SUM_PI_SQUARED];
    struct batch *batch = user;

    batch->loss = 0;
    for (int64_t t = 0; t < batch->packed.num_tokens; t++) {
        double weight = 1.0 / (double)(t + 3);

        batch->loss +=
            weight * (log_probs[t] + batch->entropy_coeff * entropy[t] + SQUARES_COEFF * sum_pi_squared[t]);
        dlog_probs[t] = weight * batch->scale;
        dentropy[t] = weight * batch->entropy_coeff;
        dsum_pi_squared[t] = weight * SQUARES_COEFF;
    }
    return NULL;
}

static void open_model(struct rk_test_model *test, const char *config, rk_dtype_t dtype)
{
    assert_ok(
        rk_test_model_open(test, &(struct rk_test_model_spec){.config = config, .seed = 3, .dtype = dtype}));
}

static void open_training(struct rk_test_model *test, const char *config, rk_dtype_t dtype)
{
    struct rk_optim_config optim = rk_test_adamw(1e-2, 0.1, 1.0);

    open_model(test, config, dtype);
    assert_ok(rk_test_enable_training(test->model, &optim));
}

static struct rk_status *micro_batch(struct rk_model *model, struct batch *batch)
{
    return rk_trainer_micro_batch(rk_model_trainer(model),
                                  &(struct rk_train_micro){.packed = &batch->packed,
                                                           .temperature = 0.8,
                                                           .outputs = ALL_OUTPUTS,
                                                           .measured = batch->measured,
                                                           .loss_fn = loss_fn,
                                                           .user = batch});
}

/* The gradient of the output projection after one micro-batch. rk_free it. */
static double *head_gradient(struct rk_test_model *test, struct batch *batch)
{
    double *gradient = rk_calloc(VOCAB_SIZE * 32, sizeof(*gradient));

    assert_ok(rk_trainer_begin(rk_model_trainer(test->model)));
    assert_ok(micro_batch(test->model, batch));
    assert_ok(rk_trainer_gather_grad(rk_model_trainer(test->model),
                                     rk_model_find_param(test->model, "lm_head.weight"), gradient));
    return gradient;
}

static double loss_at(struct rk_model *model, struct batch *batch)
{
    double values[3][NUM_TOKENS], unused[3][NUM_TOKENS];
    const struct rk_head_arrays outputs = {.of = {values[0], values[1], values[2]}};
    const struct rk_head_arrays grads = {.of = {unused[0], unused[1], unused[2]}};

    assert_ok(rk_model_forward(model, &batch->packed, 0.8, NULL, &outputs));
    assert_ok(loss_fn(batch, &outputs, &grads));
    return batch->loss;
}

/* Goal: the backward pass is the derivative of the forward pass. Method: central differences of the loss in
 * f64 at a few elements of every parameter. */
static void check_gradients(const char *config)
{
    const double step = 1e-5;
    struct rk_test_model test;
    struct batch batch;
    double *gradient;

    make_batch(&batch);
    open_training(&test, config, RK_DTYPE_F64);
    assert_ok(rk_trainer_begin(rk_model_trainer(test.model)));
    assert_ok(micro_batch(test.model, &batch));
    gradient = rk_calloc(VOCAB_SIZE * 64, sizeof(*gradient));
    for (int64_t i = 0; i < rk_model_num_params(test.model); i++) {
        const struct rk_param *param = rk_model_param_at(test.model, i);
        double *values = (double *)test.model->core->values + rk_model_placement_at(test.model, i)->offset;
        int64_t count = param->shape[0] * param->shape[1];

        assert_ok(rk_trainer_gather_grad(rk_model_trainer(test.model), i, gradient));
        for (int64_t e = i % 5; e < count; e += 1 + count / 3) {
            double kept = values[e], up, down, numeric;

            values[e] = kept + step;
            up = loss_at(test.model, &batch);
            values[e] = kept - step;
            down = loss_at(test.model, &batch);
            values[e] = kept;
            numeric = (up - down) / (2 * step);
            assert_below(param->name, fabs(gradient[e] - numeric) / fmax(fabs(numeric), RK_TOL_FLOOR),
                         RK_TOL_GRADIENT_F64);
        }
    }
    rk_free(gradient);
    rk_test_model_close(&test);
}

static void test_micro_batch_gradient_is_the_derivative(void **state)
{
    (void)state;
    check_gradients(UNTIED);
    check_gradients(TIED);
    check_gradients(QWEN2);
}

/* Goal: an output that a loss only measures has no part in the backward pass. Method: a gradient for it that
 * would change all others, compared with 0. */
static void test_measured_output_is_not_differentiated(void **state)
{
    double *gradients[2];
    struct batch batch;

    (void)state;
    make_batch(&batch);
    for (int i = 0; i < 2; i++) {
        struct rk_test_model test;

        batch.entropy_coeff = i == 0 ? 0.0 : NAN;
        batch.measured = i == 0 ? 0 : RK_HEAD_BIT(RK_HEAD_ENTROPY);
        open_training(&test, UNTIED, RK_DTYPE_F64);
        gradients[i] = head_gradient(&test, &batch);
        rk_test_model_close(&test);
    }
    for (int64_t i = 0; i < VOCAB_SIZE * 32; i++)
        assert_true(gradients[0][i] == gradients[1][i]);
    rk_free(gradients[0]);
    rk_free(gradients[1]);
}

/* Goal: the results do not depend on the chunks of the head. Method: chunks of 7 tokens, which do not divide
 * the number of labels, against one chunk; statistics are merged per token, so log-probs agree in every
 * bit. */
static void test_head_chunks_give_the_same_log_probs_and_gradients(void **state)
{
    double log_probs[2][NUM_TOKENS], *gradients[2];
    struct batch batch;

    (void)state;
    make_batch(&batch);
    for (int i = 0; i < 2; i++) {
        struct rk_test_model test;

        open_training(&test, UNTIED, RK_DTYPE_F64);
        if (i == 1)
            test.model->core->head.chunk_tokens = 7;
        assert_ok(rk_model_forward(test.model, &batch.packed, 0.8, NULL,
                                   &(struct rk_head_arrays){.of = {log_probs[i]}}));
        gradients[i] = head_gradient(&test, &batch);
        rk_test_model_close(&test);
    }
    assert_below("log-probs", rk_test_error_by_max(log_probs[1], log_probs[0], NUM_TOKENS), RK_TOL_F64);
    assert_below("gradient", rk_test_error_by_max(gradients[1], gradients[0], VOCAB_SIZE * 32), RK_TOL_F64);
    rk_free(gradients[0]);
    rk_free(gradients[1]);
}

/* Goal: sequences of a pack are independent, and tokens do not depend on later ones. Method: change one
 * token; bits change only from that position of its sequence on. */
static void test_logits_change_only_from_the_changed_token_on(void **state)
{
    const int32_t changed = 9; /* in the second sequence */
    double *before = rk_calloc(NUM_TOKENS * VOCAB_SIZE, sizeof(double));
    double *after = rk_calloc(NUM_TOKENS * VOCAB_SIZE, sizeof(double));
    struct rk_test_model test;
    struct batch batch;

    (void)state;
    make_batch(&batch);
    open_model(&test, UNTIED, RK_DTYPE_F32);
    assert_ok(rk_model_logits(test.model, &batch.packed, before));
    batch.tokens[changed] = (batch.tokens[changed] + 1) % VOCAB_SIZE;
    assert_ok(rk_model_logits(test.model, &batch.packed, after));
    for (int32_t t = 0; t < NUM_TOKENS; t++) {
        bool differs =
            memcmp(before + t * VOCAB_SIZE, after + t * VOCAB_SIZE, VOCAB_SIZE * sizeof(double)) != 0;

        assert_int_equal(differs, t >= changed && t < cu_seqlens[2]);
    }
    rk_test_model_close(&test);
    rk_free(before);
    rk_free(after);
}

/* Goal: outputs of the head are those of the softmax over its logits. */
static void test_forward_outputs_are_those_of_logits(void **state)
{
    const double temperature = 0.8;
    double *logits = rk_calloc(NUM_TOKENS * VOCAB_SIZE, sizeof(double)), values[3][NUM_TOKENS];
    double expected[3][NUM_TOKENS] = {{0}};
    struct rk_test_model test;
    struct batch batch;

    (void)state;
    make_batch(&batch);
    open_model(&test, UNTIED, RK_DTYPE_F64);
    assert_ok(rk_model_logits(test.model, &batch.packed, logits));
    assert_ok(rk_model_forward(test.model, &batch.packed, temperature, NULL,
                               &(struct rk_head_arrays){.of = {values[0], values[1], values[2]}}));
    for (int32_t t = 0; t < NUM_TOKENS; t++) {
        double sum = 0;

        if (batch.labels[t] == RK_LABEL_NONE)
            continue;
        for (int32_t v = 0; v < VOCAB_SIZE; v++)
            sum += exp(logits[t * VOCAB_SIZE + v] / temperature);
        for (int32_t v = 0; v < VOCAB_SIZE; v++) {
            double p = exp(logits[t * VOCAB_SIZE + v] / temperature) / sum;

            expected[0][t] += v == batch.labels[t] ? log(p) : 0;
            expected[1][t] -= p * log(p);
            expected[2][t] += p * p;
        }
    }
    for (int i = 0; i < 3; i++)
        assert_below(rk_head_output_name((rk_head_output_t)i),
                     rk_test_error_by_max(values[i], expected[i], NUM_TOKENS), 1e-7);
    rk_test_model_close(&test);
    rk_free(logits);
}

struct argument_case {
    const char *label;
    int32_t index; /* index of the token that is made invalid */
    int32_t token, position, label_id;
    double temperature;
    rk_code_t code;
    const char *text;
};

static const struct argument_case argument_cases[] = {
    {"id too large", 5, VOCAB_SIZE, 0, 0, 1, RK_OUT_OF_RANGE, "id of packed token 5 is 67, expected 0 to 66"},
    {"id negative", 0, -1, 0, 0, 1, RK_OUT_OF_RANGE, "id of packed token 0 is -1"},
    {"position too large", 7, 0, 64, 0, 1, RK_OUT_OF_RANGE,
     "position of packed token 7 is 64, expected 0 to 63"},
    {"position negative", 7, 0, -5, 0, 1, RK_OUT_OF_RANGE, "position of packed token 7"},
    {"label too large", 7, 0, 0, VOCAB_SIZE, 1, RK_OUT_OF_RANGE, "label of packed token"},
    {"label negative", 7, 0, 0, -2, 1, RK_OUT_OF_RANGE, "label of packed token"},
    {"temperature zero", 7, 0, 0, 0, 0, RK_INVALID_ARGUMENT, "temperature=0"},
    {"temperature negative", 7, 0, 0, 0, -1, RK_INVALID_ARGUMENT, "temperature=-1"},
    {"temperature infinite", 7, 0, 0, 0, INFINITY, RK_INVALID_ARGUMENT, "temperature=inf"},
    {"temperature not a number", 7, 0, 0, 0, NAN, RK_INVALID_ARGUMENT, "temperature="},
    {"temperature tiny", 7, 0, 0, 0, 1e-300, RK_INVALID_ARGUMENT, "temperature=1e-300"},
};

/* Goal: arguments are checked before they reach the device, and the model remains usable. */
static void test_log_probs_of_bad_arguments_name_them(void **state)
{
    double log_probs[NUM_TOKENS];
    struct rk_test_model test;
    struct batch batch;

    (void)state;
    open_model(&test, UNTIED, RK_DTYPE_F32);
    for (size_t i = 0; i < RK_ARRAY_LEN(argument_cases); i++) {
        const struct argument_case *row = &argument_cases[i];

        make_batch(&batch);
        batch.tokens[row->index] = row->token;
        batch.positions[row->index] = row->position;
        batch.labels[row->index] = row->label_id;
        assert_fails(rk_model_forward(test.model, &batch.packed, row->temperature, NULL,
                                      &(struct rk_head_arrays){.of = {log_probs}}),
                     row->code, row->text);
    }
    make_batch(&batch);
    assert_ok(
        rk_model_forward(test.model, &batch.packed, 1, NULL, &(struct rk_head_arrays){.of = {log_probs}}));
    rk_test_model_close(&test);
}

/* Goal: the empty micro-batch, and one without labels, run without errors and add no gradient. */
static void test_micro_batch_without_tokens_or_labels_adds_no_gradient(void **state)
{
    static const int32_t no_offsets[] = {0};
    struct rk_test_model test;
    struct batch batch;
    double norm;
    bool is_finite;

    (void)state;
    make_batch(&batch);
    open_training(&test, UNTIED, RK_DTYPE_F32);
    assert_ok(rk_trainer_begin(rk_model_trainer(test.model)));
    for (int32_t t = 0; t < NUM_TOKENS; t++)
        batch.labels[t] = RK_LABEL_NONE;
    assert_ok(micro_batch(test.model, &batch));
    batch.packed.num_seqs = 0;
    batch.packed.num_tokens = 0;
    batch.packed.max_seqlen = 0;
    batch.packed.cu_seqlens = no_offsets;
    assert_ok(micro_batch(test.model, &batch));
    assert_ok(rk_trainer_reduce(rk_model_trainer(test.model)));
    assert_ok(rk_trainer_grad_norm(rk_model_trainer(test.model), &norm, &is_finite));
    assert_true(norm == 0);
    assert_true(is_finite);
    rk_test_model_close(&test);
}

/* Goal: the rollout's entry computes what the packed one does. Method: prefill of two sequences in one step
 * over a cache of 4-token blocks, then one more token of each; logits against the packed pass over the whole
 * sequences. */
struct paged {
    struct rk_step_arena *memory;
    rk_tensor_t caches[2][2]; /* [layer][k, v] */
    struct rk_paged_step step;
};

#define PAGED_LEN   6 /* tokens of each of the two sequences */
#define PAGED_BLOCK 4

static rk_tensor_t upload(struct rk_test_model *test, struct paged *paged, const int32_t *values,
                          int64_t count)
{
    rk_tensor_t t;

    assert_ok(rk_step_upload(paged->memory, test->stream, &t, RK_DTYPE_I32, values, count));
    return t;
}

static void make_caches(struct rk_test_model *test, struct paged *paged)
{
    for (int layer = 0; layer < 2; layer++) {
        for (int kind = 0; kind < 2; kind++) {
            rk_tensor_t flat;

            assert_ok(rk_step_1d(paged->memory, &flat, RK_DTYPE_F64, 5 * 2 * PAGED_BLOCK * 8));
            paged->caches[layer][kind] = rk_tensor_4d(flat.data, RK_DTYPE_F64, 5, 2, PAGED_BLOCK, 8);
        }
    }
    paged->step.caches = paged->caches[0];
    (void)test;
}

/* Tokens [begin, end) of both sequences; sequence s has blocks 2 s + 1 and 2 s + 2. */
static void run_paged(struct rk_test_model *test, struct paged *paged, const int32_t *tokens, int32_t begin,
                      int32_t end, double *out)
{
    int32_t count = end - begin, ids[2 * PAGED_LEN], positions[2 * PAGED_LEN], slots[2 * PAGED_LEN];
    const int32_t blocks[] = {1, 2, 3, 4}, cu_q[] = {0, count, 2 * count}, lens[] = {end, end};
    const int32_t last[] = {count - 1, 2 * count - 1};
    rk_tensor_t logits, table;

    for (int32_t s = 0; s < 2; s++) {
        for (int32_t i = 0; i < count; i++) {
            ids[s * count + i] = tokens[s * PAGED_LEN + begin + i];
            positions[s * count + i] = begin + i;
            slots[s * count + i] =
                (2 * s + 1) * PAGED_BLOCK + begin + i; /* the blocks of a sequence are adjacent */
        }
    }
    paged->step.num_tokens = 2 * count;
    paged->step.num_seqs = 2;
    paged->step.num_logits = 2;
    paged->step.tokens = upload(test, paged, ids, 2 * count);
    paged->step.positions = upload(test, paged, positions, 2 * count);
    paged->step.slot_mapping = upload(test, paged, slots, 2 * count);
    table = upload(test, paged, blocks, 4);
    paged->step.block_table = rk_tensor_2d(table.data, RK_DTYPE_I32, 2, 2);
    paged->step.cu_q = upload(test, paged, cu_q, 3);
    paged->step.seq_lens = upload(test, paged, lens, 2);
    paged->step.logits_index = upload(test, paged, last, 2);
    assert_ok(rk_model_forward_paged(test->model, &paged->step, NULL, &logits));
    assert_int_equal(logits.shape[0], 2);
    assert_true(logits.shape[1] >= VOCAB_SIZE);
    for (int32_t s = 0; s < 2; s++)
        memcpy(out + s * VOCAB_SIZE, (double *)logits.data + s * logits.row_stride,
               VOCAB_SIZE * sizeof(double));
}

static void check_paged(const char *config)
{
    static const int32_t offsets[] = {0, PAGED_LEN, 2 * PAGED_LEN};
    double *expected = rk_calloc(2 * PAGED_LEN * VOCAB_SIZE, sizeof(double));
    double actual[2 * VOCAB_SIZE];
    struct paged paged = {0};
    struct rk_test_model test;
    struct batch batch;

    make_batch(&batch);
    for (int32_t t = 0; t < 2 * PAGED_LEN; t++)
        batch.positions[t] = t % PAGED_LEN;
    batch.packed.num_seqs = 2;
    batch.packed.num_tokens = 2 * PAGED_LEN;
    batch.packed.cu_seqlens = offsets;
    open_model(&test, config, RK_DTYPE_F64);
    assert_int_equal(rk_model_cache_bytes(test.model), 2 * 2 * 2 * 8 * 8); /* layers, k and v, 2 heads of 8 */
    assert_ok(rk_model_logits(test.model, &batch.packed, expected));
    paged.memory = rk_step_arena_create(test.device);
    make_caches(&test, &paged);
    for (int32_t end = PAGED_LEN - 1; end <= PAGED_LEN; end++) {
        run_paged(&test, &paged, batch.tokens, end == PAGED_LEN ? end - 1 : 0, end, actual);
        for (int32_t s = 0; s < 2; s++)
            assert_below(end == PAGED_LEN ? "decode" : "prefill",
                         rk_test_error_by_max(actual + s * VOCAB_SIZE,
                                              expected + (s * PAGED_LEN + end - 1) * VOCAB_SIZE, VOCAB_SIZE),
                         RK_TOL_F64);
    }
    rk_step_arena_destroy(paged.memory);
    rk_test_model_close(&test);
    rk_free(expected);
}

static void test_forward_paged_equals_packed(void **state)
{
    (void)state;
    check_paged(UNTIED);
    check_paged(QWEN2);
}

/* Goal: after warm-up a step allocates nothing on the device. */
static void test_step_after_warm_up_allocates_nothing(void **state)
{
    struct rk_step_stats stats;
    struct rk_test_model test;
    struct batch batch;
    uint64_t allocations = 0, overflows = 0;

    (void)state;
    make_batch(&batch);
    open_training(&test, UNTIED, RK_DTYPE_F32);
    for (int step = 0; step < 5; step++) {
        assert_ok(rk_trainer_begin(rk_model_trainer(test.model)));
        assert_ok(micro_batch(test.model, &batch));
        assert_ok(rk_trainer_step(rk_model_trainer(test.model), &stats));
        if (step == 2) {
            allocations = rk_device_get_stats(test.device).num_allocations;
            overflows = rk_model_get_memory(test.model).step_overflows;
        }
    }
    assert_int_equal(rk_device_get_stats(test.device).num_allocations, allocations);
    assert_int_equal(rk_model_get_memory(test.model).step_overflows, overflows);
    rk_test_model_close(&test);
}

/* Goal: the reported memory equals the allocated memory. */
static void test_memory_report_adds_up_to_the_device(void **state)
{
    struct rk_model_memory memory;
    struct rk_test_model test;
    struct batch batch;

    (void)state;
    make_batch(&batch);
    open_training(&test, UNTIED, RK_DTYPE_F32);
    for (int i = 0; i < 2; i++) {
        assert_ok(rk_trainer_begin(rk_model_trainer(test.model)));
        assert_ok(micro_batch(test.model, &batch));
    }
    memory = rk_model_get_memory(test.model);
    assert_int_equal(memory.param_bytes,
                     4 * (uint64_t)test.model->core->params.num_elements + 2 * 64 * 4 * sizeof(float));
    assert_int_equal(memory.grad_bytes, 4 * (uint64_t)test.model->core->params.num_elements);
    assert_int_equal(memory.optimizer_bytes, 2 * memory.grad_bytes);
    assert_int_equal(memory.kv_cache_bytes, 0);
    assert_int_equal(rk_device_get_stats(test.device).allocated_bytes, rk_memory_total_bytes(&memory));
    assert_int_equal(rk_device_get_stats(test.device).host_bytes, memory.pass_host_bytes);
    rk_test_model_close(&test);
}

/* Goal: a step with non-finite gradients changes nothing; five in a row are an error; a finite one resets the
 * count.
 */
static void test_step_with_nan_gradient_is_skipped(void **state)
{
    struct rk_step_stats stats;
    struct rk_test_model test;
    struct batch batch;
    size_t bytes;
    void *kept;

    (void)state;
    make_batch(&batch);
    open_training(&test, UNTIED, RK_DTYPE_F32);
    bytes = (size_t)test.model->core->params.num_elements * sizeof(float);
    kept = rk_malloc(bytes);
    memcpy(kept, test.model->core->values, bytes);
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < 5; i++) {
            struct rk_status *st;

            batch.scale = i % 2 ? (double)NAN : (double)INFINITY;
            assert_ok(rk_trainer_begin(rk_model_trainer(test.model)));
            assert_ok(micro_batch(test.model, &batch));
            st = rk_trainer_step(rk_model_trainer(test.model), &stats);
            assert_true(stats.was_skipped);
            if (round == 1 && i == 4) {
                assert_string_equal(rk_status_reason(st), "NON_FINITE");
                assert_fails(st, RK_ABORTED, "in 5 optimizer steps in a row");
            } else {
                assert_ok(st);
            }
            if (round == 0 && i == 3)
                break;
        }
        assert_int_equal(rk_model_weight_version(test.model), round);
        assert_memory_equal(test.model->core->values, kept, bytes);
        batch.scale = 1;
        assert_ok(rk_trainer_begin(rk_model_trainer(test.model)));
        assert_ok(micro_batch(test.model, &batch));
        assert_ok(rk_trainer_step(rk_model_trainer(test.model), &stats));
        assert_false(stats.was_skipped);
        assert_int_equal(test.model->trainer->applied_steps, round + 1);
        memcpy(kept, test.model->core->values, bytes);
    }
    rk_free(kept);
    rk_test_model_close(&test);
}

static const char *const frozen_names[] = {"model.layers.0.mlp.gate_proj.weight",
                                           "model.layers.1.input_layernorm.weight", "lm_head.weight", NULL};

static bool is_frozen(const char *name)
{
    for (size_t i = 0; frozen_names[i]; i++) {
        if (strcmp(name, frozen_names[i]) == 0)
            return true;
    }
    return false;
}

/* One step with weight decay and without clipping. Returns the sum of squares of the gradients of
 * frozen_names. */
static double run_step(struct rk_test_model *test, struct batch *batch, bool freezes,
                       struct rk_step_stats *stats)
{
    struct rk_optim_config optim = rk_test_adamw(1e-2, 0.1, 0);
    double gradient[VOCAB_SIZE * 32], squares = 0;

    assert_ok(rk_test_model_open(
        test,
        &(struct rk_test_model_spec){
            .config = UNTIED, .seed = 3, .dtype = RK_DTYPE_F32, .frozen = freezes ? frozen_names : NULL}));
    assert_ok(rk_test_enable_training(test->model, &optim));
    assert_ok(rk_trainer_begin(rk_model_trainer(test->model)));
    assert_ok(micro_batch(test->model, batch));
    for (size_t i = 0; frozen_names[i]; i++) {
        int64_t param = rk_model_find_param(test->model, frozen_names[i]);

        assert_ok(rk_trainer_gather_grad(rk_model_trainer(test->model), param, gradient));
        for (int64_t e = 0; e < rk_param_num_elements(rk_model_param_at(test->model, param)); e++)
            squares += gradient[e] * gradient[e];
    }
    assert_ok(rk_trainer_step(rk_model_trainer(test->model), stats));
    return squares;
}

static const float *value_at(const struct rk_test_model *test, int64_t i)
{
    return (const float *)test->model->core->values + rk_model_placement_at(test->model, i)->offset;
}

/* Goal: a frozen parameter gets no update and no weight decay and is not in the norm; the others are updated
 * as without it. Method: the same step with frozen parameters, without, and the model before it. */
static void test_step_does_not_change_frozen_parameters(void **state)
{
    struct rk_step_stats all, some;
    struct rk_test_model before, whole, test;
    struct batch batch;
    double squares;

    (void)state;
    make_batch(&batch);
    open_model(&before, UNTIED, RK_DTYPE_F32);
    squares = run_step(&whole, &batch, false, &all);
    (void)run_step(&test, &batch, true, &some);
    assert_true(squares > 1e-2 * all.grad_norm * all.grad_norm);
    assert_true(fabs(some.grad_norm * some.grad_norm + squares - all.grad_norm * all.grad_norm) <
                1e-5 * all.grad_norm * all.grad_norm);
    for (int64_t i = 0; i < rk_model_num_params(test.model); i++) {
        const struct rk_param *param = rk_model_param_at(test.model, i);
        size_t bytes = (size_t)rk_param_num_elements(param) * sizeof(float);
        const float *old = value_at(&before, i), *updated = value_at(&whole, i);

        assert_memory_equal(value_at(&test, i), is_frozen(param->name) ? old : updated, bytes);
        assert_memory_not_equal(old, updated, bytes);
    }
    rk_test_model_close(&before);
    rk_test_model_close(&whole);
    rk_test_model_close(&test);
}

/* Goal: a model that shares weights computes the owner's logits, shows its version, and cannot train. */
static void test_create_shared_sees_updates_of_the_owner(void **state)
{
    double *owner = rk_calloc(NUM_TOKENS * VOCAB_SIZE, sizeof(double));
    double *shared = rk_calloc(NUM_TOKENS * VOCAB_SIZE, sizeof(double));
    struct rk_optim_config optim = rk_test_adamw(1e-2, 0, 0);
    struct rk_model *other;
    struct rk_step_stats stats;
    struct rk_test_model test;
    struct batch batch;

    (void)state;
    make_batch(&batch);
    open_training(&test, TIED, RK_DTYPE_F32);
    assert_ok(rk_model_create_shared(&other, test.model));
    for (int step = 0; step < 2; step++) {
        assert_ok(rk_model_logits(test.model, &batch.packed, owner));
        assert_ok(rk_model_logits(other, &batch.packed, shared));
        assert_memory_equal(owner, shared, NUM_TOKENS * VOCAB_SIZE * sizeof(double));
        assert_int_equal(rk_model_weight_version(other), step);
        assert_ok(rk_trainer_begin(rk_model_trainer(test.model)));
        assert_ok(micro_batch(test.model, &batch));
        assert_ok(rk_trainer_step(rk_model_trainer(test.model), &stats));
    }
    assert_int_equal(rk_model_get_memory(other).param_bytes, 0);
    assert_fails(rk_test_enable_training(other, &optim), RK_FAILED_PRECONDITION, "shares");
    rk_model_destroy(other);
    rk_test_model_close(&test);
    rk_free(owner);
    rk_free(shared);
}

static void test_train_calls_in_wrong_state_are_failed_preconditions(void **state)
{
    struct rk_optim_config optim = rk_test_adamw(1e-2, 0, 0);
    struct rk_test_model test;

    (void)state;
    open_model(&test, UNTIED, RK_DTYPE_F32);
    assert_null(rk_model_trainer(test.model));
    assert_ok(rk_test_enable_training(test.model, &optim));
    assert_fails(rk_test_enable_training(test.model, &optim), RK_FAILED_PRECONDITION, "already");
    rk_test_model_close(&test);
}

/* Goal: without an optimizer the gradients are the same, the memory is smaller, and a step is refused. */
static void test_train_without_optimizer_makes_gradients_only(void **state)
{
    struct rk_optim_config optim = rk_test_adamw(1e-2, 0, 0);
    struct rk_test_model with, without;
    double expected[VOCAB_SIZE * 32], actual[VOCAB_SIZE * 32];
    struct rk_step_stats stats;
    struct batch batch;

    (void)state;
    make_batch(&batch);
    open_training(&with, UNTIED, RK_DTYPE_F32);
    open_model(&without, UNTIED, RK_DTYPE_F32);
    optim.ops = NULL;
    assert_ok(rk_test_enable_training(without.model, &optim));
    assert_ok(rk_trainer_begin(rk_model_trainer(with.model)));
    assert_ok(rk_trainer_begin(rk_model_trainer(without.model)));
    assert_ok(micro_batch(with.model, &batch));
    assert_ok(micro_batch(without.model, &batch));
    assert_ok(rk_trainer_gather_grad(rk_model_trainer(with.model), 0, expected));
    assert_ok(rk_trainer_gather_grad(rk_model_trainer(without.model), 0, actual));
    assert_memory_equal(actual, expected, sizeof(expected));
    assert_true(rk_model_get_memory(with.model).optimizer_bytes > 0);
    assert_int_equal(rk_model_get_memory(without.model).optimizer_bytes, 0);
    assert_fails(rk_trainer_step(rk_model_trainer(without.model), &stats), RK_FAILED_PRECONDITION,
                 "no optimizer");
    rk_test_model_close(&with);
    rk_test_model_close(&without);
}

/* The gradients of all parameters, one after the other. */
static double *gather_gradients(struct rk_test_model *test, int64_t *count)
{
    double *out = rk_calloc((size_t)rk_model_num_elements(test->model), sizeof(*out));

    *count = 0;
    for (int64_t i = 0; i < rk_model_num_params(test->model); i++) {
        const struct rk_param *param = rk_model_param_at(test->model, i);

        assert_ok(rk_trainer_gather_grad(rk_model_trainer(test->model), i, out + *count));
        *count += param->shape[0] * param->shape[1];
    }
    return out;
}

/* Goal: the gradients of a step do not depend on earlier steps. Method: gradients of NaN, then a step with
 * the same micro-batches as on a model without NaN before: none, empty ones, two with tokens. */
static void test_train_begin_discards_earlier_gradients(void **state)
{
    static const char *const configs[] = {TIED, UNTIED};

    (void)state;
    for (int c = 0; c < 6; c++) {
        struct rk_test_model fresh, used;
        struct rk_test_model *const models[] = {&fresh, &used};
        double *gradients[2], largest = 0;
        struct batch batch, empty;
        int64_t count;

        make_batch(&batch);
        make_batch(&empty);
        empty.packed.num_seqs = 0;
        empty.packed.num_tokens = 0;
        open_training(&fresh, configs[c % 2], RK_DTYPE_F32);
        open_training(&used, configs[c % 2], RK_DTYPE_F32);
        assert_ok(rk_trainer_begin(rk_model_trainer(used.model)));
        batch.scale = (double)NAN;
        assert_ok(micro_batch(used.model, &batch));
        batch.scale = 1;
        for (int m = 0; m < 2; m++) {
            assert_ok(rk_trainer_begin(rk_model_trainer(models[m]->model)));
            if (c / 2 > 0)
                assert_ok(micro_batch(models[m]->model, &empty));
            for (int i = 0; c / 2 > 1 && i < 2; i++)
                assert_ok(micro_batch(models[m]->model, &batch));
            gradients[m] = gather_gradients(models[m], &count);
        }
        assert_memory_equal(gradients[1], gradients[0], (size_t)count * sizeof(double));
        for (int64_t i = 0; i < count; i++)
            largest = fmax(largest, fabs(gradients[0][i]));
        assert_true((largest > 0) == (c / 2 > 1));
        for (int m = 0; m < 2; m++) {
            rk_free(gradients[m]);
            rk_test_model_close(models[m]);
        }
    }
}

/* Goal: the schedule counts calls of advance, not steps. */
static void test_advance_lr_moves_the_schedule(void **state)
{
    struct rk_optim_config optim = rk_test_adamw(1.0, 0, 0);
    struct rk_test_model test;

    (void)state;
    optim.lr_decay_style = RK_LR_LINEAR;
    optim.lr_decay_steps = 4;
    open_model(&test, UNTIED, RK_DTYPE_F32);
    assert_ok(rk_test_enable_training(test.model, &optim));
    for (int n = 0; n < 4; n++) {
        assert_true(rk_trainer_get_lr(rk_model_trainer(test.model)) == 1.0 - n / 4.0);
        rk_trainer_advance_lr(rk_model_trainer(test.model));
    }
    rk_test_model_close(&test);
}

static void test_create_of_unbuilt_dtype_is_unimplemented(void **state)
{
    struct rk_test_model test;

    (void)state;
    assert_fails(
        rk_test_model_open(&test, &(struct rk_test_model_spec){.config = UNTIED, .dtype = RK_DTYPE_F16}),
        RK_UNIMPLEMENTED, "parameter dtype f16 is not implemented, expected f32 or bf16");
    assert_null(test.model);
    rk_test_model_close(&test);
}

/* All operations with allocations that depend on sizes. */
static struct rk_status *scenario(struct rk_test_model *test, struct batch *batch)
{
    struct rk_optim_config optim = rk_test_adamw(1e-2, 0.1, 1.0);
    struct rk_step_stats stats;
    double log_probs[NUM_TOKENS], weights[VOCAB_SIZE * 32];

    RK_TRY(rk_test_model_open(test, &(struct rk_test_model_spec){.config = UNTIED, .dtype = RK_DTYPE_F32}));
    RK_TRY(rk_test_enable_training(test->model, &optim));
    RK_TRY(rk_trainer_begin(rk_model_trainer(test->model)));
    RK_TRY(micro_batch(test->model, batch));
    RK_TRY(rk_trainer_step(rk_model_trainer(test->model), &stats));
    RK_TRY(
        rk_model_forward(test->model, &batch->packed, 1, NULL, &(struct rk_head_arrays){.of = {log_probs}}));
    return rk_model_gather_param(test->model, 0, weights);
}

/* Goal: exhausted memory fails the call and has no other effect. Method: the n-th allocation fails, for n =
 * 1, 2, ... until the scenario passes; the sanitizer checks for leaks. */
static void test_scenario_with_failing_allocation_is_resource_exhausted(void **state)
{
    struct rk_status *st;
    struct batch batch;
    int nth = 0;

    (void)state;
    make_batch(&batch);
    do {
        struct rk_test_model test = {0};

        rk_alloc_fail_after(++nth);
        st = scenario(&test, &batch);
        rk_alloc_fail_after(0);
        rk_test_model_close(&test);
        if (st)
            assert_code(rk_status_clone(st), RK_RESOURCE_EXHAUSTED);
        rk_status_free(st);
        assert_in_range(nth, 1, 500);
    } while (st);
    assert_true(nth > 10); /* many allocations of the scenario can fail */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_micro_batch_gradient_is_the_derivative),
        cmocka_unit_test(test_measured_output_is_not_differentiated),
        cmocka_unit_test(test_head_chunks_give_the_same_log_probs_and_gradients),
        cmocka_unit_test(test_forward_outputs_are_those_of_logits),
        cmocka_unit_test(test_logits_change_only_from_the_changed_token_on),
        cmocka_unit_test(test_log_probs_of_bad_arguments_name_them),
        cmocka_unit_test(test_micro_batch_without_tokens_or_labels_adds_no_gradient),
        cmocka_unit_test(test_forward_paged_equals_packed),
        cmocka_unit_test(test_step_after_warm_up_allocates_nothing),
        cmocka_unit_test(test_memory_report_adds_up_to_the_device),
        cmocka_unit_test(test_step_with_nan_gradient_is_skipped),
        cmocka_unit_test(test_step_does_not_change_frozen_parameters),
        cmocka_unit_test(test_create_shared_sees_updates_of_the_owner),
        cmocka_unit_test(test_train_calls_in_wrong_state_are_failed_preconditions),
        cmocka_unit_test(test_train_without_optimizer_makes_gradients_only),
        cmocka_unit_test(test_train_begin_discards_earlier_gradients),
        cmocka_unit_test(test_advance_lr_moves_the_schedule),
        cmocka_unit_test(test_create_of_unbuilt_dtype_is_unimplemented),
        cmocka_unit_test(test_scenario_with_failing_allocation_is_resource_exhausted),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
