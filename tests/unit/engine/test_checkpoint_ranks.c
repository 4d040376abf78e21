/* Training checkpoints over layouts: a checkpoint of any mesh loads on any other mesh, bit for bit, and the
 * next step is the same.
 *
 * A case saves on one layout and loads on another. It compares the whole tensors of weights, masters and
 * moments, assembled from the ranks by the parameter descriptors, and the weights after one more step. */
#include "tests/support/test.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/rk_alloc.h"
#include "base/format/rk_ckpt_dir.h"
#include "base/rk_str.h"
#include "engine/model/model.h"
#include "engine/optim/trainer.h"
#include "engine/rk_checkpoint.h"
#include "tests/support/device.h"
#include "tests/support/models.h"
#include "tests/support/ranks.h"

#define CONFIG(tie)                                                                      \
    "{\"model_type\": \"qwen2\", \"hidden_size\": 32, \"intermediate_size\": 64,"        \
    " \"num_hidden_layers\": 2, \"num_attention_heads\": 4, \"num_key_value_heads\": 2," \
    " \"vocab_size\": 131, \"max_position_embeddings\": 64, \"initializer_range\": 0.1," \
    " \"tie_word_embeddings\": " tie "}"
#define UNTIED CONFIG("false")
#define TIED   CONFIG("true")
#define SPARSE                                                                                  \
    "{\"model_type\": \"qwen2_moe\", \"hidden_size\": 32, \"intermediate_size\": 48,"           \
    " \"num_hidden_layers\": 2, \"moe_intermediate_size\": 8,"                                  \
    " \"shared_expert_intermediate_size\": 20, \"num_experts\": 8, \"num_experts_per_tok\": 2," \
    " \"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"vocab_size\": 131,"             \
    " \"max_position_embeddings\": 64, \"initializer_range\": 0.1}"
/* Latents, and a correction bias that holds three parts of fp32 values. */
#define LATENT                                                                                       \
    "{\"model_type\": \"deepseek_v3\", \"hidden_size\": 32, \"intermediate_size\": 48,"              \
    " \"num_hidden_layers\": 2, \"first_k_dense_replace\": 1, \"moe_intermediate_size\": 8,"         \
    " \"n_routed_experts\": 8, \"num_experts_per_tok\": 2, \"n_shared_experts\": 1, \"n_group\": 2," \
    " \"topk_group\": 1, \"num_attention_heads\": 4, \"q_lora_rank\": 11, \"kv_lora_rank\": 9,"      \
    " \"qk_nope_head_dim\": 6, \"qk_rope_head_dim\": 4, \"v_head_dim\": 8, \"vocab_size\": 131,"     \
    " \"num_nextn_predict_layers\": 0, \"max_position_embeddings\": 64, \"initializer_range\": 0.1}"
#define ELEMENTS_MAX  40000
#define NUM_KINDS     3 /* masters (weights without them), two moments */
#define NUM_SEQS      4
#define SEQ_LEN       12
#define RUN_TIMEOUT_S 120
#define ALL           (RK_CHECKPOINT_MODEL | RK_CHECKPOINT_OPTIMIZER | RK_CHECKPOINT_EXTRA)

struct layout {
    int32_t tp, cp, dp;
    int64_t bucket_elements; /* 0: the default */
    int32_t pp, ep;          /* 0: 1 */
};

struct layout_case {
    const char *label, *config;
    rk_dtype_t dtype;
    const char *const *frozen;
    struct layout from, to;
};

/* kv heads: 2, so tp=4 has copies. Bucket boundaries (3000 elements) fall inside parameters. */
/* Patterns of parameters that are not trained. With pp=2 the last stage trains nothing with last_layer. */
static const char *const last_layer[] = {"model.embed_tokens.weight", "model.layers.1.*", "model.norm.weight",
                                         "lm_head.weight", NULL};
static const char *const experts[] = {"*.experts.*", NULL};
static const char *const everything[] = {"*", NULL};

