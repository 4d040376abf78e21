/* The driver's part of a checkpoint. Everything that a step takes from the driver follows from its number,
 * the configuration and the data: the state has these, with their positions, and a run may resume from it
 * only if they are unchanged. */
#include "rl/rk_checkpoints.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/rk_alloc.h"
#include "base/rk_hash.h"
#include "base/rk_random.h"
#include "base/rk_time.h"
#include "base/rk_file.h"
#include "base/rk_small_file.h"
#include "rl/rk_job.h"

#define READ_BYTES  (1 << 20)
#define TEXT_LENGTH 60 /* of a value in a message */

struct rk_run_position rk_run_position_after(const struct rk_config *job, int64_t num_rows, int64_t step)
{
    int64_t num_prompts = rk_config_int(job, "data.train_batch_size");
    int64_t num_samples = rk_config_int(job, RK_JOB_ROLLOUT "n");
    int64_t steps_per_epoch = RK_MAX(num_rows / num_prompts, 1);

    return (struct rk_run_position){
        .epoch = step / steps_per_epoch,
        .next_row = step % steps_per_epoch * num_prompts,
        .num_rows = num_rows,
        .next_random_stream = step * num_prompts * num_samples,
    };
}

static struct rk_status *read_count(int64_t *out, const struct rk_json *state, const char *path)
{
    const struct rk_json *value = rk_json_find_path(state, path);

    *out = rk_json_as_int(value, -1);
    if (*out < 0)
        return RK_FAIL_REASON(RK_DATA_LOSS, "CHECKPOINT_DAMAGED", "the driver's state has no count at %s",
                              path);
    return NULL;
}

struct rk_status *rk_run_position_read(struct rk_run_position *out, const struct rk_json *state)
{
    RK_TRY(read_count(&out->epoch, state, "data.epoch"));
    RK_TRY(read_count(&out->next_row, state, "data.next_row"));
    RK_TRY(read_count(&out->num_rows, state, "data.num_rows"));
    RK_TRY(read_count(&out->next_random_stream, state, "sampling.next_stream"));
    if (out->next_row >= out->num_rows)
        return RK_FAIL_REASON(RK_DATA_LOSS, "CHECKPOINT_DAMAGED",
                              "the driver's state has data.next_row=%lld of data.num_rows=%lld",
                              (long long)out->next_row, (long long)out->num_rows);
    return NULL;
}

/* --- identity --- */

static struct rk_status *hash_file(struct rk_json **out, const char *path)
{
    uint8_t digest[RK_SHA256_BYTES];
    char text[2 * RK_SHA256_BYTES + 1];
    struct rk_sha256 sha;
    struct rk_status *st = NULL;
    FILE *file;
    uint8_t *part;
    int64_t bytes = 0;
    size_t got;

    *out = NULL;
    RK_TRY(rk_open_input(&file, path));
    part = rk_malloc(READ_BYTES);
    rk_sha256_init(&sha);
    while ((got = fread(part, 1, READ_BYTES, file)) > 0) {
        rk_sha256_update(&sha, part, got);
        bytes += (int64_t)got;
    }
    if (ferror(file))
        st = rk_file_errno("cannot read", path);
    fclose(file);
    rk_free(part);
    rk_sha256_final(&sha, digest);
    RK_TRY(st);
    *out = rk_json_new_object();
    rk_json_set(*out, "path", rk_json_new_string(path));
    rk_json_set(*out, "bytes", rk_json_new_int(bytes));
    rk_json_set(*out, "sha256", rk_json_new_string(rk_hex(digest, sizeof(digest), text)));
    return NULL;
}

static struct rk_status *hash_data(struct rk_json *data, const struct rk_config *job, const char *job_dir)
{
    const struct rk_json *list = rk_config_json(job, "data.train_files");
    struct rk_json *files = rk_json_new_array();
    struct rk_status *st = NULL;

    for (int64_t i = 0; i < rk_json_count(list) && !st; i++) {
        char *path = rk_resolve_path(job_dir, rk_json_as_string(rk_json_at(list, i), ""));
        struct rk_json *file;

        st = hash_file(&file, path);
        if (!st)
            rk_json_append(files, file);
        rk_free(path);
    }
    rk_json_set(data, "files", files);
    return st ? RK_WRAP(st, "data.train_files") : NULL;
}

