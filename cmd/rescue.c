/* Saves the model of a run that fails after training steps: it is exported if the daemons end
 * with the run, else the daemons keep it, and the commands that save it are printed. */
#include "cmd/rescue_internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_str.h"
#include "driver/rk_group_report.h"
#include "driver/rk_replicas.h"

static bool has_whole_replica(const struct rk_driver_worker *workers, int32_t num_workers)
{
    struct rk_replicas replicas = {0};
    struct rk_str missing = {0};
    struct rk_status *st = rk_replicas_find(&replicas, "actor", workers, num_workers, &missing);
    bool has = replicas.items.count > 0;

    rk_status_free(st);
    rk_replicas_fini(&replicas);
    rk_str_fini(&missing);
    return has;
}

static bool has_state(const struct rk_driver_worker *worker, const char *state)
{
    return !worker->error && strcmp(worker->status.state, state) == 0;
}

rk_holder_t rk_rescue_holder(const struct rk_driver_worker *workers, int32_t num_workers, uint64_t epoch)
{
    bool is_whole = true;

    for (int32_t i = 0; i < num_workers; i++) {
        if (has_state(&workers[i], "DRAINING") || has_state(&workers[i], "FAILED") ||
            (!workers[i].error && workers[i].status.epoch != epoch))
            return RK_HOLDER_NONE;
        /* A call that was cancelled and still ends is no loss: the next one waits for it. */
        is_whole = is_whole && (has_state(&workers[i], "READY") || has_state(&workers[i], "BUSY"));
    }
    if (is_whole)
        return RK_HOLDER_GROUP;
    return has_whole_replica(workers, num_workers) ? RK_HOLDER_REPLICA : RK_HOLDER_NONE;
}

static rk_holder_t find_holder(struct rk_rescue *rescue)
{
    int32_t num_workers = rk_driver_num_workers(rescue->driver);
    struct rk_driver_worker *workers = rk_calloc((size_t)num_workers, sizeof(*workers));
    struct rk_arena *arena = rk_arena_create(16384, 0);
    rk_holder_t holder = RK_HOLDER_NONE;

    if (rescue->step > 0) {
        rk_driver_get_status(rescue->driver, arena, workers);
        holder = rk_rescue_holder(workers, num_workers, rk_driver_epoch(rescue->driver));
    }
    for (int32_t i = 0; i < num_workers; i++) {
        rescue->is_silent = rescue->is_silent || workers[i].error;
        rk_status_free(workers[i].error);
    }
    rk_arena_destroy(arena);
    rk_free(workers);
    return holder;
}

/* " --hosts LIST --token-file FILE ...", the given ones; rk_free it. */
static char *format_access(const struct rk_rescue *rescue)
{
    struct rk_str text = {0};
    int32_t num_workers = rk_driver_num_workers(rescue->driver);

    if (rescue->local) {
        for (int32_t i = 0; i < num_workers; i++)
            rk_str_appendf(&text, "%s%s", i ? "," : " --hosts ", rk_local_addresses(rescue->local)[i]);
    } else if (rescue->hosts) {
        rk_str_appendf(&text, " --hosts %s", rescue->hosts);
    }
    if (rescue->token_file)
        rk_str_appendf(&text, " --token-file %s", rescue->token_file);
    if (rescue->tls_ca)
        rk_str_appendf(&text, " --tls-ca %s", rescue->tls_ca);
    if (rescue->tls_cert)
        rk_str_appendf(&text, " --tls-cert %s", rescue->tls_cert);
    if (rescue->tls_key)
        rk_str_appendf(&text, " --tls-key %s", rescue->tls_key);
    return rk_str_take(&text);
}

static void tell_how_to_save(const struct rk_rescue *rescue, rk_holder_t holder)
{
    char *access = format_access(rescue);

    fprintf(stderr,
            "rankctl: %s keep the model of step %" PRId64 " for lease.grace (%s); this saves it%s:\n"
            "  rankctl checkpoint export%s --out %s --tokenizer %s\n",
            rescue->is_silent ? "some daemons do not answer; the remaining daemons" : "the daemons",
            rescue->step, rescue->local ? RK_LOCAL_GRACE : "10min unless they are configured otherwise",
            rescue->is_tried ? ", in a directory with enough space" : "", access,
            rescue->is_tried ? "DIR" : rescue->flow->export_path, rescue->flow->inputs->tokenizer_dir);
    if (holder == RK_HOLDER_GROUP && rescue->flow->checkpoints)
        fprintf(stderr,
                "and this also saves the state for further training:\n  rankctl checkpoint save%s "
                "DIR/global_step_%" PRId64 "\n",
                access, rescue->step);
    if (rescue->local)
        fprintf(stderr, "and this stops them:\n  rankctl shutdown --yes%s\n", access);
    rk_free(access);
}

