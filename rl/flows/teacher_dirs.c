/* The teachers of a job, and which of them a row of the data has. Checks their directories, if they are on
 * this machine: the vocabulary of a teacher must be the student's, since its log-probs are those of the
 * student's tokens. It may have more padding (Qwen2.5 has 152064 rows in its large models and 151936 in the
 * small ones, of the same tokenizer), which has no probability then. */
#include <inttypes.h>
#include <string.h>
#include <unistd.h>

#include "base/rk_alloc.h"
#include "base/config/rk_knobs.h"
#include "base/rk_log.h"
#include "rl/rk_flows.h"
#include "rl/rk_hub.h"
#include "rl/rk_job.h"
#include "proto/rk_methods.h"

static struct rk_status *check_topk(const struct rk_config *job, int64_t vocab_size)
{
    int64_t topk = rk_config_int(job, RK_KNOB_DISTILL "topk");

    if (!rk_job_distills_topk(job) || topk <= vocab_size)
        return NULL;
    return RK_FAIL(RK_INVALID_ARGUMENT,
                   RK_KNOB_DISTILL "topk=%" PRId64 ": expected at most %" PRId64
                                   ", the vocab_size of the student",
                   topk, vocab_size);
}

static struct rk_status *check_tokens(struct rk_flow_teacher *out, struct rk_flow_model_dir *dir,
                                      const struct rk_flow_inputs *inputs)
{
    int64_t size = rk_json_as_int(rk_json_find(dir->config, "vocab_size"), -1);
    int64_t student_size = rk_json_as_int(rk_json_find(inputs->hf_config, "vocab_size"), -1);
    char *file = rk_path_join(out->path, "tokenizer.json");
    struct rk_status *st = NULL;

    if (access(file, F_OK) == 0)
        st = rk_flow_open_tokenizer(&dir->tokenizer, &dir->tokenizer_dir, file, file);
    rk_free(file);
    RK_TRY(st);
    RK_TRY(rk_flow_check_same_tokens(dir, inputs, "it is needed to show that the difference is padding"));
    if (student_size >= 0 && size > student_size)
        out->vocab_size = student_size;
    return NULL;
}

static struct rk_status *load_teacher(struct rk_flow_teacher *out, const struct rk_flow_inputs *inputs,
                                      const struct rk_config *job, const char *job_dir)
{
    struct rk_flow_model_dir dir;
    struct rk_status *st;

    out->path = rk_hub_resolve(job_dir, rk_config_string(job, out->role->model));
    st = rk_flow_model_dir_open(&dir, out->path);
    if (!st)
        st = check_tokens(out, &dir, inputs);
    if (!st)
        st = rk_flow_check_model(job, out->role->bit, dir.config);
    rk_flow_model_dir_fini(&dir);
    return st ? RK_WRAP(st, "%s", out->role->model) : NULL;
}

struct rk_status *rk_flow_load_teachers(struct rk_flow_teachers *out, const struct rk_flow_inputs *inputs,
                                        const struct rk_config *job, const char *job_dir)
{
    int64_t student_size = rk_json_as_int(rk_json_find(inputs->hf_config, "vocab_size"), -1);
    struct rk_job_teachers teachers = rk_job_teachers(job);

    if (teachers.count > 0 && student_size >= 0)
        RK_TRY(check_topk(job, student_size));
    if (teachers.count > 1)
        out->column = rk_config_string(job, RK_JOB_TEACHER_COLUMN);
    for (int32_t i = 0; i < teachers.count; i++) {
        struct rk_flow_teacher *teacher = &out->items[out->count++];
        const char *key = rk_job_teacher_key(job, teachers.items[i]);

        teacher->role = teachers.items[i];
        teacher->key = key ? key : "";
        RK_TRY(load_teacher(teacher, inputs, job, job_dir));
    }
    return NULL;
}

void rk_flow_teachers_fini(struct rk_flow_teachers *teachers)
{
    for (int32_t i = 0; i < teachers->count; i++)
        rk_free(teachers->items[i].path);
    *teachers = (struct rk_flow_teachers){0};
}

const struct rk_flow_teacher *rk_flow_teacher_find(const struct rk_flow_teachers *teachers, uint32_t role)
{
    for (int32_t i = 0; i < teachers->count; i++) {
        if (teachers->items[i].role->bit == role)
            return &teachers->items[i];
    }
    return NULL;
}

/* --- the teacher of a row --- */

static struct rk_status *unknown_key(const struct rk_flow_teachers *teachers, const char *value)
{
    struct rk_str keys = {0}, text = {0};
    struct rk_status *st;

    if (*value)
        rk_str_appendf(&text, "no teacher has the key '%.100s'", value);
    else
        rk_str_append(&text, "the row has no value, which is the key of its teacher");
    for (int32_t i = 0; i < teachers->count; i++)
        rk_str_appendf(&keys, "%s'%s'", i ? ", " : "", teachers->items[i].key);
    st = RK_FAIL(RK_INVALID_ARGUMENT, "%s: %s; the keys are %s (" RK_JOB_TEACHER_COLUMN " names the column)",
                 teachers->column, rk_str_text(&text), rk_str_text(&keys));
    rk_str_fini(&text);
    rk_str_fini(&keys);
    return st;
}

struct rk_status *rk_flow_choose_teacher(int64_t *out, const struct rk_flow_teachers *teachers,
                                         const struct rk_dataset_row *row)
{
    *out = 0;
    while (teachers->count > 1 && *out < teachers->count &&
           strcmp(teachers->items[*out].key, row->teacher) != 0)
        ++*out;
    return *out < teachers->count ? NULL : unknown_key(teachers, row->teacher);
}

struct rk_status *rk_flow_check_teacher_rows(const struct rk_flow_teachers *teachers,
                                             struct rk_dataset *dataset, const char *key)
{
    int64_t num_rows = rk_dataset_num_rows(dataset), counts[RK_JOB_TEACHERS_MAX] = {0}, teacher;

    if (teachers->count < 2)
        return NULL;
    for (int64_t i = 0; i < num_rows; i++) {
        const struct rk_dataset_row *row = rk_dataset_at(dataset, 0, i);
        struct rk_status *st = rk_flow_choose_teacher(&teacher, teachers, row);

        if (st) {
            char *place = rk_row_place_text(&row->place);

            st = RK_WRAP(st, "%s: %s", key, place);
            rk_free(place);
            return st;
        }
        counts[teacher]++;
    }
    for (int32_t i = 0; i < teachers->count; i++) {
        const struct rk_flow_teacher *row = &teachers->items[i];

        if (counts[i] == 0)
            RK_WARN("%skey=%s: no row of %s has this value in its column %s, so the teacher is not used",
                    row->role->section, row->key, key, teachers->column);
    }
    return NULL;
}
