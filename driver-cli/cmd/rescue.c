/* What becomes of the model of a run that fails after it has trained: it is exported where the daemons end
 * with the run, and else kept by them, with the commands that save it. */
#include "driver-cli/cmd/rescue_internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_str.h"

/* While no daemon is lost, none has left its communicators, and no other driver has claimed them. */
static bool has_model(const struct rk_rescue *rescue)
{
    int32_t num_workers = rk_driver_num_workers(rescue->driver);
    struct rk_driver_worker *workers = rk_calloc((size_t)num_workers, sizeof(*workers));
    struct rk_arena *arena = rk_arena_create(16384, 0);
    bool has = rescue->step > 0;

    if (has)
        rk_driver_get_status(rescue->driver, arena, workers);
    for (int32_t i = 0; i < num_workers; i++) {
        has = has && !workers[i].error && strcmp(workers[i].status.state, "READY") == 0 &&
              workers[i].status.epoch == rk_driver_epoch(rescue->driver);
        rk_status_free(workers[i].error);
    }
    rk_arena_destroy(arena);
    rk_free(workers);
    return has;
}

/* " --hosts LIST --token-file FILE" as far as they are given; rk_free it. */
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
    return rk_str_take(&text);
}

static void tell_how_to_save(const struct rk_rescue *rescue)
{
    char *access = format_access(rescue);

    fprintf(stderr,
            "rankctl: the daemons keep the model of step %" PRId64 " for lease.grace (%s); this saves it%s:\n"
            "  rankctl call actor.export_hf%s --opt path=%s\n",
            rescue->step, rescue->local ? RK_LOCAL_GRACE : "10min unless they are configured otherwise",
            rescue->is_tried ? ", in a directory with room" : "", access,
            rescue->is_tried ? "DIR" : rescue->flow->export_path);
    if (rescue->local)
        fprintf(stderr, "and this stops them:\n  rankctl shutdown --yes%s\n", access);
    rk_free(access);
}

/* Daemons of the run's own end with it unless they are detached. One Ctrl-C ends the training, the next this.
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

/* Daemons of its own that cannot save are left behind. */
static bool detach(struct rk_rescue *rescue)
{
    struct rk_status *st = rk_local_detach(rescue->local);

    if (!st)
        return true;
    fprintf(stderr, "rankctl: the daemons could not be left running: %s\n", rk_status_message(st));
    rk_status_free(st);
    return false;
}

bool rk_rescue_model(struct rk_rescue *rescue)
{
    if (!has_model(rescue))
        return false;
    if (rescue->local) {
        if (!rk_driver_resume(rescue->driver)) /* a second Ctrl-C: the end */
            return false;
        if (!rescue->is_tried && save_now(rescue))
            return true;
        rescue->is_tried = true;
        if (!rk_driver_resume(rescue->driver) || !detach(rescue))
            return false;
    }
    tell_how_to_save(rescue);
    return false;
}
