/* The teacher of a job, as far as its directory is on this machine: its vocabulary has to be the student's,
 * since its log-probs are those of the student's tokens. */
#include <inttypes.h>
#include <unistd.h>

#include "base/rk_alloc.h"
#include "driver-cli/files_internal.h"
#include "driver-cli/flows/flows_internal.h"
#include "driver-cli/hub_internal.h"
#include "driver-cli/job_internal.h"

/* vocab_size as the student's config.json has it, where both have one. */
static struct rk_status *check_sizes(const struct rk_flow_inputs *inputs, const char *path)
{
    struct rk_json *config = NULL;
    struct rk_status *st =
        rk_json_parse_file(&config, path, RK_FLOW_CONFIG_BYTES_MAX, RK_JSON_BIG_INT_AS_REAL);
    int64_t size, expected;

    if (st)
        return st;
    size = rk_json_as_int(rk_json_find(config, "vocab_size"), -1);
    expected = rk_json_as_int(rk_json_find(inputs->hf_config, "vocab_size"), -1);
    if (size >= 0 && expected >= 0 && size != expected)
        st = RK_FAIL(RK_INVALID_ARGUMENT,
                     "%s: vocab_size: expected %" PRId64 ", that of the student, got %" PRId64, path,
                     expected, size);
    rk_json_free(config);
    return st;
}

static struct rk_status *check_tokenizers(const struct rk_flow_inputs *inputs, const char *path)
{
    struct rk_tokenizer *teacher;
    struct rk_status *st;

    RK_TRY(rk_tokenizer_create_file(&teacher, path));
    st = rk_flow_compare_tokens(teacher, path, inputs->tokenizer, "student");
    rk_tokenizer_destroy(teacher);
    return st;
}

/* Runs the check on a file of the teacher's directory that this machine has. */
static struct rk_status *check_file(const struct rk_flow_inputs *inputs, const char *name,
                                    struct rk_status *(*check)(const struct rk_flow_inputs *inputs,
                                                               const char *path))
{
    char *path = rk_path_join(inputs->teacher_path, name);
    struct rk_status *st = access(path, F_OK) == 0 ? check(inputs, path) : NULL;

    rk_free(path);
    return st ? RK_WRAP(st, RK_JOB_TEACHER "model.path") : NULL;
}

struct rk_status *rk_flow_inputs_load_teacher(struct rk_flow_inputs *inputs, const struct rk_config *job,
                                              const char *job_dir)
{
    if (!rk_job_wants_teacher(job) || rk_config_is_null(job, RK_JOB_TEACHER "model.path"))
        return NULL;
    inputs->teacher_path = rk_hub_resolve(job_dir, rk_config_string(job, RK_JOB_TEACHER "model.path"));
    RK_TRY(check_file(inputs, "config.json", check_sizes));
    return check_file(inputs, "tokenizer.json", check_tokenizers);
}
