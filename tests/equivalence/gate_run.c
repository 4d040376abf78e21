/* Runs cases of the gate on ranks that are processes. */
#include "tests/equivalence/gate.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/rk_alloc.h"
#include "base/rk_assert.h"
#include "base/config/rk_config.h"
#include "base/rk_env.h"
#include "base/layout/rk_mesh.h"
#include "base/rk_str.h"
#include "tests/support/device.h"
#include "tests/support/models.h"
#include "tests/support/ranks.h"
#include "tests/support/test.h"

#define TEMPERATURE     0.8
#define SEED            7
#define RUN_TIMEOUT_S   600  /* of all cases with one number of ranks */
#define BUCKET_ELEMENTS 5000 /* several buckets per layer, and layers that share one */

/* All cases of one number of ranks. */
struct run {
    const struct rk_gate_case *cases;
    int32_t count;
    struct rk_gate_outcome *outcomes; /* shared */
    const struct rk_gate_batch *batch;
    struct rk_test_rendezvous *rendezvous;
    const char *temp_dir;
};

struct training {
    struct rk_model *model;
    const struct rk_gate_case *test;
    struct rk_gate_micro *micro;
    struct rk_gate_outcome *outcome;
    bool is_first, is_main; /* rank of the world; of the tp and cp ranks of a replica */
    double outputs[RK_HEAD_OUTPUT_COUNT][RK_GATE_MICRO_TOKENS];
    struct rk_head_arrays arrays;
};

/* --- a forward-only pass --- */

static struct rk_status *bind_forward(void *user, int64_t i, struct rk_forward_micro *out)
{
    struct training *training = user;

    rk_gate_micro_make(training->micro, training->test->layout, (int32_t)i);
    *out = (struct rk_forward_micro){
        .packed = &training->micro->packed, .temperature = TEMPERATURE, .out = &training->arrays};
    return NULL;
}

static struct rk_status *record_forward(void *user, int64_t i)
{
    const struct training *training = user;

    (void)i;
    if (training->is_main)
        rk_gate_record(training->outcome->forward, training->micro, &training->arrays);
    return NULL;
}

static struct rk_status *forward(struct training *training, int64_t num_micro_batches)
{
    const struct rk_forward_work work = {
        .count = num_micro_batches, .bind = bind_forward, .done = record_forward, .user = training};

    for (int k = 0; k < RK_HEAD_OUTPUT_COUNT; k++) {
        bool is_there = rk_model_head_outputs(training->model) & RK_HEAD_BIT(k);

        training->arrays.of[k] = is_there ? training->outputs[k] : NULL;
    }
    return rk_model_forward_all(training->model, &work);
}

/* --- steps --- */

static struct rk_status *bind_micro_batch(void *user, int64_t i, struct rk_train_micro *out)
{
    const struct training *training = user;
    uint32_t outputs = rk_model_head_outputs(training->model);

    rk_gate_micro_make(training->micro, training->test->layout, (int32_t)i);
    *out = (struct rk_train_micro){.packed = &training->micro->packed,
                                   .temperature = TEMPERATURE,
                                   .outputs = outputs,
                                   .loss_fn = outputs & RK_HEAD_BIT(RK_HEAD_VALUES) ? rk_gate_value_loss
                                                                                    : rk_gate_policy_loss,
                                   .user = training->micro};
    return NULL;
}

/* Changes the row of the parameter table by which a gradient is summed. */
static void leave_sum_out(struct rk_model *model, const struct rk_gate_case *test)
{
    int64_t i = rk_model_find_param(model, test->mutated);
    struct rk_param *param;

    RK_ASSERT(i >= 0);
    param = (struct rk_param *)rk_model_param_at(model, i);
    if (test->mutation == RK_GATE_NO_TP_SUM)
        param->flags &= ~(uint32_t)RK_PARAM_PARTIAL_GRAD;
    else if (test->mutation == RK_GATE_NO_DP_SUM)
        param->grad_group = RK_GROUP_TP; /* of one rank */
    else
        param->shared_stage = -1;
}

static struct rk_status *gather(const struct training *training, rk_test_kind_t kind, double *out)
{
    struct rk_gate_outcome *outcome = training->outcome;
    struct rk_model *model = training->model;
    int64_t position = 0;
    double *values = rk_calloc(RK_GATE_ELEMENTS_MAX, sizeof(*values));
    struct rk_status *st = NULL;

    RK_ASSERT(rk_model_num_params(model) <= RK_GATE_PARAMS_MAX);
    RK_ASSERT(rk_model_num_elements(model) <= RK_GATE_ELEMENTS_MAX);
    for (int64_t i = 0; !st && i < rk_model_num_params(model); i++) {
        const struct rk_param *param = rk_model_param_at(model, i);

        st = rk_test_gather(model, i, kind, values + position);
        position += rk_param_num_elements(param);
        if (!training->is_first)
            continue;
        snprintf(outcome->names[i], sizeof(outcome->names[i]), "%s", param->name);
        outcome->begin[i + 1] = position;
        outcome->num_params = i + 1;
    }
    if (training->is_first)
        memcpy(out, values, (size_t)position * sizeof(*values));
    rk_free(values);
    return st;
}

