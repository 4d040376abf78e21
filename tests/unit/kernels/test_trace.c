/* Traces on the CPU, whose times can be compared with the host's clock. */
#include "kernels/rk_trace.h"

#include <pthread.h>
#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_json.h"
#include "base/rk_time.h"
#include "kernels/rk_kernels.h"
#include "tests/support/graph_device.h"
#include "tests/support/test.h"

static struct rk_device *device;
static struct rk_stream *stream, *other;
static float values[64], sums[64];

static int setup(void **state)
{
    struct rk_device_config config = {.struct_size = sizeof(config), .name = "cpu", .num_threads = 1};

    (void)state;
    assert_ok(rk_device_open(&device, &config));
    assert_ok(rk_stream_create(&stream, device, "main"));
    assert_ok(rk_stream_create(&other, device, "side"));
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    rk_stream_destroy(stream);
    rk_stream_destroy(other);
    rk_device_close(device);
    return 0;
}

static void run_operator(struct rk_stream *on)
{
    rk_tensor_t x = rk_tensor_1d(values, RK_DTYPE_F32, 64), y = rk_tensor_1d(sums, RK_DTYPE_F32, 64);

    assert_ok(rk_axpby(on, &(struct rk_axpby_args){.y = y, .x = x, .alpha = 1}));
}

/* The events, as a viewer reads them; rk_json_free it. */
static struct rk_json *read_events(struct rk_trace *trace, int64_t offset_ns)
{
    struct rk_trace_format format = {.pid = 3, .offset_ns = offset_ns};
    struct rk_str text = {0};
    struct rk_json *json;

    rk_str_append(&text, "[");
    rk_trace_format_events(trace, &format, &text);
    rk_str_append(&text, "null]");
    assert_ok(rk_json_parse(&json, text.text, text.bytes, "trace", 0));
    rk_str_fini(&text);
    return json;
}

static const char *text_of(const struct rk_json *json, const char *key)
{
    return rk_json_as_string(rk_json_find(json, key), "");
}

static double real_of(const struct rk_json *json, const char *key)
{
    return rk_json_as_real(rk_json_find(json, key), -1);
}

/* The n-th event of that name; NULL: there are fewer. */
static const struct rk_json *find(const struct rk_json *events, const char *name, int n)
{
    for (int64_t i = 0; i < rk_json_count(events); i++) {
        const struct rk_json *event = rk_json_at(events, i);

        if (strcmp(text_of(event, "name"), name) == 0 && strcmp(text_of(event, "ph"), "X") == 0 && n-- == 0)
            return event;
    }
    return NULL;
}

static void assert_within(const struct rk_json *inner, const struct rk_json *outer)
{
    assert_non_null(inner);
    assert_non_null(outer);
    assert_int_equal(real_of(inner, "tid"), real_of(outer, "tid"));
    assert_true(real_of(inner, "ts") >= real_of(outer, "ts"));
    assert_true(real_of(inner, "ts") + real_of(inner, "dur") <=
                real_of(outer, "ts") + real_of(outer, "dur") + 1e-3);
}

/* Goal: operators and copies are recorded with name, kind and bytes, within the phases around them, at the
 * times of the host's clock. */
