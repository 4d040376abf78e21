#include "tests/support/models.h"

#include <math.h>
#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_assert.h"
#include "base/layout/rk_mesh.h"
#include "base/rk_str.h"
#include "tests/support/device.h"

static struct rk_status *read_config(struct rk_json **out, const struct rk_test_model_spec *spec)
{
    struct rk_status *st;
    char *path;

    if (spec->config)
        return rk_json_parse(out, spec->config, strlen(spec->config), "config.json", 0);
    path = rk_path_join(spec->dir, "config.json");
    st = rk_json_parse_file(out, path, 1 << 20, 0);
    rk_free(path);
    return st;
}

static struct rk_status *open_mesh(struct rk_test_model *out, const struct rk_test_model_spec *spec)
{
    struct rk_mesh_spec mesh = {.tp = RK_MAX(spec->tp, 1),
                                .cp = RK_MAX(spec->cp, 1),
                                .dp = RK_MAX(spec->dp, 1),
                                .pp = RK_MAX(spec->pp, 1),
                                .ep = RK_MAX(spec->ep, 1),
                                .etp = spec->etp};

    if (!spec->world)
        return rk_mesh_comms_create_single(&out->comms);
    RK_TRY(rk_mesh_create(&out->mesh, &mesh, rk_comm_world_size(spec->world)));
    return rk_mesh_comms_create(&out->comms, out->mesh, spec->world);
}

struct rk_status *rk_test_model_open(struct rk_test_model *out, const struct rk_test_model_spec *spec)
{
    struct rk_model_desc desc = {
        .struct_size = sizeof(desc),
        .dtype = spec->dtype,
        .numerics = spec->numerics,
        .head = spec->head,
        .seed = spec->seed,
        .recompute_num_layers = spec->recompute_num_layers,
        .offload = spec->offload,
        .frozen = spec->frozen,
        .moe = spec->moe,
        .layout = {.sequence_parallel = spec->sequence_parallel,
                   .vpp = spec->vpp,
                   .moe_dispatch_tokens = spec->moe_dispatch_tokens,
                   .moe_keep_dispatched = spec->moe_keep_dispatched,
                   .num_layers_in_first_pipeline_stage = spec->num_first,
                   .num_layers_in_last_pipeline_stage = spec->num_last},
    };
    struct rk_json *config;
    struct rk_status *st;

    *out = (struct rk_test_model){0};
    if (!spec->stream) {
        RK_TRY(rk_test_device_open(&out->own_device, 1));
        RK_TRY(rk_stream_create(&out->own_stream, out->own_device, "test"));
    }
    out->stream = spec->stream ? spec->stream : out->own_stream;
    out->device = rk_stream_device(out->stream);
    RK_TRY(open_mesh(out, spec));
    RK_TRY(read_config(&config, spec));
    desc.hf_config = config;
    desc.stream = out->stream;
    desc.mesh = out->comms;
    st = rk_model_create(&out->model, &desc);
    rk_json_free(config);
    if (st)
        return st;
    return spec->dir ? rk_model_load_hf(out->model, spec->dir, NULL)
                     : rk_model_init_random(out->model, spec->seed, NULL);
}

void rk_test_model_close(struct rk_test_model *test)
{
    if (test->model)
        rk_trainer_destroy(rk_model_trainer(test->model));
    rk_model_destroy(test->model);
    rk_mesh_comms_destroy(test->comms);
    rk_mesh_destroy(test->mesh);
    rk_stream_destroy(test->own_stream);
    rk_device_close(test->own_device);
    *test = (struct rk_test_model){0};
}

struct rk_status *rk_test_enable_training(struct rk_model *model, const struct rk_optim_config *config)
{
    struct rk_trainer *trainer;

    return rk_trainer_create(&trainer, model, config);
}

struct rk_status *rk_test_gather(struct rk_model *model, int64_t i, rk_test_kind_t kind, double *out)
{
    if (kind == RK_TEST_VALUE)
        return rk_model_gather_param(model, i, out);
    return rk_trainer_gather_grad(rk_model_trainer(model), i, out);
}

struct rk_status *rk_test_save(struct rk_model *model, const struct rk_checkpoint_save *save,
                               struct rk_checkpoint_report *report)
{
    struct rk_saver *saver = rk_saver_create(model);
    struct rk_status *st = rk_saver_save(saver, save, NULL, report);

    if (!st && save->is_async)
        st = rk_saver_wait(saver, true, NULL, report);
    rk_saver_destroy(saver);
    return st;
}

struct rk_optim_config rk_test_adamw(double lr, double weight_decay, double clip_grad)
{
    char *text =
        rk_format("{\"optim.optimizer\": \"adam\", \"optim.lr\": %.17g, \"optim.min_lr\": 0,"
                  " \"optim.lr_warmup_init\": 0, \"optim.lr_decay_style\": \"constant\","
                  " \"optim.lr_warmup_steps\": -1, \"optim.lr_warmup_steps_ratio\": 0,"
                  " \"optim.total_training_steps\": -1, \"optim.betas\": [0.9, 0.95], \"optim.eps\": 1e-5,"
                  " \"optim.weight_decay\": %.17g, \"optim.clip_grad\": %.17g}",
                  lr, weight_decay, clip_grad);
    struct rk_optim_config config;
    struct rk_json *options;
    struct rk_status *st = rk_json_parse(&options, text, strlen(text), "optim", 0);

