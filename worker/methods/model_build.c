#include "worker/methods/model_build_internal.h"

#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_file_kind.h"
#include "base/rk_str.h"

#define CONFIG_BYTES_MAX (1 << 20) /* a config.json has a few kilobytes */

/* --- options --- */

/* model.override_config: values in place of config.json's. */
static struct rk_status *override_config(struct rk_model_build *build, const struct rk_json *options)
{
    int64_t max_positions = 0;

    RK_TRY(rk_json_opt_i64(options, "", RK_KNOB_MAX_POSITIONS, 1, INT32_MAX, &max_positions));
    if (max_positions > 0 && rk_json_type(build->hf_config) == RK_JSON_OBJECT) { /* else refused later */
        struct rk_json *config = rk_json_clone(build->hf_config);

        rk_json_free(build->hf_config);
        rk_json_set(config, "max_position_embeddings", rk_json_new_int(max_positions));
        build->hf_config = config;
    }
    return NULL;
}

/* The source of the model: the role's options, or the options of the owner of its weights. */
static struct rk_status *read_sources(struct rk_model_build *build, const struct rk_json *options)
{
    const struct rk_json *config = rk_json_find(options, "model.hf_config");
    bool has_config = !rk_json_is_null(config);
    const char *share_with = NULL;
    struct rk_status *st = NULL;

    RK_TRY(rk_json_opt_string(options, "", "model.path", &build->path));
    RK_TRY(rk_json_opt_string(options, "", "share_weights_of", &share_with));
    if ((build->path != NULL) + has_config + (share_with != NULL) != 1)
        return RK_FAIL(RK_INVALID_ARGUMENT,
                       "expected one of model.path, model.hf_config and share_weights_of, got %d",
                       (build->path != NULL) + has_config + (share_with != NULL));
    if (share_with && build->share_with)
        return RK_FAIL(
            RK_INVALID_ARGUMENT,
            "share_weights_of: role '%s' itself uses the weights of '%s' (plan_owner); name that role",
            build->share_with, share_with);
    if (build->path) {
        char *file, *kind;

        RK_TRY(rk_path_resolve(&build->dir, build->call->worker->ckpt_roots, build->path, 0));
        kind = rk_model_dir_kind(build->dir);
        if (kind) {
            st = RK_FAIL(RK_UNIMPLEMENTED, "model.path: '%s' %s", build->dir, kind);
            rk_free(kind);
            return st;
        }
        file = rk_path_join(build->dir, "config.json");
        st = rk_json_parse_file(&build->hf_config, file, CONFIG_BYTES_MAX, 0);
        rk_free(file);
        return st ? RK_WRAP(st, "model.path") : override_config(build, options);
    }
    build->hf_config = has_config ? rk_json_retain(config) : NULL;
    build->share_with = share_with ? share_with : build->share_with;
    return override_config(build, options);
}

/* The owner of the weights, if this role can use its current or planned weights. */
static struct rk_status *find_owner(struct rk_model_build *build)
{
    const struct rk_role *role = build->call->role;
    const char *name = build->share_with;
    struct rk_role *owner = build->owner = rk_role_find(build->call->worker, name);
    bool will_be_built = build->owner_options != NULL;

    if (!owner || owner == role || (!will_be_built && owner->state != RK_ROLE_STATE_AWAKE))
        return RK_FAIL_REASON(RK_FAILED_PRECONDITION, "NO_MODEL",
                              "share_weights_of: role '%s' has no model to share", name);
    if (!will_be_built && owner->weights && !rk_role_owns_weights(owner))
        return RK_FAIL(RK_INVALID_ARGUMENT,
                       "share_weights_of: role '%s' itself uses the weights of '%s'; name that role", name,
                       rk_role_name(owner->weights->owner->bit));
    if (strcmp(owner->kind->head, role->kind->head) != 0)
        return RK_FAIL(RK_INVALID_ARGUMENT,
                       "share_weights_of: role '%s' has a head '%s', role '%s' needs a head '%s'", name,
                       owner->kind->head, role->name, role->kind->head);
    if (!rk_mesh_has_same_parts(owner->mesh, role->mesh))
        return RK_FAIL(
            RK_INVALID_ARGUMENT,
            "share_weights_of: role '%s' has mesh %s, role '%s' has %s: their ranks need the same parts "
            "to share weights; without share_weights_of the role has its own, which update_weights keeps "
            "equal",
            name, rk_mesh_text(owner->mesh), role->name, rk_mesh_text(role->mesh));
    return NULL;
}