static void test_trace_spans_nest_and_have_the_hosts_times(void **state)
{
    int64_t begin_ns, middle_ns, end_ns;
    const struct rk_json *phase, *event;
    struct rk_trace *trace;
    struct rk_json *events;

    (void)state;
    run_operator(stream); /* not recorded: there is no trace yet */
    assert_null(rk_stream_trace(stream));
    assert_ok(rk_trace_create(&trace, device, 1000));
    assert_ptr_equal(rk_stream_trace(stream), trace);
    begin_ns = rk_time_now_ns();
    rk_trace_begin_phase(stream, "forward");
    run_operator(stream);
    assert_ok(rk_stream_copy(stream, values, values + 8, 32, RK_COPY_D2D));
    rk_trace_begin(
        stream,
        &(struct rk_trace_span){
            .kind = RK_TRACE_COLLECTIVE, .name = "all_reduce", .group = "dp", .seq = 7, .bytes = 4096});
    rk_time_sleep_ms(5);
    rk_trace_end(stream);
    rk_trace_end_phase(stream);
    middle_ns = rk_time_now_ns();
    rk_trace_begin_phase(stream, "backward");
    run_operator(stream);
    run_operator(other);
    rk_trace_end_phase(stream);
    rk_trace_add_host(trace, "actor.update_actor", begin_ns, rk_time_now_ns());
    end_ns = rk_time_now_ns();

    events = read_events(trace, 0);
    phase = find(events, "forward", 0);
    assert_string_equal(text_of(phase, "cat"), "phase");
    assert_true(real_of(phase, "ts") * 1e3 >= (double)begin_ns - 100e3);
    assert_true((real_of(phase, "ts") + real_of(phase, "dur")) * 1e3 <= (double)middle_ns + 100e3);
    assert_int_equal(real_of(phase, "pid"), 3);
    assert_within(find(events, "axpby", 0), phase);
    assert_within(find(events, "copy", 0), phase);
    assert_within(find(events, "axpby", 1), find(events, "backward", 0));
    assert_null(find(events, "axpby", 3));
    event = find(events, "all_reduce", 0);
    assert_within(event, phase);
    assert_true(real_of(event, "dur") >= 5000);
    assert_string_equal(text_of(event, "cat"), "collective");
    assert_string_equal(text_of(rk_json_find(event, "args"), "group"), "dp");
    assert_int_equal(real_of(rk_json_find(event, "args"), "seq"), 7);
    assert_int_equal(real_of(rk_json_find(event, "args"), "bytes"), 4096);
    event = find(events, "axpby", 2); /* the side stream's */
    assert_true(real_of(event, "tid") != real_of(phase, "tid"));
    event = find(events, "actor.update_actor", 0);
    assert_int_equal(real_of(event, "tid"), 0);
    assert_true(real_of(event, "ts") + real_of(event, "dur") <= (double)end_ns / 1e3);
    rk_json_free(events);

    events = read_events(trace, 1000000 - begin_ns);
    assert_true(real_of(find(events, "forward", 0), "ts") < 1e6);
    rk_json_free(events);
    rk_trace_destroy(trace);
    assert_null(rk_stream_trace(stream));
}

/* Goal: a full trace counts dropped events, and the recorded events stay complete. */
static void test_trace_drops_and_counts_beyond_its_size(void **state)
{
    struct rk_trace *trace;
    struct rk_json *events;

    (void)state;
    assert_ok(rk_trace_create(&trace, device, 3));
    rk_trace_begin_phase(stream, "forward");
    for (int i = 0; i < 10; i++)
        run_operator(stream);
    rk_trace_end_phase(stream);
    rk_trace_add_host(trace, "late", 1, 2);
    events = read_events(trace, 0);
    assert_within(find(events, "axpby", 1), find(events, "forward", 0));
    assert_null(find(events, "axpby", 2));
    assert_null(find(events, "late", 0));
    assert_int_equal(rk_trace_num_spans(trace), 3);
    assert_int_equal(rk_trace_num_dropped(trace), 9);
    assert_null(rk_trace_error(trace));
    rk_json_free(events);
    rk_trace_destroy(trace);
}

/* Goal: many spans, over several flushes, deeper than the trace's limit, and on a stream that is destroyed
 * meanwhile, are handled. */