static const struct layout_case cases[] = {
    {"same", UNTIED, RK_DTYPE_F32, NULL, {2, 1, 2, 3000, 0, 0}, {2, 1, 2, 3000, 0, 0}},
    {"f32 1x1", UNTIED, RK_DTYPE_F32, NULL, {1, 1, 1, 0, 0, 0}, {1, 1, 1, 3000, 0, 0}},
    {"bf16 tied 1x1", TIED, RK_DTYPE_BF16, NULL, {1, 1, 1, 3000, 0, 0}, {1, 1, 1, 0, 0, 0}},
    {"f32 1x1 to tp=4", UNTIED, RK_DTYPE_F32, NULL, {1, 1, 1, 0, 0, 0}, {4, 1, 1, 0, 0, 0}},
    {"f32 tp=4 to 1x1", UNTIED, RK_DTYPE_F32, NULL, {4, 1, 1, 0, 0, 0}, {1, 1, 1, 0, 0, 0}},
    {"f32 1x1 to dp=4", UNTIED, RK_DTYPE_F32, NULL, {1, 1, 1, 0, 0, 0}, {1, 1, 4, 3000, 0, 0}},
    {"f32 dp=4 to tp=2", UNTIED, RK_DTYPE_F32, NULL, {1, 1, 4, 3000, 0, 0}, {2, 1, 1, 0, 0, 0}},
    {"f32 tp=2 dp=2 to dp=3", UNTIED, RK_DTYPE_F32, NULL, {2, 1, 2, 3000, 0, 0}, {1, 1, 3, 5000, 0, 0}},
    {"f32 dp=2 to tp=4 dp=2", UNTIED, RK_DTYPE_F32, NULL, {1, 1, 2, 5000, 0, 0}, {4, 1, 2, 3000, 0, 0}},
    {"f32 tied tp=4 dp=2 to tp=2 dp=1", TIED, RK_DTYPE_F32, NULL, {4, 1, 2, 3000, 0, 0}, {2, 1, 1, 0, 0, 0}},
    {"bf16 tp=2 dp=2 to 1x1", UNTIED, RK_DTYPE_BF16, NULL, {2, 1, 2, 3000, 0, 0}, {1, 1, 1, 0, 0, 0}},
    {"bf16 tied dp=2 to tp=4", TIED, RK_DTYPE_BF16, NULL, {1, 1, 2, 3000, 0, 0}, {4, 1, 1, 0, 0, 0}},
    {"f32 cp=2 dp=2 to tp=2", UNTIED, RK_DTYPE_F32, NULL, {1, 2, 2, 3000, 0, 0}, {2, 1, 1, 0, 0, 0}},
    {"f32 dp=3 to tp=2 cp=2", UNTIED, RK_DTYPE_F32, NULL, {1, 1, 3, 3000, 0, 0}, {2, 2, 1, 5000, 0, 0}},
    {"f32 pp=2 dp=2 to tp=2", UNTIED, RK_DTYPE_F32, NULL, {1, 1, 2, 3000, 2, 0}, {2, 1, 1, 0, 0, 0}},
    {"f32 tied tp=2 to pp=2 dp=2", TIED, RK_DTYPE_F32, NULL, {2, 1, 1, 0, 0, 0}, {1, 1, 2, 3000, 2, 0}},
    {"bf16 tied tp=2 pp=2 to cp=2", TIED, RK_DTYPE_BF16, NULL, {2, 1, 1, 0, 2, 0}, {1, 2, 1, 3000, 0, 0}},
    {"f32 dp=4 ep=2 to 1x1", SPARSE, RK_DTYPE_F32, NULL, {1, 1, 4, 3000, 0, 2}, {1, 1, 1, 0, 0, 0}},
    {"f32 tp=2 to dp=4 ep=4", SPARSE, RK_DTYPE_F32, NULL, {2, 1, 1, 0, 0, 0}, {1, 1, 4, 3000, 0, 4}},
    {"bf16 tp=2 dp=2 ep=2 to pp=2 dp=2 ep=2",
     SPARSE,
     RK_DTYPE_BF16,
     NULL,
     {2, 1, 2, 3000, 0, 2},
     {1, 1, 2, 0, 2, 2}},
    {"f32 latents tp=2 cp=2 to 1x1", LATENT, RK_DTYPE_F32, NULL, {2, 2, 1, 3000, 0, 0}, {1, 1, 1, 0, 0, 0}},
    {"f32 latents dp=4 ep=4 to tp=4", LATENT, RK_DTYPE_F32, NULL, {1, 1, 4, 3000, 0, 4}, {4, 1, 1, 0, 0, 0}},
    {"bf16 latents tp=2 to pp=2 dp=2 ep=2",
     LATENT,
     RK_DTYPE_BF16,
     NULL,
     {2, 1, 1, 0, 0, 0},
     {1, 1, 2, 3000, 2, 2}},
    {"bf16 1x1 to tp=2 dp=4", UNTIED, RK_DTYPE_BF16, NULL, {1, 1, 1, 0, 0, 0}, {2, 1, 4, 3000, 0, 0}},
    {"f32 frozen stage, pp=2 dp=2 to tp=2",
     UNTIED,
     RK_DTYPE_F32,
     last_layer,
     {1, 1, 2, 3000, 2, 0},
     {2, 1, 1, 0, 0, 0}},
    {"bf16 frozen stage, tied, tp=2 to pp=2 dp=2",
     TIED,
     RK_DTYPE_BF16,
     last_layer,
     {2, 1, 1, 0, 0, 0},
     {1, 1, 2, 3000, 2, 0}},
    {"bf16 frozen experts, dp=4 ep=2 to tp=2",
     SPARSE,
     RK_DTYPE_BF16,
     experts,
     {1, 1, 4, 3000, 0, 2},
     {2, 1, 1, 0, 0, 0}},
    {"bf16 all frozen, tp=2 dp=2 to dp=3",
     UNTIED,
     RK_DTYPE_BF16,
     everything,
     {2, 1, 2, 3000, 0, 0},
     {1, 1, 3, 0, 0, 0}},
};