static struct rk_status *train(struct training *training, int64_t num_micro_batches)
{
    struct rk_model *model = training->model;
    struct rk_train_work work = {.count = num_micro_batches, .bind = bind_micro_batch, .user = training};
    struct rk_gate_outcome *outcome = training->outcome;

    for (int step = 0; step < rk_gate_num_steps(training->test); step++) {
        struct rk_step_stats stats;

        RK_TRY(rk_trainer_begin(rk_model_trainer(model)));
        training->micro->records = training->is_main && step == 0;
        /* The first step gathers the gradients of all ranks; in the others their reductions overlap the
         * pass. */
        work.is_last = step > 0;
        RK_TRY(rk_trainer_micro_batches(rk_model_trainer(model), &work));
        if (training->test->mutation)
            leave_sum_out(model, training->test);
        if (step == 0)
            RK_TRY(gather(training, RK_TEST_GRADIENT, outcome->grads));
        if (training->test->mutation)
            return NULL;
        RK_TRY(rk_trainer_step(rk_model_trainer(model), &stats));
        if (training->is_first)
            outcome->grad_norm[step] = stats.grad_norm;
    }
    return gather(training, RK_TEST_VALUE, outcome->params);
}

/* --- ranks --- */

static struct rk_test_model_spec spec_of(const struct rk_gate_case *test, struct rk_comm_world *world,
                                         int32_t rank)
{
    const struct rk_gate_layout *layout = test->layout;

    return (struct rk_test_model_spec){
        .config = test->model->config,
        .seed = SEED,
        .head = test->model->head,
        .dtype = test->dtype,
        .numerics = layout->is_strict ? RK_NUMERICS_STRICT : RK_NUMERICS_FAST,
        .recompute_num_layers = layout->recompute_num_layers,
        .tp = layout->tp,
        .cp = layout->cp,
        .dp = layout->dp,
        .ep = layout->ep,
        .etp = layout->etp,
        .moe_dispatch_tokens = layout->moe_dispatch_tokens,
        .moe_keep_dispatched = layout->moe_keep_dispatched,
        .moe = test->model->moe,
        .pp = layout->pp,
        .vpp = layout->vpp,
        .num_first = layout->num_first,
        .num_last = layout->num_last,
        .sequence_parallel = layout->sequence_parallel,
        .world = world,
        .stream = rk_test_rank_stream(rank),
    };
}

/* Exports the weights of the case in BF16, to be loaded in F32. */
static struct rk_status *export_bf16(const struct rk_test_model_spec *spec, const char *dir)
{
    struct rk_test_model_spec bf16 = *spec;
    struct rk_test_model test;
    struct rk_status *st;

    bf16.dtype = RK_DTYPE_BF16;
    st = rk_test_model_open(&test, &bf16);
    if (!st)
        st = rk_model_export_hf(test.model, dir, 0, NULL);
    rk_test_model_close(&test);
    return st;
}

static int run_case(const struct rk_test_model_spec *spec, const struct rk_gate_case *test,
                    const struct run *run, struct rk_gate_outcome *outcome)
{
    const struct rk_gate_layout *layout = test->layout;
    int64_t num_micro_batches = RK_MAX(layout->num_micro_batches, 1), num_compared;
    struct training *training = rk_calloc(1, sizeof(*training));
    struct rk_optim_config optim = rk_test_adamw(RK_GATE_LR, 0.1, 0.5);
    const struct rk_mesh_coords *coords;
    struct rk_test_model opened;

    *training = (struct training){.test = test, .outcome = outcome};
    training->micro = rk_calloc(1, sizeof(*training->micro));
    RK_RANK_OK(rk_test_model_open(&opened, spec));
    coords = rk_mesh_comms_coords(opened.comms);
    training->model = opened.model;
    training->is_first = !spec->world || rk_comm_world_rank(spec->world) == 0;
    training->is_main = coords->axis[RK_AXIS_TP] == 0 && coords->axis[RK_AXIS_CP] == 0;
    training->micro->batch = run->batch;
    training->micro->model = test->model;
    training->micro->outcome = outcome;
    training->micro->dp_rank = coords->axis[RK_AXIS_DP];
    optim.bucket_elements = RK_MAX(layout->dp, 1) * RK_MAX(layout->cp, 1) > 1 ? BUCKET_ELEMENTS : 0;
    RK_RANK_OK(forward(training, num_micro_batches));
    RK_RANK_OK(rk_test_enable_training(opened.model, &optim));
    RK_RANK_OK(train(training, num_micro_batches));
    if (!test->mutation) {
        RK_RANK_CHECK(rk_model_weight_version(opened.model) == (uint64_t)rk_gate_num_steps(test),
                      "weight version");
        RK_RANK_OK(rk_model_verify_replicas(opened.model, NULL, &num_compared));
        RK_RANK_CHECK(rk_gate_num_ranks(layout) == RK_MAX(layout->pp, 1) || num_compared > 0, "no copies");
    }
    rk_test_model_close(&opened);
    rk_free(training->micro);
    rk_free(training);
    return 0;
}

