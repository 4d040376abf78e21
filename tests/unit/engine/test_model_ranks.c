/* Several ranks: adjoint pairs, errors returned on all ranks, exports and loads of split models. */
#include "tests/support/test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/rk_alloc.h"
#include "base/layout/rk_mesh.h"
#include "base/rk_rng.h"
#include "base/rk_str.h"
#include "engine/optim/trainer.h"
#include "tests/support/models.h"
#include "tests/support/ranks.h"

#define CONFIG                                                                                              \
    "{\"model_type\": \"llama\", \"hidden_size\": 32, \"intermediate_size\": 48, \"num_hidden_layers\": 2," \
    " \"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"vocab_size\": 67, "                         \
    "\"max_position_embeddings\": 64,"                                                                      \
    " \"initializer_range\": 0.15}"
#define RUN_TIMEOUT_S 60

struct run {
    struct rk_test_rendezvous *rendezvous;
    int32_t tp, dp;
    struct rk_mesh_spec mesh;
    const char *text; /* of the expected message */
    const char *dir, *other_dir;
};

/* A random model on all ranks. */
static struct rk_status *open_ranks(struct rk_test_model *test, struct rk_comm_world **world,
                                    const struct run *run, int32_t rank, int32_t num_ranks, rk_dtype_t dtype)
{
    RK_TRY(rk_test_world_create(world, run->rendezvous, rank, num_ranks, "unix", NULL));
    return rk_test_model_open(
        test,
        &(struct rk_test_model_spec){
            .config = CONFIG, .seed = 5, .dtype = dtype, .tp = run->tp, .dp = run->dp, .world = *world});
}

static void close_ranks(struct rk_test_model *test, struct rk_comm_world *world)
{
    rk_test_model_close(test);
    rk_comm_world_destroy(world);
}

static void run_all(struct run *run, int32_t num_ranks, rk_test_rank_fn_t fn)
{
    run->rendezvous = rk_test_rendezvous_create();
    assert_int_equal(rk_test_run_ranks(num_ranks, fn, run, RUN_TIMEOUT_S), 0);
    rk_test_rendezvous_destroy(run->rendezvous);
}

/* --- adjoint identity <A x, y> = <x, A^T y>, where replicated activations count once --- */

#define TOKENS 8 /* with sequence parallelism a multiple of tp */

static void fill(rk_tensor_t t, uint64_t stream)
{
    for (int64_t i = 0; i < rk_tensor_num_elements(t); i++)
        ((double *)t.data)[i] = rk_rng_normal(11, stream, (uint64_t)i);
}

static double dot(rk_tensor_t a, rk_tensor_t b)
{
    double sum = 0;

    for (int64_t i = 0; i < rk_tensor_num_elements(a); i++)
        sum += ((const double *)a.data)[i] * ((const double *)b.data)[i];
    return sum;
}

static struct rk_status *sum_over(struct rk_comm_group *group, struct rk_stream *stream,
                                  struct rk_step_arena *arena, double *value)
{
    rk_tensor_t t;

    RK_TRY(rk_step_1d(arena, &t, RK_DTYPE_F64, 1));
    *(double *)t.data = *value;
    RK_TRY(rk_comm_all_reduce(group, stream, t, RK_REDUCE_SUM));
    *value = *(double *)t.data;
    return NULL;
}

/* splits_rows: every rank has a different part of the rows instead of a copy. */
static struct rk_status *begin_pass(struct rk_test_model *test, struct rk_pass *pass, bool splits_rows)
{
    struct rk_optim_config optim = rk_test_adamw(1, 0, 0);

    if (!test->model->trainer)
        RK_TRY(rk_test_enable_training(test->model, &optim));
    RK_TRY(rk_trainer_begin(rk_model_trainer(test->model)));
    RK_TRY(rk_trainer_zero_stale(rk_model_trainer(test->model)));
    rk_model_begin_pass(test->model, pass);
    pass->splits_rows = splits_rows;
    pass->num_tokens = TOKENS;
    pass->num_rows = splits_rows ? TOKENS / rk_comm_group_size(pass->tp) : TOKENS;
    pass->grads = test->model->trainer->grads;
    return NULL;
}

