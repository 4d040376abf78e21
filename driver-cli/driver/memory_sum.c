/* What the plans of the roles come to. A role takes from a rank the difference between the room before and
 * the room after it, which the daemon has computed: less than its plan, where operators of the roles before
 * hold workspace that it uses as well, or give back between calls what it needs in its own. */
#include "driver-cli/driver/memory_sum_internal.h"

#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_assert.h"
#include "base/rk_knobs.h"

#define GIB (1024.0 * 1024.0 * 1024.0)
#define MIB (1024.0 * 1024.0)

/* Kinds of memory_report, in the order of the table, and which keys a role has to make each smaller. */
enum cause { CAUSE_WEIGHTS, CAUSE_PASSES, CAUSE_CACHE };
static const struct {
    const char *name;
    enum cause cause;
} kinds[] = {
    {"parameters", CAUSE_WEIGHTS}, {"masters", CAUSE_WEIGHTS},    {"gradients", CAUSE_WEIGHTS},
    {"optimizer", CAUSE_WEIGHTS},  {"activations", CAUSE_PASSES}, {"kv_cache", CAUSE_CACHE},
    {"workspace", CAUSE_PASSES},   {"staging", CAUSE_PASSES},     {"communication", CAUSE_WEIGHTS},
};
#define NUM_KINDS ((int)RK_ARRAY_LEN(kinds))

void rk_memory_sum_init(struct rk_memory_sum *sum, int32_t num_ranks)
{
    RK_ASSERT(num_ranks > 0);
    *sum = (struct rk_memory_sum){.num_ranks = num_ranks};
}

void rk_memory_sum_fini(struct rk_memory_sum *sum)
{
    for (int64_t i = 0; i < sum->num_roles; i++)
        rk_json_free(sum->roles[i].plans);
    *sum = (struct rk_memory_sum){0};
}

/* --- answers --- */

static int64_t int_at(const struct rk_json *plan, const char *path)
{
    return rk_json_as_int(rk_json_find_path(plan, path), 0);
}

/* Answers come from a daemon: what is added up here has to be there. */
static struct rk_status *check_plan(const struct rk_json *plan, const char *role)
{
    static const char *const paths[] = {"planned.total", "given_back",      "room.free",
                                        "device.free",   "room_after.free", "communication"};

    for (size_t i = 0; i < RK_ARRAY_LEN(paths); i++) {
        if (rk_json_type(rk_json_find_path(plan, paths[i])) != RK_JSON_INT)
            return RK_FAIL(RK_INTERNAL, "%s.init_model with plan_only: expected bytes in '%s' of its result",
                           role, paths[i]);
    }
    return NULL;
}

struct rk_status *rk_memory_sum_add(struct rk_memory_sum *sum, const struct rk_job_role *role,
                                    const struct rk_json *const *metas, int32_t num_metas)
{
    const struct rk_json **plans = rk_calloc((size_t)sum->num_ranks, sizeof(struct rk_json *));
    struct rk_status *st = NULL;

    RK_ASSERT(sum->num_roles < RK_LIMIT_ROLES);
    for (int32_t i = 0; i < num_metas && !st; i++) {
        int64_t rank = rk_json_as_int(rk_json_find(metas[i], "rank"), -1);

        if (rank < 0) /* outside the role's mesh */
            continue;
        st = rank < sum->num_ranks ? check_plan(metas[i], role->name)
                                   : RK_FAIL(RK_INTERNAL, "%s.init_model: plan of rank %lld of %d",
                                             role->name, (long long)rank, sum->num_ranks);
        if (!st)
            plans[rank] = metas[i];
    }
    if (!st) {
        struct rk_json *list = sum->roles[sum->num_roles].plans = rk_json_new_array();

        sum->roles[sum->num_roles++].role = role;
        for (int32_t rank = 0; rank < sum->num_ranks; rank++)
            rk_json_append(list, plans[rank] ? rk_json_clone(plans[rank]) : rk_json_new_null());
    }
    rk_free(plans);
    return st;
}

