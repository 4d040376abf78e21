/* Plans without ranks and devices: formulas, refused arguments, failing allocations, and how the memory of a
 * device is shared by roles. */
#include "tests/support/test.h"

#include <string.h>

#include "base/rk_alloc.h"
#include "base/layout/rk_mesh.h"
#include "engine/rk_memory.h"
#include "tests/support/models.h"

#define CONFIG                                                                                            \
    "{\"model_type\": \"llama\", \"hidden_size\": 64, \"intermediate_size\": 128,"                        \
    " \"num_hidden_layers\": 3, \"num_attention_heads\": 8, \"num_key_value_heads\": 2, \"vocab_size\": " \
    "131, \"head_dim\": 8,"                                                                               \
    " \"max_position_embeddings\": 128, \"initializer_range\": 0.1, \"tie_word_embeddings\": false}"

#define EXPERTS(num)                                                                                      \
    "{\"model_type\": \"qwen3_moe\", \"hidden_size\": 16, \"num_hidden_layers\": 1, \"head_dim\": 8,"     \
    " \"num_attention_heads\": 2, \"num_key_value_heads\": 1, \"vocab_size\": 131, \"num_experts\": " num \
    ","                                                                                                   \
    " \"num_experts_per_tok\": 2, \"moe_intermediate_size\": 16, \"intermediate_size\": 16,"              \
    " \"max_position_embeddings\": 128}"

static struct rk_memory_plan_desc make_desc(struct rk_json **config, const struct rk_mesh *mesh)
{
    const char *text = CONFIG;

    assert_ok(rk_json_parse(config, text, strlen(text), "config.json", 0));
    return (struct rk_memory_plan_desc){
        .struct_size = sizeof(struct rk_memory_plan_desc),
        .model = {.struct_size = sizeof(struct rk_model_desc), .hf_config = *config, .dtype = RK_DTYPE_F32},
        .mesh = mesh,
    };
}

/* Goal: a plan needs no device and no other ranks, and its numbers equal the formulas where formulas exist.
 */
static void test_plan_without_device_matches_formulas(void **state)
{
    struct rk_mesh_spec spec = {.tp = 2, .dp = 4};
    struct rk_optim_config optim = rk_test_adamw(1e-3, 0.1, 1.0);
    struct rk_memory_plan_desc desc;
    struct rk_memory_plan plan;
    struct rk_json *config;
    struct rk_mesh *mesh;
    uint64_t elements;

    (void)state;
    assert_ok(rk_mesh_create(&mesh, &spec, 8));
    desc = make_desc(&config, mesh);
    desc.rank = 5;
    desc.optim = &optim;
    assert_ok(rk_memory_plan_make(&plan, &desc));
    elements = plan.memory.grad_bytes / sizeof(float);
    assert_int_equal(elements % (4 * 32), 0); /* four shards of whole vectors */
    assert_int_equal(plan.memory.param_bytes,
                     elements * sizeof(float) + 2 * 128 * 4 * sizeof(float)); /* plus rotary tables */
    assert_int_equal(plan.memory.optimizer_bytes, 2 * plan.memory.grad_bytes / 4);
    assert_int_equal(plan.memory.kv_cache_bytes, 0);
    desc.limits.train_tokens = 1000;
    assert_ok(rk_memory_plan_make(&plan, &desc));
    assert_true(plan.memory.activation_bytes > 1000 * 64 * sizeof(float));
    rk_json_free(config);
    rk_mesh_destroy(mesh);
}

