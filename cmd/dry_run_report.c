#include "cmd/dry_run_internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_assert.h"

#define PICTURE_COLUMNS 110
#define GIB             (1024.0 * 1024.0 * 1024.0)

static const struct rk_dry_run_role *actor_of(const struct rk_dry_run_report *report)
{
    RK_ASSERT(report->num_roles > 0);
    return &report->roles[0];
}

void rk_dry_run_report_fini(struct rk_dry_run_report *report)
{
    for (int64_t i = 0; i < report->num_roles; i++) {
        rk_pipeline_destroy(report->roles[i].pipeline);
        rk_json_free(report->roles[i].groups);
    }
    rk_pipeline_timeline_destroy(report->update.timeline);
    rk_pipeline_timeline_destroy(report->forward.timeline);
    rk_json_free(report->memory);
    rk_str_fini(&report->memory_table);
    *report = (struct rk_dry_run_report){0};
}

/* --- the schedule --- */

/* Operations of a token in each chunk: [stages * chunks]. */
static void fill_costs(double *forward, double *backward, const struct rk_dry_run_role *role)
{
    const struct rk_estimate *estimate = &role->estimate;
    int32_t num_chunks = rk_pipeline_num_chunks(role->pipeline);

    for (int32_t i = 0; i < rk_pipeline_num_stages(role->pipeline) * num_chunks; i++) {
        struct rk_pipeline_chunk chunk =
            rk_pipeline_get_chunk(role->pipeline, i / num_chunks, i % num_chunks);
        double layers = rk_estimate_layers(estimate, chunk.layer_begin, chunk.layer_end);
        double head = chunk.has_head ? estimate->head : 0;

        forward[i] = layers + head;
        backward[i] = (role->recomputes ? 3 : 2) * layers + 2 * head;
    }
}

static struct rk_status *simulate(struct rk_plan_schedule *out, const struct rk_dry_run_role *role,
                                  int64_t num_micro, bool forward_only)
{
    int32_t pp = rk_pipeline_num_stages(role->pipeline), vpp = rk_pipeline_num_chunks(role->pipeline);
    double *forward = rk_calloc((size_t)pp * (size_t)vpp, sizeof(*forward));
    double *backward = rk_calloc((size_t)pp * (size_t)vpp, sizeof(*backward));
    const struct rk_pipeline_costs costs = {.forward = forward, .backward = backward};
    struct rk_status *st;

    out->schedule = (struct rk_pipeline_schedule){
        .pp = pp,
        .vpp = vpp,
        .num_micro_batches = rk_pipeline_round_micro_batches((int32_t)num_micro, pp, vpp, 0),
        .forward_only = forward_only,
    };
    fill_costs(forward, backward, role);
    st = rk_pipeline_simulate(&out->timeline, &out->schedule, &costs, RK_PIPELINE_BUFFERED);
    if (!st)
        out->live_max = rk_pipeline_max_live(out->timeline->steps, out->timeline->num_steps);
    rk_free(forward);
    rk_free(backward);
    return st;
}

struct rk_status *rk_dry_run_report_simulate(struct rk_dry_run_report *report)
{
    const struct rk_dry_run_role *actor = actor_of(report);

    if (!actor->pipeline || !actor->has_estimate || report->num_micro < 1)
        return NULL;
    RK_TRY(simulate(&report->update, actor, report->num_micro, false));
    return simulate(&report->forward, actor, report->num_micro, true);
}

/* --- rates --- */

/* Tokens a second on the ranks of a role; 0: not known. */
static double rate(const struct rk_dry_run_report *report, const struct rk_dry_run_role *role, bool trains)
{
    const struct rk_pipeline_timeline *timeline = trains ? report->update.timeline : report->forward.timeline;
    double operations;

    if (report->peak_flops <= 0 || !role->has_estimate || !timeline)
        return 0;
    operations =
        trains ? rk_estimate_train(&role->estimate, role->recomputes) : rk_estimate_forward(&role->estimate);
    return rk_mesh_num_ranks(role->mesh) * report->peak_flops * report->mfu /
           (operations * (1 + timeline->bubble));
}

/* --- for people --- */

static void format_chunk(struct rk_str *out, struct rk_pipeline_chunk chunk)
{
    int32_t count = chunk.layer_end - chunk.layer_begin;

    if (count > 1)
        rk_str_appendf(out, " %d-%d", chunk.layer_begin, chunk.layer_end - 1);
    else if (count == 1)
        rk_str_appendf(out, " %d", chunk.layer_begin);
    rk_str_appendf(out, "%s%s", chunk.has_embed ? " +embedding" : "", chunk.has_head ? " +head" : "");
}

