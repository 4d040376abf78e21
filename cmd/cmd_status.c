#include "cmd/cmd_internal.h"

#include <inttypes.h>
#include <string.h>

#include "base/rk_alloc.h"
#include "driver/rk_group_report.h"

static void append_mesh(struct rk_str *out, const struct rk_role_rank *role)
{
    const struct rk_mesh_spec *mesh = &role->mesh;
    const struct {
        const char *name;
        int32_t size, rank;
    } axes[] = {
        {"tp", mesh->tp, role->tp_rank}, {"cp", mesh->cp, role->cp_rank}, {"dp", mesh->dp, role->dp_rank},
        {"pp", mesh->pp, role->pp_rank}, {"ep", mesh->ep, role->ep_rank},
    };

    rk_str_appendf(out, "%s%s", out->bytes > 0 ? " " : "", role->role);
    for (size_t i = 0; i < RK_ARRAY_LEN(axes); i++) {
        if (axes[i].size > 1)
            rk_str_appendf(out, ",%s=%d/%d", axes[i].name, axes[i].rank, axes[i].size);
    }
}

static bool is_failed(const struct rk_driver_worker *worker)
{
    return !worker->error && strcmp(worker->status.state, "FAILED") == 0;
}

static void print_failure(int32_t index, const struct rk_driver_worker *worker)
{
    char *why = rk_cli_printable(worker->status.last_error);

    printf("worker %d (%s) has FAILED: %s\n", index, worker->address, why);
    rk_free(why);
}

static void add_row(struct rk_table *table, int32_t index, const struct rk_driver_worker *worker)
{
    const struct rk_worker_status *status = &worker->status;
    struct rk_str roles = {0};

    rk_table_addf(table, "%d", index);
    rk_table_add(table, worker->address);
    if (worker->error) {
        rk_table_add(table, NULL);
        rk_table_add(table, rk_code_name(rk_status_code(worker->error)));
        for (int i = 4; i < table->num_columns; i++)
            rk_table_add(table, NULL);
        return;
    }
    for (int64_t i = 0; i < status->rank.num_roles; i++)
        append_mesh(&roles, &status->rank.roles[i]);
    rk_table_add(table, status->rank.device);
    rk_table_add(table, status->state);
    rk_table_add(table, status->driver_id);
    rk_table_addf(table, "%" PRIu64, status->epoch);
    rk_table_add(table, status->method);
    if (*status->method)
        rk_table_addf(table, "%.1fs", (double)status->running_ms / 1e3);
    else
        rk_table_add(table, NULL);
    rk_table_add(table, status->collective_name);
    rk_table_add(table, rk_str_text(&roles));
    rk_str_fini(&roles);
}

static void print_table(const struct rk_driver_worker *workers, int32_t count)
{
    static const char *const titles[] = {"WORKER", "ADDRESS", "DEVICE", "STATE",      "DRIVER",
                                         "EPOCH",  "METHOD",  "FOR",    "COLLECTIVE", "ROLES"};
    struct rk_table table;

    rk_table_init(&table, RK_ARRAY_LEN(titles), titles);
    for (int32_t i = 0; i < count; i++)
        add_row(&table, i, &workers[i]);
    rk_table_print(&table, stdout);
    for (int32_t i = 0; i < count; i++) {
        if (is_failed(&workers[i]))
            print_failure(i, &workers[i]);
    }
}

/* Reports a stopped recording, which is otherwise only in the daemon's log. */
static void print_recordings(const struct rk_driver_worker *workers, int32_t count)
{
    for (int32_t i = 0; i < count; i++) {
        char *text;

        if (workers[i].error || !rk_str_has_prefix(workers[i].status.recording, "stopped"))
            continue;
        text = rk_cli_printable(workers[i].status.recording);
        printf("worker %d (%s): recording %s\n", i, workers[i].address, text);
        rk_free(text);
    }
}

static void print_report(const struct rk_group_report *report)
{
    char *text = report->is_incomplete ? rk_cli_printable(report->text) : NULL;

    if (text)
        printf("%s\n", text);
    rk_free(text);
}

static struct rk_json *report_json(const struct rk_group_report *report)
{
    struct rk_json *json = rk_json_new_object(), *parts = rk_json_new_array();
    struct rk_json *replica = rk_json_new_array();

    for (int32_t i = 0; i < report->num_workers; i++) {
        rk_json_append(parts, rk_json_new_string(rk_part_name(report->parts[i])));
        if (report->in_replica[i])
            rk_json_append(replica, rk_json_new_int(i));
    }
    rk_json_set(json, "is_complete", rk_json_new_bool(!report->is_incomplete));
    rk_json_set(json, "parts", parts);
    rk_json_set(json, "action", rk_json_new_string(rk_group_action_name(report->action)));
    rk_json_set(json, "actor_replica", replica);
    return json;
}

static struct rk_json *roles_json(const struct rk_rank_info *info)
{
    struct rk_json *roles = rk_json_new_array();