/* Whole tensors, one after the other, in memory shared by the ranks. */
struct outcome {
    double state[NUM_KINDS][ELEMENTS_MAX], values[ELEMENTS_MAX], next[ELEMENTS_MAX];
    int64_t applied_steps, lr_steps;
    uint64_t weight_version;
};

struct run {
    const struct layout_case *c;
    const char *part_dir;
    struct layout layout;
    bool loads; /* otherwise it saves */
    const char *faults;
    int32_t fault_rank;
    rk_code_t expected; /* result of the save */
    struct rk_test_rendezvous *rendezvous;
    struct outcome *outcome;
};

static struct rk_status *loss_fn(void *user, const struct rk_head_arrays *outputs,
                                 const struct rk_head_arrays *grads)
{
    double *dlog_probs = grads->of[RK_HEAD_LOG_PROBS];
    const struct rk_packed *packed = user;

    (void)outputs;
    for (int64_t t = 0; t < packed->num_tokens; t++)
        dlog_probs[t] = -1.0 / (NUM_SEQS * SEQ_LEN);
    return NULL;
}

/* dp rank r has the sequences i with i % dp == r. */
static struct rk_status *train_step(struct rk_model *model, int32_t dp_rank, int32_t dp_size)
{
    int32_t tokens[NUM_SEQS * SEQ_LEN], positions[NUM_SEQS * SEQ_LEN], labels[NUM_SEQS * SEQ_LEN];
    int32_t cu_seqlens[NUM_SEQS + 1] = {0};
    struct rk_packed packed = {0, 0, SEQ_LEN, tokens, positions, cu_seqlens, labels, NULL};
    struct rk_train_micro micro = {.packed = &packed,
                                   .temperature = 1,
                                   .outputs = RK_HEAD_BIT(RK_HEAD_LOG_PROBS),
                                   .is_last = true,
                                   .loss_fn = loss_fn,
                                   .user = &packed};
    struct rk_step_stats stats;

    for (int32_t s = dp_rank; s < NUM_SEQS; s += dp_size) {
        for (int32_t t = 0; t < SEQ_LEN; t++, packed.num_tokens++) {
            tokens[packed.num_tokens] = (17 * s + 5 * t + 3) % 131;
            labels[packed.num_tokens] = (7 * s + 11 * t + 1) % 131;
            positions[packed.num_tokens] = t;
        }
        cu_seqlens[++packed.num_seqs] = (int32_t)packed.num_tokens;
    }
    RK_TRY(rk_trainer_begin(rk_model_trainer(model)));
    RK_TRY(rk_trainer_micro_batch(rk_model_trainer(model), &micro));
    RK_TRY(rk_trainer_step(rk_model_trainer(model), &stats));
    rk_trainer_advance_lr(rk_model_trainer(model));
    return NULL;
}

/* The index in the whole parameter of local element `e`. */
static int64_t global_element(const struct rk_param *param, const struct rk_placement *placement, int64_t e)
{
    int64_t row = e / placement->local_shape[1], col = e % placement->local_shape[1];

    row += param->split.dim == 0 ? placement->part * placement->local_shape[0] : 0;
    col += param->split.dim == 1 ? placement->part * placement->local_shape[1] : 0;
    return row < param->shape[0] ? row * param->shape[1] + col : -1;
}

