/* Meshes and models of the roles of a job. */
#include "rl/flows/steps_internal.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "base/rk_alloc.h"
#include "base/rk_assert.h"
#include "base/config/rk_knobs.h"
#include "base/rk_log.h"
#include "base/rk_str.h"
#include "base/rk_small_file.h"
#include "rl/rk_job.h"
#include "proto/limits.h"
#include "proto/rk_methods.h"

#define TOKENIZER_FILE "tokenizer.json"

static void on_progress(void *user, int32_t rank, const struct rk_progress *progress)
{
    struct rk_flow_context *ctx = user;

    if (rank == ctx->progress_rank && ctx->sink.on_progress)
        ctx->sink.on_progress(ctx->sink.user, progress);
}

struct rk_status *rk_flow_call(struct rk_flow_context *ctx, const char *role, const char *method,
                               const struct rk_batch *batch, struct rk_json *options,
                               const struct rk_plan *plan, struct rk_driver_result *result)
{
    struct rk_driver_call_args call = {.role = role,
                                       .method = method,
                                       .batch = batch,
                                       .options = options,
                                       .plan = plan,
                                       .on_progress = on_progress,
                                       .user = ctx};
    const struct rk_mesh *mesh = rk_job_meshes_find(&ctx->meshes, rk_role_parse(role));
    struct rk_status *st;

    ctx->progress_rank = rk_mesh_get_spec(mesh).ranks[0];
    st = rk_driver_call(ctx->driver, &call, result);
    rk_json_free(options);
    return st;
}

int32_t rk_flow_num_replicas(const struct rk_flow_context *ctx, uint32_t role)
{
    const struct rk_mesh *mesh = rk_job_meshes_find(&ctx->meshes, role);

    RK_ASSERT(mesh); /* a role of the flow */
    return rk_mesh_axis_size(mesh, RK_AXIS_DP);
}

const char *rk_flow_numerics(const struct rk_flow_context *ctx)
{
    return rk_job_numerics(ctx->job, rk_driver_device_kind(ctx->driver), ctx->inputs->hf_config);
}

/* Says what a job that does not set numerics gets on GPUs. */
static void say_numerics(const struct rk_flow_context *ctx)
{
    const char *numerics = rk_flow_numerics(ctx);

    if (rk_config_string(ctx->job, "numerics") || strcmp(rk_driver_device_kind(ctx->driver), "cpu") == 0)
        return;
    if (strcmp(numerics, "strict") == 0)
        RK_INFO("numerics=strict, the default on GPUs");
    else
        RK_WARN("numerics=fast, the default for models with latent attention, which decode slower with "
                "numerics=strict: log-probs of the rollout differ from those of training by rounding");
}

/* The products of bf16 are computed in fp32 there. */
static void warn_of_slow_dtype(const struct rk_flow_context *ctx)
{
    const char *kind = rk_driver_device_kind(ctx->driver);

    if (strcmp(kind, "cpu") == 0 && strcmp(rk_job_dtype(ctx->job, kind), "bfloat16") == 0)
        RK_WARN(RK_JOB_ACTOR
                "megatron.dtype=bfloat16 takes about twice the time of float32, the default, on CPUs; "
                "it needs less memory");
}

/* --- options of init_model --- */

/* Options of a role with the model in that directory; NULL: with random weights. */
static struct rk_json *model_options_of(const struct rk_flow_context *ctx, const char *path)
{
    struct rk_json *options = rk_json_new_object();

    if (path)
        rk_json_set(options, "model.path", rk_json_new_string(path));
    else
        rk_json_set(options, "model.hf_config", rk_json_clone(ctx->inputs->hf_config));
    rk_json_set(options, "megatron.dtype",
                rk_json_new_string(rk_job_dtype(ctx->job, rk_driver_device_kind(ctx->driver))));
    rk_json_set(options, "numerics", rk_json_new_string(rk_flow_numerics(ctx)));
    return options;
}