static const struct rk_json *plan_of(const struct rk_memory_sum *sum, int64_t role, int32_t rank)
{
    return rk_json_at(sum->roles[role].plans, rank);
}

/* Of the last role that the rank has; NULL: of none. */
static const struct rk_json *last_plan(const struct rk_memory_sum *sum, int32_t rank)
{
    for (int64_t i = sum->num_roles - 1; i >= 0; i--) {
        if (!rk_json_is_null(plan_of(sum, i, rank)))
            return plan_of(sum, i, rank);
    }
    return NULL;
}

struct rk_json *rk_memory_sum_room(const struct rk_memory_sum *sum)
{
    struct rk_json *rooms;

    if (sum->num_roles == 0)
        return rk_json_new_null();
    rooms = rk_json_new_array();
    for (int32_t rank = 0; rank < sum->num_ranks; rank++) {
        const struct rk_json *room = rk_json_find(last_plan(sum, rank), "room_after");

        rk_json_append(rooms, room ? rk_json_clone(room) : rk_json_new_null());
    }
    return rooms;
}

/* --- sums --- */

static int64_t kind_bytes(const struct rk_json *plan, int kind)
{
    const struct rk_json *value = rk_json_find(rk_json_find(plan, "planned"), kinds[kind].name);

    return value ? rk_json_as_int(value, 0) : int_at(plan, kinds[kind].name);
}

/* What the role adds to what the roles before it take. */
static int64_t added_bytes(const struct rk_json *plan)
{
    return int_at(plan, "room.free") - int_at(plan, "room_after.free");
}

static int64_t taken_bytes(const struct rk_memory_sum *sum, int32_t rank)
{
    int64_t bytes = 0;

    for (int64_t i = 0; i < sum->num_roles; i++)
        bytes += added_bytes(plan_of(sum, i, rank));
    return bytes;
}

/* What there is for the roles: free now, and held by models that they replace. */
static int64_t free_bytes(const struct rk_memory_sum *sum, int32_t rank)
{
    return int_at(last_plan(sum, rank), "room_after.free") + taken_bytes(sum, rank);
}

static int64_t left_bytes(const struct rk_memory_sum *sum, int32_t rank)
{
    return free_bytes(sum, rank) - taken_bytes(sum, rank);
}

int32_t rk_memory_sum_fullest(const struct rk_memory_sum *sum)
{
    int32_t fullest = -1;

    for (int32_t rank = 0; rank < sum->num_ranks; rank++) {
        if (last_plan(sum, rank) && (fullest < 0 || left_bytes(sum, rank) < left_bytes(sum, fullest)))
            fullest = rank;
    }
    return RK_MAX(fullest, 0);
}

static int largest_kind(const struct rk_json *plan)
{
    int largest = 0;

    for (int kind = 1; kind < NUM_KINDS; kind++) {
        if (kind_bytes(plan, kind) > kind_bytes(plan, largest))
            largest = kind;
    }
    return largest;
}

static int64_t largest_role(const struct rk_memory_sum *sum, int32_t rank)
{
    int64_t largest = 0;

    for (int64_t i = 1; i < sum->num_roles; i++) {
        if (added_bytes(plan_of(sum, i, rank)) > added_bytes(plan_of(sum, largest, rank)))
            largest = i;
    }
    return largest;
}

/* --- memory that several ranks share --- */

/* Ranks of one memory domain: their sum has to fit as well. */
struct domain {
    struct rk_str ranks; /* "0, 1" */
    int32_t num_ranks;
    int64_t added, free; /* by so many roles; for them, as the sum of one rank has it */
};

static const char *domain_name(const struct rk_memory_sum *sum, int32_t rank)
{
    return rk_json_as_string(rk_json_find_path(last_plan(sum, rank), "device.memory_domain"), "");
}

