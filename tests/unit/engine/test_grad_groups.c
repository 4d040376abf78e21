/* Gradient groups: some parameters of a test model are in the group of experts, whose ranks may differ from
 * those of the dense group. They must be reduced, clipped by the joint norm, updated, saved and loaded with
 * the same results as in the same model on one rank, where all parameters are dense.
 *
 * A wrapper around rk_params_add (-Wl,--wrap) selects these parameters. With tp and sequence parallelism a
 * norm processes different tokens on each tp rank: with etp=1 its gradient is the sum over edp (tp and dp),
 * where a dense one's is summed over tp first. */
#include "tests/support/test.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_str.h"
#include "engine/optim/trainer.h"
#include "engine/rk_checkpoint.h"
#include "tests/support/device.h"
#include "tests/support/models.h"
#include "tests/support/ranks.h"

#define CONFIG                                                                                              \
    "{\"model_type\": \"qwen3\", \"hidden_size\": 32, \"intermediate_size\": 48, \"num_hidden_layers\": 2," \
    " \"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"vocab_size\": 67, \"head_dim\": 8,"         \
    " \"max_position_embeddings\": 64, \"initializer_range\": 0.15}"
#define NUM_SEQS        4
#define SEQ_LEN         12
#define NUM_MICRO       2
#define BUCKET_ELEMENTS 3000 /* several buckets per group; boundaries fall inside parameters */
#define ELEMENTS_MAX    40000
#define TIMEOUT_S       120
#define CONTENTS        (RK_CHECKPOINT_MODEL | RK_CHECKPOINT_OPTIMIZER | RK_CHECKPOINT_EXTRA)

struct layout_case {
    const char *label;
    const char *in_name; /* parameters with this in their names are in the group of experts */
    int32_t tp, cp, dp, pp, etp;
    int32_t edp; /* ranks of that group */
    rk_dtype_t dtype;
    bool adds_in_shards;
};

/* --- which parameters --- */

static const char *experts_have; /* NULL: none */

int64_t __real_rk_params_add(struct rk_param_table *table, const struct rk_param_spec *spec,
                             const char *name_fmt, ...) RK_PRINTF(3, 4);
int64_t __wrap_rk_params_add(struct rk_param_table *table, const struct rk_param_spec *spec,
                             const char *name_fmt, ...) RK_PRINTF(3, 4);

int64_t __wrap_rk_params_add(struct rk_param_table *table, const struct rk_param_spec *spec,
                             const char *name_fmt, ...)
{
    struct rk_param_spec changed = *spec;
    char name[96];
    va_list args;

    va_start(args, name_fmt);
    vsnprintf(name, sizeof(name), name_fmt, args);
    va_end(args);
    if (experts_have && strstr(name, experts_have)) {
        changed.is_expert = true;
        changed.ep_rank = 0;
        changed.sees_rows = false; /* the sum over edp includes tp */
        changed.flags &= ~(uint32_t)RK_PARAM_PARTIAL_GRAD;
    }
    return __real_rk_params_add(table, &changed, "%s", name);
}

/* --- models and steps --- */

static struct rk_status *open_model(struct rk_test_model *test, const struct layout_case *row,
                                    struct rk_comm_world *world, const char *in_experts, double clip_grad)
{
    struct rk_optim_config optim = rk_test_adamw(1e-2, 0.1, clip_grad);
    struct rk_test_model_spec spec = {.config = CONFIG, .seed = 3, .dtype = row->dtype};
    struct rk_status *st;

    optim.bucket_elements = BUCKET_ELEMENTS;
    optim.adds_in_shards = row->adds_in_shards;
    if (world) {
        spec.tp = row->tp;
        spec.cp = row->cp;
        spec.dp = row->dp;
        spec.pp = row->pp;
        spec.etp = row->etp;
        spec.sequence_parallel = row->tp > 1;
        spec.world = world;
        spec.stream = rk_test_rank_stream(rk_comm_world_rank(world));
    }
    experts_have = in_experts;
    st = rk_test_model_open(test, &spec);
    experts_have = NULL;
    return rk_status_first(st, st ? NULL : rk_test_enable_training(test->model, &optim));
}

