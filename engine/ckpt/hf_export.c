/* Writing a Hugging Face checkpoint.
 *
 * The tp ranks of the first model replica gather every parameter in blocks of rows; mesh rank 0 writes them
 * at offsets planned from the parameter table, so no rank ever holds a whole tensor. A file is renamed to its
 * final name when it is complete; the index is written after the shards and config.json last: a directory
 * without config.json is not a valid model. A writer that fails still takes part in the exchange of the
 * current parameter. After each parameter all ranks, those of other replicas too, agree on failures and stop
 * together. */
#include "engine/ckpt/ckpt_internal.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/rk_alloc.h"
#include "base/rk_assert.h"
#include "base/rk_fault.h"
#include "base/rk_file.h"
#include "base/layout/rk_mesh.h"
#include "base/rk_str.h"

#define SHARD_BYTES_DEFAULT ((int64_t)5000000000)

struct export_job {
    struct rk_model *model;
    const char *dir;
    bool is_writer;    /* writes RK_OUTPUT_HF */
    bool is_gatherer;  /* takes part in gathering the rows for the writer */
    int64_t *shard_of; /* [num_params] */
    int64_t num_shards;
    void *parts;  /* one gathered block of all tp ranks: [tp, rows, local_shape[1]] */
    void *joined; /* the same block with the columns joined */
    struct rk_model_walk walk;
    struct rk_status *failure; /* failure of this rank that the others do not know yet; owned */
    /* Writer only. */
    bool made_dir;
    int64_t num_published;       /* shards that have their final name */
    struct rk_st_writer *writer; /* of the current shard */
};

int64_t rk_hf_assign_shards(const struct rk_param_table *params, rk_dtype_t dtype, int64_t max_bytes,
                            int64_t *shard_of)
{
    int64_t num_shards = 0, open_bytes = 0, open_begin = 0;

    for (int64_t i = 0; i < params->count; i++)
        shard_of[i] = -1;
    for (int64_t i = 0; i <= params->count; i++) {
        const struct rk_param *param = i < params->count ? rk_params_at(params, i) : NULL;
        int64_t bytes = param ? rk_param_num_elements(param) * (int64_t)rk_dtype_bytes(dtype) : 0;

        if (param && bytes > max_bytes) {
            shard_of[i] = num_shards++;
            continue;
        }
        if (open_bytes > 0 && (!param || open_bytes + bytes > max_bytes)) {
            for (int64_t j = open_begin; j < i; j++)
                shard_of[j] = shard_of[j] < 0 ? num_shards : shard_of[j];
            num_shards++;
            open_bytes = 0;
            open_begin = i;
        }
        open_bytes += bytes;
    }
    return num_shards;
}

/* rk_free it. */
static char *shard_path(const struct export_job *job, int64_t shard)
{
    char name[64];

    if (job->num_shards == 1)
        snprintf(name, sizeof(name), RK_HF_SINGLE_FILE);
    else
        snprintf(name, sizeof(name), "model-%05lld-of-%05lld.safetensors", (long long)shard + 1,
                 (long long)job->num_shards);
    return rk_path_join(job->dir, name);
}

/* --- the directory --- */

static struct rk_status *make_dirs(const char *path, bool *made)
{
    char *copy = rk_strdup(path);
    struct rk_status *st = NULL;
    int rc = 0;

    for (char *slash = strchr(copy + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        (void)mkdir(copy, 0777); /* errors are reported by the last mkdir */
        *slash = '/';
    }
    rc = mkdir(copy, 0777);
    *made = rc == 0;
    if (rc != 0 && errno != EEXIST)
        st = RK_FAIL(errno == EACCES || errno == EROFS ? RK_PERMISSION_DENIED : RK_INVALID_ARGUMENT,
                     "creating directory '%s': %s", path, strerror(errno));
    rk_free(copy);
    return st;
}

static struct rk_status *check_holds_no_model(const char *path)
{
    DIR *stream = opendir(path);
    const struct dirent *entry;
    struct rk_status *st = NULL;

    if (!stream)
        return RK_FAIL(RK_INVALID_ARGUMENT, "'%s': %s", path, strerror(errno));
    while (!st && (entry = readdir(stream))) {
        if (strcmp(entry->d_name, RK_HF_CONFIG_FILE) == 0 || strcmp(entry->d_name, RK_HF_INDEX_FILE) == 0 ||
            rk_str_has_suffix(entry->d_name, ".safetensors"))
            st = RK_FAIL_REASON(RK_ALREADY_EXISTS, "TARGET_EXISTS",
                                "'%s' contains a model already: %.64s; expected an empty directory", path,
                                entry->d_name);
    }
    closedir(stream);
    return st;
}

static struct rk_status *prepare(struct export_job *job, int64_t max_shard_bytes)
{
    const struct rk_model_core *core = job->model->core;
    int64_t num_elements = 1;

