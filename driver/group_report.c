#include "driver/rk_group_report.h"

#include <inttypes.h>
#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_assert.h"
#include "base/layout/rk_mesh.h"
#include "base/rk_str.h"
#include "driver/rk_replicas.h"

#define EMPTY "EMPTY"

struct group {
    const struct rk_driver_worker *workers;
    int32_t num_workers;
};

const char *rk_part_name(rk_part_t part)
{
    static const char *const names[RK_PART_COUNT] = {
        [RK_PART_NONE] = "none",
        [RK_PART_HELD] = "held",
        [RK_PART_MISSING] = "missing",
        [RK_PART_UNREACHABLE] = "unreachable",
    };

    RK_ASSERT(part < RK_PART_COUNT);
    return names[part];
}

const char *rk_group_action_name(rk_group_action_t action)
{
    static const char *const names[RK_GROUP_ACTION_COUNT] = {
        [RK_GROUP_ACTION_NONE] = "none",
        [RK_GROUP_ACTION_START_DAEMONS] = "start_daemons",
        [RK_GROUP_ACTION_RUN_AGAIN] = "run_again",
    };

    RK_ASSERT(action < RK_GROUP_ACTION_COUNT);
    return names[action];
}

/* --- the expected parts --- */

static bool holds_model(const struct rk_role_rank *role)
{
    return *role->state && strcmp(role->state, EMPTY) != 0;
}

static const struct rk_role_rank *find_role(const struct rk_driver_worker *worker, const char *name)
{
    for (int64_t i = 0; !worker->error && i < worker->status.rank.num_roles; i++) {
        if (strcmp(worker->status.rank.roles[i].role, name) == 0)
            return &worker->status.rank.roles[i];
    }
    return NULL;
}

/* A worker whose role `name` has a model; NULL when no worker has one. */
static const struct rk_driver_worker *find_holder(const struct group *group, const char *name)
{
    for (int32_t i = 0; i < group->num_workers; i++) {
        const struct rk_role_rank *role = find_role(&group->workers[i], name);

        if (role && holds_model(role))
            return &group->workers[i];
    }
    return NULL;
}

/* Whether the rank belongs to the mesh that the holder has for its role. */
static bool is_in_mesh(const struct rk_driver_worker *holder, const struct rk_role_rank *role, int32_t rank)
{
    struct rk_mesh_coords coords;
    struct rk_mesh *mesh;
    struct rk_status *st = rk_mesh_create(&mesh, &role->mesh, holder->status.rank.world_size);
    bool is_in = !st && rk_mesh_find_coords(mesh, rank, &coords);

    rk_status_free(st);
    rk_mesh_destroy(mesh);
    return is_in;
}

/* One role of a holder: the worker of that rank has no part, has it, or lacks it. */
static rk_part_t judge_role(const struct group *group, const struct rk_driver_worker *holder,
                            const struct rk_role_rank *role, int32_t rank)
{
    const struct rk_role_rank *own = find_role(&group->workers[rank], role->role);

    if (!is_in_mesh(holder, role, rank))
        return RK_PART_NONE;
    return own && holds_model(own) ? RK_PART_HELD : RK_PART_MISSING;
}

static rk_part_t judge(const struct group *group, int32_t rank)
{
    rk_part_t part = RK_PART_NONE;

    if (group->workers[rank].error)
        return RK_PART_UNREACHABLE;
    for (int32_t i = 0; i < group->num_workers; i++) {
        const struct rk_rank_info *info = &group->workers[i].status.rank;

        for (int64_t j = 0; !group->workers[i].error && j < info->num_roles; j++) {
            if (find_holder(group, info->roles[j].role) == &group->workers[i])
                part = RK_MAX(part, judge_role(group, &group->workers[i], &info->roles[j], rank));
        }
    }
    return part;
}

/* --- the daemons that hold the actor's weights once --- */

static int32_t find_address(const struct group *group, const char *address)
{
    for (int32_t i = 0; i < group->num_workers; i++) {
        if (strcmp(group->workers[i].address, address) == 0)
            return i;
    }
    return -1;
}

/* Marks the daemons of the replica when all of them hold their part. */
static bool take_replica(struct rk_group_report *report, const struct group *group,
                         const struct rk_replica *replica)
{
    for (int64_t i = 0; i < replica->addresses.count; i++) {
        int32_t rank = find_address(group, replica->addresses.items[i]);
        const struct rk_role_rank *role = rank < 0 ? NULL : find_role(&group->workers[rank], "actor");

        if (!role || !holds_model(role))
            return false;
    }
    for (int64_t i = 0; i < replica->addresses.count; i++)
        report->in_replica[find_address(group, replica->addresses.items[i])] = true;
    return true;
}

static struct rk_status *find_replica(struct rk_group_report *report, const struct group *group)
{
    struct rk_replicas replicas;
    struct rk_str missing = {0};
    struct rk_status *st = rk_replicas_find(&replicas, "actor", group->workers, group->num_workers, &missing);

    for (int64_t i = 0; i < replicas.items.count && !report->has_replica; i++)
        report->has_replica = take_replica(report, group, &replicas.items.items[i]);
    rk_replicas_fini(&replicas);
    rk_str_fini(&missing);
    return st;
}

/* --- text --- */