static void format_layers(struct rk_str *out, const struct rk_dry_run_role *role)
{
    int32_t num_stages = role->pipeline ? rk_pipeline_num_stages(role->pipeline) : 0;

    rk_str_append(out, role->pipeline ? "layers" : "layers unknown: config.json is not on this machine");
    for (int32_t stage = 0; stage < num_stages; stage++) {
        if (num_stages > 1)
            rk_str_appendf(out, "\n%10sstage %d:", "", stage);
        for (int32_t i = 0; i < rk_pipeline_num_chunks(role->pipeline); i++) {
            rk_str_append(out, i ? "," : "");
            format_chunk(out, rk_pipeline_get_chunk(role->pipeline, stage, i));
        }
    }
}

/* The kinds of groups with different ranks: the other kinds share a communicator with one of these.
 */
static int64_t count_distinct(const struct rk_json *groups)
{
    int64_t count = 0;

    for (void *it = rk_json_iter(groups); it; it = rk_json_iter_next(groups, it)) {
        void *before = rk_json_iter(groups);

        while (before != it && !rk_json_equal(rk_json_iter_value(before), rk_json_iter_value(it)))
            before = rk_json_iter_next(groups, before);
        count += before == it;
    }
    return count;
}

static void format_groups(struct rk_str *out, const struct rk_json *groups)
{
    bool is_first = true;

    rk_str_appendf(out, "%" PRId64, count_distinct(groups));
    for (void *it = rk_json_iter(groups); it; it = rk_json_iter_next(groups, it)) {
        rk_str_appendf(out, "%s %s of %" PRId64, is_first ? ":" : ",", rk_json_iter_key(it),
                       rk_json_count(rk_json_iter_value(it)));
        is_first = false;
    }
}

static void format_roles(struct rk_str *out, const struct rk_dry_run_report *report)
{
    rk_str_appendf(out, "%s on %d ranks, device %s\n\nmesh and layers of each role\n", report->job,
                   report->world_size, report->device);
    for (int64_t i = 0; i < report->num_roles; i++) {
        rk_str_appendf(out, "%-9s %s on %d ranks; ", report->roles[i].role->name,
                       rk_mesh_text(report->roles[i].mesh), rk_mesh_num_ranks(report->roles[i].mesh));
        format_layers(out, &report->roles[i]);
        rk_str_append(out, "\n");
    }
    rk_str_append(
        out, "\ncommunicators of each role's first rank, by kinds; kinds with the same ranks share one\n");
    for (int64_t i = 0; i < report->num_roles; i++) {
        rk_str_appendf(out, "%-9s ", report->roles[i].role->name);
        format_groups(out, report->roles[i].groups);
        rk_str_append(out, "\n");
    }
}

static void format_update(struct rk_str *out, const struct rk_dry_run_report *report)
{
    const struct rk_plan_schedule *update = &report->update;

    rk_str_appendf(out,
                   "\nupdate of the actor: %" PRId64 " optimizer step%s of %" PRId64
                   " micro-batch%s on each replica\n",
                   report->num_mini, report->num_mini == 1 ? "" : "s", report->num_micro,
                   report->num_micro == 1 ? "" : "es");
    if (!update->timeline)
        return;
    if (update->timeline->pp == 1) {
        rk_str_append(out, "no pipeline: one micro-batch after the other\n");
        return;
    }
    rk_str_appendf(out,
                   "%s of %d micro-batches over %d stages (F forward, B backward, . idle), %.1f%% bubble\n",
                   update->timeline->vpp > 1 ? "interleaved 1F1B" : "1F1B",
                   update->schedule.num_micro_batches, update->timeline->pp, 100 * update->timeline->bubble);
    rk_pipeline_format(out, update->timeline, PICTURE_COLUMNS);
    rk_str_appendf(out, "activations of up to %" PRId64 " micro-batches%s on the first stage\n",
                   update->live_max, update->timeline->vpp > 1 ? ", one chunk each," : "");
}

static int64_t experts_per_rank(const struct rk_dry_run_role *role)
{
    return role->estimate.num_experts / rk_mesh_axis_size(role->mesh, RK_AXIS_EP);
}

/* Rows that a rank's experts take in a round, as a share of the rows that they receive if all experts have
 * equally many. */
static double imbalance(const struct rk_dry_run_experts *experts)
{
    return (double)experts->dispatch_tokens / (double)experts->num_tokens;
}