    RK_ASSERT(!st);
    st = rk_optim_config_read(&config, options);
    RK_ASSERT(!st);
    rk_json_free(options);
    rk_free(text);
    return config;
}

struct rk_status *rk_test_weigh_tokens(void *user, const struct rk_head_arrays *outputs,
                                       const struct rk_head_arrays *grads)
{
    const struct rk_packed *packed = user;

    (void)outputs;
    for (int64_t t = 0; t < packed->num_tokens; t++)
        grads->of[RK_HEAD_LOG_PROBS][t] = 1.0 / (double)(t + 3);
    return NULL;
}

struct rk_status *rk_test_train_pass(struct rk_model *model, const struct rk_packed *packed)
{
    const struct rk_train_micro micro = {.packed = packed,
                                         .temperature = 1,
                                         .outputs = RK_HEAD_BIT(RK_HEAD_LOG_PROBS),
                                         .loss_fn = rk_test_weigh_tokens,
                                         .user = (void *)packed};

    RK_TRY(rk_trainer_begin(rk_model_trainer(model)));
    return rk_trainer_micro_batch(rk_model_trainer(model), &micro);
}

struct mean_loss {
    int64_t num_tokens;
    double value;
};

static struct rk_status *mean_loss(void *user, const struct rk_head_arrays *outputs,
                                   const struct rk_head_arrays *grads)
{
    struct mean_loss *loss = user;

    for (int64_t t = 0; t < loss->num_tokens; t++) {
        loss->value -= outputs->of[RK_HEAD_LOG_PROBS][t] / (double)loss->num_tokens;
        grads->of[RK_HEAD_LOG_PROBS][t] = -1.0 / (double)loss->num_tokens;
    }
    return NULL;
}

struct rk_status *rk_test_mean_pass(double *loss, struct rk_model *model, const struct rk_packed *packed)
{
    struct mean_loss mean = {packed->num_tokens, 0};
    const struct rk_train_micro micro = {.packed = packed,
                                         .temperature = 1,
                                         .outputs = RK_HEAD_BIT(RK_HEAD_LOG_PROBS),
                                         .is_last = true,
                                         .loss_fn = mean_loss,
                                         .user = &mean};

    RK_TRY(rk_trainer_begin(rk_model_trainer(model)));
    RK_TRY(rk_trainer_micro_batch(rk_model_trainer(model), &micro));
    *loss = mean.value;
    return NULL;
}

double rk_test_error_by_max(const double *actual, const double *expected, int64_t count)
{
    double error = 0, scale = 0;

    for (int64_t i = 0; i < count; i++) {
        if (!isfinite(actual[i]) || !isfinite(expected[i]))
            return INFINITY;
        error = fmax(error, fabs(actual[i] - expected[i]));
        scale = fmax(scale, fabs(expected[i]));
    }
    return scale > 0 ? error / scale : INFINITY;
}

struct rk_status *rk_test_score(double *out, struct rk_test_model *test, const int32_t *ids, int64_t count)
{
    int32_t *positions = rk_calloc((size_t)count, sizeof(*positions)), cu_seqlens[2] = {0, (int32_t)count};
    int32_t *labels = rk_calloc((size_t)count, sizeof(*labels));
    double *values = rk_calloc((size_t)count, sizeof(*values));
    struct rk_head_arrays arrays = {.of[RK_HEAD_VALUES] = values};
    struct rk_packed packed = {.num_tokens = count,
                               .num_seqs = 1,
                               .max_seqlen = (int32_t)count,
                               .tokens = ids,
                               .positions = positions,
                               .cu_seqlens = cu_seqlens,
                               .labels = labels};
    struct rk_status *st;

    for (int32_t i = 0; i < count; i++) {
        positions[i] = i;
        labels[i] = i == count - 1 ? ids[i] : RK_LABEL_NONE;
    }
    st = rk_model_forward(test->model, &packed, 1.0, NULL, &arrays);
    *out = values[count - 1];
    rk_free(values);
    rk_free(labels);
    rk_free(positions);
    return st;
}

static struct rk_status *bind_one(void *user, int64_t i, struct rk_forward_micro *micro)
{
    (void)i;
    *micro = *(const struct rk_forward_micro *)user;
    return NULL;
}

struct rk_status *rk_test_choose(struct rk_model *model, const struct rk_packed *packed,
                                 const struct rk_head_arrays *arrays, uint16_t *chosen_experts)
{
    struct rk_forward_micro micro = {
        .packed = packed, .temperature = 1, .out = arrays, .chosen_experts = chosen_experts};

    RK_TRY(
        rk_model_forward_all(model, &(struct rk_forward_work){.count = 1, .bind = bind_one, .user = &micro}));
    return rk_model_merge_routes(model, chosen_experts, packed->num_tokens);
}
