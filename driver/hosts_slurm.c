/* The daemons of a Slurm job, from its environment. */
#include "driver/hosts_internal.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/rk_array.h"
#include "base/config/rk_config.h"
#include "base/rk_env.h"
#include "base/rk_str.h"
#include "driver/rk_driver.h"

#define MAX_DAEMONS RK_MESH_MAX_RANKS

struct slurm_job {
    RK_ARRAY(char *) nodes;
    RK_ARRAY(int64_t) daemons; /* of each node */
    int64_t port;              /* of the first daemon of a node */
};

static struct rk_status *add_node(void *user, const char *name)
{
    struct slurm_job *job = user;

    if (job->nodes.count == MAX_DAEMONS)
        return RK_FAIL(RK_RESOURCE_EXHAUSTED, "more than %d nodes", MAX_DAEMONS);
    rk_array_append(&job->nodes, rk_strdup(name));
    return NULL;
}

static struct rk_status *read_nodes(struct slurm_job *job, const char *port)
{
    const char *variable = rk_env("SLURM_JOB_NODELIST") ? "SLURM_JOB_NODELIST" : "SLURM_NODELIST";
    const char *list = rk_env(variable);
    struct rk_status *st = NULL;

    if (!list || !*list)
        return RK_FAIL(RK_INVALID_ARGUMENT,
                       "slurm:%s: SLURM_JOB_NODELIST is not set; expected to run in a Slurm job (sbatch, "
                       "salloc); outside of a job list the daemons or use @FILE",
                       port);
    while (!st && *list) {
        size_t bytes = rk_hosts_term_bytes(list);
        char *term = rk_strndup(list, bytes);

        st = *term ? rk_host_ranges_expand(term, MAX_DAEMONS, add_node, job) : NULL;
        rk_free(term);
        list += bytes + (list[bytes] == ',');
    }
    return st ? RK_WRAP(st, "%s", variable) : NULL;
}

static struct rk_status *bad_counts(const char *variable, const char *text, const char *what)
{
    return RK_FAIL(RK_INVALID_ARGUMENT, "%s=%s: %s; to set the daemons of a node use slurm:PORT:N", variable,
                   text, what);
}

/* "8(x2),4": one count, or a count and how many nodes have it. */
static struct rk_status *read_counts(struct slurm_job *job, const char *variable, const char *text)
{
    const char *at = text;

    do {
        char *end;
        long count = strtol(at, &end, 10), repeat = 1;

        if (end == at || count < 1 || count > MAX_DAEMONS)
            return bad_counts(variable, text, "expected numbers of tasks such as 8(x2),4");
        if (rk_str_has_prefix(end, "(x")) {
            at = end + 2;
            repeat = strtol(at, &end, 10);
            if (end == at || *end++ != ')' || repeat < 1)
                return bad_counts(variable, text, "expected numbers of tasks such as 8(x2),4");
        }
        if (repeat > job->nodes.count - job->daemons.count)
            return bad_counts(variable, text, "it counts more nodes than SLURM_JOB_NODELIST has");
        for (; repeat > 0; repeat--)
            rk_array_append(&job->daemons, count);
        at = end;
    } while (*at++ == ',');
    if (at[-1] != '\0')
        return bad_counts(variable, text, "expected numbers of tasks such as 8(x2),4");
    if (job->daemons.count != job->nodes.count)
        return bad_counts(variable, text, "it counts fewer nodes than SLURM_JOB_NODELIST has");
    return NULL;
}

static struct rk_status *same_on_all(struct slurm_job *job, const char *name, const char *text)
{
    int64_t count;

    if (!rk_parse_i64(text, &count) || count < 1 || count > MAX_DAEMONS)
        return RK_FAIL(RK_INVALID_ARGUMENT, "%s%s: expected the number of daemons on a node, from 1 to %d",
                       name, text, MAX_DAEMONS);
    for (int64_t i = 0; i < job->nodes.count; i++)
        rk_array_append(&job->daemons, count);
    return NULL;
}

/* SLURM_TASKS_PER_NODE describes different nodes, but inside a step it is that of the step, for example 1 for
 * a driver that srun has started. */
static struct rk_status *read_daemons(struct slurm_job *job, const char *per_node)
{
    const char *each = rk_env("SLURM_NTASKS_PER_NODE"), *list = rk_env("SLURM_TASKS_PER_NODE");

    if (per_node)
        return same_on_all(job, "slurm:PORT:", per_node);
    if (list && !(each && rk_env("SLURM_STEP_ID")))
        return read_counts(job, "SLURM_TASKS_PER_NODE", list);
    return same_on_all(job, "SLURM_NTASKS_PER_NODE=", each ? each : "1");
}

static struct rk_status *list_daemons(const struct slurm_job *job, rk_host_fn each, void *user)
{
    for (int64_t node = 0; node < job->nodes.count; node++) {
        for (int64_t i = 0; i < job->daemons.items[node]; i++) {
            char *address = rk_format("%s:%" PRId64, job->nodes.items[node], job->port + i);
            struct rk_status *st = each(user, address);

            rk_free(address);
            if (st)
                return st;
        }
    }
    return NULL;
}

struct rk_status *rk_hosts_slurm(const char *ports, rk_host_fn each, void *user)
{
    const char *colon = strchr(ports, ':');
    char *port = rk_strndup(ports, colon ? (size_t)(colon - ports) : strlen(ports));
    char *address = rk_format("slurm:%s", ports);
    struct slurm_job job = {.port = RK_DEFAULT_PORT};
    struct rk_status *st = *port ? rk_hosts_port(&job.port, port, address) : NULL;

    if (!st)
        st = read_nodes(&job, ports);
    if (!st)
        st = read_daemons(&job, colon ? colon + 1 : NULL);
    if (!st)
        st = list_daemons(&job, each, user);
    for (int64_t i = 0; i < job.nodes.count; i++)
        rk_free(job.nodes.items[i]);
    rk_array_fini(&job.nodes);
    rk_array_fini(&job.daemons);
    rk_free(address);
    rk_free(port);
    return st;
}