static void format_experts(struct rk_str *out, const struct rk_dry_run_report *report)
{
    const struct rk_dry_run_experts *experts = &report->experts;
    const struct rk_dry_run_role *actor = actor_of(report);

    if (experts->num_tokens == 0)
        return;
    rk_str_appendf(out,
                   "\nexperts of the actor: %" PRId64 " of %" PRId64 " on each rank, %" PRId64 " per token\n"
                   "rows in a round: those of %" PRId64 " tokens, %.2f times the %" PRId64
                   " of even routing%s; more take further rounds in the same memory\n",
                   experts_per_rank(actor), actor->estimate.num_experts, actor->estimate.num_experts_per_tok,
                   experts->dispatch_tokens, imbalance(experts), experts->num_tokens,
                   experts->keeps_rows ? ", kept for each layer" : "");
}

static void format_rate(struct rk_str *out, const char *what, double tokens,
                        const struct rk_dry_run_report *report)
{
    rk_str_appendf(out, "%s  %.0f tokens/s, %.0f per rank; %.1f s per step\n", what, tokens,
                   tokens / rk_mesh_num_ranks(actor_of(report)->mesh), (double)report->num_tokens / tokens);
}

static void format_rates(struct rk_str *out, const struct rk_dry_run_report *report)
{
    const struct rk_dry_run_role *actor = actor_of(report);
    double update = rate(report, actor, true), forward = rate(report, actor, false);

    rk_str_append(out, "\nexpected rates of the actor\n");
    if (update <= 0) {
        rk_str_appendf(out, "unknown: %s\n",
                       report->peak_flops > 0 ? "the model's config.json does not contain its sizes"
                                              : "set --peak-tflops");
        return;
    }
    format_rate(out, "update   ", update, report);
    format_rate(out, "log-probs", forward, report);
    rk_str_appendf(
        out,
        "assumed: %.0f TFLOP/s peak and %.0f%% of it on each rank, %.3g operations per token in the update "
        "and %.3g in\nlog-probs, all sequences of %" PRId64
        " tokens, no transfer times%s; generation is not included, it is bound by memory\n",
        report->peak_flops / 1e12, 100 * report->mfu, rk_estimate_train(&actor->estimate, actor->recomputes),
        rk_estimate_forward(&actor->estimate), report->seqlen,
        report->experts.num_tokens > 0 ? ", even routing to experts" : "");
}

void rk_dry_run_report_format(const struct rk_dry_run_report *report, struct rk_str *out)
{
    format_roles(out, report);
    format_update(out, report);
    format_experts(out, report);
    rk_str_append(out, "\n");
    rk_str_append(out, rk_str_text(&report->memory_table));
    if (report->is_device_assumed)
        rk_str_appendf(
            out, "assumed: this machine has no device %s; the workspace is that of the CPU's operators\n",
            report->device);
    if (report->device_bytes > 0)
        rk_str_appendf(out, "assumed: %.2f GiB are free on the device of each rank\n",
                       (double)report->device_bytes / GIB);
    format_rates(out, report);
}

/* --- as JSON --- */

static struct rk_json *stages_json(const struct rk_pipeline *pipeline)
{
    struct rk_json *stages = rk_json_new_array();

    for (int32_t stage = 0; stage < rk_pipeline_num_stages(pipeline); stage++) {
        struct rk_json *chunks = rk_json_new_array();

        for (int32_t i = 0; i < rk_pipeline_num_chunks(pipeline); i++) {
            struct rk_pipeline_chunk chunk = rk_pipeline_get_chunk(pipeline, stage, i);
            struct rk_json *object = rk_json_new_object();

            rk_json_set(object, "layer_begin", rk_json_new_int(chunk.layer_begin));
            rk_json_set(object, "layer_end", rk_json_new_int(chunk.layer_end));
            rk_json_set(object, "has_embed", rk_json_new_bool(chunk.has_embed));
            rk_json_set(object, "has_head", rk_json_new_bool(chunk.has_head));
            rk_json_append(chunks, object);
        }
        rk_json_append(stages, chunks);
    }
    return stages;
}

static struct rk_json *role_json(const struct rk_dry_run_role *role)
{
    static const rk_axis_t axes[] = {RK_AXIS_TP, RK_AXIS_CP, RK_AXIS_DP, RK_AXIS_PP, RK_AXIS_EP, RK_AXIS_ETP};
    struct rk_json *object = rk_json_new_object();