/* That of `first`, after the first `num_roles` roles. False when an earlier rank has it, or no other rank. */
static bool find_domain(struct domain *out, const struct rk_memory_sum *sum, int32_t first, int64_t num_roles)
{
    const char *name = domain_name(sum, first);
    int64_t given_back = 0;

    *out = (struct domain){.free = INT64_MAX};
    for (int32_t rank = 0; *name && rank < sum->num_ranks; rank++) {
        if (strcmp(domain_name(sum, rank), name) != 0)
            continue;
        if (rank < first)
            break;
        rk_str_appendf(&out->ranks, "%s%d", out->num_ranks++ ? ", " : "", rank);
        out->free = RK_MIN(out->free, int_at(last_plan(sum, rank), "device.shared_free"));
        for (int64_t i = 0; i < num_roles; i++) {
            out->added += added_bytes(plan_of(sum, i, rank));
            given_back += int_at(plan_of(sum, i, rank), "given_back");
        }
    }
    out->free += out->num_ranks ? given_back : 0;
    if (out->num_ranks < 2)
        rk_str_fini(&out->ranks);
    return out->num_ranks >= 2;
}

/* --- what does not fit --- */

static void append_bytes(struct rk_str *out, int64_t bytes)
{
    if ((double)bytes >= GIB / 10)
        rk_str_appendf(out, "%.2f GiB", (double)bytes / GIB);
    else
        rk_str_appendf(out, "%.2f MiB", (double)bytes / MIB);
}

/* Keys below the role's section that make its largest kind smaller. */
static void append_advice(struct rk_str *out, const struct rk_job_role *role, int kind)
{
    rk_str_appendf(out, "; for %s of %s ", kinds[kind].name, role->name);
    switch (kinds[kind].cause) {
    case CAUSE_CACHE:
        rk_str_appendf(out, "lower %smax_num_seqs, max_model_len or gpu_memory_utilization", role->section);
        return;
    case CAUSE_PASSES:
        rk_str_appendf(out, "lower %s%s", role->section, role->max_tokens);
        if (!role->shares)
            rk_str_append(out, " (without use_dynamic_bsz: the micro-batch size)");
        if (role->trains)
            rk_str_appendf(out, " or set %s" RK_KNOB_RECOMPUTE "granularity=full", role->section);
        return;
    case CAUSE_WEIGHTS:
        break;
    }
    rk_str_appendf(out, "raise %s" RK_JOB_TP " or run on more daemons", role->section);
    if (role->trains)
        rk_str_appendf(out,
                       "; beside other roles, set %smegatron.param_offload, grad_offload and "
                       "optimizer_offload",
                       role->section);
}

static void append_roles(struct rk_str *out, const struct rk_memory_sum *sum, int64_t count, int32_t rank)
{
    for (int64_t i = 0; i < count; i++) {
        rk_str_appendf(out, "%s%s ", i ? ", " : "", sum->roles[i].role->name);
        append_bytes(out, added_bytes(plan_of(sum, i, rank)));
    }
}

/* `text` says where role `role` does not fit; on rank `rank` it is as large as anywhere. Takes the text. */
static struct rk_status *too_much(const struct rk_memory_sum *sum, int64_t role, int32_t rank,
                                  struct rk_str *text)
{
    int64_t largest = largest_role(sum, rank);
    const struct rk_json *plan = plan_of(sum, role, rank), *of_largest = plan_of(sum, largest, rank);
    struct rk_status *st;

    rk_str_appendf(text, "; the largest role is %s with ", sum->roles[largest].role->name);
    append_bytes(text, added_bytes(of_largest));
    rk_str_append(text, "; nothing was loaded");
    append_advice(text, sum->roles[role].role, largest_kind(plan));
    if (largest != role)
        append_advice(text, sum->roles[largest].role, largest_kind(of_largest));
    st = RK_FAIL_REASON(RK_RESOURCE_EXHAUSTED, "DEVICE_OOM", "%s", rk_str_text(text));
    rk_str_fini(text);
    return st;
}

static struct rk_status *check_ranks(const struct rk_memory_sum *sum, int64_t role)
{
    struct rk_str text = {0};
    int32_t worst = -1;