    for (int64_t i = 0; i < info->num_roles; i++) {
        const struct rk_role_rank *role = &info->roles[i];
        struct rk_json *item = rk_json_new_object();

        rk_json_set(item, "role", rk_json_new_string(role->role));
        rk_json_set(item, "state", rk_json_new_string(role->state));
        rk_json_set(item, "weight_version", rk_json_new_int((int64_t)role->weight_version));
        rk_json_set(item, "tp_size", rk_json_new_int(role->mesh.tp));
        rk_json_set(item, "dp_size", rk_json_new_int(role->mesh.dp));
        rk_json_set(item, "pp_size", rk_json_new_int(role->mesh.pp));
        rk_json_set(item, "cp_size", rk_json_new_int(role->mesh.cp));
        rk_json_set(item, "tp_rank", rk_json_new_int(role->tp_rank));
        rk_json_set(item, "dp_rank", rk_json_new_int(role->dp_rank));
        rk_json_set(item, "pp_rank", rk_json_new_int(role->pp_rank));
        rk_json_set(item, "cp_rank", rk_json_new_int(role->cp_rank));
        rk_json_append(roles, item);
    }
    return roles;
}

struct rk_json *rk_cli_worker_json(int32_t index, const struct rk_driver_worker *worker)
{
    const struct rk_worker_status *status = &worker->status;
    struct rk_json *json = rk_json_new_object();

    rk_json_set(json, "worker", rk_json_new_int(index));
    rk_json_set(json, "address", rk_json_new_string(worker->address));
    if (worker->error) {
        rk_json_set(json, "error", rk_cli_status_json(worker->error));
        return json;
    }
    rk_json_set(json, "state", rk_json_new_string(status->state));
    rk_json_set(json, "device", rk_json_new_string(status->rank.device));
    rk_json_set(json, "device_uuid", rk_json_new_string(status->rank.device_uuid));
    rk_json_set(json, "device_memory_total_bytes", rk_json_new_int((int64_t)status->rank.device_mem_total));
    rk_json_set(json, "rank", rk_json_new_int(status->rank.rank));
    rk_json_set(json, "world_size", rk_json_new_int(status->rank.world_size));
    rk_json_set(json, "roles", roles_json(&status->rank));
    rk_json_set(json, "driver", rk_json_new_string(status->driver_id));
    rk_json_set(json, "epoch", rk_json_new_int((int64_t)status->epoch));
    rk_json_set(json, "last_seq", rk_json_new_int((int64_t)status->last_seq));
    rk_json_set(json, "mesh_generation", rk_json_new_int((int64_t)status->mesh_generation));
    rk_json_set(json, "method", rk_json_new_string(status->method));
    rk_json_set(json, "request_id", rk_cli_hex(status->request_id.data, status->request_id.bytes));
    rk_json_set(json, "running_ms", rk_json_new_int((int64_t)status->running_ms));
    rk_json_set(json, "collective", rk_json_new_string(status->collective_name));
    rk_json_set(json, "collective_seq", rk_json_new_int((int64_t)status->collective_seq));
    rk_json_set(json, "recording", rk_json_new_string(status->recording));
    rk_json_set(json, "last_error", rk_json_new_string(status->last_error));
    rk_json_set(json, "uptime_ms", rk_json_new_int((int64_t)status->uptime_ms));
    return json;
}

static void print_json(const struct rk_driver_worker *workers, int32_t count,
                       const struct rk_group_report *report)
{
    struct rk_json *body = rk_json_new_object(), *list = rk_json_new_array();

    for (int32_t i = 0; i < count; i++)
        rk_json_append(list, rk_cli_worker_json(i, &workers[i]));
    rk_json_set(body, "workers", list);
    rk_json_set(body, "group", report_json(report));
    rk_cli_print_json("Status", body);
}

static void print(const struct rk_cli *cli, const struct rk_driver_worker *workers, int32_t count)
{
    struct rk_group_report report;

    RK_IGNORE(rk_group_report_make(&report, workers, count), "an invalid mesh has no replicas");
    if (rk_cli_is_json(cli)) {
        print_json(workers, count, &report);
    } else {
        print_table(workers, count);
        print_recordings(workers, count);
        print_report(&report);
    }
    rk_group_report_fini(&report);
}

/* All workers are shown; the first unreachable one determines the exit code, else a failed one. */
static struct rk_status *run(struct rk_cli *cli)
{
    struct rk_arena *arena = rk_arena_create(16384, 0);
    struct rk_driver_worker *workers = NULL;
    struct rk_driver *driver = NULL;
    struct rk_hosts hosts = {0};
    struct rk_status *st;

    RK_TRY_GOTO(st, rk_cli_hosts(cli, &hosts), out);
    RK_TRY_GOTO(st, rk_cli_open(cli, &hosts, &driver), out);
    workers = rk_calloc((size_t)hosts.count, sizeof(*workers));
    rk_driver_get_status(driver, arena, workers);
    cli->has_told = true;
    print(cli, workers, hosts.count);
    for (int32_t i = 0; i < hosts.count; i++)
        st = rk_status_first(st, workers[i].error);
    for (int32_t i = 0; i < hosts.count && !st; i++) {
        if (is_failed(&workers[i]))
            st =
                RK_FAIL(RK_INTERNAL, "worker %d (%s) has failed; restart this daemon", i, workers[i].address);
    }
out:
    rk_free(workers);
    rk_driver_close(driver);
    rk_hosts_fini(&hosts);
    rk_arena_destroy(arena);
    return st;
}

const struct rk_command rk_cmd_status = {
    .name = "status",
    .args = "",
    .summary = "show the state of the daemons and their drivers",
    .details =
        "When a daemon has lost its part of a model that the others hold, status also prints which daemon "
        "holds\nwhich part, and what to do. Exit code 3 if a daemon cannot be reached, 1 if one has failed.",
    .run = run,
};