/* A tensor of the pass, either equal or different on the ranks. */
static struct rk_status *make(struct rk_pass *pass, rk_tensor_t *out, int64_t rows, int64_t cols,
                              uint64_t stream, bool is_own)
{
    RK_TRY(rk_step_2d(pass->arena, out, RK_DTYPE_F64, rows, cols));
    fill(*out, stream + (is_own ? 1 + (uint64_t)rk_comm_group_rank(pass->tp) : 0));
    return NULL;
}

/* <a, b> of tensors that are split over the ranks or replicated. */
static struct rk_status *inner(struct rk_pass *pass, rk_tensor_t a, rk_tensor_t b, bool is_own, double *out)
{
    *out = dot(a, b);
    return is_own ? sum_over(pass->tp, pass->stream, pass->arena, out) : NULL;
}

struct adjoint {
    double forward, backward;
};

/* `num_params` parameters from `first` on, which are used as one matrix. */
static struct rk_weight find_weight(const struct rk_test_model *test, const char *first, int64_t num_params)
{
    int64_t param = rk_model_find_param(test->model, first);
    struct rk_weight weight = {.param = param,
                               .cols = rk_model_placement_at(test->model, param)->local_shape[1]};

    for (int64_t i = param; i < param + num_params; i++)
        weight.rows += rk_model_placement_at(test->model, i)->local_shape[0];
    return weight;
}

/* Column-parallel: x is the stream, y is split. */
static struct rk_status *column_adjoint(struct rk_test_model *test, bool splits_rows, struct adjoint *out)
{
    struct rk_weight weight = find_weight(test, "model.layers.0.self_attn.q_proj.weight", 3);
    struct rk_pass pass;
    rk_tensor_t x, ax, y, aty;

    RK_TRY(begin_pass(test, &pass, splits_rows));
    RK_TRY(make(&pass, &x, pass.num_rows, weight.cols, 100, splits_rows));
    RK_TRY(make(&pass, &aty, pass.num_rows, weight.cols, 200, true));
    RK_TRY(make(&pass, &ax, TOKENS, weight.rows, 300, true));
    RK_TRY(make(&pass, &y, TOKENS, weight.rows, 400, true));
    RK_TRY(rk_linear_column_fwd(&pass, &weight, x, ax));
    RK_TRY(rk_linear_column_bwd(&pass, &weight, x, y, aty));
    RK_TRY(inner(&pass, ax, y, true, &out->forward));
    return inner(&pass, x, aty, splits_rows, &out->backward);
}

/* Row-parallel: x is split, y is the stream. */
static struct rk_status *row_adjoint(struct rk_test_model *test, bool splits_rows, struct adjoint *out)
{
    struct rk_weight weight = find_weight(test, "model.layers.0.mlp.down_proj.weight", 1);
    struct rk_pass pass;
    rk_tensor_t x, ax, y, aty;

    RK_TRY(begin_pass(test, &pass, splits_rows));
    RK_TRY(make(&pass, &x, TOKENS, weight.cols, 100, true));
    RK_TRY(make(&pass, &aty, TOKENS, weight.cols, 200, true));
    RK_TRY(make(&pass, &ax, pass.num_rows, weight.rows, 300, true));
    RK_TRY(make(&pass, &y, pass.num_rows, weight.rows, 400, splits_rows));
    RK_TRY(rk_linear_row_fwd(&pass, &weight, x, ax));
    RK_TRY(rk_linear_row_bwd(&pass, &weight, x, y, aty));
    RK_TRY(inner(&pass, ax, y, splits_rows, &out->forward));
    return inner(&pass, x, aty, true, &out->backward);
}

/* Embedding, as a linear map of its split table: <E(W), y> = <W, E^T(y)>. */
static struct rk_status *embedding_adjoint(struct rk_test_model *test, bool splits_rows, struct adjoint *out)
{
    static const int32_t tokens[TOKENS] = {66, 0, 3, 66, 40, 1, 0, 5};
    const struct rk_embedding *embedding = &test->model->core->embedding;
    struct rk_pass pass;
    rk_tensor_t e, y;