    for (int32_t rank = 0; rank < sum->num_ranks; rank++) {
        const struct rk_json *plan = plan_of(sum, role, rank);

        if (!rk_json_as_bool(rk_json_find(plan, "fits"), true) &&
            (worst < 0 ||
             int_at(plan, "room_after.free") < int_at(plan_of(sum, role, worst), "room_after.free")))
            worst = rank;
    }
    if (worst < 0)
        return NULL;
    rk_str_appendf(&text, "role %s does not fit into the memory of rank %d: it takes ",
                   sum->roles[role].role->name, worst);
    append_bytes(&text, added_bytes(plan_of(sum, role, worst)));
    rk_str_append(&text, ", ");
    append_bytes(&text, RK_MAX(int_at(plan_of(sum, role, worst), "room.free"), 0));
    rk_str_append(&text, " are left of ");
    append_bytes(&text, free_bytes(sum, worst));
    rk_str_append(&text, role > 0 ? " by " : "");
    append_roles(&text, sum, role, worst);
    return too_much(sum, role, worst, &text);
}

static struct rk_status *check_domains(const struct rk_memory_sum *sum, int64_t role)
{
    for (int32_t rank = 0; rank < sum->num_ranks; rank++) {
        struct rk_str text = {0};
        struct domain domain;

        if (!find_domain(&domain, sum, rank, role + 1))
            continue;
        if (domain.added > domain.free) {
            rk_str_appendf(&text,
                           "role %s does not fit into the memory that the ranks %s share: with it they take ",
                           sum->roles[role].role->name, rk_str_text(&domain.ranks));
            append_bytes(&text, domain.added);
            rk_str_append(&text, " of ");
            append_bytes(&text, domain.free);
            rk_str_append(&text, ", each ");
            append_roles(&text, sum, role + 1, rank);
        }
        rk_str_fini(&domain.ranks);
        if (text.bytes > 0)
            return too_much(sum, role, rank, &text);
    }
    return NULL;
}

struct rk_status *rk_memory_sum_check(const struct rk_memory_sum *sum)
{
    for (int64_t i = 0; i < sum->num_roles; i++) {
        RK_TRY(check_ranks(sum, i));
        RK_TRY(check_domains(sum, i));
    }
    return NULL;
}

struct rk_status *rk_memory_sum_refuse(const struct rk_memory_sum *sum, const struct rk_job_role *role,
                                       struct rk_status *st)
{
    struct rk_status *earlier = rk_memory_sum_check(sum);
    int32_t rank = rk_memory_sum_fullest(sum);
    struct rk_str before = {0};

    if (earlier) {
        rk_status_free(st);
        return earlier;
    }
    append_roles(&before, sum, sum->num_roles, rank);
    st = RK_WRAP(st, "role %s does not fit beside %s; nothing was loaded", role->name,
                 before.bytes ? rk_str_text(&before) : "nothing else");
    rk_str_fini(&before);
    return st;
}

/* --- the table --- */

