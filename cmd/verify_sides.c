/* The daemons of one of the two layouts. */
#include "cmd/verify_run_internal.h"

#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/rk_alloc.h"
#include "cmd/model_dirs_internal.h"
#include "base/rk_file.h"
#include "rl/rk_job.h"

static void on_phase(void *user, const char *phase)
{
    fprintf(stderr, "rankctl: %s: %s\n", (const char *)user, phase);
}

static struct rk_status *start_daemons(struct rk_verification *v, struct rk_verify_side *side,
                                       int32_t world_size)
{
    if (v->hosts.count > 0)
        return NULL;
    return rk_model_dirs_start_local(&side->local, &v->inputs,
                                     (struct rk_local_config){
                                         .struct_size = sizeof(struct rk_local_config),
                                         .num_daemons = world_size,
                                         .device = rk_job_device(side->job),
                                         .log_dir = side->dir,
                                     });
}

static struct rk_status *open_driver(struct rk_verification *v, struct rk_verify_side *side,
                                     int32_t world_size)
{
    struct rk_driver_config config = rk_cli_driver_config(v->cli);
    struct rk_status *st;

    config.addresses =
        side->local ? rk_local_addresses(side->local) : (const char *const *)v->hosts.addresses;
    config.num_addresses = world_size;
    if (side->local)
        config.identity_dir = NULL; /* these daemons end with this process */
    st = rk_driver_open(&side->driver, &config);
    if (st)
        return rk_cli_usage(st);
    rk_cli_watch_signals(side->driver);
    return rk_driver_claim(side->driver);
}

struct rk_status *rk_verify_side_open(struct rk_verification *v, struct rk_verify_side *side, char *name,
                                      int32_t world_size)
{
    struct rk_flow_sink sink = {.user = name, .on_phase = isatty(STDERR_FILENO) ? on_phase : NULL};
    struct rk_status *st;

    if (!side->dir) {
        side->dir = rk_path_join(v->work_dir, name);
        if (mkdir(side->dir, 0777) != 0 || (v->hosts.count > 0 && chmod(side->dir, 0777) != 0))
            return rk_file_errno("cannot make the directory", side->dir);
    }
    st = start_daemons(v, side, world_size);
    if (!st)
        st = open_driver(v, side, world_size);
    if (st)
        return st;
    st = rk_flow_context_init(&side->flow, side->job, &v->inputs, side->driver, &sink);
    return st ? rk_cli_usage(st) : rk_flow_verify_setup(&side->flow);
}

struct rk_status *rk_verify_side_close(struct rk_verify_side *side, struct rk_status *st)
{
    struct rk_str deaths = {0};

    if (st && side->local)
        rk_local_describe_deaths(side->local, &deaths);
    if (deaths.bytes > 0)
        st = RK_WRAP(st, "%.*s", (int)deaths.bytes - 1, deaths.text);
    rk_str_fini(&deaths);
    rk_cli_watch_signals(NULL);
    rk_driver_close(side->driver);
    rk_local_stop(side->local);
    side->driver = NULL;
    side->local = NULL;
    return st;
}

void rk_verify_side_fini(struct rk_verify_side *side)
{
    rk_flow_context_fini(&side->flow);
    rk_config_destroy(side->job);
    rk_free(side->dir);
}

static void describe_mesh(struct rk_str *out, const struct rk_job_mesh *item, int32_t vpp)
{
    int32_t num_ranks = rk_mesh_num_ranks(item->mesh);

    rk_str_appendf(out, "%s%s ", out->bytes ? ", " : "", item->role->name);
    if (num_ranks > 1)
        rk_str_appendf(out, "%s ", rk_mesh_text(item->mesh));
    if (vpp > 1)
        rk_str_appendf(out, "vpp=%d ", vpp);
    rk_str_appendf(out, "on %d rank%s", num_ranks, num_ranks == 1 ? "" : "s");
}

char *rk_verify_side_describe(const struct rk_verify_side *side)
{
    const struct rk_job_meshes *meshes = &side->flow.meshes;
    struct rk_str text = {0};

    for (int64_t i = 0; i < meshes->count; i++) {
        const struct rk_job_mesh *item = &meshes->items[i];

        if (i == 0 || !rk_mesh_equal(item->mesh, meshes->items[0].mesh))
            describe_mesh(&text, item, rk_job_pipeline(side->job, item->role->bit).vpp);
    }
    return rk_str_take(&text);
}