    RK_TRY(begin_pass(test, &pass, splits_rows));
    RK_TRY(rk_step_upload(pass.arena, pass.stream, &pass.tokens, RK_DTYPE_I32, tokens, TOKENS));
    RK_TRY(make(&pass, &e, pass.num_rows, pass.hidden_size, 100, true));
    RK_TRY(make(&pass, &y, pass.num_rows, pass.hidden_size, 200, splits_rows));
    RK_TRY(rk_embedding_fwd(&pass, embedding, e));
    RK_TRY(rk_embedding_bwd(&pass, embedding, y));
    RK_TRY(inner(&pass, e, y, splits_rows, &out->forward));
    return inner(&pass, rk_weight_value(&pass, &embedding->weight), rk_weight_grad(&pass, &embedding->weight),
                 true, &out->backward);
}

/* The input of the heads from the stream; its gradient is a summand on every rank, or equal on all. */
static struct rk_status *head_adjoint(struct rk_test_model *test, bool splits_rows, bool is_summand,
                                      struct adjoint *out)
{
    static const int32_t index[] = {0, 3, 4, 7};
    struct rk_head_saved saved = {.inv_temperature = 1};
    struct rk_pass pass;
    rk_tensor_t x, y, aty;

    RK_TRY(begin_pass(test, &pass, splits_rows));
    RK_TRY(rk_step_upload(pass.arena, pass.stream, &saved.index, RK_DTYPE_I32, index, RK_ARRAY_LEN(index)));
    RK_TRY(make(&pass, &saved.x, RK_ARRAY_LEN(index), pass.hidden_size, 100, true));
    RK_TRY(make(&pass, &x, pass.num_rows, pass.hidden_size, 200, splits_rows));
    RK_TRY(make(&pass, &aty, pass.num_rows, pass.hidden_size, 300, true));
    RK_TRY(make(&pass, &y, RK_ARRAY_LEN(index), pass.hidden_size, 400, is_summand));
    RK_TRY(rk_head_gather(&pass, x, &saved));
    RK_TRY(inner(&pass, saved.x, y, is_summand, &out->forward));
    RK_TRY(is_summand ? rk_head_scatter_sum(&pass, &saved, y, aty) : rk_head_scatter(&pass, &saved, y, aty));
    return inner(&pass, x, aty, splits_rows, &out->backward);
}

static struct rk_status *head_sum_adjoint(struct rk_test_model *test, bool splits_rows, struct adjoint *out)
{
    return head_adjoint(test, splits_rows, true, out);
}

static struct rk_status *head_keep_adjoint(struct rk_test_model *test, bool splits_rows, struct adjoint *out)
{
    return head_adjoint(test, splits_rows, false, out);
}

/* The operators between rows and tokens themselves: gather, and sum or keep. */
static struct rk_status *rows_adjoint(struct rk_test_model *test, bool splits_rows, bool is_summand,
                                      struct adjoint *out)
{
    struct rk_pass pass;
    rk_tensor_t x, gathered, y, aty;

    RK_TRY(begin_pass(test, &pass, splits_rows));
    RK_TRY(make(&pass, &x, pass.num_rows, pass.hidden_size, 100, splits_rows));
    RK_TRY(make(&pass, &aty, pass.num_rows, pass.hidden_size, 200, true));
    RK_TRY(make(&pass, &y, TOKENS, pass.hidden_size, 300, is_summand));
    RK_TRY(rk_sp_gather(&pass, x, &gathered));
    RK_TRY(inner(&pass, gathered, y, is_summand, &out->forward));
    if (!splits_rows) /* rows are tokens */
        aty = y;
    RK_TRY(is_summand ? rk_sp_sum(&pass, y, aty, RK_REDUCE_SUM) : rk_sp_keep(&pass, y, aty));
    return inner(&pass, x, aty, splits_rows, &out->backward);
}