static bool is_kind_used(const struct rk_memory_sum *sum, int32_t rank, int kind)
{
    for (int64_t i = 0; i < sum->num_roles; i++) {
        if (kind_bytes(plan_of(sum, i, rank), kind) > 0)
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

/* What roles give back between calls; it counts once. */
static bool is_any_away(const struct rk_memory_sum *sum, int32_t rank)
{
    for (int64_t i = 0; i < sum->num_roles; i++) {
        if (int_at(plan_of(sum, i, rank), "away") > 0)
            return true;
    }
    return false;
}

static void format_titles(struct rk_str *out, const struct rk_memory_sum *sum, int32_t rank)
{
    rk_str_appendf(out, "%-8s", "");
    for (int kind = 0; kind < NUM_KINDS; kind++) {
        if (is_kind_used(sum, rank, kind))
            rk_str_appendf(out, "  %*s", LEAST_COLUMNS, kinds[kind].name);
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
        struct domain domain;

        if (!find_domain(&domain, sum, rank, sum->num_roles))
            continue;
        rk_str_appendf(out, "ranks %s share memory: ", rk_str_text(&domain.ranks));
        format_sum(out, domain.added, domain.free, unit);
        rk_str_fini(&domain.ranks);
    }
}

void rk_memory_sum_format(const struct rk_memory_sum *sum, struct rk_str *out)
{
    int32_t rank = rk_memory_sum_fullest(sum);
    bool is_large = (double)taken_bytes(sum, rank) >= GIB;
    double unit = is_large ? GIB : MIB;

    rk_str_appendf(out, "memory plan of rank %d, the fullest of %d, in %s:\n", rank, sum->num_ranks,
                   is_large ? "GiB" : "MiB");
    format_titles(out, sum, rank);
    for (int64_t i = 0; i < sum->num_roles; i++) {
        const struct rk_json *plan = plan_of(sum, i, rank);

        rk_str_appendf(out, "%-8s", sum->roles[i].role->name);
        for (int kind = 0; kind < NUM_KINDS; kind++) {
            if (is_kind_used(sum, rank, kind))
                format_cell(out, kinds[kind].name, (double)kind_bytes(plan, kind) / unit);
        }
        if (is_any_away(sum, rank))
            format_cell(out, "away", (double)int_at(plan, "away") / unit);
        format_cell(out, "added", (double)added_bytes(plan) / unit);
        rk_str_append(out, "\n");
    }
    format_sum(out, taken_bytes(sum, rank), free_bytes(sum, rank), unit);
    format_domains(out, sum, unit);
}

/* --- memory_plan.json --- */

static struct rk_json *role_json(const struct rk_memory_sum *sum, int64_t role, int32_t rank)
{
    const struct rk_json *plan = plan_of(sum, role, rank);
    struct rk_json *object = rk_json_new_object();

    rk_json_set(object, "role", rk_json_new_string(sum->roles[role].role->name));
    rk_json_set(object, "planned", rk_json_clone(rk_json_find(plan, "planned")));
    rk_json_set(object, "communication", rk_json_new_int(int_at(plan, "communication")));
    rk_json_set(object, "away", rk_json_new_int(int_at(plan, "away")));
    rk_json_set(object, "num_kv_blocks", rk_json_new_int(int_at(plan, "num_kv_blocks")));
    rk_json_set(object, "added", rk_json_new_int(added_bytes(plan)));
    return object;
}

static struct rk_json *rank_json(const struct rk_memory_sum *sum, int32_t rank)
{
    struct rk_json *object = rk_json_new_object(), *roles = rk_json_new_array();
    const struct rk_json *device = rk_json_find(last_plan(sum, rank), "device");

    for (int64_t i = 0; i < sum->num_roles; i++) {
        if (!rk_json_is_null(plan_of(sum, i, rank)))
            rk_json_append(roles, role_json(sum, i, rank));
    }
    rk_json_set(object, "rank", rk_json_new_int(rank));
    rk_json_set(object, "roles", roles);
    rk_json_set(object, "sum", rk_json_new_int(taken_bytes(sum, rank)));
    rk_json_set(object, "free", rk_json_new_int(free_bytes(sum, rank)));
    rk_json_set(object, "left", rk_json_new_int(left_bytes(sum, rank)));
    rk_json_set(object, "device", device ? rk_json_clone(device) : rk_json_new_null());
    return object;
}

static struct rk_json *ranks_json(const struct rk_memory_sum *sum, const char *domain)
{
    struct rk_json *ranks = rk_json_new_array();

    for (int32_t rank = 0; rank < sum->num_ranks; rank++) {
        if (strcmp(domain_name(sum, rank), domain) == 0)
            rk_json_append(ranks, rk_json_new_int(rank));
    }
    return ranks;
}

static struct rk_json *domains_json(const struct rk_memory_sum *sum)
{
    struct rk_json *domains = rk_json_new_array();

    for (int32_t rank = 0; rank < sum->num_ranks; rank++) {
        struct rk_json *object;
        struct domain domain;

        if (!find_domain(&domain, sum, rank, sum->num_roles))
            continue;
        object = rk_json_new_object();
        rk_json_set(object, "ranks", ranks_json(sum, domain_name(sum, rank)));
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
