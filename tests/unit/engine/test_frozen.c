/* Parameters that are not trained: no gradient, master and optimizer state, and no change of anything else.
 */
#include "tests/support/test.h"

#include <math.h>
#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_str.h"
#include "engine/model/model.h"
#include "engine/optim/trainer.h"
#include "engine/rk_memory.h"
#include "tests/support/models.h"

enum { NUM_TOKENS = 12, HEADER_BYTES = 80000 }; /* HEADER_BYTES: of a checkpoint, at most */

static const int32_t tokens[NUM_TOKENS] = {5, 9, 2, 7, 11, 3, 8, 6, 4, 10, 1, 12};
static const int32_t positions[NUM_TOKENS] = {0, 1, 2, 3, 4, 5, 6, 0, 1, 2, 3, 4};
static const int32_t labels[NUM_TOKENS] = {9, 2, 7, 11, 3, 8, RK_LABEL_NONE, 4, 10, 1, 12, RK_LABEL_NONE};
static const int32_t cu_seqlens[] = {0, 7, NUM_TOKENS};
static const struct rk_packed packed = {.num_seqs = 2,
                                        .num_tokens = NUM_TOKENS,
                                        .max_seqlen = 7,
                                        .tokens = tokens,
                                        .positions = positions,
                                        .labels = labels,
                                        .cu_seqlens = cu_seqlens};

/* The first layer, but for one of the fused projections; and all that is outside of layers. */
static const char *const some[] = {"model.layers.0.*[!k]_proj.weight",
                                   "model.layers.0.*norm.weight",
                                   "model.layers.0.mlp.gate.weight",
                                   "model.layers.0.*.bias",
                                   "model.embed_tokens.weight",
                                   "model.norm.weight",
                                   "lm_head.weight",
                                   "score.*",
                                   NULL};
static const char *const all[] = {"*", NULL};

static void open_model(struct rk_test_model *test, const char *golden, rk_dtype_t dtype,
                       const char *const *frozen)
{
    const struct rk_optim_config optim = rk_test_adamw(1e-2, 0.1, 0);
    char *dir = rk_test_fixture_path(golden);

    assert_ok(rk_test_model_open(
        test,
        &(struct rk_test_model_spec){
            .dir = dir, .head = strstr(golden, "value") ? "value" : NULL, .dtype = dtype, .frozen = frozen}));
    assert_ok(rk_test_enable_training(test->model, &optim));
    rk_free(dir);
}

/* Every output has a gradient at every labelled position. */
static struct rk_status *loss_fn(void *user, const struct rk_head_arrays *outputs,
                                 const struct rk_head_arrays *grads)
{
    (void)user;
    (void)outputs;
    for (int k = 0; k < RK_HEAD_OUTPUT_COUNT; k++) {
        for (int i = 0; grads->of[k] && i < NUM_TOKENS; i++)
            grads->of[k][i] = labels[i] == RK_LABEL_NONE ? 0 : 1.0 / (i + 3);
    }
    return NULL;
}

static struct rk_status *train_pass(const struct rk_test_model *test)
{
    struct rk_trainer *trainer = rk_model_trainer(test->model);

    RK_TRY(rk_trainer_begin(trainer));
    return rk_trainer_micro_batch(trainer,
                                  &(struct rk_train_micro){.packed = &packed,
                                                           .temperature = 1,
                                                           .outputs = rk_model_head_outputs(test->model),
                                                           .loss_fn = loss_fn});
}

static const char *value_at(const struct rk_test_model *test, int64_t i)
{
    const struct rk_model_core *core = test->model->core;

    return (const char *)core->values +
           (size_t)rk_model_placement_at(test->model, i)->offset * rk_dtype_bytes(core->dtype);
}

static size_t value_bytes(const struct rk_test_model *test, int64_t i)
{
    return (size_t)rk_placement_num_elements(rk_model_placement_at(test->model, i)) *
           rk_dtype_bytes(test->model->core->dtype);
}

