/* The end of a run: its files and its report to the user. */
#include "cmd/run_command_internal.h"

#include <inttypes.h>

#include "base/rk_time.h"

static const char *outcome_of(const struct rk_status *st)
{
    return !st ? "succeeded" : rk_status_code(st) == RK_CANCELLED ? "interrupted" : "failed";
}

static struct rk_json *make_summary(const struct rk_run_command *run, const struct rk_status *st)
{
    struct rk_json *summary = rk_json_new_object();

    rk_json_set(summary, "status", rk_json_new_string(outcome_of(st)));
    if (st)
        rk_json_set(summary, "error", rk_cli_status_json(st));
    rk_json_set(summary, "num_daemons", rk_json_new_int(run->world_size));
    rk_json_set(summary, "total_steps", rk_json_new_int(run->flow.total_steps));
    rk_json_set(summary, "prompts_left_out_of_an_epoch", rk_json_new_int(run->flow.num_left_out));
    rk_json_set(summary, "seconds", rk_json_new_real((double)(rk_time_now_ns() - run->started_ns) / 1e9));
    if (run->rows)
        rk_json_set(summary, "data", rk_json_retain(run->rows));
    if (run->validation)
        rk_json_set(summary, "validation", rk_json_retain(run->validation));
    if (run->is_exported) {
        rk_json_set(summary, "model", rk_json_new_string("hf"));
        rk_json_set(summary, "has_tokenizer", rk_json_new_bool(run->flow.has_tokenizer));
    }
    return summary;
}

/* The means, one per line. */
static void print_validation(const struct rk_json *validation)
{
    for (void *it = rk_json_iter(validation); it; it = rk_json_iter_next(validation, it)) {
        if (rk_run_is_validation(rk_json_iter_key(it)))
            printf("validation of step %" PRId64 ": %s %.4f\n",
                   rk_json_as_int(rk_json_find(validation, "step"), 0), rk_json_iter_key(it),
                   rk_json_as_real(rk_json_iter_value(it), 0.0));
    }
}

static void print_outcome(const struct rk_run_command *run)
{
    int64_t num_steps = run->flow.step - run->checkpoints.resume_step; /* of this command */
    int64_t first = RK_MIN(run->flow.step, 3), last = RK_MIN(run->flow.step, 10);

    if (run->validation)
        print_validation(run->validation);
    if (run->flow.validates_only) {
        printf("run directory: %s (report.html, metrics.jsonl)\n", run->dir.path);
        return;
    }
    printf("%" PRId64 " step%s in %.1f s; mean %s %.4f in the first %" PRId64 ", %.4f in the last %" PRId64
           "\n",
           num_steps, num_steps == 1 ? "" : "s", (double)(rk_time_now_ns() - run->started_ns) / 1e9,
           run->dir.curve ? run->dir.curve->name : "reward", rk_run_dir_mean(&run->dir, false, first), first,
           rk_run_dir_mean(&run->dir, true, last), last);
    printf("run directory: %s (report.html, metrics.jsonl, hf/%s)\n", run->dir.path,
           run->flow.has_tokenizer ? "" : " without its tokenizer");
}

struct rk_status *rk_run_command_finish(struct rk_run_command *run, struct rk_status *st)
{
    struct rk_json *summary = make_summary(run, st);
    struct rk_status *written = rk_run_dir_finish(&run->dir, summary);

    rk_loggers_finish(run->loggers, outcome_of(st));
    if (!written && rk_cli_is_json(run->cli)) {
        rk_cli_print_json("RunSummary", rk_json_retain(summary));
        run->cli->has_told = true;
    } else if (!st && !written) {
        print_outcome(run);
    }
    rk_json_free(summary);
    return rk_status_first(st, written);
}