struct recompute {
    RK_RECOMPUTE_KNOBS(RK_KNOB_FIELD, , , )
};
static const struct rk_knob recompute_knobs[] = {RK_RECOMPUTE_KNOBS(RK_KNOB_ROW, struct recompute, , )};

/* Megatron's names: granularity selects recompute, the others its details. */
static struct rk_status *read_recompute(struct rk_model_desc *desc, const struct rk_json *options)
{
    struct recompute recompute;

    RK_TRY(rk_knobs_read(&recompute, recompute_knobs, RK_ARRAY_LEN(recompute_knobs), options));
    if (*recompute.granularity)
        desc->recompute_num_layers = RK_MAX(recompute.num_layers, 1);
    return NULL;
}

struct ddp {
    RK_DDP_KNOBS(RK_KNOB_FIELD, , , )
};
static const struct rk_knob ddp_knobs[] = {RK_DDP_KNOBS(RK_KNOB_ROW, struct ddp, , )};

static struct rk_status *read_optim(struct rk_optim_config *config, const struct rk_json *options)
{
    struct ddp ddp;

    RK_TRY(rk_optim_config_read(config, options));
    RK_TRY(rk_knobs_read(&ddp, ddp_knobs, RK_ARRAY_LEN(ddp_knobs), options));
    config->adds_in_shards = !ddp.grad_reduce_in_fp32;
    return NULL;
}

struct offload {
    RK_OFFLOAD_KNOBS(RK_KNOB_FIELD, , , )
};
static const struct rk_knob offload_knobs[] = {RK_OFFLOAD_KNOBS(RK_KNOB_ROW, struct offload, , )};

static struct rk_status *read_offload(struct rk_model_desc *desc, const struct rk_json *options)
{
    struct offload offload;

    RK_TRY(rk_knobs_read(&offload, offload_knobs, RK_ARRAY_LEN(offload_knobs), options));
    desc->offload = (offload.params ? RK_PART_PARAMETERS : 0u) | (offload.grads ? RK_PART_GRADIENTS : 0u) |
                    (offload.optimizer ? RK_PART_OPTIMIZER : 0u);
    return NULL;
}

static const struct rk_knob layout_knobs[] = {RK_LAYOUT_KNOBS(RK_KNOB_ROW, struct rk_model_layout, , )};

static struct rk_status *read_layout(struct rk_model_desc *desc, const struct rk_mesh *mesh,
                                     const struct rk_json *options)
{
    struct rk_model_layout *layout = &desc->layout;

    RK_TRY(rk_knobs_read(layout, layout_knobs, RK_ARRAY_LEN(layout_knobs), options));
    if (rk_mesh_axis_size(mesh, RK_AXIS_PP) > 1)
        return NULL;
    if (layout->vpp > 1 || layout->num_layers_in_first_pipeline_stage ||
        layout->num_layers_in_last_pipeline_stage)
        return RK_FAIL(RK_INVALID_ARGUMENT, "%s: expected null in a mesh with one pipeline stage (%s)",
                       layout->vpp > 1                              ? RK_KNOB_VPP
                       : layout->num_layers_in_first_pipeline_stage ? RK_KNOB_FIRST_STAGE
                                                                    : RK_KNOB_LAST_STAGE,
                       rk_mesh_text(mesh));
    return NULL;
}

static struct rk_status *read_replay(struct rk_model_replay *out, const struct rk_json *options)
{
    const char *mode;

    RK_TRY(rk_json_get_string(options, "", RK_KNOB_REPLAY, &mode));
    RK_TRY(rk_replay_read(out, mode));
    return rk_json_get_bool(options, "", RK_KNOB_REPLAY_COMPARES, &out->compares);
}

static const struct rk_knob moe_knobs[] = {RK_MOE_KNOBS(RK_KNOB_ROW, struct rk_moe_knobs, , )
                                               RK_ROUTER_KNOBS(RK_KNOB_ROW, struct rk_moe_knobs, , )};
static const struct rk_knob init_knobs[] = {RK_INIT_KNOBS(RK_KNOB_ROW, struct rk_init_knobs, , )};

static struct rk_status *read_model(struct rk_model_build *build, const struct rk_json *options)
{
    struct rk_model_desc *desc = &build->desc.model;
    const char *text;