/* Copies this rank's shard of one kind of state to its place in `out`. Without masters the weights are
 * used. */
static struct rk_status *dump_shard(const struct rk_model *model, int kind, double *out)
{
    const struct rk_trainer *trainer = model->trainer;
    bool is_sharded = kind > 0 || model->core->masters.values;
    const void *on_device = kind > 0     ? trainer->states[kind - 1]
                            : is_sharded ? model->core->masters.values
                                         : model->core->values;
    size_t bytes = (size_t)(is_sharded ? trainer->shard_count : trainer->num_elements) * sizeof(float);
    float *buffer = rk_malloc(bytes);
    struct rk_status *st = rk_stream_copy(model->core->stream, buffer, on_device, bytes, RK_COPY_D2H);
    int64_t begin = 0;

    st = rk_status_first(st, rk_stream_sync(model->core->stream));
    for (int64_t i = 0; i < rk_model_num_params(model); i++) {
        const struct rk_param *param = rk_model_param_at(model, i);
        const struct rk_placement *placement = rk_model_placement_at(model, i);
        int64_t end = placement->offset + rk_placement_num_elements(placement);
        struct rk_shard_run run = {0};

        while (placement->is_counted && rk_shards_next_run(&trainer->shards, placement->offset, end, &run)) {
            for (int64_t e = 0; e < run.count; e++) {
                int64_t at = global_element(param, placement, run.begin - placement->offset + e);

                if (at >= 0)
                    out[begin + at] = (double)buffer[(is_sharded ? run.shard : run.begin) + e];
            }
        }
        begin += rk_param_num_elements(param);
    }
    rk_free(buffer);
    return st;
}

static struct rk_status *dump_values(struct rk_model *model, double *out)
{
    for (int64_t i = 0; i < rk_model_num_params(model); i++) {
        RK_TRY(rk_model_gather_param(model, i, out));
        out += rk_param_num_elements(rk_model_param_at(model, i));
    }
    return NULL;
}

static struct rk_status *dump_all(struct rk_model *model, struct outcome *outcome, bool records)
{
    double *scratch = rk_calloc(ELEMENTS_MAX, sizeof(*scratch));
    struct rk_status *st = NULL;

    for (int kind = 0; !st && kind < NUM_KINDS; kind++)
        st = dump_shard(model, kind, outcome->state[kind]);
    outcome->applied_steps = model->trainer->applied_steps;
    outcome->lr_steps = model->trainer->lr_steps;
    outcome->weight_version = rk_model_weight_version(model);
    if (!st)
        st = dump_values(model, records ? outcome->values : scratch);
    rk_free(scratch);
    return st;
}

static struct rk_status *save_or_load(struct rk_model *model, const struct run *run, int32_t rank)
{
    struct rk_checkpoint_save save = {
        .part_dir = run->part_dir,
        .role = "actor",
        .global_step = 1,
        .contents = ALL | (run->c ? RK_CHECKPOINT_GRADIENTS : 0), /* gradients: only of a model that has
                                                                   * trained */
        .is_async = rank >= 0,
    };
    struct rk_checkpoint_loaded loaded;
    struct rk_checkpoint_report report;
    struct rk_status *st;

    if (run->loads)
        return rk_model_load_checkpoint(model, run->part_dir, 0, NULL, &loaded);
    if (run->faults && rank == run->fault_rank)
        setenv("RANKD_FAULTS", run->faults, 1);
    st = rk_test_save(model, &save, &report);
    unsetenv("RANKD_FAULTS");
    return st;
}

static int run_model(const struct run *run, struct rk_test_model *test, int32_t rank)
{
    struct rk_optim_config optim = rk_test_adamw(1e-2, 0.1, 1);
    double *scratch = rk_calloc(ELEMENTS_MAX, sizeof(*scratch));
    const struct rk_mesh_coords *coords = rk_mesh_comms_coords(test->comms);
    int32_t dp_rank = coords->axis[RK_AXIS_DP];
    struct rk_status *st;

    optim.bucket_elements = run->layout.bucket_elements;
    RK_RANK_OK(rk_test_enable_training(test->model, &optim));
    for (int step = 0; step < (run->loads ? 1 : 3); step++)
        RK_RANK_OK(train_step(test->model, dp_rank, run->layout.dp));
    st = save_or_load(test->model, run, rank);
    RK_RANK_CHECK(rk_status_code(st) == run->expected, "%s", rk_status_message(st));
    rk_status_free(st);
    RK_RANK_OK(dump_all(test->model, run->outcome, rank == 0));
    RK_RANK_OK(train_step(test->model, dp_rank, run->layout.dp));
    RK_RANK_OK(dump_values(test->model, rank == 0 ? run->outcome->next : scratch));
    rk_free(scratch);
    return 0;
}

