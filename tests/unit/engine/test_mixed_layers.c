/* Goal: a model with several kinds of layers, one of which caches a single tensor of 576 values per token,
 * has the cache, plans, rotary tables and checkpoints that its blocks declare. Expected bytes are computed by
 * hand. Plans of such models on several ranks: test_memory_plan.c. */
#include "tests/support/test.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/rk_alloc.h"
#include "base/rk_str.h"
#include "engine/rk_checkpoint.h"
#include "engine/rk_memory.h"
#include "engine/rollout/rollout.h"
#include "tests/unit/engine/mixed_family.h"
#include "tests/support/answers.h"

#define NUM_LAYERS 5

#define CONFIG(kv_heads, head_dim, more)                                                       \
    "{\"model_type\": \"mixed\", \"hidden_size\": 32, \"intermediate_size\": 48, "             \
    "\"num_hidden_layers\": 5, \"num_attention_heads\": 4, \"num_key_value_heads\": " kv_heads \
    ", \"head_dim\": " head_dim ", \"vocab_size\": 61, \"max_position_embeddings\": 96, "      \
    "\"initializer_range\": 0.3, " more "}"
#define LATENT_LAYERS "\"latent_layers\": [1, 3, 4]"
#define MIXED         CONFIG("2", "8", LATENT_LAYERS)

static int set_up(void **state)
{
    (void)state;
    rk_family_set_extra(&rk_test_mixed_family);
    return 0;
}

static struct rk_test_model open_model(const char *config, rk_dtype_t dtype, rk_numerics_t numerics)
{
    const struct rk_test_model_spec spec = {
        .config = config, .seed = 5, .dtype = dtype, .numerics = numerics};
    struct rk_test_model test;

    assert_ok(rk_test_model_open(&test, &spec));
    return test;
}

static void test_layers_are_of_the_kinds_listed(void **state)
{
    static const char *const kinds[NUM_LAYERS] = {"dense", "latent", "dense", "latent", "latent"};
    struct rk_test_model test = open_model(MIXED, RK_DTYPE_F32, RK_NUMERICS_FAST);
    const struct rk_model_core *core = test.model->core;
    int64_t first_cache = 0, begin = 0;

    (void)state;
    assert_int_equal(core->num_blocks, 2 * 2 + 3);
    for (int i = 0; i < NUM_LAYERS; i++) {
        const struct rk_layer *layer = &core->layers[i];
        bool is_latent = strcmp(kinds[i], "latent") == 0;

        assert_string_equal(layer->kind->name, kinds[i]);
        assert_int_equal(layer->begin, begin);
        assert_int_equal(layer->end - layer->begin, is_latent ? 1 : 2);
        begin = layer->end;
        assert_int_equal(core->blocks[layer->begin].layer, i);
        assert_int_equal(core->blocks[layer->begin].first_cache, first_cache);
        first_cache += is_latent ? 1 : 2;
        assert_int_equal(core->blocks[layer->begin].rope, is_latent ? 1 : 0);
        if (!is_latent)
            assert_int_equal(core->blocks[layer->begin + 1].rope, -1);
    }
    assert_int_equal(core->num_caches, first_cache);
    assert_int_equal(core->num_ropes, 2);
    assert_true(rk_model_find_param(test.model, "model.layers.3.self_attn.kv_proj.weight") >= 0);
    assert_int_equal(rk_model_find_param(test.model, "model.layers.3.self_attn.k_proj.weight"), -1);
    assert_int_equal(rk_model_find_param(test.model, "model.layers.3.mlp.up_proj.weight"), -1);
    rk_test_model_close(&test);
}

