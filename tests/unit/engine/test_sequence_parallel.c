/* Sequence parallelism: the gradients summed over tp, the results of passes, and the kept activations. */
#include "tests/support/test.h"

#include <string.h>

#include "base/rk_alloc.h"
#include "base/layout/rk_mesh.h"
#include "base/rk_str.h"
#include "engine/optim/trainer.h"
#include "engine/rk_memory.h"
#include "tests/support/models.h"
#include "tests/support/ranks.h"

/* Includes norms of queries and keys. */
#define CONFIG                                                                                              \
    "{\"model_type\": \"qwen3\", \"hidden_size\": 32, \"intermediate_size\": 48, \"num_hidden_layers\": 2," \
    " \"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"head_dim\": 8, \"vocab_size\": 67,"         \
    " \"max_position_embeddings\": 64, \"initializer_range\": 0.15}"
#define VOCAB_SIZE    67
#define NUM_TOKENS    13 /* not a multiple of 2 or 4 */
#define VECTORS_MAX   1000
#define NUM_SUMS      9 /* norms of CONFIG: four per layer, and the final one */
#define RUN_TIMEOUT_S 60

static const int32_t tokens[NUM_TOKENS] = {3, 66, 0, 12, 41, 7, 7, 30, 2, 55, 19, 4, 60};
static const int32_t positions[NUM_TOKENS] = {0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 5, 6, 7};
static const int32_t labels[NUM_TOKENS] = {66, 0, 12, 41, RK_LABEL_NONE, 7, 30, 2, 55, 19, 4, 60, 1};
static const int32_t cu_seqlens[] = {0, 5, NUM_TOKENS};

static const struct rk_packed batch = {.num_seqs = 2,
                                       .num_tokens = NUM_TOKENS,
                                       .max_seqlen = 8,
                                       .tokens = tokens,
                                       .positions = positions,
                                       .cu_seqlens = cu_seqlens,
                                       .labels = labels};

/* The results of a single rank, in memory shared by the ranks. */
struct reference {
    double logits[NUM_TOKENS * VOCAB_SIZE];
    int64_t num_params;
    int64_t begin[64]; /* offset of every parameter in grads; matrices are not included */
    double grads[VECTORS_MAX];
};

struct run {
    struct rk_test_rendezvous *rendezvous;
    struct reference *reference;
};

static struct rk_status *open_and_train(struct rk_test_model *test, const struct rk_test_model_spec *spec,
                                        double *logits)
{
    struct rk_optim_config optim = rk_test_adamw(1e-2, 0, 0);

    RK_TRY(rk_test_model_open(test, spec));
    RK_TRY(rk_model_logits(test->model, &batch, logits));
    RK_TRY(rk_test_enable_training(test->model, &optim));
    return rk_test_train_pass(test->model, &batch);
}

/* This rank's gradient of a replicated parameter. */
static const double *grad_of(const struct rk_test_model *test, int64_t i)
{
    return (const double *)test->model->trainer->grads + rk_model_placement_at(test->model, i)->offset;
}

static int reference_rank(int32_t rank, int32_t num_ranks, void *user)
{
    struct reference *reference = ((const struct run *)user)->reference;
    struct rk_test_model test;
    int64_t position = 0;

    (void)rank;
    (void)num_ranks;
    RK_RANK_OK(open_and_train(
        &test, &(struct rk_test_model_spec){.config = CONFIG, .seed = 5, .dtype = RK_DTYPE_F64},
        reference->logits));
    reference->num_params = rk_model_num_params(test.model);
    for (int64_t i = 0; i < reference->num_params; i++) {
        const struct rk_param *param = rk_model_param_at(test.model, i);

        reference->begin[i] = position;
        if (param->rank == 2)
            continue;
        memcpy(reference->grads + position, grad_of(&test, i), (size_t)param->shape[0] * sizeof(double));
        position += param->shape[0];
    }
    rk_test_model_close(&test);
    return 0;
}

/* Checks that the gradients of all norms on this rank equal those of a single rank, or that none of them
 * does. */
static int check_sums(const struct rk_test_model *test, const struct reference *reference, bool are_summed)
{
    static const char *const kinds[] = {"input_layernorm", "post_attention_layernorm", "q_norm", "k_norm",
                                        "model.norm"};
    int32_t num_checked = 0;

    RK_RANK_CHECK(rk_model_num_params(test->model) == reference->num_params, "parameters");
    for (int64_t i = 0; i < reference->num_params; i++) {
        const struct rk_param *param = rk_model_param_at(test->model, i);
        double error;
        size_t kind = 0;

        while (kind < RK_ARRAY_LEN(kinds) && !strstr(param->name, kinds[kind]))
            kind++;
        if (kind == RK_ARRAY_LEN(kinds))
            continue;
        num_checked++;
        error =
            rk_test_error_by_max(grad_of(test, i), reference->grads + reference->begin[i], param->shape[0]);
        RK_RANK_CHECK(are_summed ? error < RK_TOL_F64_SUM : error > 0.01, "%s: %s by %g", param->name,
                      are_summed ? "the sum differs" : "a summand differs only", error);
    }
    RK_RANK_CHECK(num_checked == NUM_SUMS, "%d norms", num_checked);
    return 0;
}