static void test_plan_bad_arguments_are_refused(void **state)
{
    struct rk_rollout_config rollout = {.max_num_seqs = 4, .max_num_batched_tokens = 16, .num_kv_blocks = 5};
    struct rk_mesh_spec spec = {0};
    struct rk_memory_plan_desc desc;
    struct rk_memory_plan plan;
    struct rk_json *config;
    struct rk_mesh *mesh;

    (void)state;
    assert_ok(rk_mesh_create(&mesh, &spec, 1));
    desc = make_desc(&config, mesh);
    desc.limits.log_prob_tokens = -1;
    assert_fails(rk_memory_plan_make(&plan, &desc), RK_INVALID_ARGUMENT, "a micro-batch of -1 tokens");
    desc.limits.log_prob_tokens = (int64_t)1 << 40;
    assert_fails(rk_memory_plan_make(&plan, &desc), RK_INVALID_ARGUMENT, "a micro-batch of 1099511627776");
    desc.limits.log_prob_tokens = 0;
    desc.rollout = &rollout;
    assert_fails(
        rk_memory_plan_make(&plan, &desc), RK_RESOURCE_EXHAUSTED,
        "5 blocks does not fit one sequence of rollout.max_model_len=128 tokens, expected at least 9");
    rk_json_free(config);
    rk_mesh_destroy(mesh);
}

/* Goal: host memory that runs out during a plan fails it and nothing else. Method: the n-th allocation fails,
 * for n = 1, 2, ... until the plan is made; the sanitizer checks for leaks. */
static void test_plan_with_failing_allocation_is_resource_exhausted(void **state)
{
    const struct rk_rollout_config rollout = {.max_num_seqs = 2, .max_num_batched_tokens = 16};
    struct rk_optim_config optim = rk_test_adamw(1e-3, 0.1, 1.0);
    struct rk_mesh_spec spec = {.tp = 2};
    struct rk_memory_plan_desc desc;
    struct rk_memory_plan plan;
    struct rk_json *config;
    struct rk_mesh *mesh;
    struct rk_status *st;
    int nth = 0;

    (void)state;
    assert_ok(rk_mesh_create(&mesh, &spec, 2));
    desc = make_desc(&config, mesh);
    desc.optim = &optim;
    desc.rollout = &rollout;
    desc.limits = (struct rk_memory_limits){.train_tokens = 8, .log_prob_tokens = 8};
    do {
        rk_alloc_fail_after(++nth);
        st = rk_memory_plan_make(&plan, &desc);
        rk_alloc_fail_after(0);
        if (st)
            assert_code(rk_status_clone(st), RK_RESOURCE_EXHAUSTED);
        rk_status_free(st);
        assert_in_range(nth, 1, 500);
    } while (st);
    assert_true(nth > 5); /* many allocations can fail */
    rk_json_free(config);
    rk_mesh_destroy(mesh);
}

/* Goal: a plan that is given the weights refuses them before any memory is taken: the tensors are those of
 * config.json. Method: the weights of four experts, and a config.json of four or five. */
static void test_plan_looks_at_the_weights(void **state)
{
    const struct rk_test_model_spec spec = {.config = EXPERTS("4"), .seed = 3, .dtype = RK_DTYPE_F32};
    static const char *const configs[] = {EXPERTS("4"), EXPERTS("5")};
    char *dir = rk_test_temp_path("experts");
    struct rk_mesh_spec mesh_spec = {0};
    struct rk_test_model test;
    struct rk_mesh *mesh;

    (void)state;
    assert_ok(rk_mesh_create(&mesh, &mesh_spec, 1));
    assert_ok(rk_test_model_open(&test, &spec));
    assert_ok(rk_model_export_hf(test.model, dir, 0, NULL));
    for (size_t i = 0; i < RK_ARRAY_LEN(configs); i++) {
        struct rk_memory_plan_desc desc = {.struct_size = sizeof(desc), .mesh = mesh, .weights_dir = dir};
        struct rk_memory_plan plan;
        struct rk_json *config;

        assert_ok(rk_json_parse(&config, configs[i], strlen(configs[i]), "config.json", 0));
        desc.model = (struct rk_model_desc){
            .struct_size = sizeof(desc.model), .hf_config = config, .dtype = RK_DTYPE_F32};
        if (i == 0)
            assert_ok(rk_memory_plan_make(&plan, &desc));
        else
            assert_fails(rk_memory_plan_make(&plan, &desc), RK_INVALID_ARGUMENT,
                         "model.layers.0.mlp.gate.weight");
        rk_json_free(config);
    }
    rk_test_model_close(&test);
    rk_mesh_destroy(mesh);
    rk_free(dir);
}