    *desc = (struct rk_model_desc){.struct_size = sizeof(*desc),
                                   .hf_config = build->hf_config,
                                   .head = build->call->role->kind->head,
                                   .stream = build->call->worker->stream,
                                   .mesh = build->call->role->comms};
    RK_TRY(rk_json_get_string(options, "", "numerics", &text));
    RK_TRY(rk_numerics_parse(&desc->numerics, text));
    RK_TRY(rk_json_get_string(options, "", "megatron.dtype", &text));
    if (!rk_dtype_parse_hf(text, &desc->dtype))
        return RK_FAIL(RK_INVALID_ARGUMENT, "megatron.dtype: expected float32 or bfloat16, got \"%s\"", text);
    RK_TRY(read_recompute(desc, options));
    RK_TRY(read_offload(desc, options));
    RK_TRY(read_layout(desc, build->call->role->mesh, options));
    RK_TRY(rk_knobs_read(&desc->moe, moe_knobs, RK_ARRAY_LEN(moe_knobs), options));
    RK_TRY(read_replay(&desc->replay, options));
    RK_TRY(rk_knobs_read(&build->init, init_knobs, RK_ARRAY_LEN(init_knobs), options));
    RK_TRY(rk_json_opt_i64(options, "", "model.vocab_size", 1, INT32_MAX, &desc->vocab_size));
    desc->seed = (uint64_t)build->init.seed;
    return NULL;
}

/* Tokens of the largest micro-batch, of which every cp rank has its part; an option that is unset leaves 0.
 */
static struct rk_status *read_tokens(int64_t *out, const struct rk_model_build *build, const char *option)
{
    RK_TRY(rk_json_opt_i64(build->call->job->options, "", option, 1, INT32_MAX / 4, out));
    *out *= rk_mesh_axis_size(build->call->role->mesh, RK_AXIS_CP);
    return NULL;
}

/* The optimizer and the largest micro-batch. */
static struct rk_status *read_training(struct rk_model_build *build)
{
    const struct rk_json *options = build->call->job->options;
    struct rk_memory_limits *limits = &build->desc.limits;
    bool forward_only;

    RK_TRY(rk_json_get_bool(options, "", "megatron.forward_only", &forward_only));
    if (forward_only || !build->call->role->kind->can_train)
        return NULL;
    RK_TRY(read_tokens(&limits->train_tokens, build, "ppo_max_token_len_per_gpu"));
    RK_TRY(read_optim(&build->optim, options));
    build->desc.optim = &build->optim;
    return NULL;
}

static struct rk_status *read_load_format(struct rk_model_build *build)
{
    const char *format;

    RK_TRY(rk_json_get_string(build->call->job->options, "", "rollout.load_format", &format));
    if (strcmp(format, "auto") != 0 && strcmp(format, "dummy") != 0)
        return RK_FAIL(RK_INVALID_ARGUMENT, "rollout.load_format=%.32s: expected auto or dummy", format);
    build->lacks_weights = strcmp(format, "dummy") == 0;
    if (build->lacks_weights && build->share_with)
        return RK_FAIL(RK_INVALID_ARGUMENT, "rollout.load_format=dummy: expected auto with share_weights_of");
    return NULL;
}

static struct rk_status *read_rollout(struct rk_model_build *build)
{
    if (!build->call->role->kind->generates)
        return NULL;
    RK_TRY(read_load_format(build));
    build->desc.rollout = &build->rollout_config;
    return rk_rollout_config_read(&build->rollout_config, build->call->job->options);
}

struct reshard {
    RK_RESHARD_KNOBS(RK_KNOB_FIELD, , , )
};
static const struct rk_knob reshard_knobs[] = {RK_RESHARD_KNOBS(RK_KNOB_ROW, struct reshard, , )};

static struct rk_status *read_bucket(struct rk_model_build *build)
{
    struct reshard reshard;

    RK_TRY(rk_knobs_read(&reshard, reshard_knobs, RK_ARRAY_LEN(reshard_knobs), build->call->job->options));
    build->bucket_bytes = reshard.bucket_megabytes * RK_BYTES_PER_MEGABYTE;
    return NULL;
}

/* How the pipeline of the role that sends weights is divided. It may not be built yet, or not on this rank.
 */
