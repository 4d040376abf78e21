/* Members of a manifest beside the files: the model that the state belongs to, and its counters. */
#include "engine/ckpt/state_internal.h"

#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_hash.h"
#include "base/layout/rk_mesh.h"
#include "base/rk_random.h"
#include "base/rk_str.h"
#include "engine/ckpt/ckpt_internal.h"

struct rk_json *rk_state_config(const struct rk_json *hf_config)
{
    /* Keys that may differ: they name the writer, set initialization or end tokens, and do not affect
     * training. */
    static const char *const ignored[] = {
        "torch_dtype",   "dtype",        "transformers_version", "_name_or_path",
        "architectures", "use_cache",    "initializer_range",    "_attn_implementation",
        "bos_token_id",  "eos_token_id", "pad_token_id",         "attn_implementation",
    };
    struct rk_json *config = rk_json_clone(hf_config);

    for (size_t i = 0; i < RK_ARRAY_LEN(ignored); i++)
        rk_json_remove(config, ignored[i]);
    return config;
}

static char *config_hash(const struct rk_json *hf_config)
{
    struct rk_json *config = rk_state_config(hf_config);
    char *text = rk_json_dump(config, 0, true), *hex = rk_malloc(2 * RK_SHA256_BYTES + 1);
    uint8_t digest[RK_SHA256_BYTES];

    rk_sha256_of(text, strlen(text), digest);
    rk_hex(digest, sizeof(digest), hex);
    rk_free(text);
    rk_json_free(config);
    return hex;
}

struct rk_json *rk_state_format_layout(const struct rk_model *model)
{
    const struct rk_mesh *mesh = rk_mesh_comms_mesh(model->core->mesh);
    struct rk_json *layout = rk_json_new_object(), *axes = rk_json_new_object();
    char *hash = config_hash(model->core->hf_config);

    for (int axis = 0; axis < RK_AXIS_COUNT; axis++)
        rk_json_set(axes, rk_axis_name((rk_axis_t)axis),
                    rk_json_new_int(rk_mesh_axis_size(mesh, (rk_axis_t)axis)));
    rk_json_set(layout, "mesh", axes);
    rk_json_set(layout, "world_size", rk_json_new_int(rk_mesh_num_ranks(mesh)));
    rk_json_set(layout, "dtype", rk_json_new_string(rk_dtype_hf_name(model->core->dtype)));
    rk_json_set(layout, "num_elements", rk_json_new_int(rk_model_num_elements(model)));
    rk_json_set(layout, "config_sha256", rk_json_new_string(hash));
    rk_free(hash);
    return layout;
}

struct rk_json *rk_state_format_state(const struct rk_model *model)
{
    const struct rk_trainer *trainer = model->trainer;
    struct rk_json *state = rk_json_new_object(), *optimizer;

    rk_json_set(state, "weight_version", rk_json_new_int((int64_t)model->core->weight_version));
    if (!trainer || !trainer->config.ops)
        return state;
    optimizer = rk_json_new_object();
    rk_json_set(optimizer, "name", rk_json_new_string(trainer->config.ops->name));
    rk_json_set(optimizer, "dtype", rk_json_new_string(rk_dtype_hf_name(trainer->grad_dtype)));
    rk_json_set(optimizer, "applied_steps", rk_json_new_int(trainer->applied_steps));
    rk_json_set(optimizer, "lr_steps", rk_json_new_int(trainer->lr_steps));
    rk_json_set(optimizer, "skipped_in_a_row", rk_json_new_int(trainer->skipped_in_a_row));
    rk_json_set(state, "optimizer", optimizer);
    return state;
}

/* --- back --- */

/* A value for a message. */
static char *show(const struct rk_json *value)
{
    char *text = value ? rk_json_dump(value, 0, true) : rk_strdup("nothing"), *shown;

    shown = rk_format("%.64s%s", text, strlen(text) > 64 ? "..." : "");
    rk_free(text);
    return shown;
}

static struct rk_status *differs(const char *key, const struct rk_json *stored, const struct rk_json *own)
{
    char *left = show(stored), *right = show(own);
    struct rk_status *st =
        RK_FAIL(RK_INVALID_ARGUMENT, RK_HF_CONFIG_FILE ": %.64s is %s in the checkpoint and %s in the model",
                key, left, right);