static int divided_rank(int32_t rank, int32_t num_ranks, void *user)
{
    const struct run *run = user;
    double *logits = rk_calloc((size_t)NUM_TOKENS * VOCAB_SIZE, sizeof(*logits));
    struct rk_test_model_spec spec = {
        .config = CONFIG, .seed = 5, .dtype = RK_DTYPE_F64, .tp = num_ranks, .sequence_parallel = true};
    struct rk_test_model test;

    RK_RANK_OK(rk_test_world_create(&spec.world, run->rendezvous, rank, num_ranks, "unix", NULL));
    RK_RANK_OK(open_and_train(&test, &spec, logits));
    RK_RANK_CHECK(rk_test_error_by_max(logits, run->reference->logits, (int64_t)NUM_TOKENS * VOCAB_SIZE) <
                      RK_TOL_F64_SUM,
                  "logits");
    if (check_sums(&test, run->reference, false))
        return 1;
    RK_RANK_OK(rk_trainer_reduce(rk_model_trainer(test.model)));
    if (check_sums(&test, run->reference, true))
        return 1;
    rk_test_model_close(&test);
    rk_comm_world_destroy(spec.world);
    rk_free(logits);
    return 0;
}

/* Goal: every norm's gradient is summed over tp, on all ranks: those of the stream process a part of the
 * tokens, those of queries and keys a part of the heads. Method: a rank's gradient differs from that of a
 * single rank before the sum and equals it afterwards. */
static void test_gradients_of_norms_are_sums_over_tp(void **state)
{
    struct run run = {.reference = rk_test_shared_alloc(sizeof(struct reference))};

    (void)state;
    assert_int_equal(rk_test_run_ranks(1, reference_rank, &run, RUN_TIMEOUT_S), 0);
    for (int32_t tp = 2; tp <= 4; tp += 2) {
        run.rendezvous = rk_test_rendezvous_create();
        assert_int_equal(rk_test_run_ranks(tp, divided_rank, &run, RUN_TIMEOUT_S), 0);
        rk_test_rendezvous_destroy(run.rendezvous);
    }
    rk_test_shared_free(run.reference, sizeof(*run.reference));
}

/* --- memory --- */

/* A layer of Llama 3 8B. */
#define HIDDEN       4096
#define INTERMEDIATE 14336
#define HEADS        32
#define KV_HEADS     8
#define HEAD_DIM     128
#define PLAN_TOKENS  4093 /* not a multiple of 2, 4 or 8 */

#define TEXT_(x) #x
#define TEXT(x)  TEXT_(x)

static uint64_t plan_activations(int32_t tp, bool sequence_parallel, int32_t num_layers)
{
    char *text = rk_format("{\"model_type\": \"llama\", \"hidden_size\": " TEXT(HIDDEN) //
                           ", \"intermediate_size\": " TEXT(INTERMEDIATE)               //
                           ", \"num_attention_heads\": " TEXT(HEADS)                    //
                           ", \"num_key_value_heads\": " TEXT(KV_HEADS)                 //
                           ", \"num_hidden_layers\": %d, \"vocab_size\": 128256,"
                           " \"max_position_embeddings\": 8192}",
                           num_layers);
    struct rk_optim_config optim = rk_test_adamw(1e-6, 0, 1);
    struct rk_mesh_spec spec = {.tp = tp};
    struct rk_memory_plan_desc desc = {
        .struct_size = sizeof(desc),
        .model = {.struct_size = sizeof(desc.model),
                  .dtype = RK_DTYPE_BF16,
                  .layout = {.sequence_parallel = sequence_parallel}},
        .rank = tp - 1,
        .optim = &optim,
        .limits = {.train_tokens = PLAN_TOKENS},
    };
    struct rk_memory_plan plan;
    struct rk_json *config;
    struct rk_mesh *mesh;

    assert_ok(rk_json_parse(&config, text, strlen(text), "config.json", 0));
    assert_ok(rk_mesh_create(&mesh, &spec, tp));
    desc.model.hf_config = config;
    desc.mesh = mesh;
    assert_ok(rk_memory_plan_make(&plan, &desc));
    rk_mesh_destroy(mesh);
    rk_json_free(config);
    rk_free(text);
    return plan.memory.activation_bytes;
}

/* Goal: the activations that a layer keeps for the backward pass equal a count by hand, and all of them are
 * divided by tp. Per token: two streams of 2 bytes with a statistic of 4 each; queries, keys, values and the
 * output of attention; its statistic of 4 bytes per head; gate and up. Norm outputs and the product of gate
 * and up are recomputed. */
static void test_kept_activations_are_divided_by_tp(void **state)
{
    const double stream = 2 * (2.0 * HIDDEN + 4);
    const double split = 2.0 * (2 * HEADS + 2 * KV_HEADS) * HEAD_DIM + 4.0 * HEADS + 2 * 2.0 * INTERMEDIATE;

    (void)state;
    for (int32_t tp = 2; tp <= 8; tp *= 2) {
        for (int divided = 0; divided < 2; divided++) {
            double expected = PLAN_TOKENS * (divided ? (stream + split) / tp : stream + split / tp);
            double actual = (double)(plan_activations(tp, divided, 8) - plan_activations(tp, divided, 4)) / 4;

            print_message("tp=%d%s: %.0f bytes a layer, %.0f counted\n", tp, divided ? " sp" : "", actual,
                          expected);
            assert_true(actual > 0.99 * expected);
            assert_true(actual < 1.01 * expected);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gradients_of_norms_are_sums_over_tp),
        cmocka_unit_test(test_kept_activations_are_divided_by_tp),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