/* Options of roles that have the policy's model. */
static struct rk_json *model_options(const struct rk_flow_context *ctx)
{
    struct rk_json *options = model_options_of(ctx, ctx->inputs->model_path);

    rk_job_copy_knobs(options, ctx->job, RK_JOB_KNOBS_INIT);
    rk_job_copy_value(options, RK_KNOB_MAX_POSITIONS, ctx->job, RK_JOB_MODELS RK_KNOB_MAX_POSITIONS);
    return options;
}

/* Sends the daemons the sizes of micro-batches, so that they allocate the memory at once. */
static void set_max_tokens(struct rk_json *options, const char *option, const struct rk_flow_context *ctx,
                           uint32_t role, struct rk_job_micro micro)
{
    int32_t cp = rk_mesh_axis_size(rk_job_meshes_find(&ctx->meshes, role), RK_AXIS_CP);

    rk_json_set(options, option, rk_json_new_int(rk_job_micro_tokens(ctx->job, &micro, cp)));
}

/* Number of ids per position of passes that have ids. */
static void set_topk(struct rk_json *options, const struct rk_config *job)
{
    if (rk_job_distills_topk(job))
        rk_job_copy_value(options, "topk", job, RK_KNOB_DISTILL "topk");
}

/* The schedule of a role that trains; a lowest rate that is a share of lr becomes a rate. */
static void set_schedule(struct rk_json *options, const struct rk_flow_context *ctx, const char *section)
{
    char *ratio = rk_format("%soptim.min_lr_ratio", section), *lr = rk_format("%soptim.lr", section);

    rk_json_set(options, "optim.total_training_steps", rk_json_new_int(ctx->total_steps));
    if (!rk_config_is_null(ctx->job, ratio) && rk_config_real(ctx->job, ratio) > 0)
        rk_json_set(options, "optim.min_lr",
                    rk_json_new_real(rk_config_real(ctx->job, ratio) * rk_config_real(ctx->job, lr)));
    rk_free(ratio);
    rk_free(lr);
}

static struct rk_json *actor_options(const struct rk_flow_context *ctx, uint32_t role)
{
    struct rk_json *options = model_options(ctx);

    rk_job_copy_knobs(options, ctx->job, RK_JOB_KNOBS_OPTIM);
    rk_job_copy_knobs(options, ctx->job, RK_JOB_KNOBS_MEMORY);
    rk_job_copy_knobs(options, ctx->job, RK_JOB_KNOBS_RECOMPUTE);
    rk_job_copy_knobs(options, ctx->job, RK_JOB_KNOBS_MOE);
    rk_job_copy_knobs(options, ctx->job, RK_JOB_KNOBS_ROUTER);
    set_schedule(options, ctx, RK_JOB_ACTOR);
    set_max_tokens(options, "ppo_max_token_len_per_gpu", ctx, role, rk_job_actor_micro(ctx->job));
    set_max_tokens(options, "log_prob_max_token_len_per_gpu", ctx, role,
                   rk_job_log_prob_micro(ctx->job, RK_JOB_ROLLOUT));
    set_topk(options, ctx->job);
    rk_job_set_layout(options, ctx->job, role);
    rk_job_set_router_replay(options, ctx->job, role);
    if (rk_job_moves_weights(ctx->job))
        rk_job_copy_knobs(options, ctx->job, RK_JOB_KNOBS_RESHARD);
    if (ctx->validates_only)
        rk_json_set(options, "megatron.forward_only", rk_json_new_bool(true));
    return options;
}

static struct rk_json *ref_options(const struct rk_flow_context *ctx, uint32_t role)
{
    struct rk_json *options = model_options(ctx);

    rk_json_set(
        options, RK_JOB_PARAM_OFFLOAD,
        rk_json_new_bool(rk_job_bool_or(ctx->job, RK_JOB_REF RK_JOB_PARAM_OFFLOAD,
                                        rk_config_bool(ctx->job, RK_JOB_ACTOR RK_JOB_PARAM_OFFLOAD))));
    rk_json_set(options, "megatron.forward_only", rk_json_new_bool(true));
    set_max_tokens(options, "log_prob_max_token_len_per_gpu", ctx, role,
                   rk_job_log_prob_micro(ctx->job, RK_JOB_REF));
    rk_job_set_layout(options, ctx->job, role);
    rk_job_set_router_replay(options, ctx->job, role);
    return options;
}