static struct rk_status *loss_fn(void *user, const struct rk_head_arrays *outputs,
                                 const struct rk_head_arrays *grads)
{
    const struct rk_packed *packed = user;

    (void)outputs;
    for (int64_t t = 0; t < packed->num_tokens; t++)
        grads->of[RK_HEAD_LOG_PROBS][t] = -1.0 / (double)(packed->tokens[t] + 2);
    return NULL;
}

/* dp rank r has the sequences i with i % dp == r. */
static struct rk_status *micro_batch(struct rk_model *model, int32_t index, bool is_last)
{
    int32_t tokens[NUM_SEQS * SEQ_LEN], positions[NUM_SEQS * SEQ_LEN], labels[NUM_SEQS * SEQ_LEN];
    int32_t cu_seqlens[NUM_SEQS + 1] = {0};
    struct rk_packed packed = {0, 0, SEQ_LEN, tokens, positions, cu_seqlens, labels, NULL};
    const struct rk_mesh_coords *coords = rk_mesh_comms_coords(rk_model_mesh(model));
    int32_t dp_size = rk_mesh_axis_size(rk_mesh_comms_mesh(rk_model_mesh(model)), RK_AXIS_DP);

    for (int32_t s = coords->axis[RK_AXIS_DP]; s < NUM_SEQS; s += dp_size) {
        for (int32_t t = 0; t < SEQ_LEN; t++, packed.num_tokens++) {
            tokens[packed.num_tokens] = (17 * s + 5 * t + 3 + 13 * index) % 67;
            labels[packed.num_tokens] = (7 * s + 11 * t + 1 + index) % 67;
            positions[packed.num_tokens] = t;
        }
        cu_seqlens[++packed.num_seqs] = (int32_t)packed.num_tokens;
    }
    return rk_trainer_micro_batch(rk_model_trainer(model),
                                  &(struct rk_train_micro){.packed = &packed,
                                                           .temperature = 1,
                                                           .outputs = RK_HEAD_BIT(RK_HEAD_LOG_PROBS),
                                                           .is_last = is_last,
                                                           .loss_fn = loss_fn,
                                                           .user = &packed});
}

static struct rk_status *train_step(struct rk_model *model, int32_t step, double *grad_norm)
{
    struct rk_step_stats stats;

    RK_TRY(rk_trainer_begin(rk_model_trainer(model)));
    for (int32_t m = 0; m < NUM_MICRO; m++)
        RK_TRY(micro_batch(model, NUM_MICRO * step + m, m == NUM_MICRO - 1));
    RK_TRY(rk_trainer_step(rk_model_trainer(model), &stats));
    rk_trainer_advance_lr(rk_model_trainer(model));
    *grad_norm = stats.grad_norm;
    return NULL;
}

/* All parameters, one after the other. Collective. */
static struct rk_status *gather(struct rk_model *model, double *out, int64_t *count)
{
    *count = 0;
    for (int64_t i = 0; i < rk_model_num_params(model); i++) {
        RK_TRY(rk_model_gather_param(model, i, out + *count));
        *count += rk_param_num_elements(rk_model_param_at(model, i));
    }
    return NULL;
}