static void test_trace_handles_many_spans_depth_and_destroyed_streams(void **state)
{
    struct rk_stream *short_lived;
    struct rk_trace *trace;
    struct rk_json *events;

    (void)state;
    assert_ok(rk_trace_create(&trace, device, 1 << 20));
    for (int i = 0; i < 20000; i++)
        run_operator(stream);
    for (int i = 0; i < 40; i++)
        rk_trace_begin_phase(stream, "deep");
    for (int i = 0; i < 40; i++)
        rk_trace_end_phase(stream);
    rk_trace_end_phase(stream); /* one more than was begun: the phase began before the trace */
    assert_ok(rk_stream_create(&short_lived, device, "short"));
    run_operator(short_lived);
    rk_trace_begin_phase(short_lived, "never ends");
    rk_stream_destroy(short_lived);
    run_operator(stream);
    events = read_events(trace, 0);
    assert_non_null(find(events, "axpby", 20001));
    assert_null(find(events, "axpby", 20002));
    for (int i = 1; i < 16; i++)
        assert_within(find(events, "deep", i), find(events, "deep", i - 1));
    assert_null(find(events, "deep", 16));
    assert_null(find(events, "never ends", 0));
    rk_json_free(events);
    rk_trace_destroy(trace);
}

static void *run_elsewhere(void *user)
{
    (void)user;
    run_operator(stream);
    return NULL;
}

/* Goal: operators of another thread are not recorded and have no effect on the trace. */
static void test_trace_ignores_other_threads(void **state)
{
    struct rk_trace *trace;
    pthread_t thread;

    (void)state;
    assert_ok(rk_trace_create(&trace, device, 100));
    assert_int_equal(pthread_create(&thread, NULL, run_elsewhere, NULL), 0);
    pthread_join(thread, NULL);
    assert_int_equal(rk_trace_num_spans(trace), 0);
    run_operator(stream);
    assert_int_equal(rk_trace_num_spans(trace), 1);
    rk_trace_destroy(trace);
}

/* Goal: operators captured into a graph have no time, and a flush during the capture does not disturb it; the
 * graph's launches are events. */
static void test_trace_of_graphs_has_their_launches(void **state)
{
    struct rk_device_config config = {.struct_size = sizeof(config), .name = "graphs:0", .num_threads = 1};
    struct rk_device *graphs;
    struct rk_stream *recorded, *side;
    struct rk_trace *trace;
    struct rk_json *events;
    struct rk_graph *graph;

    (void)state;
    assert_ok(rk_test_graphs_register());
    assert_ok(rk_device_open(&graphs, &config));
    assert_ok(rk_device_use(graphs));
    assert_ok(rk_stream_create(&recorded, graphs, "recorded"));
    assert_ok(rk_stream_create(&side, graphs, "side"));
    assert_ok(rk_trace_create(&trace, graphs, 100));
    run_operator(recorded);
    assert_ok(rk_graph_begin(recorded));
    assert_null(rk_stream_trace(recorded));
    run_operator(recorded);
    run_operator(side);
    rk_trace_flush(trace);
    assert_ok(rk_graph_end(&graph, recorded));
    for (int i = 0; i < 2; i++)
        assert_ok(rk_graph_launch(graph));
    events = read_events(trace, 0);
    assert_null(rk_trace_error(trace));
    assert_non_null(find(events, "axpby", 1)); /* the one before, and the side stream's */
    assert_null(find(events, "axpby", 2));
    assert_non_null(find(events, "graph", 1));
    assert_null(find(events, "graph", 2));
    rk_json_free(events);
    rk_trace_destroy(trace);
    rk_graph_destroy(graph);
    rk_stream_destroy(recorded);
    rk_stream_destroy(side);
    rk_device_close(graphs);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_trace_spans_nest_and_have_the_hosts_times, setup, teardown),
        cmocka_unit_test_setup_teardown(test_trace_drops_and_counts_beyond_its_size, setup, teardown),
        cmocka_unit_test_setup_teardown(test_trace_handles_many_spans_depth_and_destroyed_streams, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_trace_ignores_other_threads, setup, teardown),
        cmocka_unit_test(test_trace_of_graphs_has_their_launches),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