static struct rk_json *critic_options(const struct rk_flow_context *ctx, uint32_t role)
{
    const char *own = rk_flow_own_model(ctx->inputs, role);
    const char *path = own ? own : ctx->inputs->model_path;
    struct rk_json *options = model_options_of(ctx, path);

    rk_job_copy_knobs(options, ctx->job, RK_JOB_KNOBS_CRITIC_INIT);
    rk_job_copy_knobs(options, ctx->job, RK_JOB_KNOBS_CRITIC_OPTIM);
    rk_job_copy_knobs(options, ctx->job, RK_JOB_KNOBS_CRITIC_MEMORY);
    rk_job_copy_knobs(options, ctx->job, RK_JOB_KNOBS_CRITIC_RECOMPUTE);
    rk_job_copy_knobs(options, ctx->job, RK_JOB_KNOBS_CRITIC_MOE);
    rk_job_copy_knobs(options, ctx->job, RK_JOB_KNOBS_CRITIC_ROUTER);
    set_schedule(options, ctx, RK_JOB_CRITIC);
    set_max_tokens(options, "ppo_max_token_len_per_gpu", ctx, role, rk_job_critic_micro(ctx->job));
    set_max_tokens(options, "log_prob_max_token_len_per_gpu", ctx, role, rk_job_values_micro(ctx->job));
    rk_job_set_layout(options, ctx->job, role);
    return options;
}

static struct rk_json *teacher_options(const struct rk_flow_context *ctx, uint32_t role)
{
    const struct rk_flow_teacher *teacher =
        rk_flow_teacher_find(&rk_flow_prompt_inputs(ctx->inputs)->teachers, role);
    struct rk_json *options = model_options_of(ctx, teacher->path);

    rk_json_set(options, "megatron.forward_only", rk_json_new_bool(true));
    set_max_tokens(options, "log_prob_max_token_len_per_gpu", ctx, role,
                   rk_job_log_prob_micro(ctx->job, teacher->role->section));
    set_topk(options, ctx->job);
    if (teacher->vocab_size > 0)
        rk_json_set(options, "model.vocab_size", rk_json_new_int(teacher->vocab_size));
    rk_job_set_layout(options, ctx->job, role);
    return options;
}

static struct rk_json *reward_options(const struct rk_flow_context *ctx, uint32_t role)
{
    struct rk_json *options = model_options_of(ctx, rk_flow_own_model(ctx->inputs, role));

    rk_json_set(options, "megatron.forward_only", rk_json_new_bool(true));
    rk_json_set(options, "log_prob_max_token_len_per_gpu", rk_json_new_int(rk_job_reward_tokens(ctx->job)));
    rk_job_set_layout(options, ctx->job, role);
    return options;
}

/* Sets update_weights_source where the stages of the actor's pipeline have unequal shares of the layers. */
static void set_weights_source(struct rk_json *options, const struct rk_config *job)
{
    struct rk_job_pipeline pipeline = rk_job_pipeline(job, RK_ROLE_ACTOR);
    struct rk_json *source;

    if (pipeline.vpp <= 1 && pipeline.num_first == 0 && pipeline.num_last == 0)
        return;
    source = rk_json_new_object();
    rk_job_set_layout(source, job, RK_ROLE_ACTOR);
    rk_json_set(options, "update_weights_source", source);
}

/* A rollout that shares the actor's weights, or one with separate weights in a separate mesh. */
static struct rk_json *rollout_options(const struct rk_flow_context *ctx, uint32_t role)
{
    bool has_weights = rk_job_moves_weights(ctx->job);
    struct rk_json *options = has_weights ? model_options(ctx) : rk_json_new_object();