static struct rk_status *rows_sum_adjoint(struct rk_test_model *test, bool splits_rows, struct adjoint *out)
{
    return rows_adjoint(test, splits_rows, true, out);
}

static struct rk_status *rows_keep_adjoint(struct rk_test_model *test, bool splits_rows, struct adjoint *out)
{
    return rows_adjoint(test, splits_rows, false, out);
}

static int adjoint_rank(int32_t rank, int32_t num_ranks, void *user)
{
    static const struct {
        const char *label;
        struct rk_status *(*run)(struct rk_test_model *test, bool splits_rows, struct adjoint *out);
    } pairs[] = {
        {"column", column_adjoint},
        {"row", row_adjoint},
        {"embedding", embedding_adjoint},
        {"head, sum", head_sum_adjoint},
        {"head, keep", head_keep_adjoint},
        {"gather and sum", rows_sum_adjoint},
        {"gather and keep", rows_keep_adjoint},
    };
    struct rk_comm_world *world;
    struct rk_test_model test;

    RK_RANK_OK(open_ranks(&test, &world, user, rank, num_ranks, RK_DTYPE_F64));
    for (size_t i = 0; i < 2 * RK_ARRAY_LEN(pairs); i++) {
        const char *label = pairs[i / 2].label;
        struct adjoint a;

        RK_RANK_OK(pairs[i / 2].run(&test, i % 2, &a));
        RK_RANK_CHECK(fabs(a.forward) > RK_TOL_FLOOR, "%s: %g says nothing", label, a.forward);
        RK_RANK_CHECK(fabs(a.forward - a.backward) <= RK_TOL_F64 * fabs(a.forward),
                      "%s, rows %s: %.17g and %.17g", label, i % 2 ? "divided" : "whole", a.forward,
                      a.backward);
    }
    close_ranks(&test, world);
    return 0;
}

/* Goal: every communicating operator's backward function is the adjoint of its forward function. */
static void test_tp_operators_satisfy_the_adjoint_identity(void **state)
{
    (void)state;
    for (int32_t tp = 2; tp <= 4; tp += 2) {
        struct run run = {.tp = tp};

        run_all(&run, tp, adjoint_rank);
    }
}

/* --- meshes that are not supported --- */

static int axes_rank(int32_t rank, int32_t num_ranks, void *user)
{
    const struct run *run = user;
    struct rk_device_config device_config = {
        .struct_size = sizeof(device_config), .name = "cpu", .num_threads = 1};
    struct rk_model_desc desc = {.struct_size = sizeof(desc), .dtype = RK_DTYPE_F32};
    struct rk_comm_world *world;
    struct rk_mesh_comms *comms;
    struct rk_device *device;
    struct rk_stream *stream;
    struct rk_json *config;
    struct rk_mesh *mesh;
    struct rk_model *model;
    struct rk_status *st;

    RK_RANK_OK(rk_test_world_create(&world, run->rendezvous, rank, num_ranks, "unix", NULL));
    RK_RANK_OK(rk_mesh_create(&mesh, &run->mesh, num_ranks));
    RK_RANK_OK(rk_mesh_comms_create(&comms, mesh, world));
    RK_RANK_OK(rk_device_open(&device, &device_config));
    RK_RANK_OK(rk_stream_create(&stream, device, "test"));
    RK_RANK_OK(rk_json_parse(&config, CONFIG, strlen(CONFIG), "config.json", 0));
    desc.hf_config = config;
    desc.stream = stream;
    desc.mesh = comms;
    st = rk_model_create(&model, &desc);
    RK_RANK_CHECK(rk_status_code(st) == RK_INVALID_ARGUMENT, "%s", rk_status_message(st));
    RK_RANK_CHECK(strstr(rk_status_message(st), run->text), "%s", rk_status_message(st));
    RK_RANK_CHECK(!model, "a model was made");
    rk_status_free(st);
    rk_json_free(config);
    rk_stream_destroy(stream);
    rk_device_close(device);
    rk_mesh_comms_destroy(comms);
    rk_mesh_destroy(mesh);
    rk_comm_world_destroy(world);
    return 0;
}