/* Daemons of the run end with it unless they are detached. One Ctrl-C ends the training, the next one this.
 */
static bool save_now(const struct rk_rescue *rescue)
{
    struct rk_status *st;

    fprintf(stderr, "rankctl: saving the model of step %" PRId64 " to %s\n", rescue->step,
            rescue->flow->export_path);
    st = rk_flow_export(rescue->flow);
    if (!st)
        return true;
    fprintf(stderr, "rankctl: the model could not be saved: %s\n", rk_status_message(st));
    rk_status_free(st);
    return false;
}

/* Daemons of the run that cannot save are detached. */
static bool detach(struct rk_rescue *rescue)
{
    struct rk_status *st = rk_local_detach(rescue->local);

    if (!st)
        return true;
    fprintf(stderr, "rankctl: the daemons could not be detached: %s\n", rk_status_message(st));
    rk_status_free(st);
    return false;
}

/* A checkpoint that the daemons were writing asynchronously may still become complete. */
static void finish_checkpoint(const struct rk_rescue *rescue)
{
    int64_t step = rescue->flow->writing_step;
    struct rk_status *st = rk_flow_checkpoint_finish(rescue->flow, true);

    if (st)
        fprintf(stderr, "rankctl: the checkpoint of step %" PRId64 " is not complete: %s\n", step,
                rk_status_message(st));
    rk_status_free(st);
}

static bool rescue_own(struct rk_rescue *rescue, rk_holder_t holder)
{
    if (!rk_driver_resume(rescue->driver)) /* a second Ctrl-C: stop here */
        return false;
    if (holder == RK_HOLDER_GROUP) {
        finish_checkpoint(rescue);
        if (!rescue->is_tried && save_now(rescue))
            return true;
        rescue->is_tried = true;
    }
    if (rk_driver_resume(rescue->driver) && detach(rescue))
        tell_how_to_save(rescue, holder);
    return false;
}

/* Finds the daemons that still hold the model. Those of the run end with it. */
static void tell_parts(const struct rk_rescue *rescue)
{
    int32_t num_workers = rk_driver_num_workers(rescue->driver);
    struct rk_driver_worker *workers = rk_calloc((size_t)num_workers, sizeof(*workers));
    struct rk_arena *arena = rk_arena_create(16384, 0);
    struct rk_group_report report;

    rk_driver_get_status(rescue->driver, arena, workers);
    RK_IGNORE(rk_group_report_make(&report, workers, num_workers), "an invalid mesh");
    if (report.is_incomplete)
        fprintf(stderr, "rankctl: %s\n", report.text);
    rk_group_report_fini(&report);
    for (int32_t i = 0; i < num_workers; i++)
        rk_status_free(workers[i].error);
    rk_arena_destroy(arena);
    rk_free(workers);
}

bool rk_rescue_model(struct rk_rescue *rescue)
{
    rk_holder_t holder = find_holder(rescue);
    bool is_saved = false;

    if (!rescue->local && rescue->step > 0)
        tell_parts(rescue);
    if (holder != RK_HOLDER_NONE && rescue->local)
        is_saved = rescue_own(rescue, holder);
    else if (holder != RK_HOLDER_NONE)
        tell_how_to_save(rescue, holder);
    else if (rescue->local && rescue->step > rescue->flow->saved_step)
        fprintf(stderr, "rankctl: the model of step %" PRId64 " cannot be saved: %s\n", rescue->step,
                rescue->is_silent ? "not all daemons that hold it answer" : "the daemons are stopping");
    if (rescue->flow->saved_step > 0)
        fprintf(stderr,
                "rankctl: the checkpoint of step %" PRId64 " is complete; the same command resumes from it\n",
                rescue->flow->saved_step);
    return is_saved;
}
