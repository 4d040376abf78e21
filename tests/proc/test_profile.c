/* A profiled run: trace.json of the run directory, read like a viewer of Chrome traces. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/rk_alloc.h"
#include "base/rk_array.h"
#include "base/rk_str.h"
#include "tests/proc/cli_fixture.h"

#define NUM_RANKS  2
#define DRIVER_PID 1000000
#define LANES_MAX  64
#define TRACE_MAX  (64 << 20)
#define ROUNDING   2e-3 /* microseconds: times have three digits, and each is rounded */

struct event {
    int32_t pid, tid;
    double begin, end;
    const char *name, *category;
};

struct trace {
    struct rk_json *json;
    RK_ARRAY(struct event) events; /* "X" events, by lane and begin */
};

static int compare(const void *left, const void *right)
{
    const struct event *a = left, *b = right;

    if (a->pid != b->pid)
        return a->pid < b->pid ? -1 : 1;
    if (a->tid != b->tid)
        return a->tid < b->tid ? -1 : 1;
    if (a->begin != b->begin)
        return a->begin < b->begin ? -1 : 1;
    return a->end > b->end ? -1 : a->end < b->end; /* parents before children */
}

static struct trace read_trace(const char *dir)
{
    char *path = rk_path_join(dir, "trace.json");
    struct trace trace = {0};
    const struct rk_json *list;

    assert_ok(rk_json_parse_file(&trace.json, path, TRACE_MAX, 0));
    list = rk_json_find(trace.json, "traceEvents");
    for (int64_t i = 0; i < rk_json_count(list); i++) {
        const struct rk_json *json = rk_json_at(list, i);
        double begin = rk_json_as_real(rk_json_find(json, "ts"), -1);
        struct event event = {.pid = (int32_t)rk_json_as_int(rk_json_find(json, "pid"), -1),
                              .tid = (int32_t)rk_json_as_int(rk_json_find(json, "tid"), -1),
                              .begin = begin,
                              .end = begin + rk_json_as_real(rk_json_find(json, "dur"), -1e9),
                              .name = rk_json_as_string(rk_json_find(json, "name"), ""),
                              .category = rk_json_as_string(rk_json_find(json, "cat"), "")};

        assert_true(event.name[0] != 0);
        if (strcmp(rk_json_as_string(rk_json_find(json, "ph"), ""), "X") != 0)
            continue;
        assert_true(event.begin >= 0);
        assert_true(event.end >= event.begin);
        rk_array_append(&trace.events, event);
    }
    qsort(trace.events.items, (size_t)trace.events.count, sizeof(struct event), compare);
    rk_free(path);
    return trace;
}

static void trace_fini(struct trace *trace)
{
    rk_array_fini(&trace->events);
    rk_json_free(trace->json);
}

/* Every event of a lane ends before the next one begins, or contains it. */
static void assert_nests(const struct trace *trace)
{
    struct event open[LANES_MAX];
    int depth = 0;

    for (int64_t i = 0; i < trace->events.count; i++) {
        const struct event *event = &trace->events.items[i];

        if (i > 0 && (event[-1].pid != event->pid || event[-1].tid != event->tid))
            depth = 0;
        while (depth > 0 && open[depth - 1].end <= event->begin + ROUNDING)
            depth--;
        if (depth > 0 && event->end > open[depth - 1].end + ROUNDING)
            fail_msg("pid %d tid %d: %s [%.3f, %.3f] overlaps %s [%.3f, %.3f]", event->pid, event->tid,
                     event->name, event->begin, event->end, open[depth - 1].name, open[depth - 1].begin,
                     open[depth - 1].end);
        assert_true(depth < LANES_MAX);
        open[depth++] = *event;
    }
}

static int64_t count(const struct trace *trace, int32_t pid, const char *category, const char *name)
{
    int64_t found = 0;

    for (int64_t i = 0; i < trace->events.count; i++) {
        const struct event *event = &trace->events.items[i];

        found += event->pid == pid && strcmp(event->category, category) == 0 &&
                 (!name || strcmp(event->name, name) == 0);
    }
    return found;
}

static const struct event *find(const struct trace *trace, int32_t pid, const char *name, int64_t n)
{
    for (int64_t i = 0; i < trace->events.count; i++) {
        if (trace->events.items[i].pid == pid && strcmp(trace->events.items[i].name, name) == 0 && n-- == 0)
            return &trace->events.items[i];
    }
    fail_msg("pid %d has no %s", pid, name);
    return NULL;
}