/* The group exists with its own ranks and has the parameters selected by name. */
static int check_group(const struct rk_model *model, const struct layout_case *row)
{
    const struct rk_shard_map *shards = &model->trainer->shards.of[RK_GRAD_EXPERT];
    int64_t num_held = 0;

    RK_RANK_CHECK(shards->num_elements > 0, "no element");
    RK_RANK_CHECK(shards->num_shards == row->edp, "%d ranks", shards->num_shards);
    RK_RANK_CHECK(model->trainer->groups[RK_GRAD_EXPERT].segments.count > 0, "no segment");
    for (int64_t i = 0; i < rk_model_num_params(model); i++) {
        bool is_expert = strstr(rk_model_param_at(model, i)->name, row->in_name) != NULL;

        RK_RANK_CHECK((rk_param_grad_group(rk_model_param_at(model, i)) == RK_GRAD_EXPERT) == is_expert, "%s",
                      rk_model_param_at(model, i)->name);
        num_held += is_expert && rk_model_placement_at(model, i)->is_held;
    }
    RK_RANK_CHECK(num_held > 0, "no parameter");
    return 0;
}

/* --- comparison with one rank --- */

static const struct layout_case cases[] = {
    {"norms, tp=2 dp=2 etp=1", "norm", 2, 1, 2, 1, 1, 4, RK_DTYPE_F64, false},
    {"norms, tp=2 cp=2 etp=1", "norm", 2, 2, 1, 1, 1, 4, RK_DTYPE_F64, false},
    {"norms, tp=2 etp=1", "norm", 2, 1, 1, 1, 1, 2, RK_DTYPE_F64, false},
    {"norms, tp=2 pp=2 etp=1", "norm", 2, 1, 1, 2, 1, 2, RK_DTYPE_F64, false},
    {"MLPs, dp=2", "mlp", 1, 1, 2, 1, 0, 2, RK_DTYPE_F64, false},
    {"MLPs, dp=4", "mlp", 1, 1, 4, 1, 0, 4, RK_DTYPE_F64, false},
    {"MLPs, tp=2 dp=2", "mlp", 2, 1, 2, 1, 0, 2, RK_DTYPE_F64, false},
    {"MLPs, cp=2 dp=2", "mlp", 1, 2, 2, 1, 0, 4, RK_DTYPE_F64, false},
    {"layer 1, pp=2 dp=2", "layers.1.", 1, 1, 2, 2, 0, 2, RK_DTYPE_F64, false},
};

/* The norm is far above the bound, so that a missing part of the norm changes every update. */
#define CLIP_GRAD 0.01

static int run_against_one(struct rk_comm_world *world, void *user)
{
    const struct layout_case *row = user;
    double *expected = rk_calloc(ELEMENTS_MAX, sizeof(*expected)),
           *actual = rk_calloc(ELEMENTS_MAX, sizeof(*actual));
    struct rk_test_model one, test;
    int64_t num_expected, num_actual, num_compared;
    double norm = 0.0, expected_norm = 0.0;

    RK_RANK_OK(open_model(&one, row, NULL, NULL, CLIP_GRAD));
    RK_RANK_OK(open_model(&test, row, world, row->in_name, CLIP_GRAD));
    if (row->pp == 1 && check_group(test.model, row))
        return 1;
    for (int32_t step = 0; step < 3; step++) {
        RK_RANK_OK(train_step(one.model, step, &expected_norm));
        RK_RANK_OK(train_step(test.model, step, &norm));
        RK_RANK_CHECK(expected_norm > 10 * CLIP_GRAD, "norm %g", expected_norm);
        RK_RANK_CHECK(fabs(norm - expected_norm) <= RK_TOL_F64_SUM * expected_norm,
                      "step %d: norm %.15g, expected %.15g", step, norm, expected_norm);
    }
    RK_RANK_OK(gather(one.model, expected, &num_expected));
    RK_RANK_OK(gather(test.model, actual, &num_actual));
    RK_RANK_CHECK(num_actual == num_expected, "%lld elements", (long long)num_actual);
    norm = rk_test_error_by_max(actual, expected, num_actual);
    RK_RANK_CHECK(norm <= RK_TOL_F64_SUM, "error %g", norm);
    RK_RANK_OK(rk_model_verify_replicas(test.model, NULL, &num_compared));
    rk_test_model_close(&test);
    rk_test_model_close(&one);
    rk_free(expected);
    rk_free(actual);
    return 0;
}