/* Goal: exactly one table for every declared rotation. Method: the definition, at the last position. */
static void test_rotary_tables_are_those_declared(void **state)
{
    static const struct {
        int64_t width;
        double theta;
    } tables[] = {{8, 10000.0}, {64, 500.0}};
    struct rk_test_model test = open_model(MIXED, RK_DTYPE_F32, RK_NUMERICS_FAST);
    const struct rk_model_core *core = test.model->core;
    int64_t elements = 0;

    (void)state;
    for (int i = 0; i < 2; i++) {
        rk_tensor_t cosines = core->rope_tables[i].cos;
        int64_t half = tables[i].width / 2;

        assert_int_equal(cosines.shape[0], 96);
        assert_int_equal(cosines.shape[1], half);
        for (int64_t k = 0; k < half; k++)
            assert_below("cos",
                         fabs(((float *)cosines.data)[95 * half + k] -
                              cos(95 * pow(tables[i].theta, -2.0 * (double)k / (double)tables[i].width))),
                         1e-4);
        elements += 2 * 96 * half;
    }
    assert_int_equal(rk_model_get_memory(test.model).param_bytes,
                     ((uint64_t)core->params.num_elements + (uint64_t)elements) * sizeof(float));
    rk_test_model_close(&test);
}

/* Goal: a rotation that no operator computes is refused before any allocation. */
static void test_rotation_of_an_odd_width_is_refused(void **state)
{
    const struct rk_test_model_spec spec = {.config = CONFIG("2", "8", "\"odd_layers\": [2]"),
                                            .dtype = RK_DTYPE_F32};
    struct rk_test_model test;

    (void)state;
    assert_fails(rk_test_model_open(&test, &spec), RK_UNIMPLEMENTED,
                 "block odd of layer 2 applies RoPE to 63 columns");
    assert_int_equal(rk_device_get_stats(test.device).num_allocations, 0);
    rk_test_model_close(&test);
}

/* --- the cache --- */

/* Bytes of one tensor: blocks of 16 tokens, up to a multiple of 256. */
static uint64_t tensor_bytes(int64_t num_blocks, int64_t values, int64_t element_bytes)
{
    uint64_t bytes = (uint64_t)(num_blocks * 16 * values * element_bytes);

    return (bytes + 255) / 256 * 256;
}

static uint64_t cache_bytes(int64_t num_blocks, int64_t dense_values, int64_t element_bytes)
{
    return 4 * tensor_bytes(num_blocks, dense_values, element_bytes) +
           3 * tensor_bytes(num_blocks, 576, element_bytes);
}

/* Goal: the tensors of all blocks follow each other in the order of the layers, each with its own shape. */
static void check_cache(const char *config, rk_dtype_t dtype, int32_t num_blocks, int64_t kv_heads,
                        int64_t head_dim)
{
    static const int caches_of_layer[NUM_LAYERS] = {2, 1, 2, 1, 1};
    struct rk_test_model test = open_model(config, dtype, RK_NUMERICS_FAST);
    int64_t element_bytes = (int64_t)rk_dtype_bytes(dtype);
    struct rk_arena *arena = rk_arena_create(1 << 16, 0);
    struct rk_kv_cache cache;
    uint64_t at = 0;
    int next = 0;

    assert_int_equal(rk_model_cache_bytes(test.model), (4 * kv_heads * head_dim + 3 * 576) * element_bytes);
    assert_ok(rk_kv_cache_init(&cache, arena, test.model, num_blocks));
    for (int layer = 0; layer < NUM_LAYERS; layer++) {
        for (int i = 0; i < caches_of_layer[layer]; i++) {
            bool is_latent = caches_of_layer[layer] == 1;
            int64_t heads = is_latent ? 1 : kv_heads, width = is_latent ? 576 : head_dim;
            rk_tensor_t t = cache.tensors[next++];

            assert_true((char *)t.data == (char *)cache.memory + at);
            assert_int_equal(t.dtype, dtype);
            assert_int_equal(t.shape[0], num_blocks);
            assert_int_equal(t.shape[1], heads);
            assert_int_equal(t.shape[2], 16);
            assert_int_equal(t.shape[3], width);
            at += tensor_bytes(num_blocks, heads * width, element_bytes);
        }
    }
    assert_int_equal(cache.memory_bytes, at);
    assert_int_equal(at, cache_bytes(num_blocks, kv_heads * head_dim, element_bytes));
    assert_int_equal(rk_model_get_memory(test.model).kv_cache_bytes, at);
    rk_kv_cache_fini(&cache);
    assert_int_equal(rk_model_get_memory(test.model).kv_cache_bytes, 0);
    rk_arena_destroy(arena);
    rk_test_model_close(&test);
}

