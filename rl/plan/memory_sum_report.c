/* The sum as a table for users, and as memory_plan.json. */
#include "rl/plan/memory_sum_parts_internal.h"

#include <string.h>

#define GIB (1024.0 * 1024.0 * 1024.0)
#define MIB (1024.0 * 1024.0)

/* --- the table --- */

static bool is_kind_used(const struct rk_memory_sum *sum, int32_t rank, int kind)
{
    for (int64_t i = 0; i < sum->num_roles; i++) {
        if (rk_memory_sum_kind_bytes(rk_memory_sum_plan_of(sum, i, rank), kind) > 0)
            return true;
    }
    return false;
}

#define LEAST_COLUMNS 8 /* 12345.67 */

static void format_cell(struct rk_str *out, const char *title, double value)
{
    int width = (int)RK_MAX(strlen(title), (size_t)LEAST_COLUMNS);

    if (value > 0.0)
        rk_str_appendf(out, "  %*.2f", width, value);
    else
        rk_str_appendf(out, "  %*s", width, "-");
}

/* Memory that roles offload between calls; it counts once. */
static bool is_any_away(const struct rk_memory_sum *sum, int32_t rank)
{
    for (int64_t i = 0; i < sum->num_roles; i++) {
        if (rk_memory_sum_bytes_at(rk_memory_sum_plan_of(sum, i, rank), "away") > 0)
            return true;
    }
    return false;
}

static void format_titles(struct rk_str *out, const struct rk_memory_sum *sum, int32_t rank)
{
    rk_str_appendf(out, "%-9s", "");
    for (int kind = 0; kind < RK_MEMORY_SUM_KINDS; kind++) {
        if (is_kind_used(sum, rank, kind))
            rk_str_appendf(out, "  %*s", LEAST_COLUMNS, rk_memory_sum_kinds[kind].name);
    }
    if (is_any_away(sum, rank))
        rk_str_appendf(out, "  %*s", LEAST_COLUMNS, "away");
    rk_str_appendf(out, "  %*s\n", LEAST_COLUMNS, "added");
}

static void format_sum(struct rk_str *out, int64_t added, int64_t free, double unit)
{
    rk_str_appendf(out, "sum %.2f of %.2f free, %.2f left\n", (double)added / unit, (double)free / unit,
                   (double)(free - added) / unit);
}

static void format_domains(struct rk_str *out, const struct rk_memory_sum *sum, double unit)
{
    for (int32_t rank = 0; rank < sum->num_ranks; rank++) {
        struct rk_memory_sum_domain domain;

        if (!rk_memory_sum_find_domain(&domain, sum, rank, sum->num_roles))
            continue;
        rk_str_appendf(out, "ranks %s share memory: ", rk_str_text(&domain.ranks));
        format_sum(out, domain.added, domain.free, unit);
        rk_str_fini(&domain.ranks);
    }
}

void rk_memory_sum_format(const struct rk_memory_sum *sum, struct rk_str *out)
{
    int32_t rank = rk_memory_sum_fullest(sum);
    bool is_large = (double)rk_memory_sum_taken_bytes(sum, rank) >= GIB;
    double unit = is_large ? GIB : MIB;

    rk_str_appendf(out, "memory plan of rank %d, the fullest of %d, in %s:\n", rank, sum->num_ranks,
                   is_large ? "GiB" : "MiB");
    format_titles(out, sum, rank);
    for (int64_t i = 0; i < sum->num_roles; i++) {
        const struct rk_json *plan = rk_memory_sum_plan_of(sum, i, rank);

        rk_str_appendf(out, "%-9s", sum->roles[i].role->name);
        for (int kind = 0; kind < RK_MEMORY_SUM_KINDS; kind++) {
            if (is_kind_used(sum, rank, kind))
                format_cell(out, rk_memory_sum_kinds[kind].name,
                            (double)rk_memory_sum_kind_bytes(plan, kind) / unit);
        }
        if (is_any_away(sum, rank))
            format_cell(out, "away", (double)rk_memory_sum_bytes_at(plan, "away") / unit);
        format_cell(out, "added", (double)rk_memory_sum_added_bytes(plan) / unit);
        rk_str_append(out, "\n");
    }
    format_sum(out, rk_memory_sum_taken_bytes(sum, rank), rk_memory_sum_free_bytes(sum, rank), unit);
    format_domains(out, sum, unit);
}