static void test_create_names_an_axis_that_does_not_fit(void **state)
{
    struct run run = {.mesh = {.etp = 2}, .text = "mesh axis etp=2: expected a divisor of tp=1"};

    (void)state;
    run_all(&run, 2, axes_rank);
}

/* --- verdicts --- */

static int verdict_rank(int32_t rank, int32_t num_ranks, void *user)
{
    struct rk_comm_world *world;
    struct rk_test_model test;
    struct rk_status *st;

    RK_RANK_OK(open_ranks(&test, &world, user, rank, num_ranks, RK_DTYPE_F32));
    RK_RANK_OK(rk_model_agree(test.model, NULL));
    st = rank == 0 ? NULL : RK_FAIL_REASON(RK_DATA_LOSS, "REASON", "trouble of %d", rank);
    st = rk_model_agree(test.model, st);
    RK_RANK_CHECK(rk_status_code(st) == RK_DATA_LOSS, "%s", rk_status_message(st));
    RK_RANK_CHECK(strcmp(rk_status_reason(st), "REASON") == 0, "reason '%s'", rk_status_reason(st));
    RK_RANK_CHECK(strcmp(rk_status_message(st), rank == 0   ? "rank 1 of the mesh: trouble of 1"
                                                : rank == 1 ? "trouble of 1"
                                                            : "trouble of 2") == 0,
                  "%s", rk_status_message(st));
    rk_status_free(st);
    RK_RANK_OK(rk_model_agree(test.model, NULL));
    close_ranks(&test, world);
    return 0;
}

/* Goal: an error on some ranks is an error on all ranks (their own error, or the first one); afterwards the
 * ranks are usable. */
static void test_agree_with_failed_ranks_fails_on_all(void **state)
{
    struct run run = {.dp = 3};

    (void)state;
    run_all(&run, 3, verdict_rank);
}

static bool is_rank_cancelled(void *user)
{
    return *(const bool *)user;
}

static int cancel_rank(int32_t rank, int32_t num_ranks, void *user)
{
    bool asked = false;
    struct rk_engine_hooks hooks = {.user = &asked, .is_cancelled = is_rank_cancelled};
    struct rk_comm_world *world;
    struct rk_test_model test;
    struct rk_comm_group *group;
    struct rk_status *st;

    RK_RANK_OK(open_ranks(&test, &world, user, rank, num_ranks, RK_DTYPE_F32));
    group = rk_mesh_comms_group(test.comms, RK_GROUP_ALL);
    RK_RANK_OK(rk_engine_check_cancel(&hooks, group, test.stream, test.model->core->scratch));
    RK_RANK_OK(rk_engine_check_cancel(NULL, group, test.stream, test.model->core->scratch));
    asked = rank == 2;
    st = rk_engine_check_cancel(&hooks, group, test.stream, test.model->core->scratch);
    RK_RANK_CHECK(rk_status_code(st) == RK_CANCELLED, "%s", rk_status_message(st));
    rk_status_free(st);
    st = rk_engine_check_cancel(&hooks, NULL, test.stream, NULL);
    RK_RANK_CHECK((rk_status_code(st) == RK_CANCELLED) == asked, "%s", rk_status_message(st));
    rk_status_free(st);
    close_ranks(&test, world);
    return 0;
}

/* Goal: a cancel request on one rank stops all ranks of its group and no others. */
static void test_check_cancel_of_one_rank_cancels_the_group(void **state)
{
    struct run run = {.dp = 3};

    (void)state;
    run_all(&run, 3, cancel_rank);
}

/* --- steps --- */

static struct rk_status *bad_loss(void *user, const struct rk_head_arrays *outputs,
                                  const struct rk_head_arrays *grads)
{
    double *dlog_probs = grads->of[RK_HEAD_LOG_PROBS];

    (void)outputs;
    dlog_probs[0] = *(const double *)user;
    return NULL;
}