static struct rk_status *read_source_layout(struct rk_model_build *build, const struct rk_role *source)
{
    const struct rk_json *options = rk_json_find(build->call->job->options, "update_weights_source");
    struct rk_model_desc desc = {.layout = {0}};
    struct rk_json *complete = NULL;
    struct rk_status *st = NULL;

    if (!rk_json_is_null(options)) {
        st = rk_method_complete_options(&complete, build->call->job->method, options);
        if (!st)
            st = read_layout(&desc, source->mesh, complete);
    } else if (source->model) {
        rk_model_describe(source->model, &desc);
    }
    build->desc.reshard_layout = desc.layout;
    rk_json_free(complete);
    return st ? RK_WRAP(st, "update_weights_source") : NULL;
}

/* update_weights takes its buckets from the rollout's memory, or from the actor's on ranks without a rollout.
 */
static struct rk_status *plan_updates(struct rk_model_build *build)
{
    struct rk_worker *worker = build->call->worker;
    const struct rk_role *role = build->call->role;
    const struct rk_role *source = worker->weight_update.source;
    const struct rk_role *destination = worker->weight_update.destination;
    bool takes_weights = source && role == destination && !build->share_with;
    struct rk_mesh_coords coords;

    if (!takes_weights && !rk_json_is_null(rk_json_find(build->call->job->options, "update_weights_source")))
        return RK_FAIL(
            RK_INVALID_ARGUMENT,
            "update_weights_source: expected only for a role that takes the weights of another, role "
            "'%s' does not",
            role->name);
    if (!source || !destination || build->share_with || (role != source && role != destination))
        return NULL;
    if (role == source && rk_mesh_find_coords(destination->mesh, worker->rank, &coords))
        return NULL;
    build->desc.reshard_source = source->mesh;
    build->desc.reshard_destination = destination->mesh;
    build->desc.reshard_bucket_bytes = build->bucket_bytes;
    return role == destination ? read_source_layout(build, source) : NULL;
}

static struct rk_status *make_plan(struct rk_model_build *build)
{
    struct rk_method_call *call = build->call;

    RK_TRY(plan_updates(build));
    build->desc.struct_size = sizeof(build->desc);
    build->desc.mesh = call->role->mesh;
    build->desc.rank = call->worker->rank;
    build->desc.device = call->worker->device;
    return rk_memory_plan_make(&build->plan, &build->desc);
}

/* Looks at the weights as well, before they get memory. A dry run has only their config.json. */
static struct rk_status *make_first_plan(struct rk_model_build *build)
{
    struct rk_status *st;

    if (!build->lacks_weights && !build->call->worker->config.is_dry_run)
        build->desc.weights_dir = build->dir;
    st = make_plan(build);
    build->desc.weights_dir = NULL;
    return st;
}

/* The model whose weights the role uses. */
static struct rk_status *read_owner(struct rk_model_build *build)
{
    struct rk_status *st;

    RK_TRY(find_owner(build));
    build->desc.shares_weights = true;
    if (!build->owner_options) {
        rk_model_describe(build->owner->model, &build->desc.model);
        return NULL;
    }
    st = read_sources(build, build->owner_options);
    if (!st)
        st = read_model(build, build->owner_options);
    return st ? RK_WRAP(st, "plan_owner") : NULL;
}

/* With pp fastest, as for a rollout, the driver takes the results of stage 0; the last stage has them. */
static struct rk_status *check_order(const struct rk_role *role)
{
    int32_t pp = rk_mesh_axis_size(role->mesh, RK_AXIS_PP);
    struct rk_mesh_coords last = {.axis = {[RK_AXIS_PP] = pp - 1}};

    if (rk_mesh_is_collector(role->mesh, rk_mesh_rank_at(role->mesh, &last)))
        return NULL;
    return RK_FAIL(
        RK_INVALID_ARGUMENT,
        "mesh of role '%s': order=%s with pp=%d, expected an order in which pp is not the first axis, "
        "such as " RK_MESH_ORDER_TRAIN ", or pp=1",
        role->name, rk_mesh_get_spec(role->mesh).order, pp);
}

struct rk_status *rk_model_build_prepare(struct rk_model_build *build)
{
    const struct rk_json *options = build->call->job->options;