    rk_free(left);
    rk_free(right);
    return st;
}

static struct rk_status *find_difference(const struct rk_json *stored, const struct rk_json *own)
{
    for (void *it = rk_json_iter(stored); it; it = rk_json_iter_next(stored, it)) {
        const char *key = rk_json_iter_key(it);

        if (!rk_json_equal(rk_json_iter_value(it), rk_json_find(own, key)))
            return differs(key, rk_json_iter_value(it), rk_json_find(own, key));
    }
    for (void *it = rk_json_iter(own); it; it = rk_json_iter_next(own, it)) {
        if (!rk_json_find(stored, rk_json_iter_key(it)))
            return differs(rk_json_iter_key(it), NULL, rk_json_iter_value(it));
    }
    return RK_FAIL(RK_INVALID_ARGUMENT, "the checkpoint is of a model with another " RK_HF_CONFIG_FILE);
}

struct rk_status *rk_state_check_layout(const struct rk_model *model, const struct rk_ckpt_manifest *manifest,
                                        const char *part_dir)
{
    const char *stored_hash = rk_json_as_string(rk_json_find(manifest->layout, "config_sha256"), "");
    char *hash = config_hash(model->core->hf_config), *path;
    struct rk_json *file = NULL, *stored, *own;
    struct rk_status *st;
    bool is_equal = strcmp(stored_hash, hash) == 0;

    rk_free(hash);
    if (is_equal)
        return NULL;
    path = rk_format("%s/" RK_STATE_HF_DIR "/" RK_HF_CONFIG_FILE, part_dir);
    RK_IGNORE(rk_json_parse_file(&file, path, 1 << 20, 0), "only the hash is used");
    stored = rk_state_config(file);
    own = rk_state_config(model->core->hf_config);
    st = file ? find_difference(stored, own)
              : RK_FAIL(RK_INVALID_ARGUMENT, "the checkpoint is of a model with another " RK_HF_CONFIG_FILE);
    rk_json_free(own);
    rk_json_free(stored);
    rk_json_free(file);
    rk_free(path);
    return st;
}

static struct rk_status *read_count(const struct rk_json *object, const char *key, int64_t *out)
{
    const struct rk_json *value = rk_json_find(object, key);

    *out = rk_json_as_int(value, -1);
    if (rk_json_type(value) == RK_JSON_INT && *out >= 0)
        return NULL;
    return RK_FAIL_REASON(RK_DATA_LOSS, "CHECKPOINT_DAMAGED",
                          RK_CKPT_MANIFEST_FILE ": state: %s: expected a count", key);
}

struct rk_status *rk_state_read_counters(struct rk_state_counters *out, const struct rk_model *model,
                                         const struct rk_ckpt_manifest *manifest, bool has_optimizer)
{
    const struct rk_json *optimizer = rk_json_find(manifest->state, "optimizer");
    const char *name = rk_json_as_string(rk_json_find(optimizer, "name"), "");
    const char *dtype = rk_json_as_string(rk_json_find(optimizer, "dtype"), "");
    const struct rk_trainer *trainer = model->trainer;

    *out = (struct rk_state_counters){0};
    RK_TRY(read_count(manifest->state, "weight_version", &out->weight_version));
    if (!has_optimizer)
        return NULL;
    if (strcmp(name, trainer->config.ops->name) != 0)
        return RK_FAIL(RK_INVALID_ARGUMENT,
                       "the checkpoint has state of optimizer '%.32s', the role has '%s'", name,
                       trainer->config.ops->name);
    if (strcmp(dtype, rk_dtype_hf_name(trainer->grad_dtype)) != 0)
        return RK_FAIL(RK_INVALID_ARGUMENT, "the checkpoint has optimizer state in %.32s, the role in %s",
                       dtype, rk_dtype_hf_name(trainer->grad_dtype));
    RK_TRY(read_count(optimizer, "applied_steps", &out->applied_steps));
    RK_TRY(read_count(optimizer, "lr_steps", &out->lr_steps));
    return read_count(optimizer, "skipped_in_a_row", &out->skipped_in_a_row);
}