static int skip_rank(int32_t rank, int32_t num_ranks, void *user)
{
    static const int32_t tokens[] = {1, 2}, positions[] = {0, 1}, offsets[] = {0, 2},
                         labels[] = {2, RK_LABEL_NONE};
    struct rk_packed packed = {.num_seqs = 1,
                               .num_tokens = 2,
                               .max_seqlen = 2,
                               .tokens = tokens,
                               .positions = positions,
                               .cu_seqlens = offsets,
                               .labels = labels};
    double gradient = rank == 3 ? (double)NAN : 1.0;
    struct rk_train_micro micro = {.packed = &packed,
                                   .temperature = 1,
                                   .outputs = RK_HEAD_BIT(RK_HEAD_LOG_PROBS),
                                   .loss_fn = bad_loss,
                                   .user = &gradient};
    struct rk_optim_config optim = rk_test_adamw(1e-2, 0, 1);
    struct rk_step_stats stats;
    struct rk_comm_world *world;
    struct rk_test_model test;
    size_t bytes;
    void *kept;

    RK_RANK_OK(open_ranks(&test, &world, user, rank, num_ranks, RK_DTYPE_F32));
    RK_RANK_OK(rk_test_enable_training(test.model, &optim));
    bytes = (size_t)test.model->core->params.num_elements * sizeof(float);
    kept = rk_malloc(bytes);
    memcpy(kept, test.model->core->values, bytes);
    RK_RANK_OK(rk_trainer_begin(rk_model_trainer(test.model)));
    RK_RANK_OK(rk_trainer_micro_batch(rk_model_trainer(test.model), &micro));
    RK_RANK_OK(rk_trainer_step(rk_model_trainer(test.model), &stats));
    RK_RANK_CHECK(stats.was_skipped, "grad_norm %g", stats.grad_norm);
    RK_RANK_CHECK(memcmp(kept, test.model->core->values, bytes) == 0, "parameters changed");
    RK_RANK_CHECK(rk_model_weight_version(test.model) == 0, "version changed");
    rk_free(kept);
    close_ranks(&test, world);
    return 0;
}

/* Goal: a NaN on only one of four dp ranks makes all of them skip the step, with unchanged parameters. */
static void test_step_with_nan_on_one_rank_is_skipped_by_all(void **state)
{
    struct run run = {.dp = 4};

    (void)state;
    run_all(&run, 4, skip_rank);
}

/* --- a recreated world --- */

static int new_world_rank(int32_t rank, int32_t num_ranks, void *user)
{
    static const int32_t tokens[] = {5, 6, 7}, positions[] = {0, 1, 2}, offsets[] = {0, 3},
                         labels[] = {6, 7, 1};
    struct rk_packed packed = {.num_seqs = 1,
                               .num_tokens = 3,
                               .max_seqlen = 3,
                               .tokens = tokens,
                               .positions = positions,
                               .cu_seqlens = offsets,
                               .labels = labels};
    const struct run *run = user;
    struct rk_comm_world *world;
    struct rk_test_model test;
    struct rk_model *shared;
    double before[3], after[3];

    RK_RANK_OK(open_ranks(&test, &world, run, rank, num_ranks, RK_DTYPE_F32));
    RK_RANK_OK(rk_model_create_shared(&shared, test.model));
    RK_RANK_OK(rk_model_forward(test.model, &packed, 1, NULL, &(struct rk_head_arrays){.of = {before}}));
    rk_model_set_mesh(test.model, NULL);
    rk_mesh_comms_destroy(test.comms);
    rk_comm_world_destroy(world);
    RK_RANK_OK(rk_test_world_create(&world, run->rendezvous, rank, num_ranks, "unix", NULL));
    RK_RANK_OK(rk_mesh_comms_create(&test.comms, test.mesh, world));
    rk_model_set_mesh(test.model, test.comms);
    RK_RANK_OK(rk_model_forward(shared, &packed, 1, NULL, &(struct rk_head_arrays){.of = {after}}));
    RK_RANK_CHECK(memcmp(before, after, sizeof(before)) == 0, "log-probs changed");
    rk_model_destroy(shared);
    close_ranks(&test, world);
    return 0;
}