/* The clocks are aligned: on every rank, events that the driver waits for are within the driver's event. */
static void assert_ranks_line_up(const struct trace *trace, int64_t num_steps)
{
    double slack = is_on_gpus() ? 1000 : 500; /* half of a round trip to a busy daemon, in microseconds */

    for (int64_t n = 0; n < num_steps; n++) {
        const struct event *part = find(trace, DRIVER_PID, "update_actor", n);

        for (int32_t rank = 0; rank < NUM_RANKS; rank++) {
            const struct event *call = find(trace, rank, "actor.update_actor", n);

            print_message("rank %d: driver [%.0f, %.0f], call [%.0f, %.0f]\n", rank, part->begin, part->end,
                          call->begin, call->end);
            assert_true(call->begin >= part->begin - slack);
            assert_true(call->end <= part->end + slack);
        }
    }
}

/* Goal: one file with the operators, collectives and phases of the selected steps only, of all ranks, on one
 * clock; profiling does not change the run. */
static void test_profiled_steps_are_one_trace_of_all_ranks(void **state)
{
    char *dir = run_new_tiny_job("2", (const char *const[]){"trainer.profile_steps=[1,3]", NULL}, NULL);
    char *plain = run_new_tiny_job("2", NULL, NULL), *path = rk_path_join(plain, "trace.json");
    struct trace trace = read_trace(dir);

    (void)state;
    assert_int_equal(access(path, F_OK), -1);
    for (int64_t step = 1; step <= TINY_STEPS; step++) {
        struct rk_json *expected = read_metrics(plain, step), *metrics = read_metrics(dir, step);

        assert_same_step(metrics, expected, step);
        rk_json_free(expected);
        rk_json_free(metrics);
    }
    assert_nests(&trace);
    for (int32_t rank = 0; rank < NUM_RANKS; rank++) {
        assert_int_equal(count(&trace, rank, "phase", "actor.update_actor"), 2);
        assert_int_equal(count(&trace, rank, "phase", "rollout.generate_sequences"), 2);
        assert_true(count(&trace, rank, "phase", "forward") >= 2);
        assert_true(count(&trace, rank, "phase", "backward") >= 2);
        assert_true(count(&trace, rank, "phase", "optimizer") >= 2);
        assert_true(count(&trace, rank, "phase", "generation step") >= 2);
        assert_true(count(&trace, rank, "operator", "gemm") > 10);
        assert_true(count(&trace, rank, "operator", "attn_varlen_bwd") > 0);
        assert_true(count(&trace, rank, "collective", "all_reduce") > 0);
        assert_true(count(&trace, rank, "collective", "all_gather") > 0);
        assert_true(count(&trace, rank, "copy", "copy to device") > 0);
        assert_int_equal(count(&trace, rank, "collective", NULL), count(&trace, 0, "collective", NULL));
    }
    assert_int_equal(count(&trace, DRIVER_PID, "step", "generate"), 2);
    assert_ranks_line_up(&trace, 2);
    trace_fini(&trace);
    rk_free(path);
    rk_free(plain);
    rk_free(dir);
}

/* Goal: trainer.profile_ranks selects ranks; invalid steps and ranks are rejected with the key. */
static void test_profile_of_some_ranks(void **state)
{
    char *dir = run_new_tiny_job(
        "2", (const char *const[]){"trainer.profile_steps=[2]", "trainer.profile_ranks=[1]", NULL}, NULL);
    struct trace trace = read_trace(dir);
    struct outcome outcome;

    (void)state;
    assert_int_equal(count(&trace, 0, "operator", NULL), 0);
    assert_true(count(&trace, 1, "operator", NULL) > 0);
    assert_nests(&trace);
    trace_fini(&trace);
    rk_free(dir);
    outcome = run_rankctl((const char *const[]){"config", "check", TINY_JOB, "trainer.profile_steps=[0]",
                                                "trainer.profile_ranks=[\"a\",2]", "--world=2", NULL});
    assert_exit(&outcome, 2);
    assert_text("stderr", outcome.err, "trainer.profile_steps: item 0: expected an integer from 1");
    assert_text("stderr", outcome.err, "trainer.profile_ranks: item 0: expected an integer from 0 to 1");
    assert_text("stderr", outcome.err, "trainer.profile_ranks: item 1: expected an integer from 0 to 1");
    outcome_fini(&outcome);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_profiled_steps_are_one_trace_of_all_ranks),
        cmocka_unit_test(test_profile_of_some_ranks),
    };

    skip_without_devices(NUM_RANKS);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