static void test_group_over_other_ranks_trains_as_one_rank(void **state)
{
    (void)state;
    for (size_t c = 0; c < RK_ARRAY_LEN(cases); c++)
        rk_test_run_case(cases[c].label, cases[c].tp * cases[c].cp * cases[c].dp * cases[c].pp,
                         run_against_one, &cases[c], TIMEOUT_S);
}

/* --- bitwise equality --- */

/* Layouts in which both groups have the same ranks. */
static const struct layout_case same_cases[] = {
    {"f32 dp=2", "mlp", 1, 1, 2, 1, 0, 2, RK_DTYPE_F32, false},
    {"bf16 dp=4", "proj", 1, 1, 4, 1, 0, 4, RK_DTYPE_BF16, false},
    {"bf16 dp=2, sums in shards", "mlp", 1, 1, 2, 1, 0, 2, RK_DTYPE_BF16, true},
};

/* Goal: if both groups have the same ranks and nothing is clipped, the parameters after three steps are
 * bitwise equal whichever group they are in. */
static int run_same(struct rk_comm_world *world, void *user)
{
    const struct layout_case *row = user;
    double *expected = rk_calloc(ELEMENTS_MAX, sizeof(*expected)),
           *actual = rk_calloc(ELEMENTS_MAX, sizeof(*actual));
    struct rk_test_model dense, test;
    int64_t count;
    double norm = 0.0, expected_norm = 0.0;

    RK_RANK_OK(open_model(&dense, row, world, NULL, 0));
    RK_RANK_OK(open_model(&test, row, world, row->in_name, 0));
    if (check_group(test.model, row))
        return 1;
    for (int32_t step = 0; step < 3; step++) {
        RK_RANK_OK(train_step(dense.model, step, &expected_norm));
        RK_RANK_OK(train_step(test.model, step, &norm));
        RK_RANK_CHECK(fabs(norm - expected_norm) <= RK_TOL_F64 * expected_norm, "norm %.17g, expected %.17g",
                      norm, expected_norm);
    }
    RK_RANK_OK(gather(dense.model, expected, &count));
    RK_RANK_OK(gather(test.model, actual, &count));
    RK_RANK_CHECK(memcmp(actual, expected, (size_t)count * sizeof(*actual)) == 0, "other bits");
    rk_test_model_close(&test);
    rk_test_model_close(&dense);
    rk_free(expected);
    rk_free(actual);
    return 0;
}

static void test_groups_of_equal_ranks_give_the_same_bits(void **state)
{
    (void)state;
    for (size_t c = 0; c < RK_ARRAY_LEN(same_cases); c++)
        rk_test_run_case(same_cases[c].label, same_cases[c].dp, run_same, &same_cases[c], TIMEOUT_S);
}

/* --- checkpoints --- */

struct saving {
    const struct layout_case *row;
    const char *part_dir;
    double *expected; /* the parameters after the step that follows the save; shared memory */
};

static const struct layout_case saved_cases[] = {
    {"norms, tp=2 dp=2 etp=1", "norm", 2, 1, 2, 1, 1, 4, RK_DTYPE_F32, false},
    {"MLPs, bf16 dp=2", "mlp", 1, 1, 2, 1, 0, 2, RK_DTYPE_BF16, false},
};

static int save_and_go_on(struct rk_comm_world *world, void *user)
{
    const struct saving *saving = user;
    double *scratch = rk_calloc(ELEMENTS_MAX, sizeof(*scratch)), norm;
    struct rk_checkpoint_save save = {
        .part_dir = saving->part_dir, .role = "actor", .global_step = 2, .contents = CONTENTS};
    struct rk_checkpoint_report report;
    struct rk_test_model test;
    int64_t count;

    RK_RANK_OK(open_model(&test, saving->row, world, saving->row->in_name, CLIP_GRAD));
    for (int32_t step = 0; step < 2; step++)
        RK_RANK_OK(train_step(test.model, step, &norm));
    RK_RANK_OK(rk_test_save(test.model, &save, &report));
    RK_RANK_OK(train_step(test.model, 2, &norm));
    RK_RANK_OK(gather(test.model, rk_comm_world_rank(world) == 0 ? saving->expected : scratch, &count));
    rk_test_model_close(&test);
    rk_free(scratch);
    return 0;
}