static struct rk_status *hash_tokenizer(struct rk_json *data, const struct rk_config *job,
                                        const char *job_dir, const struct rk_flow_inputs *inputs)
{
    const char *given = rk_config_string(job, RK_JOB_MODEL "tokenizer_path");
    char *path = rk_resolve_path(job_dir, given ? given : inputs->tokenizer_dir);
    struct rk_json *file;
    struct rk_status *st;
    struct stat info;

    if (stat(path, &info) == 0 && S_ISDIR(info.st_mode)) {
        rk_free(path);
        path = rk_path_join(inputs->tokenizer_dir, "tokenizer.json");
    }
    st = hash_file(&file, path);
    rk_free(path);
    if (st)
        return RK_WRAP(st, RK_JOB_MODEL "tokenizer_path");
    rk_json_set(data, "tokenizer", file);
    return NULL;
}

struct rk_status *rk_run_identity_make(struct rk_json **out, const struct rk_config *job, const char *job_dir,
                                       const struct rk_flow_inputs *inputs)
{
    struct rk_json *identity = rk_json_new_object(), *data = rk_json_new_object();
    struct rk_json *model = rk_json_new_object();
    struct rk_status *st;

    *out = NULL;
    rk_json_set(identity, "data", data);
    rk_json_set(data, "seed", rk_json_new_int(rk_config_int(job, "data.seed")));
    rk_json_set(data, "shuffle", rk_json_new_bool(rk_config_bool(job, "data.shuffle")));
    rk_json_set(identity, "model", model);
    rk_json_set(model, "hf_config",
                inputs->hf_config ? rk_json_clone(inputs->hf_config) : rk_json_new_null());
    rk_json_set(identity, "config", rk_job_make_absolute(job, job_dir));
    st = hash_data(data, job, job_dir);
    if (!st)
        st = hash_tokenizer(data, job, job_dir, inputs);
    if (st)
        rk_json_free(identity);
    else
        *out = identity;
    return st;
}

struct rk_json *rk_run_state_make(const struct rk_json *identity, const struct rk_config *job,
                                  const struct rk_run_position *position, const struct rk_kl_ctrl *kl_ctrl,
                                  int64_t step)
{
    struct rk_json *state = rk_json_clone(identity), *data = rk_json_find(state, "data");
    char utc[32];

    rk_json_set(state, "saved_at",
                rk_json_new_string(rk_time_format_utc(rk_time_unix_ns(), utc, sizeof(utc))));
    rk_json_set(state, "global_step", rk_json_new_int(step));
    rk_json_set(data, "epoch", rk_json_new_int(position->epoch));
    rk_json_set(data, "next_row", rk_json_new_int(position->next_row));
    rk_json_set(data, "num_rows", rk_json_new_int(position->num_rows));
    rk_json_set_path(state, "sampling.seed", rk_json_new_int(rk_config_int(job, RK_JOB_ROLLOUT "seed")));
    rk_json_set_path(state, "sampling.next_stream", rk_json_new_int(position->next_random_stream));
    rk_json_set_path(state, "controllers.kl_ctrl.type",
                     rk_json_new_string(rk_config_string(job, "algorithm.kl_ctrl.type")));
    rk_json_set_path(state, "controllers.kl_ctrl.kl_coef", rk_json_new_real(kl_ctrl->kl_coef));
    rk_json_set_path(state, "metrics.step", rk_json_new_int(step));
    return state;
}

struct rk_status *rk_run_state_kl_coef(double *out, const struct rk_json *state)
{
    const struct rk_json *type = rk_json_find_path(state, "controllers.kl_ctrl.type");
    const struct rk_json *value = rk_json_find_path(state, "controllers.kl_ctrl.kl_coef");

    *out = NAN;
    if (strcmp(rk_json_as_string(type, ""), "adaptive") != 0)
        return NULL;
    *out = rk_json_as_real(value, NAN);
    if (!(isfinite(*out) && *out > 0.0))
        return RK_FAIL_REASON(RK_DATA_LOSS, "CHECKPOINT_DAMAGED",
                              "the driver's state has no number above 0 at controllers.kl_ctrl.kl_coef");
    return NULL;
}