    for (int64_t i = 0; i < core->params.count; i++) {
        int64_t part_elements = rk_model_rows_per_move(job->model, i) *
                                rk_params_owner_placement(&core->params, i).local_shape[1];

        num_elements = RK_MAX(num_elements, part_elements * rk_params_split_size(&core->params, i));
    }
    RK_TRY(rk_try_alloc(&job->parts, (size_t)num_elements * rk_dtype_bytes(core->dtype), "rows to export"));
    RK_TRY(rk_try_alloc(&job->joined, (size_t)num_elements * rk_dtype_bytes(core->dtype), "rows to export"));
    job->shard_of = rk_calloc((size_t)core->params.count, sizeof(*job->shard_of));
    job->num_shards =
        rk_hf_assign_shards(&core->params, core->dtype,
                            max_shard_bytes > 0 ? max_shard_bytes : SHARD_BYTES_DEFAULT, job->shard_of);
    if (!job->is_writer)
        return NULL;
    RK_TRY(make_dirs(job->dir, &job->made_dir));
    return check_holds_no_model(job->dir);
}

/* --- weights --- */

static struct rk_status *open_shard(struct export_job *job, int64_t shard)
{
    const struct rk_model_core *core = job->model->core;
    struct rk_st_entry *entries = rk_calloc((size_t)core->params.count, sizeof(*entries));
    char *path = shard_path(job, shard);
    int64_t count = 0;
    struct rk_status *st;

    for (int64_t i = 0; i < core->params.count; i++) {
        const struct rk_param *param = rk_params_at(&core->params, i);

        if (job->shard_of[i] != shard)
            continue;
        entries[count++] = (struct rk_st_entry){.name = param->name,
                                                .dtype = core->dtype,
                                                .rank = param->rank,
                                                .shape = {param->shape[0], param->shape[1]}};
        if (param->flags & RK_PARAM_WIDE) {
            entries[count - 1].dtype = RK_DTYPE_F32;
            entries[count - 1].shape[0] = rk_param_num_values(param);
        }
    }
    st = rk_st_writer_create(&job->writer, path, entries, count, NULL);
    rk_free(entries);
    rk_free(path);
    return st;
}

/* Joins the row blocks of a parameter that is split by columns. */
static void join_columns(const struct export_job *job, const struct rk_param_rows *rows)
{
    const struct rk_param_table *params = &job->model->core->params;
    const struct rk_param *param = rk_params_at(params, rows->param);
    size_t part_row_bytes = (size_t)rk_params_owner_placement(params, rows->param).local_shape[1] *
                            rk_dtype_bytes(job->model->core->dtype);
    char *out = job->joined;

    for (int64_t r = 0; r < rows->count; r++) {
        for (int32_t part = 0; part < param->split.num_parts; part++) {
            int64_t row = rk_param_first_rank(param, params->mesh, part) * rows->count + r;

            memcpy(out, (char *)job->parts + (size_t)row * part_row_bytes, part_row_bytes);
            out += part_row_bytes;
        }
    }
}

/* Gathers all rows at once, since the parameter is small. */
static struct rk_status *write_wide(struct export_job *job, const struct rk_param_rows *rows, int64_t entry)
{
    const struct rk_model_core *core = job->model->core;
    int64_t count = rk_param_num_values(rk_params_at(&core->params, rows->param));

    RK_ASSERT(rows->begin == 0);
    RK_ASSERT(rows->count == RK_PARAM_WIDE_PARTS * count);
    rk_param_wide_join(job->parts, core->dtype, count, job->joined);
    return rk_st_writer_write(job->writer, entry, 0, job->joined, (size_t)count * sizeof(float));
}

/* Writes the rows in job->parts to tensor `entry` of the current shard. */
static struct rk_status *write_rows(struct export_job *job, const struct rk_param_rows *rows, int64_t entry)
{
    const struct rk_param_table *params = &job->model->core->params;
    const struct rk_param *param = rk_params_at(params, rows->param);
    size_t row_bytes = (size_t)param->shape[1] * rk_dtype_bytes(job->model->core->dtype);

