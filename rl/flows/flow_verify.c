/* One step of a job in parts, so that two layouts can run the same: rows of the batch, passes over
 * them, targets, updates, and the resulting state of the roles (rankctl verify-layout). Rewards and
 * estimators are computed by the driver and do not depend on layouts; seeded numbers replace them, which are
 * never all 0. */
#include "base/rk_alloc.h"
#include "base/rk_str.h"
#include "rl/flows/steps_internal.h"
#include "rl/rk_job.h"
#include "proto/rk_methods.h"

#define STEP 1

const struct rk_flow_output rk_flow_outputs[] = {
    {"old_log_probs", "actor"},
    {"entropys", "actor"},
    {"ref_log_prob", "ref"},
    {"teacher_log_probs", "teacher"},
    {"teacher_topk_log_probs", "teacher"},
    {"teacher_topk_ids", NULL},
    {"values", "critic"},
    {"rm_scores", "reward"},
    {NULL, NULL},
};

/* --- passes that no training step has in this form --- */

static struct rk_status *log_prob(struct rk_flow_context *ctx)
{
    return rk_flow_add_log_probs(ctx, RK_ROLE_ACTOR, "compute_log_prob", RK_JOB_ROLLOUT,
                                 rk_json_new_object());
}

const struct rk_flow_step rk_step_verify_log_prob = {"log_prob", NULL, NULL, log_prob};

static bool has_reward_model(const struct rk_flow_context *ctx)
{
    return rk_job_role_needed(ctx->job, RK_ROLE_REWARD);
}

static struct rk_status *find_vocab_size(int64_t *out, const struct rk_flow_inputs *inputs)
{
    struct rk_flow_model_dir dir = {0};
    struct rk_status *st = rk_flow_model_dir_open(&dir, rk_flow_own_model(inputs, RK_ROLE_REWARD));

    *out = rk_json_as_int(rk_json_find(dir.config, "vocab_size"), 0);
    rk_flow_model_dir_fini(&dir);
    return st;
}

/* The rows with ids in the reward model's vocabulary: its tokenizer may differ, and the text is irrelevant
 * here. */
static struct rk_status *select_texts(struct rk_batch **out, const struct rk_flow_context *ctx)
{
    static const char *const columns[] = {"attention_mask", "position_ids", NULL}, *const no_meta[] = {NULL};
    const void *ids;
    int64_t shape[2], vocab_size;
    void *copy;

    *out = NULL;
    RK_TRY(find_vocab_size(&vocab_size, ctx->inputs));
    RK_TRY(rk_batch_get_dense(ctx->batch, "input_ids", RK_DTYPE_I64, 2, shape, &ids));
    RK_TRY(rk_batch_select(out, ctx->batch, columns, no_meta));
    RK_TRY(rk_batch_add_dense(*out, "input_ids", RK_DTYPE_I64, 2, shape, &copy));
    for (int64_t i = 0; i < shape[0] * shape[1]; i++) {
        int64_t id = ((const int64_t *)ids)[i];

        ((int64_t *)copy)[i] = vocab_size > 0 ? id % vocab_size : id;
    }
    return NULL;
}

static struct rk_status *rm_score(struct rk_flow_context *ctx)
{
    struct rk_driver_result result = {0};
    struct rk_batch *texts;
    struct rk_status *st = select_texts(&texts, ctx);

    if (!st)
        st = rk_flow_run_rm_score(&result, ctx, texts);
    if (!st)
        st = rk_batch_union(ctx->batch, result.batch);
    rk_driver_result_fini(&result);
    rk_batch_destroy(texts);
    return st;
}

const struct rk_flow_step rk_step_verify_rm_score = {"rm_score", NULL, has_reward_model, rm_score};

/* --- parts of the step --- */

static struct rk_status *run_steps(struct rk_flow_context *ctx, const struct rk_flow_step *const *steps)
{
    for (; *steps; steps++) {
        struct rk_status *st;

        if ((*steps)->is_needed && !(*steps)->is_needed(ctx))
            continue;
        if (ctx->sink.on_phase)
            ctx->sink.on_phase(ctx->sink.user, (*steps)->name);
        st = (*steps)->run(ctx);
        if (st)
            return RK_WRAP(st, "%s", (*steps)->name);
    }
    return NULL;
}

static void begin(struct rk_flow_context *ctx)
{
    ctx->step = STEP;
    rk_json_free(ctx->metrics);
    ctx->metrics = rk_json_new_object();
}

struct rk_status *rk_flow_verify_setup(struct rk_flow_context *ctx)
{
    if (ctx->sink.on_phase)
        ctx->sink.on_phase(ctx->sink.user, "init_model");
    RK_TRY(rk_flow_setup(ctx));
    return rk_job_moves_weights(ctx->job) ? rk_flow_update_weights(ctx) : NULL;
}

struct rk_status *rk_flow_verify_rows(struct rk_flow_context *ctx)
{
    begin(ctx);
    return run_steps(ctx, ctx->flow->rows);
}

struct rk_status *rk_flow_verify_take(struct rk_flow_context *ctx, const struct rk_flow_context *from)
{
    begin(ctx);
    ctx->prompt_length = from->prompt_length;
    ctx->response_length = from->response_length;
    RK_TRY(rk_batch_clone(&ctx->batch, from->batch));
    for (const struct rk_flow_output *output = rk_flow_outputs; output->name; output++)
        rk_batch_remove(ctx->batch, output->name);
    if (rk_job_records_routes(ctx->job))
        rk_batch_remove(ctx->batch, "routed_experts");
    return rk_flow_sum_rows(ctx, "attention_mask", ctx->prompt_length + ctx->response_length, &ctx->seqlens);
}

struct rk_status *rk_flow_verify_passes(struct rk_flow_context *ctx)
{
    return run_steps(ctx, ctx->flow->passes);
}

struct rk_status *rk_flow_verify_targets(struct rk_flow_context *ctx, uint64_t seed)
{
    return ctx->flow->data->put_targets ? ctx->flow->data->put_targets(ctx, seed) : NULL;
}

struct rk_status *rk_flow_verify_updates(struct rk_flow_context *ctx)
{
    return run_steps(ctx, ctx->flow->updates);
}

static struct rk_status *save_role(struct rk_flow_context *ctx, const char *role, const char *dir)
{
    struct rk_json *options = rk_json_new_object(), *contents = rk_json_new_array();
    char *path = rk_format("%s/global_step_%d/%s", dir, STEP, role);
    struct rk_driver_result result;
    struct rk_status *st;

    rk_json_append(contents, rk_json_new_string("model"));
    rk_json_append(contents, rk_json_new_string("gradients"));
    rk_json_set(options, "path", rk_json_new_string(path));
    rk_json_set(options, "global_step", rk_json_new_int(STEP));
    rk_json_set(options, "contents", contents);
    rk_free(path);
    st = rk_flow_call(ctx, role, "save_checkpoint", NULL, options, NULL, &result);
    rk_driver_result_fini(&result);
    return st;
}

struct rk_status *rk_flow_verify_save(struct rk_flow_context *ctx, const char *dir)
{
    int64_t num_roles;
    const struct rk_job_role *roles = rk_job_roles(&num_roles);

    if (ctx->sink.on_phase)
        ctx->sink.on_phase(ctx->sink.user, "save_checkpoint");
    for (int64_t i = 0; i < num_roles; i++) {
        if (roles[i].trains && rk_job_role_needed(ctx->job, roles[i].bit))
            RK_TRY(save_role(ctx, roles[i].name, dir));
    }
    return NULL;
}
