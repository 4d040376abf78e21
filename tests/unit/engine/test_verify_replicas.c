/* Replicas of parameters that differ in one bit are found, with the same message on all ranks. Every rank is
 * a separate process. */
#include "tests/support/test.h"

#include <stdlib.h>
#include <string.h>

#include "engine/model/model.h"
#include "tests/support/device.h"
#include "tests/support/models.h"
#include "tests/support/ranks.h"

/* One key-value head: with tp=2 both ranks hold it. */
#define CONFIG                                                                                              \
    "{\"model_type\": \"qwen3\", \"hidden_size\": 32, \"intermediate_size\": 48, \"num_hidden_layers\": 2," \
    " \"num_attention_heads\": 4, \"num_key_value_heads\": 1, \"vocab_size\": 67, \"head_dim\": 8,"         \
    " \"max_position_embeddings\": 64, \"initializer_range\": 0.15}"
#define NUM_RANKS 4
#define TIMEOUT_S 60

struct flip {
    int32_t rank;
    const char *param;
    int64_t byte;
};

/* tp is the fastest axis: ranks 0 and 1 are one replica, 2 and 3 the other. */
static const struct {
    const char *label;
    struct flip flips[3];
    const char *message; /* NULL: no replica differs */
} cases[] = {
    {"no flip", {{0}}, NULL},
    {"a norm of one rank",
     {{1, "model.layers.1.input_layernorm.weight", 0}},
     "'model.layers.1.input_layernorm.weight' (layer 1) of rank 1 is not that of rank 0; 1 of 25 parameters "
     "differ, on rank 1 "},
    {"the last bit of a matrix that is split, of the other replica",
     {{3, "model.layers.0.mlp.down_proj.weight", 32 * 24 * 4 - 1}},
     "'model.layers.0.mlp.down_proj.weight' (layer 0) of rank 3 is not that of rank 1; 1 of 25"},
    {"a key-value head that every rank holds",
     {{2, "model.layers.1.self_attn.k_proj.weight", 77}},
     "'model.layers.1.self_attn.k_proj.weight' (layer 1) of rank 2 is not that of rank 0"},
    {"the first rank is the odd one",
     {{0, "model.norm.weight", 3}},
     "'model.norm.weight' (outside the layers) of rank 1 is not that of rank 0; 1 of 25 parameters differ, "
     "on rank 1, 2, 3 "},
    {"several",
     {{2, "model.norm.weight", 0}, {3, "model.embed_tokens.weight", 5}, {3, "model.norm.weight", 0}},
     "'model.embed_tokens.weight' (outside the layers) of rank 3 is not that of rank 1; 2 of 25 parameters "
     "differ, on rank 2, 3 "},
};

static struct rk_status *flip(struct rk_model *model, const struct flip *flip)
{
    const struct rk_model_core *core = model->core;
    int64_t i = rk_model_find_param(model, flip->param);
    const struct rk_placement *placement = rk_model_placement_at(model, i);
    char *byte = (char *)core->values + (size_t)placement->offset * rk_dtype_bytes(core->dtype) + flip->byte;
    char value;

    RK_TRY(rk_stream_copy(core->stream, &value, byte, 1, RK_COPY_D2H));
    RK_TRY(rk_stream_sync(core->stream));
    value = (char)(value ^ 1);
    RK_TRY(rk_stream_copy(core->stream, byte, &value, 1, RK_COPY_H2D));
    return rk_stream_sync(core->stream);
}

static struct rk_status *flip_all(struct rk_model *model, size_t c, int32_t rank)
{
    for (size_t f = 0; f < RK_ARRAY_LEN(cases[c].flips); f++) {
        if (cases[c].flips[f].param && cases[c].flips[f].rank == rank)
            RK_TRY(flip(model, &cases[c].flips[f]));
    }
    return NULL;
}

/* Copies beyond the first of each part, from the table alone. */
static int64_t count_copies(const struct rk_model *model)
{
    int64_t count = 0;

    for (int64_t i = 0; i < rk_model_num_params(model); i++)
        count += NUM_RANKS - rk_model_param_at(model, i)->split.num_parts;
    return count;
}

static int check_case(struct rk_model *model, size_t c, int32_t rank)
{
    struct rk_status *st;
    int64_t num_compared;

    RK_RANK_OK(flip_all(model, c, rank));
    st = rk_model_verify_replicas(model, NULL, &num_compared);
    RK_RANK_CHECK(num_compared == count_copies(model), "%s: %lld copies compared", cases[c].label,
                  (long long)num_compared);
    if (!cases[c].message)
        RK_RANK_OK(st);
    else if (rk_test_rank_check_error(st, RK_DATA_LOSS, "REPLICAS_DIFFER", cases[c].message))
        return 1;
    RK_RANK_OK(flip_all(model, c, rank)); /* back */
    return 0;
}

static int run_rank(struct rk_comm_world *world, void *user)
{
    int32_t rank = rk_comm_world_rank(world);
    struct rk_test_model test;

    (void)user;
    RK_RANK_OK(rk_test_model_open(&test, &(struct rk_test_model_spec){.config = CONFIG,
                                                                      .seed = 3,
                                                                      .dtype = RK_DTYPE_F32,
                                                                      .tp = 2,
                                                                      .dp = 2,
                                                                      .world = world,
                                                                      .stream = rk_test_rank_stream(rank)}));
    for (size_t c = 0; c < RK_ARRAY_LEN(cases); c++) {
        if (check_case(test.model, c, rank))
            return 1;
    }
    rk_test_model_close(&test);
    return 0;
}

static void test_verify_names_the_tensor_and_the_ranks(void **state)
{
    (void)state;
    rk_test_device_need_ranks(NUM_RANKS);
    assert_int_equal(rk_test_run_world(NUM_RANKS, "unix", run_rank, NULL, TIMEOUT_S), 0);
}

/* Goal: with one rank there are no replicas to compare, and no memory is needed. */
static void test_verify_of_one_rank_compares_nothing(void **state)
{
    struct rk_test_model test;
    int64_t num_compared = -1;

    (void)state;
    assert_ok(rk_test_model_open(
        &test, &(struct rk_test_model_spec){.config = CONFIG, .seed = 3, .dtype = RK_DTYPE_BF16}));
    assert_ok(rk_model_verify_replicas(test.model, NULL, &num_compared));
    assert_int_equal(num_compared, 0);
    rk_test_model_close(&test);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        /* First, since it forks. */
        cmocka_unit_test(test_verify_names_the_tensor_and_the_ranks),
        cmocka_unit_test(test_verify_of_one_rank_compares_nothing),
    };

    return cmocka_run_group_tests_name("verify_replicas", tests, NULL, NULL);
}