/* --- comparison --- */

typedef enum change_kind {
    CHANGE_REFUSED, /* the meaning of the steps would change */
    CHANGE_NAMED,
    CHANGE_SILENT /* compared otherwise, or about this start only */
} change_kind_t;

/* The first matching row is used. A row that ends in . or _ matches all paths with that prefix. */
static const struct {
    const char *path;
    change_kind_t kind;
} kinds[] = {
    {"data.train_files", CHANGE_SILENT}, /* by content */
    {"data.val_", CHANGE_NAMED},
    {"data.validation_", CHANGE_NAMED},
    {"data.", CHANGE_REFUSED},
    {RK_JOB_MODEL "tokenizer_path", CHANGE_SILENT},
    {RK_JOB_MODEL "hf_config_path", CHANGE_SILENT},
    {RK_JOB_ACTOR "megatron.dtype", CHANGE_REFUSED},
    {RK_JOB_ROLLOUT "n", CHANGE_REFUSED},
    {RK_JOB_ROLLOUT "seed", CHANGE_REFUSED},
    {"algorithm.type", CHANGE_REFUSED},
    {"algorithm.adv_estimator", CHANGE_REFUSED},
    {"algorithm.filter_groups.enable", CHANGE_REFUSED},
    {"trainer.resume_", CHANGE_SILENT},
};

struct comparison {
    struct rk_str *problems, *changes;
};

static change_kind_t kind_of(const char *path)
{
    for (size_t i = 0; i < RK_ARRAY_LEN(kinds); i++) {
        const char *row = kinds[i].path;
        bool is_prefix = rk_str_has_suffix(row, ".") || rk_str_has_suffix(row, "_");

        if (is_prefix ? rk_str_has_prefix(path, row) : strcmp(path, row) == 0)
            return kinds[i].kind;
    }
    return CHANGE_NAMED;
}

static void tell_change(struct rk_str *out, const char *path, const struct rk_json *saved,
                        const struct rk_json *now)
{
    char *before = rk_json_dump(saved, 0, true), *after = rk_json_dump(now, 0, true);

    rk_str_appendf(out, "%s: %.*s%s in the checkpoint, %.*s%s now\n", path, TEXT_LENGTH, before,
                   strlen(before) > TEXT_LENGTH ? "..." : "", TEXT_LENGTH, after,
                   strlen(after) > TEXT_LENGTH ? "..." : "");
    rk_free(before);
    rk_free(after);
}

/* Members that are in only one of the two have since been added to or removed from rankd, and are ignored. */
static void compare(const struct comparison *comparison, const char *path, const struct rk_json *saved,
                    const struct rk_json *now)
{
    change_kind_t kind;

    if (rk_json_type(saved) == RK_JSON_OBJECT && rk_json_type(now) == RK_JSON_OBJECT) {
        for (void *it = rk_json_iter(saved); it; it = rk_json_iter_next(saved, it)) {
            const struct rk_json *other = rk_json_find(now, rk_json_iter_key(it));
            char *below = rk_format("%s%s%s", path, *path ? "." : "", rk_json_iter_key(it));

            if (other)
                compare(comparison, below, rk_json_iter_value(it), other);
            rk_free(below);
        }
        return;
    }
    kind = kind_of(path);
    if (kind == CHANGE_SILENT || rk_json_equal(saved, now))
        return;
    tell_change(kind == CHANGE_REFUSED ? comparison->problems : comparison->changes, path, saved, now);
}

static void check_files(struct rk_str *problems, const struct rk_json *saved, const struct rk_json *now)
{
    int64_t count = rk_json_count(saved);

    if (count != rk_json_count(now))
        rk_str_appendf(problems, "data.train_files: %lld files in the checkpoint, %lld now\n",
                       (long long)count, (long long)rk_json_count(now));
    for (int64_t i = 0; i < RK_MIN(count, rk_json_count(now)); i++) {
        const struct rk_json *file = rk_json_at(now, i);

        if (strcmp(rk_json_as_string(rk_json_find(rk_json_at(saved, i), "sha256"), ""),
                   rk_json_as_string(rk_json_find(file, "sha256"), "")) != 0)
            rk_str_appendf(problems, "data.train_files: the content of '%s' differs from the checkpoint\n",
                           rk_json_as_string(rk_json_find(file, "path"), ""));
    }
}

