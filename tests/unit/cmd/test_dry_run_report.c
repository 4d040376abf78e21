/* The report of rankctl plan for a pipeline: layers, timeline, bubble, rates. */
#include "cmd/dry_run_internal.h"

#include <math.h>
#include <string.h>

#include "base/rk_alloc.h"
#include "proto/rk_methods.h"
#include "tests/support/test.h"

#define NUM_LAYERS 4
#define LAYER      10.0

/* An actor of four layers on tp 2, two stages, and a step of `num_micro` micro-batches. */
static struct rk_mesh *fill_report(struct rk_dry_run_report *report, int32_t vpp, int64_t num_micro)
{
    const struct rk_mesh_spec mesh_spec = {.tp = 2, .pp = 2};
    const struct rk_pipeline_spec spec = {.num_layers = NUM_LAYERS, .pp = 2, .vpp = vpp};
    struct rk_dry_run_role *actor = &report->roles[0];
    struct rk_mesh *mesh;

    *report = (struct rk_dry_run_report){
        .job = "job.json",
        .world_size = 4,
        .device = "cuda",
        .peak_flops = 1000,
        .mfu = 0.5,
        .seqlen = 8,
        .num_tokens = 64,
        .num_mini = 1,
        .num_micro = num_micro,
        .num_roles = 1,
    };
    assert_ok(rk_mesh_create(&mesh, &mesh_spec, 4));
    actor->role = rk_job_role(RK_ROLE_ACTOR);
    actor->mesh = mesh;
    assert_ok(rk_pipeline_create(&actor->pipeline, &spec));
    actor->has_estimate = true;
    actor->estimate = (struct rk_estimate){.num_layers = NUM_LAYERS, .layer = LAYER};
    assert_ok(rk_dry_run_report_simulate(report));
    return mesh;
}

static double real_at(const struct rk_json *json, const char *path)
{
    return rk_json_as_real(rk_json_find_path(json, path), NAN);
}

static void assert_near(double actual, double expected)
{
    if (!(fabs(actual - expected) <= 1e-9 * fabs(expected)))
        fail_msg("%.17g, expected %.17g", actual, expected);
}

/* Goal: without a head the stages are equal: the bubble is (pp - 1) / m and reduces the rates. */
static void test_dry_run_report_of_two_stages(void **state)
{
    static const char *const texts[] = {
        "tp=2 pp=2 on 4 ranks",
        "stage 0: 0-1 +embedding\n",
        "stage 1: 2-3 +head\n",
        "1F1B of 4 micro-batches over 2 stages (F forward, B backward, . idle), 25.0% bubble\n",
        "stage 0  F0-F1-......B0====F2-B1====F3-B2====...B3====\n",
        "stage 1  ...F0-B0====F1-B1====F2-B2====F3-B3====......\n",
        "up to 2 micro-batches on the first stage",
    };
    struct rk_dry_run_report report;
    struct rk_mesh *mesh = fill_report(&report, 1, 4);
    struct rk_json *json = rk_dry_run_report_json(&report);
    struct rk_str text = {0};

    (void)state;
    rk_dry_run_report_format(&report, &text);
    for (size_t i = 0; i < RK_ARRAY_LEN(texts); i++) {
        if (!strstr(rk_str_text(&text), texts[i]))
            fail_msg("'%s' is not in:\n%s", texts[i], rk_str_text(&text));
    }
    assert_near(real_at(json, "update.bubble"), 0.25);
    /* 4 ranks of 1000 operations per second at 50% utilization */
    assert_near(real_at(json, "rates.update_tokens_per_second"), 2000 / (3 * NUM_LAYERS * LAYER * 1.25));
    assert_near(real_at(json, "rates.log_prob_tokens_per_second"), 2000 / (NUM_LAYERS * LAYER * 1.25));
    rk_str_fini(&text);
    rk_json_free(json);
    rk_dry_run_report_fini(&report);
    rk_mesh_destroy(mesh);
}

/* Goal: with interleaving, the number of micro-batches is rounded up to a multiple that the schedule
 * accepts. */
static void test_dry_run_report_of_chunks(void **state)
{
    struct rk_dry_run_report report;
    struct rk_mesh *mesh = fill_report(&report, 2, 3);
    struct rk_json *json = rk_dry_run_report_json(&report);
    struct rk_str text = {0};

    (void)state;
    rk_dry_run_report_format(&report, &text);
    assert_non_null(strstr(rk_str_text(&text), "stage 0: 0 +embedding, 2\n"));
    assert_non_null(strstr(rk_str_text(&text), "interleaved 1F1B of 4 micro-batches"));
    assert_non_null(strstr(rk_str_text(&text), "F0.0-F1.0-F0.1-"));
    assert_near(real_at(json, "update.bubble"), 1.0 / 8);
    assert_near(real_at(json, "update.num_scheduled_micro_batches"), 4);
    rk_str_fini(&text);
    rk_json_free(json);
    rk_dry_run_report_fini(&report);
    rk_mesh_destroy(mesh);
}

/* Goal: the head's operations count with the last stage, which the others wait for. */
static void test_dry_run_report_head_makes_a_bubble(void **state)
{
    struct rk_dry_run_report even, headed;
    struct rk_mesh *mesh = fill_report(&even, 1, 4), *other;

    (void)state;
    other = fill_report(&headed, 1, 4);
    rk_pipeline_timeline_destroy(headed.update.timeline);
    rk_pipeline_timeline_destroy(headed.forward.timeline);
    headed.roles[0].estimate.head = 2 * LAYER; /* the last stage takes twice as long */
    assert_ok(rk_dry_run_report_simulate(&headed));
    assert_true(headed.update.timeline->bubble > even.update.timeline->bubble);
    /* F1 of stage 1 follows B0 at once: stage 1 is idle only before its first forward, 2 of 2 + 4 * 12 */
    assert_near(headed.update.timeline->total, 20 + 4 * 120 + 40);
    rk_dry_run_report_fini(&even);
    rk_dry_run_report_fini(&headed);
    rk_mesh_destroy(mesh);
    rk_mesh_destroy(other);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_dry_run_report_of_two_stages),
        cmocka_unit_test(test_dry_run_report_of_chunks),
        cmocka_unit_test(test_dry_run_report_head_makes_a_bubble),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