/* Goal: a model remains usable in a new world; models that share its weights move with it. */
static void test_set_mesh_of_new_world_goes_on(void **state)
{
    struct run run = {.tp = 2, .dp = 2};

    (void)state;
    run_all(&run, 4, new_world_rank);
}

/* --- files --- */

static int export_rank(int32_t rank, int32_t num_ranks, void *user)
{
    const struct run *run = user;
    struct rk_comm_world *world;
    struct rk_test_model test;
    struct rk_status *st;

    RK_RANK_OK(open_ranks(&test, &world, user, rank, num_ranks, RK_DTYPE_F32));
    RK_RANK_OK(rk_model_export_hf(test.model, run->dir, 0, NULL));
    st = rk_model_export_hf(test.model, run->dir, 0, NULL);
    RK_RANK_CHECK(rk_status_code(st) == RK_ALREADY_EXISTS, "%s", rk_status_message(st));
    RK_RANK_CHECK(strcmp(rk_status_reason(st), "TARGET_EXISTS") == 0, "reason '%s'", rk_status_reason(st));
    rk_status_free(st);
    close_ranks(&test, world);
    return 0;
}

static int load_rank(int32_t rank, int32_t num_ranks, void *user)
{
    const struct run *run = user;
    struct rk_comm_world *world;
    struct rk_test_model test;

    RK_RANK_OK(rk_test_world_create(&world, run->rendezvous, rank, num_ranks, "unix", NULL));
    RK_RANK_OK(rk_test_model_open(
        &test, &(struct rk_test_model_spec){
                   .dir = run->dir, .dtype = RK_DTYPE_F32, .tp = run->tp, .dp = run->dp, .world = world}));
    RK_RANK_OK(rk_model_export_hf(test.model, run->other_dir, 0, NULL));
    close_ranks(&test, world);
    return 0;
}

static void assert_same_weights(const char *dir_a, const char *dir_b)
{
    char *path_a = rk_path_join(dir_a, "model.safetensors"),
         *path_b = rk_path_join(dir_b, "model.safetensors");
    size_t bytes_a, bytes_b;
    char *a = rk_test_read_file(path_a, &bytes_a), *b = rk_test_read_file(path_b, &bytes_b);

    assert_int_equal(bytes_a, bytes_b);
    assert_memory_equal(a, b, bytes_a);
    rk_free(a);
    rk_free(b);
    rk_free(path_a);
    rk_free(path_b);
}

/* Goal: any layout writes and reads the same file. Method: random models of one seed exported from several
 * layouts, each loaded on another layout and exported again: all files are equal byte for byte. */
static void test_export_from_layouts_writes_the_same_bytes(void **state)
{
    static const int32_t layouts[][2] = {{1, 2}, {2, 1}, {4, 1}, {2, 2}, {4, 2}};
    char *reference = rk_test_temp_path("layout-0");

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(layouts); i++) {
        char *name = rk_format("layout-%zu", i), *again = rk_format("layout-%zu-again", i);
        struct run run = {.tp = layouts[i][0], .dp = layouts[i][1]};
        char *dir = rk_test_temp_path(name), *other_dir = rk_test_temp_path(again);

        run.dir = dir;
        run.other_dir = other_dir;
        run_all(&run, run.tp * run.dp, export_rank);
        assert_same_weights(reference, dir);
        run.tp = layouts[RK_ARRAY_LEN(layouts) - 1 - i][0];
        run.dp = layouts[RK_ARRAY_LEN(layouts) - 1 - i][1];
        run_all(&run, run.tp * run.dp, load_rank);
        assert_same_weights(reference, other_dir);
        rk_free(name);
        rk_free(again);
        rk_free(dir);
        rk_free(other_dir);
    }
    rk_free(reference);
}