    if (RK_FAULT("ckpt.write"))
        return RK_FAIL(RK_INTERNAL, "fault point ckpt.write");
    if (param->flags & RK_PARAM_WIDE)
        return write_wide(job, rows, entry);
    if (param->split.dim == 1) {
        join_columns(job, rows);
        return rk_st_writer_write(job->writer, entry, (uint64_t)rows->begin * row_bytes, job->joined,
                                  (size_t)rows->count * row_bytes);
    }
    for (int32_t part = 0; part < param->split.num_parts; part++) {
        int64_t row = part * rk_params_owner_placement(params, rows->param).local_shape[0] + rows->begin;
        int64_t count = RK_MIN(rows->count, param->shape[0] - row);
        size_t from = (size_t)(rk_param_first_rank(param, params->mesh, part) * rows->count) * row_bytes;

        if (count > 0)
            RK_TRY(rk_st_writer_write(job->writer, entry, (uint64_t)row * row_bytes,
                                      (char *)job->parts + from, (size_t)count * row_bytes));
    }
    return NULL;
}

/* Agrees with all ranks on the failures so far. */
static struct rk_status *meet(struct export_job *job)
{
    struct rk_status *failure = job->failure;

    job->failure = NULL;
    return rk_model_agree(job->model, failure);
}

/* Only failures of the exchange return at once; failures of files, and a request to stop, are kept for
 * meet(). */
static struct rk_status *exchange_param(struct export_job *job, int64_t i, int64_t entry)
{
    struct rk_placement placement = rk_params_owner_placement(&job->model->core->params, i);
    bool is_held = rk_params_placement(&job->model->core->params, i)->is_held;
    struct rk_param_rows rows = {.param = i};
    int64_t step = rk_model_rows_per_move(job->model, i);

    for (; rows.begin < placement.local_shape[0]; rows.begin += rows.count) {
        rows.count = RK_MIN(step, placement.local_shape[0] - rows.begin);
        RK_TRY(rk_model_gather_rows(job->model, &rows, job->parts));
        if (job->is_writer && !job->failure)
            job->failure = write_rows(job, &rows, entry);
        job->failure = rk_status_first(
            job->failure,
            rk_model_walk_advance(&job->walk, is_held ? rows.count * placement.local_shape[1] : 0));
    }
    return NULL;
}

static struct rk_status *export_param(struct export_job *job, int64_t i, int64_t entry)
{
    int64_t num_elements = rk_placement_num_elements(rk_params_placement(&job->model->core->params, i));
    struct rk_status *st =
        job->is_gatherer ? exchange_param(job, i, entry) : rk_model_walk_advance(&job->walk, num_elements);

    job->failure = rk_status_first(st, job->failure);
    return meet(job);
}

/* A failure when the file is finished is kept for the next meet(). */
static struct rk_status *export_shard(struct export_job *job, int64_t shard)
{
    int64_t num_params = job->model->core->params.count, entry = 0;
    struct rk_status *st = NULL;

    if (job->is_writer && !job->failure)
        job->failure = open_shard(job, shard);
    for (int64_t i = 0; !st && i < num_params; i++) {
        if (job->shard_of[i] == shard)
            st = export_param(job, i, entry++);
    }
    if (job->is_writer && !st && !job->failure)
        job->failure = rk_st_writer_commit(job->writer);
    if (job->is_writer && !st && !job->failure)
        job->num_published = shard + 1;
    rk_st_writer_destroy(job->writer);
    job->writer = NULL;
    return st;
}

/* --- JSON files --- */

static struct rk_status *write_json(const char *dir, const char *name, const struct rk_json *json)
{
    char *path = rk_path_join(dir, name);
    char *text = rk_json_dump(json, 2, false);
    struct rk_str file = {0};
    struct rk_status *st;

    rk_str_appendf(&file, "%s\n", text);
    st = rk_write_file_atomic(path, file.text, file.bytes);
    rk_str_fini(&file);
    rk_free(text);
    rk_free(path);
    return st;
}

static struct rk_status *write_index(const struct export_job *job)
{
    const struct rk_model_core *core = job->model->core;
    int64_t total_bytes = rk_model_num_elements(job->model) * (int64_t)rk_dtype_bytes(core->dtype);
    struct rk_json *index = rk_json_new_object(), *metadata = rk_json_new_object(),
                   *map = rk_json_new_object();
    struct rk_status *st;