/* Gradients of trained parameters are those of the model that trains all, bit for bit. */
static void check_grads(const struct rk_test_model *test, const struct rk_test_model *whole)
{
    for (int64_t i = 0; i < rk_model_num_params(test->model); i++) {
        size_t bytes = (size_t)rk_param_num_elements(rk_model_param_at(test->model, i)) * sizeof(double);
        double *actual = rk_malloc(bytes), *expected = rk_calloc(1, bytes);

        if (rk_params_is_trained(&test->model->core->params, i))
            assert_ok(rk_trainer_gather_grad(rk_model_trainer(whole->model), i, expected));
        assert_ok(rk_trainer_gather_grad(rk_model_trainer(test->model), i, actual));
        assert_memory_equal(actual, expected, bytes);
        rk_free(actual);
        rk_free(expected);
    }
}

/* Buffers have the trained parameters only. */
static void check_memory(const struct rk_test_model *test)
{
    const struct rk_param_table *params = &test->model->core->params;
    struct rk_model_memory memory = rk_model_get_memory(test->model);
    uint64_t bytes = (uint64_t)params->num_trained * sizeof(float);

    assert_true(params->num_trained < params->num_elements);
    assert_int_equal(memory.grad_bytes, RK_MAX(bytes, 256)); /* passes need an address */
    assert_int_equal(memory.optimizer_bytes, 2 * bytes);
    assert_int_equal(memory.master_bytes, test->model->core->dtype == RK_DTYPE_BF16 ? bytes : 0);
}

/* Saves `from` and loads it into `to`, which may train other parameters. */
static void move(struct rk_test_model *from, struct rk_test_model *to, uint32_t contents)
{
    char *dir = rk_test_new_dir(), *part = rk_format("%s/global_step_1/actor", dir);
    const struct rk_checkpoint_save save = {.part_dir = part,
                                            .role = "actor",
                                            .global_step = 1,
                                            .contents = RK_CHECKPOINT_MODEL | RK_CHECKPOINT_OPTIMIZER};
    struct rk_checkpoint_report report;
    struct rk_checkpoint_loaded loaded;
    uint64_t bytes;

    assert_ok(rk_test_save(from->model, &save, &report));
    bytes = rk_model_checkpoint_bytes(from->model, save.contents);
    assert_in_range(report.bytes, bytes, bytes + HEADER_BYTES);
    assert_ok(rk_model_load_checkpoint(to->model, part, contents, NULL, &loaded));
    assert_int_equal(loaded.contents, contents ? contents : save.contents);
    for (int64_t i = 0; i < rk_model_num_params(from->model); i++)
        assert_memory_equal(value_at(to, i), value_at(from, i), value_bytes(from, i));
    rk_free(part);
    rk_free(dir);
}

/* Moments of parameters that `test` does not train: 0 in the state of `whole`. */
static void check_new_moments(const struct rk_test_model *test, const struct rk_test_model *whole)
{
    const struct rk_trainer *trainer = rk_model_trainer(whole->model);

    for (int64_t i = 0; i < rk_model_num_params(test->model); i++) {
        const struct rk_placement *placement = rk_model_placement_at(whole->model, i);
        int64_t end = placement->offset + rk_placement_num_elements(placement);
        struct rk_shard_run run = {0};

        if (rk_params_is_trained(&test->model->core->params, i))
            continue;
        while (rk_shards_next_run(&trainer->shards, placement->offset, end, &run)) {
            for (int64_t e = 0; e < run.count; e++)
                assert_true(((const float *)trainer->states[1])[run.shard + e] == 0);
        }
    }
}

/* Goal: a checkpoint moves between models that train other parameters, in both directions: optimizer state of
 * a parameter that is not trained is not read, and is 0 for a parameter that was not trained before. */
static void check_checkpoints(struct rk_test_model *test, struct rk_test_model *whole)
{
    struct rk_step_stats stats;

    assert_ok(rk_trainer_step(rk_model_trainer(whole->model), &stats));
    move(test, whole, RK_CHECKPOINT_MODEL);
    move(test, test, 0);
    assert_ok(train_pass(whole));
    assert_ok(rk_trainer_step(rk_model_trainer(whole->model), &stats));
    move(whole, test, 0);
    move(test, whole, 0);
    check_new_moments(test, whole);
}