    (void)role;
    if (has_weights) {
        rk_json_set(options, "megatron.forward_only", rk_json_new_bool(true));
        rk_json_set(options, "rollout.load_format", rk_json_new_string("dummy"));
        set_weights_source(options, ctx->job);
        rk_job_copy_knobs(options, ctx->job, RK_JOB_KNOBS_RESHARD);
    } else {
        rk_json_set(options, "share_weights_of", rk_json_new_string("actor"));
        rk_json_set(options, "numerics", rk_json_new_string(rk_flow_numerics(ctx)));
    }
    rk_job_copy_knobs(options, ctx->job, RK_JOB_KNOBS_ROLLOUT);
    rk_json_set(options, "rollout.max_model_len",
                rk_json_new_int(rk_job_int_or(ctx->job, RK_JOB_ROLLOUT "max_model_len",
                                              ctx->prompt_length + ctx->response_length)));
    return options;
}

/* In the order in which the models are built: the rollout's comes last, since its cache may take the memory
 * that the others leave free. */
static const struct {
    uint32_t role;
    struct rk_json *(*options)(const struct rk_flow_context *ctx, uint32_t role);
} models[] = {
    {RK_ROLE_ACTOR, actor_options},       {RK_ROLE_REF, ref_options},
    {RK_ROLE_CRITIC, critic_options},     {RK_ROLE_REWARD, reward_options},
    {RK_ROLE_TEACHER, teacher_options},   {RK_ROLE_TEACHER_2, teacher_options},
    {RK_ROLE_TEACHER_3, teacher_options}, {RK_ROLE_TEACHER_4, teacher_options},
    {RK_ROLE_ROLLOUT, rollout_options},
};

/* --- their memory in total --- */

static struct rk_json *model_options_find(const struct rk_flow_context *ctx, uint32_t role)
{
    for (size_t i = 0; i < RK_ARRAY_LEN(models); i++) {
        if (models[i].role == role)
            return models[i].options(ctx, role);
    }
    RK_ASSERT(!"a role of the table");
    return NULL;
}

/* The answer of each rank: plans[num_workers], to be freed; NULL for a rank outside the role's mesh. */
static struct rk_status *ask_ranks(struct rk_flow_context *ctx, const char *role, struct rk_json *options,
                                   struct rk_json **plans)
{
    struct rk_driver_result result;

    RK_TRY(rk_flow_call(ctx, role, "init_model", NULL, options, NULL, &result));
    for (int32_t i = 0; i < result.num_outputs; i++) {
        const struct rk_json *meta = result.outputs[i] ? rk_batch_meta(result.outputs[i]) : NULL;
        int64_t rank = rk_json_as_int(rk_json_find(meta, "rank"), -1);

        if (rank >= 0 && rank < rk_driver_num_workers(ctx->driver) && !plans[rank])
            plans[rank] = rk_json_clone(meta);
    }
    rk_driver_result_fini(&result);
    return NULL;
}

static struct rk_status *plan_role(struct rk_flow_context *ctx, struct rk_memory_sum *sum,
                                   const struct rk_job_role *role)
{
    int32_t num_ranks = rk_driver_num_workers(ctx->driver);
    struct rk_json **plans = rk_calloc((size_t)num_ranks, sizeof(*plans));
    struct rk_json *options = model_options_find(ctx, role->bit);
    bool is_dry = rk_driver_is_dry_run(ctx->driver);
    struct rk_status *st;

    rk_json_set(options, "plan_only", rk_json_new_bool(true));
    rk_json_set(options, "plan_room", rk_memory_sum_room(sum));
    if (rk_job_role_shares(ctx->job, role->bit))
        rk_json_set(options, "plan_owner", model_options_find(ctx, role->shares));
    st = is_dry ? rk_flow_dry_memory_plans(ctx, role->name, options, plans)
                : ask_ranks(ctx, role->name, options, plans);
    if (!st)
        st = rk_memory_sum_add(sum, role, (const struct rk_json *const *)plans, num_ranks);
    for (int32_t i = 0; i < num_ranks; i++)
        rk_json_free(plans[i]);
    rk_free(plans);
    return st;
}