static int rank_main(int32_t rank, int32_t num_ranks, void *user)
{
    const struct run *run = user;
    struct rk_test_model_spec spec = {
        .config = run->c->config,
        .seed = run->loads ? 5 : 3,
        .dtype = run->c->dtype,
        .tp = run->layout.tp,
        .cp = run->layout.cp,
        .dp = run->layout.dp,
        .pp = run->layout.pp,
        .ep = run->layout.ep,
        .frozen = run->c->frozen,
        .stream = rk_test_rank_stream(rank),
    };
    struct rk_comm_world *world = NULL;
    struct rk_test_model test;
    int result;

    if (num_ranks > 1)
        RK_RANK_OK(rk_test_world_create(&world, run->rendezvous, rank, num_ranks, "unix", NULL));
    spec.world = world;
    RK_RANK_OK(rk_test_model_open(&test, &spec));
    result = run_model(run, &test, rank);
    rk_test_model_close(&test);
    rk_comm_world_destroy(world);
    return result;
}

static int32_t num_ranks_of(struct layout layout)
{
    return layout.tp * layout.cp * layout.dp * RK_MAX(layout.pp, 1);
}

static void run_layout(struct run *run, struct layout layout)
{
    run->layout = layout;
    run->rendezvous = rk_test_rendezvous_create();
    assert_int_equal(rk_test_run_ranks(num_ranks_of(layout), rank_main, run, RUN_TIMEOUT_S), 0);
    rk_test_rendezvous_destroy(run->rendezvous);
}

static void compare(const char *label, const struct outcome *saved, const struct outcome *loaded,
                    rk_dtype_t dtype)
{
    double error = 0, scale = 0;

    assert_int_equal(loaded->applied_steps, saved->applied_steps);
    assert_int_equal(loaded->lr_steps, saved->lr_steps);
    assert_int_equal(loaded->weight_version, saved->weight_version);
    for (int64_t i = 0; i < ELEMENTS_MAX; i++) {
        for (int kind = 0; kind < NUM_KINDS; kind++) {
            if (loaded->state[kind][i] != saved->state[kind][i])
                fail_msg("%s: kind %d, element %lld: %.9g, expected %.9g", label, kind, (long long)i,
                         loaded->state[kind][i], saved->state[kind][i]);
        }
        if (loaded->values[i] != saved->values[i])
            fail_msg("%s: weight %lld", label, (long long)i);
        error = fmax(error, fabs(loaded->next[i] - saved->next[i]));
        scale = fmax(scale, fabs(saved->next[i]));
    }
    assert_true(scale > 0);
    /* A bf16 weight may round the other way after gradients that differ in their last bits. */
    assert_below(label, error / scale, dtype == RK_DTYPE_F32 ? 1e-5 : RK_TOL_BF16_MODEL);
}

static bool has_devices(struct layout layout)
{
    return num_ranks_of(layout) <= rk_test_device_max_ranks();
}

/* Goal: any layout loads the checkpoints of any other. */
static void test_layouts_load_each_other(void **state)
{
    size_t bytes = sizeof(struct outcome);

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        struct outcome *saved, *loaded;
        struct run run = {.c = &cases[i]};
        char name[32], *dir, *part;

        if (!rk_test_in_part())
            continue;
        if (!has_devices(cases[i].from) || !has_devices(cases[i].to)) {
            rk_test_skip_part("%s: needs more devices", cases[i].label);
            continue;
        }
        saved = rk_test_shared_alloc(bytes);
        loaded = rk_test_shared_alloc(bytes);
        snprintf(name, sizeof(name), "case%zu", i);
        dir = rk_test_temp_path(name);
        part = rk_path_join(dir, "global_step_1/actor");
        run.part_dir = part;
        run.outcome = saved;
        run_layout(&run, cases[i].from);
        run.loads = true;
        run.outcome = loaded;
        run_layout(&run, cases[i].to);
        compare(cases[i].label, saved, loaded, cases[i].dtype);
        rk_test_shared_free(saved, bytes);
        rk_test_shared_free(loaded, bytes);
        rk_free(part);
        rk_free(dir);
    }
}

#ifdef RK_FAULTS