static void check_family(const char *golden, rk_dtype_t dtype, const char *const *frozen)
{
    struct rk_test_model test, whole, before;
    struct rk_step_stats stats;

    open_model(&test, golden, dtype, frozen);
    open_model(&whole, golden, dtype, NULL);
    open_model(&before, golden, dtype, NULL);
    assert_ok(train_pass(&test));
    assert_ok(train_pass(&whole));
    check_grads(&test, &whole);
    check_memory(&test);
    assert_ok(rk_trainer_step(rk_model_trainer(test.model), &stats));
    assert_false(stats.was_skipped);
    for (int64_t i = 0; i < rk_model_num_params(test.model); i++) {
        bool is_frozen = rk_model_param_at(test.model, i)->flags & RK_PARAM_FROZEN;

        assert_true(is_frozen == !memcmp(value_at(&test, i), value_at(&before, i), value_bytes(&test, i)));
    }
    check_checkpoints(&test, &whole);
    rk_test_model_close(&test);
    rk_test_model_close(&whole);
    rk_test_model_close(&before);
}

static void test_frozen_parameters_have_no_state(void **state)
{
    static const char *const goldens[] = {
        "golden/llama_tiny",   "golden/qwen2_tiny_tied",  "golden/qwen3_tiny", "golden/qwen2_moe_tiny",
        "golden/mixtral_tiny", "golden/deepseek_v3_tiny", "golden/qwen2_value"};

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(goldens); i++) {
        check_family(goldens[i], RK_DTYPE_F32, some);
        check_family(goldens[i], RK_DTYPE_F32, all);
        check_family(goldens[i], RK_DTYPE_BF16, all);
    }
}

/* Goal: projections that one GEMM computes are trained together; a frozen one of them is not updated. */
static void test_fused_parameters_stay_together(void **state)
{
    struct rk_test_model test;

    (void)state;
    open_model(&test, "golden/llama_tiny", RK_DTYPE_F32, some);
    for (int64_t i = 0; i < rk_model_num_params(test.model); i++) {
        const struct rk_param *param = rk_model_param_at(test.model, i);
        bool is_qkv = strstr(param->name, "layers.0.self_attn.") && !strstr(param->name, "o_proj");

        if (is_qkv)
            assert_int_equal(param->flags & RK_PARAM_UNTRAINED, 0);
        assert_int_equal(!!(param->flags & RK_PARAM_FROZEN),
                         !strstr(param->name, "layers.1.") && !strstr(param->name, "k_proj"));
    }
    rk_test_model_close(&test);
}

#define SHAPE_1_5B                                                                         \
    "{\"model_type\": \"qwen2\", \"hidden_size\": 1536, \"intermediate_size\": 8960, "     \
    "\"num_hidden_layers\": 28, \"num_attention_heads\": 12, \"num_key_value_heads\": 2, " \
    "\"vocab_size\": 151936, \"max_position_embeddings\": 4096, \"tie_word_embeddings\": true}"

/* Goal: an actor of 1.5B parameters that are all frozen takes 2 bytes a parameter; trained it takes 18. */
static void test_frozen_actor_takes_two_bytes_a_parameter(void **state)
{
    struct rk_optim_config optim = rk_test_adamw(1e-6, 0, 1);
    struct rk_json *config;
    struct rk_mesh *mesh;
    struct rk_memory_plan_desc desc = {
        .struct_size = sizeof(desc),
        .model = {.struct_size = sizeof(desc.model), .dtype = RK_DTYPE_BF16, .frozen = all},
        .optim = &optim};
    const double num_params = 1543714304; /* as Hugging Face counts Qwen2.5-1.5B */

    (void)state;
    assert_ok(rk_json_parse(&config, SHAPE_1_5B, strlen(SHAPE_1_5B), "shape", 0));
    assert_ok(rk_mesh_create(&mesh, &(struct rk_mesh_spec){.tp = 1}, 1));
    desc.model.hf_config = config;
    desc.mesh = mesh;
    for (int trains = 0; trains < 2; trains++) {
        struct rk_memory_plan plan;
        double bytes;

        desc.model.frozen = trains ? NULL : all;
        assert_ok(rk_memory_plan_make(&plan, &desc));
        bytes = (double)(plan.memory.param_bytes + plan.memory.master_bytes + plan.memory.grad_bytes +
                         plan.memory.optimizer_bytes);
        assert_below("bytes a parameter", fabs(bytes / num_params - (trains ? 18 : 2)), 2e-3);
    }
    rk_mesh_destroy(mesh);
    rk_json_free(config);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_frozen_parameters_have_no_state),
        cmocka_unit_test(test_fused_parameters_stay_together),
        cmocka_unit_test(test_frozen_actor_takes_two_bytes_a_parameter),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
