/* The input of a verification: the command line, the job, the model. Failures are usage errors (exit code
 * 2). */
#include "cmd/verify_run_internal.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/rk_alloc.h"
#include "base/format/rk_ckpt_dir.h"
#include "base/rk_env.h"
#include "base/rk_log.h"
#include "cmd/model_dirs_internal.h"
#include "base/rk_file.h"
#include "rl/rk_job.h"

/* Tolerance of float32: sums of up to TOLERANCE_TERMS products in another order; the rounding error of longer
 * ones grows as the square root of their length. Of bfloat16, 8 bits: their mean square, 2^-16, through all
 * layers. docs/verify-layout.md has figures of models. */
#define TOLERANCE_F32   1e-5
#define TOLERANCE_TERMS 1024.0
#define TOLERANCE_BF16  1e-2

/* --- the command line --- */

static struct rk_status *read_world(struct rk_verification *v)
{
    const char *local = rk_cli_find(v->cli, "local");
    int64_t count = 0;

    if (!local) {
        RK_TRY(rk_cli_hosts(v->cli, &v->hosts));
        if (v->hosts.count == 0)
            return RK_FAIL(RK_INVALID_ARGUMENT, "no daemons given; use --local N, --hosts or RANKCTL_HOSTS");
        if (!rk_cli_has(v->cli, "work-dir"))
            return RK_FAIL(RK_INVALID_ARGUMENT,
                           "--hosts needs --work-dir DIR, a directory that the daemons and "
                           "this machine share, below their ckpt.roots");
        v->world_size = v->hosts.count;
        return NULL;
    }
    if (!rk_parse_i64(local, &count) || count < 1 || count > RK_MESH_MAX_RANKS)
        return RK_FAIL(RK_INVALID_ARGUMENT, "--local=%s: expected a number of daemons", local);
    if (rk_cli_has(v->cli, "hosts") || rk_cli_has(v->cli, "token-file"))
        return RK_FAIL(RK_INVALID_ARGUMENT,
                       "--local starts its own daemons; expected without --hosts and --token-file");
    v->world_size = (int32_t)count;
    return NULL;
}

static struct rk_status *read_count(int64_t *out, const struct rk_cli *cli, const char *name)
{
    const char *text = rk_cli_find(cli, name);

    if (!text || (rk_parse_i64(text, out) && *out >= 1 && *out <= 1 << 24))
        return NULL;
    return RK_FAIL(RK_INVALID_ARGUMENT, "--%s=%s: expected a number from 1 to %d", name, text, 1 << 24);
}

static struct rk_status *read_options(struct rk_verification *v)
{
    const char *dtype = rk_cli_find(v->cli, "dtype"), *tolerance = rk_cli_find(v->cli, "tolerance");
    struct rk_verify_measure *measure = &v->report.measure;
    int64_t seed = 1;

    RK_TRY(read_world(v));
    v->options.dtype = dtype ? dtype : "float32";
    measure->by_mean_square = strcmp(v->options.dtype, "bfloat16") == 0;
    if (!measure->by_mean_square && strcmp(v->options.dtype, "float32") != 0)
        return RK_FAIL(RK_INVALID_ARGUMENT, "--dtype=%s: expected float32 or bfloat16", dtype);
    measure->tolerance = measure->by_mean_square ? TOLERANCE_BF16 : TOLERANCE_F32;
    if (tolerance &&
        !(rk_parse_f64(tolerance, &measure->tolerance) && measure->tolerance > 0 && measure->tolerance < 1))
        return RK_FAIL(RK_INVALID_ARGUMENT, "--tolerance=%s: expected a number between 0 and 1", tolerance);
    RK_TRY(read_count(&v->options.num_rows, v->cli, "rows"));
    RK_TRY(read_count(&v->options.num_layers, v->cli, "layers"));
    RK_TRY(read_count(&seed, v->cli, "seed"));
    v->options.seed = (uint64_t)seed;
    v->report.dtype = v->options.dtype;
    v->report.job = rk_cli_job_args(v->cli, 0).name;
    return NULL;
}

/* --- the directory of both checkpoints --- */

static struct rk_status *make_work_dir(struct rk_verification *v)
{
    const char *given = rk_cli_find(v->cli, "work-dir");
    const char *root = given ? given : rk_env("TMPDIR") ? rk_env("TMPDIR") : "/tmp";
    char resolved[PATH_MAX], *path;