/* Goal: a write error on one rank fails the save on all, no files remain, and all ranks can continue
 * training. */
static void test_one_rank_that_fails_fails_all(void **state)
{
    static const struct {
        const char *faults;
        int32_t rank;
        rk_code_t code;
    } faults[] = {
        {"ckpt.save=fail", 3, RK_INTERNAL},
        {"file.write=fail@2", 2, RK_RESOURCE_EXHAUSTED},
        {"ckpt.manifest=fail", 0, RK_INTERNAL},
    };
    struct outcome *outcome = rk_test_shared_alloc(sizeof(*outcome));

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(faults); i++) {
        struct run run = {.c = &cases[0],
                          .outcome = outcome,
                          .faults = faults[i].faults,
                          .fault_rank = faults[i].rank,
                          .expected = faults[i].code};
        char name[32], *dir, *part, *step_dir;

        snprintf(name, sizeof(name), "fault%zu", i);
        dir = rk_test_temp_path(name);
        step_dir = rk_ckpt_step_dir(dir, 1);
        part = rk_path_join(step_dir, "actor");
        run.part_dir = part;
        run_layout(&run, cases[0].from);
        assert_int_equal(rmdir(step_dir), 0); /* it is empty */
        rk_free(part);
        rk_free(step_dir);
        rk_free(dir);
    }
    rk_test_shared_free(outcome, sizeof(*outcome));
}

/* --- kill -9 --- */

static int killed_main(int32_t rank, int32_t num_ranks, void *user)
{
    const struct run *run = user;
    struct rk_test_model_spec spec = {.config = UNTIED,
                                      .seed = 3,
                                      .dtype = RK_DTYPE_F32,
                                      .tp = num_ranks,
                                      .stream = rk_test_rank_stream(rank)};
    struct rk_optim_config optim = rk_test_adamw(1e-2, 0.1, 1);
    struct rk_comm_world *world;
    struct rk_test_model test;

    RK_RANK_OK(rk_test_world_create(&world, run->rendezvous, rank, num_ranks, "unix", NULL));
    spec.world = world;
    RK_RANK_OK(rk_test_model_open(&test, &spec));
    RK_RANK_OK(rk_test_enable_training(test.model, &optim));
    rk_status_free(save_or_load(test.model, run, rank));
    rk_test_model_close(&test);
    rk_comm_world_destroy(world);
    return 0;
}

/* Goal: if any rank is killed at any write, the new checkpoint is either complete or absent; a sweep removes
 * the remaining files. test_rk_ckpt_dir.c checks that the previous one is then found. */
static void test_killed_at_any_write_is_never_half(void **state)
{
    static const char *const roles[] = {"actor", NULL};
    static const struct {
        const char *point;
        int32_t rank, num_hits;
    } points[] = {
        {"file.write", 0, 4},  {"file.write", 1, 2},  {"file.sync", 0, 3},
        {"file.rename", 0, 3}, {"file.rename", 1, 1}, {"ckpt.rename", 0, 1},
    };
    char *dir = rk_test_temp_path("killed"), *step_1 = rk_ckpt_step_dir(dir, 1);
    char *part = rk_path_join(step_1, "actor");

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(points); i++) {
        for (int hit = 1; hit <= points[i].num_hits; hit++) {
            char *faults = rk_format("%s=kill@%d", points[i].point, hit);
            struct run run = {.part_dir = part, .faults = faults, .fault_rank = points[i].rank};
            struct rk_test_rank_result results[2];
            int64_t found;

            run.rendezvous = rk_test_rendezvous_create();
            (void)rk_test_run_ranks_results(2, killed_main, &run, RUN_TIMEOUT_S, results);
            rk_test_rendezvous_destroy(run.rendezvous);
            assert_int_equal(results[points[i].rank].signal, SIGKILL);
            assert_ok(rk_ckpt_find_latest(&found, dir, roles, RK_CKPT_CHECK_CHECKSUMS));
            assert_int_equal(found, -1);
            assert_int_not_equal(access(part, F_OK), 0);
            assert_ok(rk_ckpt_sweep(dir));
            assert_int_not_equal(access(step_1, F_OK), 0);
            rk_free(faults);
        }
    }
    rk_free(part);
    rk_free(step_1);
    rk_free(dir);
}

#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_layouts_load_each_other),
#ifdef RK_FAULTS
        cmocka_unit_test(test_one_rank_that_fails_fails_all),
        cmocka_unit_test(test_killed_at_any_write_is_never_half),
#endif
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