static void test_cache_has_what_each_block_declares(void **state)
{
    (void)state;
    check_cache(MIXED, RK_DTYPE_F32, 7, 2, 8);
    check_cache(MIXED, RK_DTYPE_BF16, 31, 2, 8);
    /* 64 bytes a block: the tensors of an odd number of blocks are padded. */
    check_cache(CONFIG("1", "2", LATENT_LAYERS), RK_DTYPE_BF16, 7, 1, 2);
}

/* Goal: a cache whose size overflows is refused instead of wrapping around. */
static void test_cache_too_large_is_refused(void **state)
{
    struct rk_test_model test = open_model(MIXED, RK_DTYPE_F32, RK_NUMERICS_FAST);
    struct rk_arena *arena = rk_arena_create(1 << 16, 0);
    struct rk_kv_cache cache;
    int64_t width = test.model->core->blocks[2].decl.caches[0].width;

    (void)state;
    test.model->core->blocks[2].decl.caches[0].width = INT64_MAX / 4096;
    assert_fails(rk_kv_cache_init(&cache, arena, test.model, 1 << 20), RK_RESOURCE_EXHAUSTED,
                 "a KV cache of 1048576 blocks does not fit into memory");
    test.model->core->blocks[2].decl.caches[0].width = width;
    rk_kv_cache_fini(&cache);
    rk_arena_destroy(arena);
    rk_test_model_close(&test);
}

/* Goal: a plan has the cache's bytes without a device. */
static void test_plan_has_the_bytes_of_every_kind(void **state)
{
    struct rk_mesh_spec spec = {.tp = 2};
    struct rk_rollout_config rollout = {.max_num_seqs = 3, .max_model_len = 50, .max_num_batched_tokens = 64};
    struct rk_memory_plan plan;
    struct rk_mesh *mesh;
    struct rk_json *config;

    (void)state;
    assert_ok(rk_mesh_create(&mesh, &spec, 2));
    assert_ok(rk_json_parse(&config, MIXED, strlen(MIXED), "config.json", 0));
    for (int32_t rank = 0; rank < 2; rank++) {
        const struct rk_memory_plan_desc desc = {.struct_size = sizeof(desc),
                                                 .model = {.struct_size = sizeof(struct rk_model_desc),
                                                           .hf_config = config,
                                                           .dtype = RK_DTYPE_BF16},
                                                 .mesh = mesh,
                                                 .rank = rank,
                                                 .rollout = &rollout};

        assert_ok(rk_memory_plan_make(&plan, &desc));
        assert_int_equal(plan.num_kv_blocks, 1 + 3 * 4);
        /* one kv head per rank; the whole latent tensor on both ranks */
        assert_int_equal(plan.memory.kv_cache_bytes, cache_bytes(13, 8, 2));
    }
    rk_json_free(config);
    rk_mesh_destroy(mesh);
}

/* --- paging --- */

/* Goal: the samples do not depend on how the steps over the cache are split, and strict log-probs equal those
 * of a packed pass bit for bit: every block uses its own tensor of the cache. */
static void test_generate_has_the_bits_of_packed_passes(void **state)
{
    struct rk_test_model test = open_model(MIXED, RK_DTYPE_F32, RK_NUMERICS_STRICT);
    struct rk_test_answers all, few;

    (void)state;
    rk_test_generate(&test, &all, 33, RK_TEST_NUM_REQUESTS, 512);
    rk_test_generate(&test, &few, 33, 2, 7);
    rk_test_expect_packed_bits(&test, &all, &few);
    rk_test_model_close(&test);
}