static void append_models(struct rk_str *out, const struct rk_rank_info *info)
{
    int num_models = 0;

    for (int64_t i = 0; i < info->num_roles; i++) {
        const struct rk_role_rank *role = &info->roles[i];

        if (!holds_model(role))
            continue;
        rk_str_appendf(out, "%s%s (weight version %" PRIu64 ")", num_models++ ? ", " : "; holds ", role->role,
                       role->weight_version);
    }
    if (num_models == 0)
        rk_str_append(out, "; holds no model");
}

static void append_worker(struct rk_str *out, const struct rk_driver_worker *worker, int32_t rank)
{
    const struct rk_worker_status *status = &worker->status;

    rk_str_appendf(out, "\n  worker %d (%s): ", rank, worker->address);
    if (worker->error) {
        rk_str_appendf(out, "%s, does not answer", rk_code_name(rk_status_code(worker->error)));
        return;
    }
    rk_str_appendf(out, "%s, epoch %" PRIu64 ", ", status->state, status->epoch);
    if (status->rank.world_size > 0)
        rk_str_appendf(out, "rank %d of %d", status->rank.rank, status->rank.world_size);
    else
        rk_str_appendf(out, "no rank, started %" PRIu64 " s ago", status->uptime_ms / 1000);
    append_models(out, &status->rank);
}

/* "worker 1", "workers 1, 3" */
static void append_numbers(struct rk_str *out, const struct rk_group_report *report, rk_part_t part)
{
    int count = 0, num_appended = 0;

    for (int32_t i = 0; i < report->num_workers; i++)
        count += report->parts[i] == part;
    rk_str_append(out, count == 1 ? "worker " : "workers ");
    for (int32_t i = 0; i < report->num_workers; i++) {
        if (report->parts[i] == part)
            rk_str_appendf(out, "%s%d", num_appended++ ? ", " : "", i);
    }
}

static void append_advice(struct rk_str *out, const struct rk_group_report *report, const struct group *group)
{
    int count = 0;

    rk_str_append(out, "\nwhat to do: ");
    if (report->action == RK_GROUP_ACTION_START_DAEMONS) {
        rk_str_append(out, "start the daemon of ");
        append_numbers(out, report, RK_PART_UNREACHABLE);
        rk_str_append(out, ", or repair the network. After a restart, ");
    } else {
        rk_str_append(out, "the model parts of ");
        append_numbers(out, report, RK_PART_MISSING);
        rk_str_append(out, " are lost; ");
    }
    rk_str_append(out,
                  "repeat the rankctl run command: it configures all daemons and continues from the last "
                  "complete checkpoint");
    if (!report->has_replica)
        return;
    rk_str_append(out, ". To save the actor's weights first: rankctl checkpoint export --out DIR --hosts ");
    for (int32_t i = 0; i < report->num_workers; i++) {
        if (report->in_replica[i])
            rk_str_appendf(out, "%s%s", count++ ? "," : "", group->workers[i].address);
    }
}

static char *format_text(const struct rk_group_report *report, const struct group *group)
{
    struct rk_str text = {0};

    rk_str_appendf(&text, "the group of %d daemons is incomplete:", group->num_workers);
    for (int32_t i = 0; i < group->num_workers; i++)
        append_worker(&text, &group->workers[i], i);
    append_advice(&text, report, group);
    return rk_str_take(&text);
}

/* --- the report --- */

struct rk_status *rk_group_report_make(struct rk_group_report *out, const struct rk_driver_worker *workers,
                                       int32_t num_workers)
{
    const struct group group = {workers, num_workers};
    bool has_part[RK_PART_COUNT] = {false};
    struct rk_status *st;

    *out = (struct rk_group_report){.num_workers = num_workers};
    out->parts = rk_calloc((size_t)num_workers, sizeof(*out->parts));
    out->in_replica = rk_calloc((size_t)num_workers, sizeof(*out->in_replica));
    for (int32_t i = 0; i < num_workers; i++) {
        out->parts[i] = judge(&group, i);
        has_part[out->parts[i]] = true;
    }
    /* A daemon that lacks a part of one model may hold all parts of another. */
    out->is_incomplete =
        has_part[RK_PART_MISSING] || (has_part[RK_PART_HELD] && has_part[RK_PART_UNREACHABLE]);
    if (!out->is_incomplete)
        return NULL;
    out->action = has_part[RK_PART_UNREACHABLE] ? RK_GROUP_ACTION_START_DAEMONS : RK_GROUP_ACTION_RUN_AGAIN;
    st = find_replica(out, &group);
    out->text = format_text(out, &group);
    return st;
}

void rk_group_report_fini(struct rk_group_report *report)
{
    rk_free(report->parts);
    rk_free(report->in_replica);
    rk_free(report->text);
    *report = (struct rk_group_report){0};
}

struct rk_status *rk_group_report_explain(struct rk_status *st, const struct rk_driver_worker *workers,
                                          int32_t num_workers)
{
    struct rk_group_report report;
    struct rk_status *made = rk_group_report_make(&report, workers, num_workers), *explained = st;

    if (report.is_incomplete) {
        char *text = rk_format("%s; %s", rk_status_message(st), report.text);

        explained = rk_status_from_wire(rk_status_code(st), "GROUP_INCOMPLETE", text);
        rk_free(text);
        rk_status_free(st);
    }
    RK_IGNORE(made, "an invalid mesh has no replicas");
    rk_group_report_fini(&report);
    return explained;
}