static int diverged_export_rank(int32_t rank, int32_t num_ranks, void *user)
{
    const struct run *run = user;
    struct rk_comm_world *world;
    struct rk_test_model test;
    struct rk_status *st;
    int64_t i;

    RK_RANK_OK(open_ranks(&test, &world, user, rank, num_ranks, RK_DTYPE_F32));
    i = rk_model_find_param(test.model, "model.layers.0.mlp.down_proj.weight");
    if (rank == 1)
        ((float *)test.model->core->values)[rk_model_placement_at(test.model, i)->offset] = NAN;
    st = rk_model_export_hf(test.model, run->dir, 0, NULL);
    RK_RANK_CHECK(rk_status_code(st) == RK_DATA_LOSS, "%s", rk_status_message(st));
    RK_RANK_CHECK(strcmp(rk_status_reason(st), "NON_FINITE") == 0, "reason '%s'", rk_status_reason(st));
    RK_RANK_CHECK(strstr(rk_status_message(st), "mlp.down_proj.weight"), "%s", rk_status_message(st));
    rk_status_free(st);
    RK_RANK_CHECK(access(run->dir, F_OK) != 0, "something was left in %s", run->dir);
    close_ranks(&test, world);
    return 0;
}

/* Goal: a NaN in one rank's part stops the export on all ranks before anything is written. */
static void test_export_with_nan_on_one_rank_is_data_loss(void **state)
{
    char *dir = rk_test_temp_path("diverged");
    struct run run = {.tp = 2, .dp = 1, .dir = dir};

    (void)state;
    run_all(&run, 2, diverged_export_rank);
    rk_free(dir);
}

#ifdef RK_FAULTS

static int failing_export_rank(int32_t rank, int32_t num_ranks, void *user)
{
    const struct run *run = user;
    struct rk_comm_world *world;
    struct rk_test_model test;
    struct rk_status *st;

    RK_RANK_OK(open_ranks(&test, &world, user, rank, num_ranks, RK_DTYPE_F32));
    setenv("RANKD_FAULTS", run->text, 1);
    st = rk_model_export_hf(test.model, run->dir, 2048, NULL);
    RK_RANK_CHECK(rk_status_code(st) == RK_INTERNAL, "%s", rk_status_message(st));
    RK_RANK_CHECK(strstr(rk_status_message(st), "fault point ckpt.write"), "%s", rk_status_message(st));
    rk_status_free(st);
    RK_RANK_CHECK(access(run->dir, F_OK) != 0, "something was left in %s", run->dir);
    rk_test_meet(run->rendezvous, num_ranks);
    setenv("RANKD_FAULTS", "", 1);
    RK_RANK_OK(rk_model_export_hf(test.model, run->dir, 0, NULL));
    close_ranks(&test, world);
    return 0;
}

/* Goal: a writer that fails in the middle fails the export on all ranks and leaves no files, and the next
 * export succeeds. */
static void test_export_with_failing_writer_leaves_nothing(void **state)
{
    static const char *const faults[] = {"ckpt.write=fail", "ckpt.write=fail@9"};

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(faults); i++) {
        char *name = rk_format("failing-%zu", i), *dir = rk_test_temp_path(name);
        struct run run = {.tp = 2, .dp = 2, .dir = dir, .text = faults[i]};

        run_all(&run, 4, failing_export_rank);
        rk_free(name);
        rk_free(dir);
    }
}

#endif /* RK_FAULTS */

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tp_operators_satisfy_the_adjoint_identity),
        cmocka_unit_test(test_create_names_an_axis_that_does_not_fit),
        cmocka_unit_test(test_agree_with_failed_ranks_fails_on_all),
        cmocka_unit_test(test_check_cancel_of_one_rank_cancels_the_group),
        cmocka_unit_test(test_step_with_nan_on_one_rank_is_skipped_by_all),
        cmocka_unit_test(test_set_mesh_of_new_world_goes_on),
        cmocka_unit_test(test_export_from_layouts_writes_the_same_bytes),
        cmocka_unit_test(test_export_with_nan_on_one_rank_is_data_loss),
#ifdef RK_FAULTS
        cmocka_unit_test(test_export_with_failing_writer_leaves_nothing),
#endif
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