/* --- activations --- */

/* Goal: a forward pass keeps for the backward pass exactly the activations that its blocks declare, the
 * residual stream and the norms' statistics, to the byte. */
static void test_kept_activations_are_those_declared(void **state)
{
    struct rk_test_model test = open_model(MIXED, RK_DTYPE_F32, RK_NUMERICS_FAST);
    const struct rk_model_core *core = test.model->core;
    struct rk_pass_memory memory = {.arena = rk_step_arena_create(test.device),
                                    .host = rk_arena_create(RK_PASS_HOST_BLOCK_BYTES, 0)};
    int32_t ids[3 * RK_TEST_PACKED_TOKENS];
    int64_t declared = 0, residual = 32 * 4, statistic = 4;
    struct rk_trunk_saved saved;
    struct rk_packed packed;
    struct rk_pass pass;
    rk_tensor_t out;
    size_t before;

    (void)state;
    rk_test_fill_packed(&packed, ids);
    assert_ok(rk_model_begin_packed(test.model, &memory, &pass, &packed));
    before = rk_step_arena_mark(memory.arena).live_bytes;
    assert_ok(rk_trunk_fwd(core, &core->chunks[0], &pass, (rk_tensor_t){0}, &out, &saved));
    for (int64_t i = 0; i < core->num_blocks; i++)
        declared +=
            rk_block_activation_bytes(&core->blocks[i], RK_ACTIVATION_SAVED, RK_DTYPE_F32, RK_DTYPE_F32) +
            rk_block_activation_bytes(&core->blocks[i], RK_ACTIVATION_KEPT, RK_DTYPE_F32, RK_DTYPE_F32);
    /* dense: [q; k; v], out, lse, [gate; up]; latent: [q; c], out, lse */
    assert_int_equal(declared,
                     4 * (2 * ((4 + 2 * 2) * 8 + 4 * 8 + 4 + 2 * 48) + 3 * (5 * 576 + 4 * 512 + 4)));
    /* One residual before each of the 7 blocks and the final norm, and the norms' statistics. */
    assert_int_equal(rk_step_arena_mark(memory.arena).live_bytes - before,
                     RK_TEST_PACKED_TOKENS * (declared + 8 * (residual + statistic)));
    rk_step_arena_destroy(memory.arena);
    rk_arena_destroy(memory.host);
    rk_test_model_close(&test);
}

/* --- training and files --- */

static double run_backward(struct rk_model *model)
{
    int32_t ids[3 * RK_TEST_PACKED_TOKENS];
    struct rk_packed packed;
    double loss;

    rk_test_fill_packed(&packed, ids);
    assert_ok(rk_test_mean_pass(&loss, model, &packed));
    return loss;
}

/* Goal: gradients of a mixed model are the derivatives of its loss. Method: central differences, in f64, of
 * some elements of every matrix of layers of both kinds. */