/* Into the same groups: bitwise equal. */
static int load_and_go_on(struct rk_comm_world *world, void *user)
{
    const struct saving *saving = user;
    double *actual = rk_calloc(ELEMENTS_MAX, sizeof(*actual)), norm;
    struct rk_checkpoint_loaded loaded;
    struct rk_test_model test;
    int64_t count;

    RK_RANK_OK(open_model(&test, saving->row, world, saving->row->in_name, CLIP_GRAD));
    RK_RANK_OK(rk_model_load_checkpoint(test.model, saving->part_dir, 0, NULL, &loaded));
    RK_RANK_OK(train_step(test.model, 2, &norm));
    RK_RANK_OK(gather(test.model, actual, &count));
    RK_RANK_CHECK(memcmp(actual, saving->expected, (size_t)count * sizeof(*actual)) == 0, "other bits");
    rk_test_model_close(&test);
    rk_free(actual);
    return 0;
}

/* On one rank, where all parameters are dense. In a separate process, since it starts threads. */
static int load_on_one(struct rk_comm_world *world, void *user)
{
    const struct saving *saving = user;
    double tolerance = saving->row->dtype == RK_DTYPE_BF16 ? RK_TOL_BF16_PRODUCT : RK_TOL_F32_SUM;
    double *actual = rk_calloc(ELEMENTS_MAX, sizeof(*actual)), norm;
    struct rk_checkpoint_loaded loaded;
    struct rk_test_model test;
    int64_t count;

    (void)world;
    RK_RANK_OK(open_model(&test, saving->row, NULL, NULL, CLIP_GRAD));
    RK_RANK_OK(rk_model_load_checkpoint(test.model, saving->part_dir, 0, NULL, &loaded));
    RK_RANK_OK(train_step(test.model, 2, &norm));
    RK_RANK_OK(gather(test.model, actual, &count));
    norm = rk_test_error_by_max(actual, saving->expected, count);
    RK_RANK_CHECK(norm <= tolerance, "error %g", norm);
    rk_test_model_close(&test);
    rk_free(actual);
    return 0;
}

static void test_groups_are_saved_and_loaded(void **state)
{
    (void)state;
    for (size_t c = 0; c < RK_ARRAY_LEN(saved_cases); c++) {
        const struct layout_case *row = &saved_cases[c];
        char name[32], *dir, *part;
        struct saving saving = {.row = row};

        snprintf(name, sizeof(name), "groups%zu", c);
        dir = rk_test_temp_path(name);
        part = rk_path_join(dir, "global_step_2/actor");
        saving.part_dir = part;
        saving.expected = rk_test_shared_alloc(ELEMENTS_MAX * sizeof(double));
        rk_test_run_case(row->label, row->tp * row->dp, save_and_go_on, &saving, TIMEOUT_S);
        rk_test_run_case(row->label, row->tp * row->dp, load_and_go_on, &saving, TIMEOUT_S);
        rk_test_run_case(row->label, 1, load_on_one, &saving, TIMEOUT_S);
        rk_test_shared_free(saving.expected, ELEMENTS_MAX * sizeof(double));
        rk_free(part);
        rk_free(dir);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_group_over_other_ranks_trains_as_one_rank),
        cmocka_unit_test(test_groups_of_equal_ranks_give_the_same_bits),
        cmocka_unit_test(test_groups_are_saved_and_loaded),
    };

    return cmocka_run_group_tests_name("grad_groups", tests, NULL, NULL);
}