static void test_plan_check_names_kinds(void **state)
{
    const struct rk_memory_plan plan = {
        .memory = {.param_bytes = 10, .optimizer_bytes = 20, .grad_bytes = 5}};

    (void)state;
    assert_int_equal(rk_memory_total_bytes(&plan.memory), 35);
    assert_ok(rk_memory_plan_check(&plan, &(struct rk_memory_room){.free_bytes = 35}));
    assert_fails(rk_memory_plan_check(&plan, &(struct rk_memory_room){.free_bytes = 34}),
                 RK_RESOURCE_EXHAUSTED,
                 "35 bytes of device memory wanted, 34 free; largest: optimizer; in all: parameters 10, "
                 "gradients 5, optimizer 20");
}

/* Goal: each role reduces the memory available to the next ones by what it holds, and roles share the
 * workspace of operators: each part of it is allocated once, with the largest size that a role needs. */
static void test_room_shrinks_with_every_role(void **state)
{
    static const struct {
        uint64_t param_bytes;
        struct rk_workspace workspace;
        int64_t free_bytes; /* afterwards */
        uint64_t own_bytes;
        bool fits;
    } roles[] = {
        {100, {.scratch_bytes = 30, .kept_bytes = 2}, 1000 - 100 - 22, 32, true}, /* 10 were allocated
                                                                                   * before */
        {200, {.scratch_bytes = 20, .kept_bytes = 9}, 878 - 200 - 7, 39, true},
        {670, {.scratch_bytes = 1}, 1, 39, true},
        {10, {0}, -9, 39, false},
        {0, {.scratch_bytes = 20}, -9, 39, false},
    };
    struct rk_memory_room room = {.free_bytes = 1000, .own_bytes = 10};

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(roles); i++) {
        uint64_t shared = roles[i].workspace.scratch_bytes + roles[i].workspace.kept_bytes;
        const struct rk_memory_plan plan = {
            .memory = {.param_bytes = roles[i].param_bytes, .workspace_bytes = shared},
            .workspace = roles[i].workspace};
        struct rk_status *st = rk_memory_plan_check(&plan, &room);

        assert_int_equal(st == NULL, roles[i].fits);
        rk_status_free(st);
        rk_memory_room_take(&room, &plan);
        assert_int_equal(room.free_bytes, roles[i].free_bytes);
        assert_int_equal(room.own_bytes, roles[i].own_bytes);
    }
}

/* Goal: a cache gets its share of the memory that the rest of its role leaves, at least one block and at most
 * the plan's number. */
static void test_cache_blocks_fit_the_share(void **state)
{
    static const struct {
        int64_t free_bytes;
        double share;
        int32_t num_blocks;
    } rows[] = {{1000, 1.0, 40}, {700, 1.0, 40}, {690, 1.0, 39},
                {1000, 0.5, 20}, {200, 1.0, 1},  {-5, 1.0, 1}};
    const struct rk_memory_plan plan = {
        .memory = {.staging_bytes = 290, .workspace_bytes = 10, .kv_cache_bytes = 400},
        .workspace = {.scratch_bytes = 10},
        .num_kv_blocks = 40};

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(rows); i++) {
        const struct rk_memory_room held = {.free_bytes = rows[i].free_bytes - 10, .own_bytes = 50};
        const struct rk_memory_room room = {.free_bytes = rows[i].free_bytes};

        assert_int_equal(rk_memory_plan_fit_blocks(&plan, &room, rows[i].share), rows[i].num_blocks);
        assert_int_equal(rk_memory_plan_fit_blocks(&plan, &held, rows[i].share), rows[i].num_blocks);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plan_without_device_matches_formulas),
        cmocka_unit_test(test_plan_bad_arguments_are_refused),
        cmocka_unit_test(test_plan_with_failing_allocation_is_resource_exhausted),
        cmocka_unit_test(test_plan_looks_at_the_weights),
        cmocka_unit_test(test_plan_check_names_kinds),
        cmocka_unit_test(test_room_shrinks_with_every_role),
        cmocka_unit_test(test_cache_blocks_fit_the_share),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