static void test_gradients_of_mixed_layers_match_differences(void **state)
{
    static const char *const names[] = {
        "model.layers.0.self_attn.v_proj.weight",  "model.layers.1.self_attn.q_proj.weight",
        "model.layers.1.self_attn.kv_proj.weight", "model.layers.3.self_attn.kv_proj.weight",
        "model.layers.4.self_attn.o_proj.weight",  "model.layers.2.mlp.down_proj.weight"};
    struct rk_test_model test = open_model(MIXED, RK_DTYPE_F64, RK_NUMERICS_FAST);
    struct rk_optim_config optim = rk_test_adamw(1e-3, 0, 1);
    const double step = 1e-5;

    (void)state;
    assert_ok(rk_test_enable_training(test.model, &optim));
    for (size_t n = 0; n < RK_ARRAY_LEN(names); n++) {
        int64_t param = rk_model_find_param(test.model, names[n]), count, worst = 0;
        double *grad, *value;

        assert_true(param >= 0);
        count = rk_param_num_elements(rk_model_param_at(test.model, param));
        grad = rk_calloc((size_t)count, sizeof(*grad));
        value = (double *)test.model->core->values + rk_model_placement_at(test.model, param)->offset;
        run_backward(test.model);
        assert_ok(rk_trainer_gather_grad(rk_model_trainer(test.model), param, grad));
        for (int64_t i = 1; i < count; i++)
            worst = fabs(grad[i]) > fabs(grad[worst]) ? i : worst;
        for (int k = 0; k < 3; k++) { /* the largest, and two anywhere */
            int64_t i = k == 0 ? worst : (worst + k * (count / 3 + 5)) % count;
            double kept = value[i], up, down;

            value[i] = kept + step;
            up = run_backward(test.model);
            value[i] = kept - step;
            down = run_backward(test.model);
            value[i] = kept;
            assert_below(names[n], fabs((up - down) / (2 * step) - grad[i]), 1e-6 * fabs(grad[worst]) + 1e-9);
        }
        assert_true(fabs(grad[worst]) > 1e-6);
        rk_free(grad);
    }
    rk_test_model_close(&test);
}

static void check_same_values(const struct rk_test_model *a, const struct rk_test_model *b)
{
    assert_int_equal(a->model->core->params.num_elements, b->model->core->params.num_elements);
    assert_memory_equal(a->model->core->values, b->model->core->values,
                        (size_t)a->model->core->params.num_elements * sizeof(float));
}

/* Goal: files have the tensors of every layer's kind, and loading restores them. */
static void test_files_of_mixed_layers_come_back(void **state)
{
    struct rk_test_model test = open_model(MIXED, RK_DTYPE_F32, RK_NUMERICS_FAST), back;
    char *export_dir = rk_test_temp_path("export"), *part_dir = rk_test_temp_path("global_step_1/actor");
    struct rk_checkpoint_save save = {
        .part_dir = part_dir, .role = "actor", .global_step = 1, .contents = RK_CHECKPOINT_MODEL};
    struct rk_checkpoint_report report;
    struct rk_checkpoint_loaded loaded;

    (void)state;
    assert_ok(rk_model_export_hf(test.model, export_dir, 0, NULL));
    assert_ok(
        rk_test_model_open(&back, &(struct rk_test_model_spec){.dir = export_dir, .dtype = RK_DTYPE_F32}));
    check_same_values(&test, &back);
    rk_test_model_close(&back);
    assert_ok(rk_test_save(test.model, &save, &report));
    assert_ok(rk_test_model_open(
        &back, &(struct rk_test_model_spec){.config = MIXED, .seed = 99, .dtype = RK_DTYPE_F32}));
    assert_ok(rk_model_load_checkpoint(back.model, part_dir, 0, NULL, &loaded));
    check_same_values(&test, &back);
    rk_test_model_close(&back);
    rk_test_model_close(&test);
    rk_free(export_dir);
    rk_free(part_dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_layers_are_of_the_kinds_listed),
        cmocka_unit_test(test_rotary_tables_are_those_declared),
        cmocka_unit_test(test_rotation_of_an_odd_width_is_refused),
        cmocka_unit_test(test_cache_has_what_each_block_declares),
        cmocka_unit_test(test_cache_too_large_is_refused),
        cmocka_unit_test(test_plan_has_the_bytes_of_every_kind),
        cmocka_unit_test(test_generate_has_the_bits_of_packed_passes),
        cmocka_unit_test(test_kept_activations_are_those_declared),
        cmocka_unit_test(test_gradients_of_mixed_layers_match_differences),
        cmocka_unit_test(test_files_of_mixed_layers_come_back),
    };

    return cmocka_run_group_tests_name("unit/engine/mixed_layers", tests, set_up, NULL);
}
