/* init_model: builds the role's model from a Hugging Face directory, at random from a configuration, or over
 * the weights of another role of equal mesh. A model that the role had is dropped first. All ranks succeed,
 * or none has one. */
#include "worker/methods/methods_internal.h"

#include <stdio.h>

#include "base/rk_alloc.h"
#include "base/rk_log.h"
#include "base/rk_str.h"

#define CONFIG_BYTES_MAX (1 << 20) /* a config.json has a few kilobytes */

/* What the options say, and what is built of it. */
struct build {
    const char *path, *share_with; /* NULL when unset */
    char *dir;                     /* resolved path; owned */
    struct rk_json *hf_config;     /* owned */
    struct rk_model *model;        /* owned until it becomes the role's */
    struct rk_rollout *rollout;
    int64_t max_model_len;
    bool is_training;
};

static struct rk_status *read_sources(struct rk_call *call, struct build *build)
{
    const struct rk_json *options = call->job->options;
    const struct rk_json *config = rk_json_find(options, "model.hf_config");
    bool has_config = !rk_json_is_null(config);
    struct rk_status *st = NULL;

    RK_TRY(rk_json_opt_string(options, "", "model.path", &build->path));
    RK_TRY(rk_json_opt_string(options, "", "share_weights_of", &build->share_with));
    if ((build->path != NULL) + has_config + (build->share_with != NULL) != 1)
        return RK_FAIL(RK_INVALID_ARGUMENT,
                       "expected one of model.path, model.hf_config and share_weights_of, got %d",
                       (build->path != NULL) + has_config + (build->share_with != NULL));
    if (build->path) {
        char *file;

        RK_TRY(rk_path_resolve(&build->dir, call->worker->ckpt_roots, build->path, 0));
        file = rk_path_join(build->dir, "config.json");
        st = rk_json_parse_file(&build->hf_config, file, CONFIG_BYTES_MAX, 0);
        rk_free(file);
        return st ? RK_WRAP(st, "model.path") : NULL;
    }
    build->hf_config = has_config ? rk_json_retain(config) : NULL;
    return NULL;
}

/* The other role's model, when this role can use its weights. */
static struct rk_status *find_owner(struct rk_call *call, const char *name, struct rk_role **out)
{
    struct rk_role *owner = *out = rk_role_find(call->worker, name);

    if (!owner || owner == call->role || owner->state != RK_ROLE_STATE_AWAKE)
        return RK_FAIL_REASON(RK_FAILED_PRECONDITION, "NO_MODEL",
                              "share_weights_of: role '%s' has no model to share", name);
    if (*owner->weights_of)
        return RK_FAIL(RK_INVALID_ARGUMENT,
                       "share_weights_of: role '%s' uses the weights of '%s': name that one", name,
                       owner->weights_of);
    if (!rk_mesh_equal(owner->mesh, call->role->mesh))
        return RK_FAIL(
            RK_INVALID_ARGUMENT,
            "share_weights_of: role '%s' has mesh %s, role '%s' has %s: they must be equal to share "
            "weights (update_weights, which moves them between meshes, comes later)",
            name, rk_mesh_text(owner->mesh), call->role->name, rk_mesh_text(call->role->mesh));
    return NULL;
}

static struct rk_status *build_own(struct rk_call *call, struct build *build)
{
    const struct rk_json *options = call->job->options;
    struct rk_model_desc desc = {
        .struct_size = sizeof(desc),
        .hf_config = build->hf_config,
        .stream = call->worker->stream,
        .mesh = call->role->comms,
    };
    const char *text;

    RK_TRY(rk_json_get_string(options, "", "numerics", &text));
    RK_TRY(rk_numerics_parse(&desc.numerics, text));
    RK_TRY(rk_json_get_string(options, "", "megatron.dtype", &text));
    if (!rk_dtype_parse_hf(text, &desc.dtype))
        return RK_FAIL(RK_INVALID_ARGUMENT, "megatron.dtype: expected float32 or bfloat16, got \"%s\"", text);
    return rk_model_create(&build->model, &desc);
}

/* After training was enabled: the masters of bf16 parameters get what a file has in more bits. */
static struct rk_status *fill_own(struct rk_call *call, struct build *build)
{
    int64_t seed;

    if (build->dir)
        return rk_model_load_hf(build->model, build->dir);
    RK_TRY(rk_json_get_i64(call->job->options, "", "megatron.seed", INT64_MIN, INT64_MAX, &seed));
    return rk_model_init_random(build->model, (uint64_t)seed);
}

static struct rk_status *build_training(struct rk_call *call, struct build *build)
{
    struct rk_optim_config config;
    bool forward_only;

    RK_TRY(rk_json_get_bool(call->job->options, "", "megatron.forward_only", &forward_only));
    if (forward_only || !call->role->kind->can_train)
        return NULL;
    RK_TRY(rk_optim_config_read(&config, call->job->options));
    build->is_training = true;
    return rk_train_enable(build->model, &config);
}

static struct rk_status *build_rollout(struct rk_call *call, struct build *build)
{
    const struct rk_json *options = call->job->options;
    struct rk_rollout_config config = {0};
    int64_t max_num_seqs;

    if (!call->role->kind->generates)
        return NULL;
    RK_TRY(rk_json_get_i64(options, "", "rollout.max_num_seqs", 1, INT32_MAX, &max_num_seqs));
    RK_TRY(rk_json_get_i64(options, "", "rollout.max_num_batched_tokens", 1, INT32_MAX,
                           &config.max_num_batched_tokens));
    RK_TRY(rk_json_opt_i64(options, "", "rollout.max_model_len", 2, INT32_MAX, &config.max_model_len));
    config.max_num_seqs = (int32_t)max_num_seqs;
    build->max_model_len = config.max_model_len > 0
                               ? config.max_model_len
                               : rk_model_get_config(build->model)->max_position_embeddings;
    return rk_rollout_create(&build->rollout, build->model, &config);
}

static struct rk_status *build_all(struct rk_call *call, struct build *build)
{
    if (!call->role->kind->is_built)
        return RK_FAIL(RK_UNIMPLEMENTED, "role '%s' is not implemented: its model needs a head of its own",
                       call->role->name);
    RK_TRY(read_sources(call, build));
    if (build->share_with) {
        struct rk_role *owner;

        RK_TRY(find_owner(call, build->share_with, &owner));
        RK_TRY(rk_model_create_shared(&build->model, owner->model));
    } else {
        RK_TRY(build_own(call, build));
        RK_TRY(build_training(call, build));
        RK_TRY(fill_own(call, build));
    }
    return build_rollout(call, build);
}

struct rk_status *rk_m_init_model(struct rk_call *call)
{
    struct rk_role *role = call->role;
    struct build build = {0};
    struct rk_status *st;

    if (!rk_mesh_comms_is_member(role->comms))
        return NULL;
    rk_role_drop_model(call->worker, role);
    st = rk_call_agree(call, build_all(call, &build));
    rk_json_free(build.hf_config);
    rk_free(build.dir);
    if (st) {
        rk_rollout_destroy(build.rollout);
        rk_model_destroy(build.model);
        return st;
    }
    role->model = build.model;
    role->rollout = build.rollout;
    role->max_model_len = build.max_model_len;
    role->is_training = build.is_training;
    snprintf(role->weights_of, sizeof(role->weights_of), "%s", build.share_with ? build.share_with : "");
    rk_role_wake(call->worker, role);
    RK_INFO("model of role %s: %lld parameters on mesh %s", role->name,
            (long long)rk_model_num_elements(role->model), rk_mesh_text(role->mesh));
    return NULL;
}