    RK_TRY(check_order(build->call->role));
    RK_TRY(read_sources(build, options));
    RK_TRY(rk_model_build_read_plan(build));
    RK_TRY(read_tokens(&build->desc.limits.log_prob_tokens, build, "log_prob_max_token_len_per_gpu"));
    RK_TRY(rk_json_opt_i64(build->call->job->options, "", "topk", 1, RK_DISTILL_TOPK_MAX,
                           &build->desc.limits.num_ids));
    if (build->share_with) {
        RK_TRY(read_owner(build));
    } else {
        RK_TRY(read_model(build, options));
        RK_TRY(read_training(build));
    }
    RK_TRY(read_rollout(build));
    RK_TRY(read_bucket(build));
    if (build->plan_only)
        rk_model_build_count_sums(build);
    return make_first_plan(build);
}

struct rk_comm_group *rk_model_build_sums(const struct rk_model_build *build)
{
    const struct rk_model_desc *model = &build->desc.model;

    if (build->share_with || model->numerics != RK_NUMERICS_STRICT)
        return NULL;
    return rk_mesh_comms_group(model->mesh, RK_GROUP_TP);
}

/* --- the cache in the free memory --- */

/* With plan_only it follows from the options. */
static void see_room(struct rk_model_build *build)
{
    const struct rk_worker *worker = build->call->worker;

    if (build->plan_only)
        return;
    build->room = rk_memory_room_of(worker->device);
    rk_memory_room_keep(&build->room, rk_worker_away_bytes(worker, build->call->role));
}

struct rk_status *rk_model_build_fit_cache(struct rk_model_build *build)
{
    struct rk_method_call *call = build->call;
    struct rk_status *st;
    int32_t count;

    if (!build->desc.rollout)
        return NULL;
    see_room(build);
    count =
        rk_memory_plan_fit_blocks(&build->plan, &build->room, build->rollout_config.gpu_memory_utilization);
    call->peers_wait = true;
    RK_TRY(rk_engine_min(rk_mesh_comms_group(call->role->comms, RK_GROUP_ALL), call->worker->stream,
                         call->worker->agree_scratch, &count, 1)); /* block tables must be alike */
    call->peers_wait = false;
    build->rollout_config.num_kv_blocks = count;
    st = make_plan(build);
    return st ? RK_WRAP(
                    st,
                    "rollout.gpu_memory_utilization=%g of %llu free bytes, less memory other than the cache",
                    build->rollout_config.gpu_memory_utilization,
                    (unsigned long long)rk_memory_room_bytes(&build->room, &build->plan))
              : NULL;
}

/* --- making --- */

static struct rk_status *make_model(struct rk_model_build *build)
{
    if (build->owner)
        return rk_model_create_shared(&build->model, build->owner->model);
    RK_TRY(rk_model_create(&build->model, &build->desc.model));
    if (build->desc.optim)
        RK_TRY(rk_trainer_create(&build->trainer, build->model, build->desc.optim));
    return NULL;
}

static struct rk_status *take(struct rk_model_build *build)
{
    see_room(build);
    RK_TRY(rk_memory_plan_check(&build->plan, &build->room));
    RK_TRY(make_model(build));
    if (build->desc.rollout)
        RK_TRY(rk_rollout_create(&build->rollout, build->model, &build->rollout_config));
    if (!build->owner) /* copies of gradients only where calls keep them */
        RK_TRY(rk_model_reserve_offload(build->model, RK_PARTS_ALL & ~RK_PART_GRADIENTS));
    return rk_memory_plan_reserve(&build->plan, build->model);
}

struct rk_status *rk_model_build_take(struct rk_model_build *build)
{
    struct rk_status *st = take(build);

    return st ? RK_WRAP(st, "memory of role %s", build->call->role->name) : NULL;
}

struct rk_status *rk_model_build_fill(struct rk_model_build *build)
{
    const struct rk_engine_hooks *hooks = &build->call->hooks;

    if (build->owner || build->lacks_weights)
        return NULL;
    /* After the trainer was created: the masters of bf16 parameters get the full precision of the file. */
    if (build->dir)
        return rk_model_load_hf(build->model, build->dir, hooks);
    return rk_model_init_random(build->model, (uint64_t)build->init.seed, hooks);
}

void rk_model_build_fini(struct rk_model_build *build)
{
    rk_rollout_destroy(build->rollout);
    rk_trainer_destroy(build->trainer);
    rk_model_destroy(build->model);
    rk_json_free(build->hf_config);
    rk_json_free(build->owner_options);
    rk_json_free(build->sums);
    rk_free(build->dir);
}