    rk_json_set(object, "role", rk_json_new_string(role->role->name));
    rk_json_set(object, "mesh", rk_json_new_string(rk_mesh_text(role->mesh)));
    rk_json_set(object, "num_ranks", rk_json_new_int(rk_mesh_num_ranks(role->mesh)));
    for (size_t i = 0; i < RK_ARRAY_LEN(axes); i++)
        rk_json_set(object, rk_axis_name(axes[i]), rk_json_new_int(rk_mesh_axis_size(role->mesh, axes[i])));
    rk_json_set(object, "stages", role->pipeline ? stages_json(role->pipeline) : rk_json_new_null());
    rk_json_set(object, "num_communicators", rk_json_new_int(count_distinct(role->groups)));
    rk_json_set(object, "communicators", role->groups ? rk_json_clone(role->groups) : rk_json_new_null());
    return object;
}

static struct rk_json *update_json(const struct rk_dry_run_report *report)
{
    const struct rk_plan_schedule *update = &report->update;
    struct rk_json *object = rk_json_new_object();

    rk_json_set(object, "num_mini_batches", rk_json_new_int(report->num_mini));
    rk_json_set(object, "num_micro_batches", rk_json_new_int(report->num_micro));
    if (!update->timeline)
        return object;
    rk_json_set(object, "num_scheduled_micro_batches", rk_json_new_int(update->schedule.num_micro_batches));
    rk_json_set(object, "pp", rk_json_new_int(update->timeline->pp));
    rk_json_set(object, "vpp", rk_json_new_int(update->timeline->vpp));
    rk_json_set(object, "bubble", rk_json_new_real(update->timeline->bubble));
    rk_json_set(object, "max_live_chunks", rk_json_new_int(update->live_max));
    return object;
}

static struct rk_json *experts_json(const struct rk_dry_run_report *report)
{
    const struct rk_dry_run_experts *experts = &report->experts;
    const struct rk_dry_run_role *actor = actor_of(report);
    struct rk_json *object;

    if (experts->num_tokens == 0)
        return rk_json_new_null();
    object = rk_json_new_object();
    rk_json_set(object, "num_experts", rk_json_new_int(actor->estimate.num_experts));
    rk_json_set(object, "experts_per_rank", rk_json_new_int(experts_per_rank(actor)));
    rk_json_set(object, "num_experts_per_tok", rk_json_new_int(actor->estimate.num_experts_per_tok));
    rk_json_set(object, "rank_tokens", rk_json_new_int(experts->num_tokens));
    rk_json_set(object, "dispatch_tokens", rk_json_new_int(experts->dispatch_tokens));
    rk_json_set(object, "imbalance", rk_json_new_real(imbalance(experts)));
    rk_json_set(object, "keeps_rows", rk_json_new_bool(experts->keeps_rows));
    return object;
}

static struct rk_json *rates_json(const struct rk_dry_run_report *report)
{
    const struct rk_dry_run_role *actor = actor_of(report);
    double update = rate(report, actor, true);
    struct rk_json *object;

    if (update <= 0)
        return rk_json_new_null();
    object = rk_json_new_object();
    rk_json_set(object, "update_tokens_per_second", rk_json_new_real(update));
    rk_json_set(object, "log_prob_tokens_per_second", rk_json_new_real(rate(report, actor, false)));
    rk_json_set(object, "peak_tflops", rk_json_new_real(report->peak_flops / 1e12));
    rk_json_set(object, "mfu", rk_json_new_real(report->mfu));
    rk_json_set(object, "update_flops_per_token",
                rk_json_new_real(rk_estimate_train(&actor->estimate, actor->recomputes)));
    rk_json_set(object, "log_prob_flops_per_token", rk_json_new_real(rk_estimate_forward(&actor->estimate)));
    rk_json_set(object, "sequence_tokens", rk_json_new_int(report->seqlen));
    return object;
}

struct rk_json *rk_dry_run_report_json(const struct rk_dry_run_report *report)
{
    struct rk_json *object = rk_json_new_object(), *roles = rk_json_new_array();

    for (int64_t i = 0; i < report->num_roles; i++)
        rk_json_append(roles, role_json(&report->roles[i]));
    rk_json_set(object, "job", rk_json_new_string(report->job));
    rk_json_set(object, "world_size", rk_json_new_int(report->world_size));
    rk_json_set(object, "device", rk_json_new_string(report->device));
    rk_json_set(object, "device_is_assumed", rk_json_new_bool(report->is_device_assumed));
    rk_json_set(object, "roles", roles);
    rk_json_set(object, "update", update_json(report));
    rk_json_set(object, "experts", experts_json(report));
    rk_json_set(object, "memory", report->memory ? rk_json_clone(report->memory) : rk_json_new_null());
    rk_json_set(object, "rates", rates_json(report));
    return object;
}
