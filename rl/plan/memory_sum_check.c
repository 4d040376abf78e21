/* Checks whether the roles fit, and composes the message if they do not. */
#include "rl/plan/memory_sum_parts_internal.h"

#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_assert.h"
#include "base/config/rk_knobs.h"

#define GIB (1024.0 * 1024.0 * 1024.0)
#define MIB (1024.0 * 1024.0)

static void append_bytes(struct rk_str *out, int64_t bytes)
{
    if ((double)bytes >= GIB / 10)
        rk_str_appendf(out, "%.2f GiB", (double)bytes / GIB);
    else
        rk_str_appendf(out, "%.2f MiB", (double)bytes / MIB);
}

/* Keys below the role's section that reduce its largest kind. */
static void append_advice(struct rk_str *out, const struct rk_job_role *role, int kind)
{
    rk_str_appendf(out, "; for %s of %s ", rk_memory_sum_kinds[kind].name, role->name);
    switch (rk_memory_sum_kinds[kind].cause) {
    case RK_MEMORY_SUM_CACHE:
        rk_str_appendf(out, "lower %smax_num_seqs, max_model_len or gpu_memory_utilization", role->section);
        return;
    case RK_MEMORY_SUM_PASSES:
        rk_str_appendf(out, "lower %s%s", role->section, role->max_tokens);
        if (!role->shares)
            rk_str_append(out, " (without use_dynamic_bsz: the micro-batch size)");
        if (role->trains)
            rk_str_appendf(out, " or set %s" RK_KNOB_RECOMPUTE "granularity=full", role->section);
        return;
    case RK_MEMORY_SUM_WEIGHTS:
        break;
    }
    rk_str_appendf(out, "raise %s" RK_JOB_TP " or run on more daemons", role->section);
    if (role->trains)
        rk_str_appendf(
            out,
            "; to share the device with other roles, set %smegatron.param_offload, grad_offload and "
            "optimizer_offload",
            role->section);
}

static void append_roles(struct rk_str *out, const struct rk_memory_sum *sum, int64_t count, int32_t rank)
{
    for (int64_t i = 0; i < count; i++) {
        rk_str_appendf(out, "%s%s ", i ? ", " : "", sum->roles[i].role->name);
        append_bytes(out, rk_memory_sum_added_bytes(rk_memory_sum_plan_of(sum, i, rank)));
    }
}

/* `text` describes where role `role` does not fit; rank `rank` has its largest plan. Takes ownership of the
 * text. */
static struct rk_status *too_much(const struct rk_memory_sum *sum, int64_t role, int32_t rank,
                                  struct rk_str *text)
{
    int64_t largest = rk_memory_sum_largest_role(sum, rank);
    const struct rk_json *plan = rk_memory_sum_plan_of(sum, role, rank),
                         *of_largest = rk_memory_sum_plan_of(sum, largest, rank);
    struct rk_status *st;

    rk_str_appendf(text, "; the largest role is %s with ", sum->roles[largest].role->name);
    append_bytes(text, rk_memory_sum_added_bytes(of_largest));
    rk_str_append(text, "; nothing was loaded");
    append_advice(text, sum->roles[role].role, rk_memory_sum_largest_kind(plan));
    if (largest != role)
        append_advice(text, sum->roles[largest].role, rk_memory_sum_largest_kind(of_largest));
    st = RK_FAIL_REASON(RK_RESOURCE_EXHAUSTED, "DEVICE_OOM", "%s", rk_str_text(text));
    rk_str_fini(text);
    return st;
}

static struct rk_status *check_ranks(const struct rk_memory_sum *sum, int64_t role)
{
    struct rk_str text = {0};
    int32_t worst = -1;

    for (int32_t rank = 0; rank < sum->num_ranks; rank++) {
        const struct rk_json *plan = rk_memory_sum_plan_of(sum, role, rank);

        if (!rk_json_as_bool(rk_json_find(plan, "fits"), true) &&
            (worst < 0 ||
             rk_memory_sum_bytes_at(plan, "room_after.free") <
                 rk_memory_sum_bytes_at(rk_memory_sum_plan_of(sum, role, worst), "room_after.free")))
            worst = rank;
    }
    if (worst < 0)
        return NULL;
    rk_str_appendf(&text, "role %s does not fit into the memory of rank %d: it takes ",
                   sum->roles[role].role->name, worst);
    append_bytes(&text, rk_memory_sum_added_bytes(rk_memory_sum_plan_of(sum, role, worst)));
    rk_str_append(&text, ", ");
    append_bytes(&text,
                 RK_MAX(rk_memory_sum_bytes_at(rk_memory_sum_plan_of(sum, role, worst), "room.free"), 0));
    rk_str_append(&text, " are left of ");
    append_bytes(&text, rk_memory_sum_free_bytes(sum, worst));
    rk_str_append(&text, role > 0 ? " by " : "");
    append_roles(&text, sum, role, worst);
    return too_much(sum, role, worst, &text);
}

static struct rk_status *check_domains(const struct rk_memory_sum *sum, int64_t role)
{
    for (int32_t rank = 0; rank < sum->num_ranks; rank++) {
        struct rk_str text = {0};
        struct rk_memory_sum_domain domain;

        if (!rk_memory_sum_find_domain(&domain, sum, rank, role + 1))
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