    for (int64_t i = 0; i < core->params.count; i++) {
        char *path = shard_path(job, job->shard_of[i]);

        rk_json_set(map, rk_params_at(&core->params, i)->name, rk_json_new_string(strrchr(path, '/') + 1));
        rk_free(path);
    }
    rk_json_set(metadata, "total_size", rk_json_new_int(total_bytes));
    rk_json_set(index, "metadata", metadata);
    rk_json_set(index, "weight_map", map);
    st = write_json(job->dir, RK_HF_INDEX_FILE, index);
    rk_json_free(index);
    return st;
}

/* A model with a value head is exported as token classification with one label. */
static void set_value_head(struct rk_json *config)
{
    const char *name = rk_json_as_string(rk_json_at(rk_json_find(config, "architectures"), 0), NULL);
    const char *end = name ? strstr(name, "For") : NULL;
    struct rk_json *id2label = rk_json_new_object(), *label2id = rk_json_new_object();

    if (end) {
        struct rk_json *architectures = rk_json_new_array();
        char *text = rk_format("%.*sForTokenClassification", (int)(end - name), name);

        rk_json_append(architectures, rk_json_new_string(text));
        rk_json_set(config, "architectures", architectures);
        rk_free(text);
    }
    rk_json_set(id2label, "0", rk_json_new_string("LABEL_0"));
    rk_json_set(label2id, "LABEL_0", rk_json_new_int(0));
    rk_json_set(config, "num_labels", rk_json_new_int(1));
    rk_json_set(config, "id2label", id2label);
    rk_json_set(config, "label2id", label2id);
}

struct rk_status *rk_hf_write_config(const struct rk_model *model, const char *dir)
{
    const struct rk_model_core *core = model->core;
    struct rk_json *config = rk_json_clone(core->hf_config);
    const char *key = rk_json_find(config, "dtype") ? "dtype" : "torch_dtype"; /* the newer and the older name
                                                                                * of the key */
    struct rk_status *st;

    rk_json_set(config, key, rk_json_new_string(rk_dtype_hf_name(core->dtype)));
    rk_json_remove(config, "quantization_config"); /* exports have no scales */
    if (core->config.num_nextn_predict_layers > 0)
        rk_json_set(config, "num_nextn_predict_layers", rk_json_new_int(0));
    if (core->head.ops == &rk_head_value)
        set_value_head(config);
    st = write_json(dir, RK_HF_CONFIG_FILE, config);
    rk_json_free(config);
    return st;
}

static struct rk_status *finish(const struct export_job *job)
{
    if (job->num_shards > 1)
        RK_TRY(write_index(job));
    return rk_hf_write_config(job->model, job->dir);
}

/* Removes the files that a failed export has published. */
static void clean_up(const struct export_job *job)
{
    char *index = rk_path_join(job->dir, RK_HF_INDEX_FILE);
    char *config = rk_path_join(job->dir, RK_HF_CONFIG_FILE);

    (void)unlink(config);
    (void)unlink(index);
    for (int64_t shard = 0; shard < job->num_published; shard++) {
        char *path = shard_path(job, shard);

        (void)unlink(path);
        rk_free(path);
    }
    if (job->made_dir)
        (void)rmdir(job->dir);
    rk_free(index);
    rk_free(config);
}

static struct rk_status *export_all(struct export_job *job)
{
    struct rk_status *st = NULL;

    for (int64_t shard = 0; !st && shard < job->num_shards; shard++)
        st = export_shard(job, shard);
    if (!st)
        st = meet(job);
    if (job->is_writer && !st)
        job->failure = finish(job);
    if (job->is_writer && (st || job->failure))
        clean_up(job);
    /* Agree after a failure too: no rank returns before the files are removed. */
    return rk_status_first(st, meet(job));
}

struct rk_status *rk_model_export_hf(struct rk_model *model, const char *dir, int64_t max_shard_bytes,
                                     const struct rk_engine_hooks *hooks)
{
    const struct rk_mesh_coords *coords = rk_mesh_comms_coords(model->core->mesh);
    struct export_job job = {.model = model, .dir = dir};
    struct rk_status *st;

    /* The writer's replica has all dense parameters; experts are also on ranks of other replicas. */
    job.is_gatherer = rk_mesh_axis_size(rk_mesh_comms_mesh(model->core->mesh), RK_AXIS_EP) > 1 ||
                      (coords->axis[RK_AXIS_DP] == 0 && coords->axis[RK_AXIS_CP] == 0);
    job.is_writer = rk_output_is_writer(RK_OUTPUT_HF, model->core->mesh);
    RK_ASSERT(dir || !job.is_writer);
    rk_model_walk_begin(&job.walk, model->core, "export", hooks);
    st = rk_model_agree(
        model, rk_model_check_finite(model, "nothing was written; run init_model with valid weights"));
    if (!st)
        st = rk_model_agree(model, prepare(&job, max_shard_bytes));
    if (!st)
        st = export_all(&job);
    else if (job.made_dir)
        (void)rmdir(dir);
    rk_free(job.shard_of);
    rk_free(job.parts);
    rk_free(job.joined);
    return st ? RK_WRAP(st, "exporting the model%s%s%s", dir ? " to '" : "", dir ? dir : "", dir ? "'" : "")
              : NULL;
}