static int run_rank(int32_t rank, int32_t num_ranks, void *user)
{
    const struct run *run = user;
    struct rk_comm_world *world = NULL;

    if (num_ranks > 1)
        RK_RANK_OK(rk_test_world_create(&world, run->rendezvous, rank, num_ranks, "unix", NULL));
    for (int32_t i = 0; i < run->count; i++) {
        const struct rk_gate_case *test = &run->cases[i];
        struct rk_test_model_spec spec;
        char *dir = NULL;

        if (rk_gate_num_ranks(test->layout) != num_ranks)
            continue;
        printf("  %s\n", rk_gate_label(test)); /* visible when a rank fails */
        spec = spec_of(test, world, rank);
        if (test->has_bf16_weights) {
            dir = rk_format("%s/weights_%d_%d", run->temp_dir, (int)getpid(), i);
            RK_RANK_OK(export_bf16(&spec, dir));
            spec.dir = dir;
            spec.config = NULL;
        }
        if (run_case(&spec, test, run, &run->outcomes[i]))
            return 1;
        rk_free(dir);
    }
    rk_comm_world_destroy(world);
    return 0;
}

/* --- cases --- */

int32_t rk_gate_num_steps(const struct rk_gate_case *test)
{
    return test->num_steps > 0 ? test->num_steps : RK_GATE_NUM_STEPS;
}

const char *rk_gate_label(const struct rk_gate_case *test)
{
    static char label[128];

    snprintf(label, sizeof(label), "%s %s %s", test->layout->name, test->model->name,
             rk_dtype_name(test->dtype));
    return label;
}

bool rk_gate_has_ranks(const struct rk_gate_layout *layout)
{
    const char *device = rk_env("RK_TEST_DEVICE");
    bool is_asynchronous = device && strcmp(device, "graphs") == 0;

    /* The asynchronous test device does not order collectives between streams; NCCL does for one
     * communicator. If dp is 1, keys and gradients use the same communicator. */
    if (is_asynchronous && layout->cp > 1 && layout->dp <= 1)
        return false;
    return rk_gate_num_ranks(layout) <= rk_test_device_max_ranks();
}

static bool has_comparable_losses(const struct rk_gate_case *test)
{
    const struct rk_moe_knobs *moe = &test->model->moe;
    const struct rk_gate_layout *layout = test->layout;
    bool is_whole = layout->dp <= 1 && layout->num_micro_batches <= 1;

    if (moe->aux_loss_coeff == 0.0 && moe->z_loss_coeff == 0.0 && !moe->updates_bias)
        return true;
    return !layout->is_padded && (is_whole || strcmp(moe->balancing_type, "aux_loss") != 0);
}

/* F64 is only for the CPU. The fake NCCL is slow: it runs only BF16, which NCCL's sums round after each
 * addition. */
bool rk_gate_can_run(const struct rk_gate_case *test)
{
    if (rk_env("RK_TEST_COMM") && (test->dtype != RK_DTYPE_BF16 || rk_gate_num_ranks(test->layout) == 1))
        return false;
    if (test->dtype == RK_DTYPE_F64 && rk_test_device_dtype() != RK_DTYPE_F64)
        return false;
    if (test->dtype == RK_DTYPE_BF16 && test->model->num_experts > 0 && test->model->num_routes == 0)
        return false;
    if (test->model->num_experts % RK_MAX(test->layout->ep, 1) != 0)
        return false;
    return has_comparable_losses(test) && rk_gate_has_ranks(test->layout);
}

struct rk_gate_outcome *rk_gate_run(const struct rk_gate_case *cases, int32_t count)
{
    struct rk_gate_batch batch;
    struct run run = {.cases = cases,
                      .count = count,
                      .outcomes = rk_test_shared_alloc((size_t)count * sizeof(*run.outcomes)),
                      .batch = &batch,
                      .temp_dir = rk_test_temp_dir()};
    bool has_failed = false;

    rk_gate_batch_make(&batch);
    for (int32_t num_ranks = 1; num_ranks <= RK_GATE_MAX_RANKS; num_ranks++) {
        int32_t num_cases = 0;

        for (int32_t i = 0; i < count; i++)
            num_cases += rk_gate_num_ranks(cases[i].layout) == num_ranks;
        if (num_cases == 0)
            continue;
        print_message("  %d cases on %d ranks\n", num_cases, num_ranks);
        run.rendezvous = rk_test_rendezvous_create();
        has_failed |= rk_test_run_ranks(num_ranks, run_rank, &run, RUN_TIMEOUT_S) != 0;
        rk_test_rendezvous_destroy(run.rendezvous);
    }
    if (has_failed)
        fail_msg("ranks failed; the last case that each of them names is the one it failed in");
    for (int32_t i = 0; i < count; i++) {
        for (int32_t t = 0; t < RK_GATE_NUM_TOKENS; t++)
            run.outcomes[i].loss += run.outcomes[i].loss_terms[t];
    }
    return run.outcomes;
}

void rk_gate_outcomes_free(struct rk_gate_outcome *outcomes, int32_t count)
{
    rk_test_shared_free(outcomes, (size_t)count * sizeof(*outcomes));
}