static struct rk_status *plan_roles(struct rk_flow_context *ctx, struct rk_memory_sum *sum)
{
    for (size_t i = 0; i < RK_ARRAY_LEN(models); i++) {
        const struct rk_job_role *role = rk_job_role(models[i].role);
        struct rk_status *st = rk_job_role_has_model(ctx->job, role->bit) ? plan_role(ctx, sum, role) : NULL;

        if (st)
            return rk_status_code(st) == RK_RESOURCE_EXHAUSTED ? rk_memory_sum_refuse(sum, role, st) : st;
    }
    return rk_memory_sum_check(sum);
}

struct rk_status *rk_flow_sum_memory(struct rk_flow_context *ctx)
{
    struct rk_memory_sum sum;
    struct rk_status *st, *told = NULL;

    rk_memory_sum_init(&sum, rk_driver_num_workers(ctx->driver));
    st = plan_roles(ctx, &sum);
    if (ctx->sink.on_memory_sum && sum.num_roles > 0)
        told = ctx->sink.on_memory_sum(ctx->sink.user, &sum);
    rk_memory_sum_fini(&sum);
    return rk_status_first(st, told);
}

struct rk_status *rk_flow_setup(struct rk_flow_context *ctx)
{
    struct rk_driver_result result;

    RK_TRY(rk_job_meshes_configure(&ctx->meshes, ctx->driver));
    say_numerics(ctx);
    warn_of_slow_dtype(ctx);
    RK_TRY(rk_flow_sum_memory(ctx));
    for (size_t i = 0; i < RK_ARRAY_LEN(models); i++) {
        if (!rk_job_role_has_model(ctx->job, models[i].role))
            continue;
        RK_TRY(rk_flow_call(ctx, rk_job_role(models[i].role)->name, "init_model", NULL,
                            models[i].options(ctx, models[i].role), NULL, &result));
        rk_driver_result_fini(&result);
    }
    return NULL;
}

/* --- the model at the end --- */

static struct rk_status *call_export(struct rk_flow_context *ctx, bool check_only)
{
    struct rk_json *options = rk_json_new_object();
    struct rk_driver_result result;

    rk_json_set(options, "path", rk_json_new_string(ctx->export_path));
    rk_json_set(options, "check_only", rk_json_new_bool(check_only));
    RK_TRY(rk_flow_call(ctx, "actor", "export_hf", NULL, options, NULL, &result));
    rk_driver_result_fini(&result);
    return NULL;
}

struct rk_status *rk_flow_check_export(struct rk_flow_context *ctx)
{
    struct rk_status *st = ctx->export_path ? call_export(ctx, true) : NULL;

    return st ? RK_WRAP(st, "stopped before training, because the model cannot be saved to %s",
                        ctx->export_path)
              : NULL;
}

struct rk_status *rk_flow_export(struct rk_flow_context *ctx)
{
    char *tokenizer;

    RK_TRY(call_export(ctx, false));
    if (access(ctx->export_path, W_OK) != 0) { /* the disk, or the directory, belongs to the daemons */
        RK_WARN("the exported model has no tokenizer: cannot write to %s: %s; copy the files of %s there",
                ctx->export_path, strerror(errno), ctx->inputs->tokenizer_dir);
        return NULL;
    }
    RK_TRY(rk_flow_write_tokenizer(ctx->inputs, ctx->export_path));
    tokenizer = rk_path_join(ctx->export_path, TOKENIZER_FILE);
    ctx->has_tokenizer = access(tokenizer, F_OK) == 0;
    rk_free(tokenizer);
    if (!ctx->has_tokenizer)
        RK_WARN("the exported model has no tokenizer: %s has no file %s", ctx->inputs->tokenizer_dir,
                TOKENIZER_FILE);
    return NULL;
}