    if (!realpath(root, resolved))
        return rk_file_errno("cannot find the directory", root);
    path = rk_format("%s/rankctl-verify-XXXXXX", resolved);
    if (!mkdtemp(path)) {
        rk_free(path);
        return rk_file_errno("cannot make a directory in", root);
    }
    v->work_dir = path;
    v->options.work_dir = path;
    if (v->hosts.count > 0 && chmod(path, 0777) != 0) /* the daemons may run as another user */
        return rk_file_errno("cannot change the mode of", path);
    return NULL;
}

void rk_verification_remove_dir(struct rk_verification *v, const struct rk_status *st)
{
    rk_code_t code = rk_status_code(st);
    bool keeps_logs = v->hosts.count == 0 && (code == RK_INTERNAL || code == RK_UNAVAILABLE ||
                                              code == RK_DEADLINE_EXCEEDED || code == RK_ABORTED);
    const struct rk_verify_side *sides[] = {&v->layout, &v->reference};
    struct rk_status *failure = NULL;

    if (!v->work_dir)
        return;
    for (size_t i = 0; i < RK_ARRAY_LEN(sides) && keeps_logs; i++) {
        char *step_dir = sides[i]->dir ? rk_ckpt_step_dir(sides[i]->dir, 1) : NULL;

        if (step_dir)
            failure = rk_status_first(failure, rk_ckpt_remove(step_dir));
        rk_free(step_dir);
    }
    if (!keeps_logs)
        failure = rk_ckpt_remove(v->work_dir);
    if (failure)
        RK_WARN("cannot remove '%s': %s", v->work_dir, rk_status_message(failure));
    rk_status_free(failure);
    rk_free(v->work_dir);
    v->work_dir = NULL;
}

/* --- the jobs --- */

struct rk_status *rk_verification_load_job(struct rk_config **out, const struct rk_verification *v,
                                           const struct rk_verify_keys *more)
{
    const struct rk_verify_keys *lists[] = {&v->keys, more};
    RK_ARRAY(const char *) keys = {0};
    struct rk_status *st;

    for (size_t k = 0; k < RK_ARRAY_LEN(lists); k++) {
        for (int64_t i = 0; lists[k] && i < lists[k]->items.count; i++)
            rk_array_append(&keys, lists[k]->items.items[i]);
    }
    st = rk_cli_load_job(out, v->cli, 0, keys.items, keys.count);
    rk_array_fini(&keys);
    return st;
}

/* The user's job, and the changes of both sides. */
static struct rk_status *read_job(struct rk_verification *v)
{
    struct rk_config *job;
    struct rk_status *st;

    RK_TRY(rk_verification_load_job(&job, v, NULL));
    st = rk_job_check(job, v->world_size);
    v->job_dir = rk_cli_directory_of(rk_cli_job_args(v->cli, 0).path);
    if (!st)
        st = make_work_dir(v);
    if (!st)
        st = rk_verify_add_common(&v->keys, job, v->job_dir, &v->options);
    rk_config_destroy(job);
    return st;
}

/* Sets, without --tolerance, the tolerance of float32 for the model's longest sums. */
static void fit_tolerance(struct rk_verification *v)
{
    const struct rk_json *config = v->inputs.hf_config;
    int64_t hidden = rk_json_as_int(rk_json_find(config, "hidden_size"), 0);
    double terms = (double)RK_MAX(hidden, rk_json_as_int(rk_json_find(config, "intermediate_size"), 0));

    if (!v->report.measure.by_mean_square && !rk_cli_has(v->cli, "tolerance"))
        v->report.measure.tolerance = TOLERANCE_F32 * sqrt(RK_MAX(terms, TOLERANCE_TERMS) / TOLERANCE_TERMS);
}

struct rk_status *rk_verification_read(struct rk_verification *v)
{
    struct rk_status *st;

    RK_TRY(read_options(v));
    st = read_job(v);
    if (!st)
        st = rk_verification_load_job(&v->layout.job, v, NULL);
    if (!st)
        st = rk_job_check(v->layout.job, v->world_size);
    if (!st)
        st = rk_flow_inputs_load(&v->inputs, v->layout.job, v->job_dir);
    if (!st && v->hosts.count == 0)
        st = rk_model_dirs_check(v->layout.job, &v->inputs, true);
    if (!st)
        fit_tolerance(v);
    return st ? RK_WRAP(st, "%s", rk_cli_job_args(v->cli, 0).name) : NULL;
}