/* The model by its config.json; if that is only on the daemons' hosts, by its path. */
static void check_model(const struct comparison *comparison, const struct rk_json *saved,
                        const struct rk_json *now)
{
    static const char path[] = "config." RK_JOB_MODEL "path";
    const struct rk_json *before = rk_json_find_path(saved, "model.hf_config");
    const struct rk_json *after = rk_json_find_path(now, "model.hf_config");

    if (rk_json_is_null(before) || rk_json_is_null(after)) {
        if (!rk_json_equal(rk_json_find_path(saved, path), rk_json_find_path(now, path)))
            rk_str_append(
                comparison->problems, RK_JOB_MODEL
                "path: not the path in the checkpoint, and this host has no config.json to compare\n");
        return;
    }
    for (void *it = rk_json_iter(before); it; it = rk_json_iter_next(before, it)) {
        const struct rk_json *other = rk_json_find(after, rk_json_iter_key(it));
        char *name = rk_format("config.json of the model: %s", rk_json_iter_key(it));

        if (other && !rk_json_equal(rk_json_iter_value(it), other))
            tell_change(comparison->problems, name, rk_json_iter_value(it), other);
        rk_free(name);
    }
}

static struct rk_status *check_position(struct rk_str *problems, const struct rk_json *state,
                                        const struct rk_run_position *position, int64_t step)
{
    const struct {
        const char *path;
        int64_t expected;
    } rows[] = {
        {"global_step", step},
        {"data.num_rows", position->num_rows},
        {"data.epoch", position->epoch},
        {"data.next_row", position->next_row},
        {"sampling.next_stream", position->next_random_stream},
    };

    for (size_t i = 0; i < RK_ARRAY_LEN(rows); i++) {
        const struct rk_json *value = rk_json_find_path(state, rows[i].path);

        if (!value || rk_json_type(value) != RK_JSON_INT)
            return RK_FAIL_REASON(RK_DATA_LOSS, "CHECKPOINT_DAMAGED",
                                  "the driver's state has no integer at %s", rows[i].path);
        if (rk_json_as_int(value, 0) != rows[i].expected)
            rk_str_appendf(problems, "%s: %lld in the checkpoint, %lld now\n", rows[i].path,
                           (long long)rk_json_as_int(value, 0), (long long)rows[i].expected);
    }
    return NULL;
}

struct rk_status *rk_run_state_check(const struct rk_json *state, const struct rk_json *identity,
                                     const struct rk_run_position *position, int64_t step,
                                     struct rk_str *changes)
{
    static const char *const needed[] = {"data.files", "data.tokenizer.sha256", "model.hf_config", "config"};
    struct rk_str problems = {0};
    struct comparison comparison = {&problems, changes};
    struct rk_status *st;

    for (size_t i = 0; i < RK_ARRAY_LEN(needed); i++) {
        if (!rk_json_find_path(state, needed[i]))
            return RK_FAIL_REASON(RK_DATA_LOSS, "CHECKPOINT_DAMAGED", "the driver's state has no %s",
                                  needed[i]);
    }
    compare(&comparison, "", rk_json_find(state, "config"), rk_json_find(identity, "config"));
    check_files(&problems, rk_json_find_path(state, "data.files"), rk_json_find_path(identity, "data.files"));
    if (!rk_json_equal(rk_json_find_path(state, "data.tokenizer.sha256"),
                       rk_json_find_path(identity, "data.tokenizer.sha256")))
        rk_str_appendf(&problems,
                       RK_JOB_MODEL "tokenizer_path: the content of '%s' differs from the checkpoint\n",
                       rk_json_as_string(rk_json_find_path(identity, "data.tokenizer.path"), ""));
    check_model(&comparison, state, identity);
    st = check_position(&problems, state, position, step);
    if (!st && problems.bytes > 0)
        st = RK_FAIL(
            RK_INVALID_ARGUMENT,
            "this job cannot resume from the checkpoint:\n%s"
            "to train its model in another way, export it (rankctl checkpoint export), set " RK_JOB_MODEL
            "path, and name another trainer.default_local_dir",
            rk_str_text(&problems));
    rk_str_fini(&problems);
    return st;
}
