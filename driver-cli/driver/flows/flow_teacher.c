/* Checks of the teacher's directory, if it is on this machine: its vocabulary must be the student's,
 * since its log-probs are those of the student's tokens. It may have more padding (Qwen2.5 has 152064 rows in
 * its large models and 151936 in the small ones, of the same tokenizer), which has no probability then. */
#include <inttypes.h>
#include <unistd.h>

#include "base/rk_alloc.h"
#include "base/rk_knobs.h"
#include "driver-cli/driver/flows/flows_internal.h"
#include "driver-cli/driver/hub_internal.h"
#include "driver-cli/driver/job_internal.h"
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

static struct rk_status *check_tokens(struct rk_prompt_inputs *out, struct rk_flow_model_dir *dir,
                                      const struct rk_flow_inputs *inputs)
{
    int64_t size = rk_json_as_int(rk_json_find(dir->config, "vocab_size"), -1);
    int64_t student_size = rk_json_as_int(rk_json_find(inputs->hf_config, "vocab_size"), -1);
    char *file = rk_path_join(out->teacher_path, "tokenizer.json");
    struct rk_status *st = NULL;

    if (access(file, F_OK) == 0)
        st = rk_flow_open_tokenizer(&dir->tokenizer, &dir->tokenizer_dir, file, file);
    rk_free(file);
    RK_TRY(st);
    RK_TRY(rk_flow_check_same_tokens(dir, inputs, "it is needed to show that the difference is padding"));
    if (student_size >= 0 && size > student_size)
        out->teacher_vocab_size = student_size;
    return NULL;
}

struct rk_status *rk_flow_load_teacher(struct rk_prompt_inputs *out, const struct rk_flow_inputs *inputs,
                                       const struct rk_config *job, const char *job_dir)
{
    int64_t student_size = rk_json_as_int(rk_json_find(inputs->hf_config, "vocab_size"), -1);
    struct rk_flow_model_dir dir;
    struct rk_status *st;

    if (!rk_job_wants_teacher(job) || rk_config_is_null(job, RK_JOB_TEACHER "model.path"))
        return NULL;
    if (student_size >= 0)
        RK_TRY(check_topk(job, student_size));
    out->teacher_path = rk_hub_resolve(job_dir, rk_config_string(job, RK_JOB_TEACHER "model.path"));
    st = rk_flow_model_dir_open(&dir, out->teacher_path);
    if (!st)
        st = check_tokens(out, &dir, inputs);
    if (!st)
        st = rk_flow_check_model(job, RK_ROLE_TEACHER, dir.config);
    rk_flow_model_dir_fini(&dir);
    return st ? RK_WRAP(st, RK_JOB_TEACHER "model.path") : NULL;
}