/* --- memory_plan.json --- */

static struct rk_json *role_json(const struct rk_memory_sum *sum, int64_t role, int32_t rank)
{
    const struct rk_json *plan = rk_memory_sum_plan_of(sum, role, rank);
    struct rk_json *object = rk_json_new_object();

    rk_json_set(object, "role", rk_json_new_string(sum->roles[role].role->name));
    rk_json_set(object, "planned", rk_json_clone(rk_json_find(plan, "planned")));
    rk_json_set(object, "communication", rk_json_new_int(rk_memory_sum_bytes_at(plan, "communication")));
    rk_json_set(object, "away", rk_json_new_int(rk_memory_sum_bytes_at(plan, "away")));
    rk_json_set(object, "num_kv_blocks", rk_json_new_int(rk_memory_sum_bytes_at(plan, "num_kv_blocks")));
    rk_json_set(object, "added", rk_json_new_int(rk_memory_sum_added_bytes(plan)));
    return object;
}

static struct rk_json *rank_json(const struct rk_memory_sum *sum, int32_t rank)
{
    struct rk_json *object = rk_json_new_object(), *roles = rk_json_new_array();
    const struct rk_json *device = rk_json_find(rk_memory_sum_last_plan(sum, rank), "device");

    for (int64_t i = 0; i < sum->num_roles; i++) {
        if (!rk_json_is_null(rk_memory_sum_plan_of(sum, i, rank)))
            rk_json_append(roles, role_json(sum, i, rank));
    }
    rk_json_set(object, "rank", rk_json_new_int(rank));
    rk_json_set(object, "roles", roles);
    rk_json_set(object, "sum", rk_json_new_int(rk_memory_sum_taken_bytes(sum, rank)));
    rk_json_set(object, "free", rk_json_new_int(rk_memory_sum_free_bytes(sum, rank)));
    rk_json_set(object, "left", rk_json_new_int(rk_memory_sum_left_bytes(sum, rank)));
    rk_json_set(object, "device", device ? rk_json_clone(device) : rk_json_new_null());
    return object;
}

static struct rk_json *ranks_json(const struct rk_memory_sum *sum, const char *domain)
{
    struct rk_json *ranks = rk_json_new_array();

    for (int32_t rank = 0; rank < sum->num_ranks; rank++) {
        if (strcmp(rk_memory_sum_domain_name(sum, rank), domain) == 0)
            rk_json_append(ranks, rk_json_new_int(rank));
    }
    return ranks;
}

static struct rk_json *domains_json(const struct rk_memory_sum *sum)
{
    struct rk_json *domains = rk_json_new_array();

    for (int32_t rank = 0; rank < sum->num_ranks; rank++) {
        struct rk_json *object;
        struct rk_memory_sum_domain domain;

        if (!rk_memory_sum_find_domain(&domain, sum, rank, sum->num_roles))
            continue;
        object = rk_json_new_object();
        rk_json_set(object, "ranks", ranks_json(sum, rk_memory_sum_domain_name(sum, rank)));
        rk_json_set(object, "sum", rk_json_new_int(domain.added));
        rk_json_set(object, "free", rk_json_new_int(domain.free));
        rk_json_set(object, "left", rk_json_new_int(domain.free - domain.added));
        rk_json_append(domains, object);
        rk_str_fini(&domain.ranks);
    }
    return domains;
}

struct rk_json *rk_memory_sum_json(const struct rk_memory_sum *sum)
{
    struct rk_json *object = rk_json_new_object(), *ranks = rk_json_new_array();
    struct rk_status *excess = rk_memory_sum_check(sum);

    for (int32_t rank = 0; rank < sum->num_ranks; rank++)
        rk_json_append(ranks, rank_json(sum, rank));
    rk_json_set(object, "fits", rk_json_new_bool(excess == NULL));
    rk_json_set(object, "fullest_rank", rk_json_new_int(rk_memory_sum_fullest(sum)));
    rk_json_set(object, "ranks", ranks);
    rk_json_set(object, "shared", domains_json(sum));
    rk_status_free(excess);
    return object;
}
