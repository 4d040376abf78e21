/* Two daemons that work together, one of which dies or is stopped. */
#include <signal.h>
#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_time.h"
#include "tests/proc/daemon_fixture.h"

#define WORLD_SIZE 2
#define VERDICT_MS 10000 /* the guarantee: the driver knows the failed rank within 10 s */

static struct rk_client_stream *send_configure(struct fixture *fixture,
                                               const struct rk_configure_request *request)
{
    struct rk_client_stream *stream = rk_client_open(fixture->client, RK_RPC_ID_CONFIGURE);
    struct rk_str packed = {0};

    rk_pack_configure_request(&packed, request);
    rk_client_send(stream, &packed);
    rk_client_half_close(stream);
    rk_str_fini(&packed);
    return stream;
}

static void read_configured(struct fixture *fixture, struct rk_client_stream *stream,
                            struct rk_configure_response *out)
{
    struct rk_bytes reply = {0};

    rk_client_receive(stream, &reply);
    assert_ok(rk_client_finish(stream));
    assert_ok(rk_unpack_configure_response(out, rk_client_arena(fixture->client), reply.data, reply.bytes));
}

/* One driver claims both, with an actor and a rollout with tp=2 over them. */
static void lead_both(struct fixture fixtures[WORLD_SIZE], uint64_t epoch)
{
    struct rk_acquire_lease_request acquire = {.driver_id = "test", .epoch = epoch, .takeover = true};
    struct rk_role_mesh meshes[] = {{.role = "actor", .mesh = {.tp = 2}},
                                    {.role = "rollout", .mesh = {.tp = 2}}};
    struct rk_configure_request requests[WORLD_SIZE];
    struct rk_configure_response responses[WORLD_SIZE];
    struct rk_client_stream *streams[WORLD_SIZE];
    struct rk_peer peers[WORLD_SIZE] = {0};

    for (uint32_t i = 0; i < WORLD_SIZE; i++) {
        assert_ok(rk_client_acquire(fixtures[i].client, &acquire, &fixtures[i].lease));
        fixtures[i].next_seq = 1;
        fixtures[i].generation = epoch;
        requests[i] = (struct rk_configure_request){
            .fence = fixtures[i].lease.fence, .rank = i, .world_size = WORLD_SIZE, .make_comm_id = true};
        read_configured(&fixtures[i], send_configure(&fixtures[i], &requests[i]), &responses[i]);
        peers[i] = (struct rk_peer){.rank = i, .comm_address = responses[i].comm_address};
    }
    for (uint32_t i = 0; i < WORLD_SIZE; i++) {
        requests[i].make_comm_id = false;
        requests[i].mesh_generation = epoch;
        requests[i].comm_id = responses[0].comm_id;
        requests[i].num_peers = WORLD_SIZE;
        requests[i].peers = peers;
        requests[i].num_meshes = RK_ARRAY_LEN(meshes);
        requests[i].meshes = meshes;
        streams[i] = send_configure(&fixtures[i], &requests[i]);
    }
    for (uint32_t i = 0; i < WORLD_SIZE; i++)
        read_configured(&fixtures[i], streams[i], &responses[i]);
}

/* Opens and commits the same call on both daemons. */
static void start_both(struct fixture fixtures[WORLD_SIZE], const char *role, const char *method,
                       const char *options, const struct rk_batch *input,
                       struct rk_client_stream *streams[WORLD_SIZE])
{
    struct rk_accepted accepted[WORLD_SIZE];

    for (int i = 0; i < WORLD_SIZE; i++) {
        struct rk_execute_header header = fixture_header(&fixtures[i], role, method);

        fixture_set_options(&fixtures[i], &header, options);
        if (input)
            fixture_set_input(&fixtures[i], &header, input);
        streams[i] = fixture_open(&fixtures[i], &header);
        assert_true(!input || fixture_send_body(streams[i], input));
        assert_true(fixture_read_accepted(&fixtures[i], streams[i], &accepted[i]));
        fixtures[i].next_seq++;
    }
    assert_memory_equal(accepted[0].plan_hash.data, accepted[1].plan_hash.data, 32);
    for (int i = 0; i < WORLD_SIZE; i++)
        fixture_send_commit(streams[i]);
}

static void run_both(struct fixture fixtures[WORLD_SIZE], const char *role, const char *method,
                     const char *options)
{
    struct rk_client_stream *streams[WORLD_SIZE];

    start_both(fixtures, role, method, options, NULL, streams);
    for (int i = 0; i < WORLD_SIZE; i++) {
        fixture_read_result(&fixtures[i], streams[i], NULL);
        assert_ok(rk_client_finish(streams[i]));
    }
}

static void start_generation(struct fixture fixtures[WORLD_SIZE], const struct rk_batch *prompts,
                             struct rk_client_stream *streams[WORLD_SIZE])
{
    for (int i = 0; i < WORLD_SIZE; i++)
        fixture_start(&fixtures[i], NULL);
    lead_both(fixtures, 1);
    run_both(fixtures, "actor", "init_model", FIXTURE_MODEL_OPTIONS);
    run_both(fixtures, "rollout", "init_model", FIXTURE_ROLLOUT_OPTIONS);
    start_both(fixtures, "rollout", "generate_sequences", FIXTURE_ENDLESS_OPTIONS, prompts, streams);
    for (int i = 0; i < WORLD_SIZE; i++)
        fixture_wait_state(&fixtures[i], "BUSY");
}

/* Goal: the survivor's call ends within 10 s and names the rank that died; the survivor keeps its models and
 * works again after a Configure. */
static void test_peer_killed_in_call_is_named(void **state)
{
    struct rk_batch *prompts = fixture_prompts(4);
    struct rk_client_stream *streams[WORLD_SIZE];
    struct fixture fixtures[WORLD_SIZE];
    struct rk_status *st;
    int64_t begin_ns;

    (void)state;
    start_generation(fixtures, prompts, streams);
    begin_ns = rk_time_now_ns();
    rk_proc_signal(fixtures[1].proc, SIGKILL);
    fixture_read_result(&fixtures[0], streams[0], NULL);
    st = rk_client_finish(streams[0]);
    assert_true(rk_time_now_ns() - begin_ns < VERDICT_MS * 1000000LL);
    assert_non_null(strstr(rk_status_message(st), "rank 1"));
    assert_refused(st, RK_ABORTED, "PEER_LOST");
    assert_fails(rk_client_finish(streams[1]), RK_UNAVAILABLE, "");
    fixture_end(&fixtures[1], -SIGKILL);

    fixture_wait_state(&fixtures[0], "UNCONFIGURED");
    fixture_lead(&fixtures[0]); /* alone: the mesh is different, so the models of the old one are destroyed */
    fixture_init_models(&fixtures[0]);
    rk_batch_destroy(prompts);
    fixture_stop(&fixtures[0]);
}

/* Goal: a stopped peer is detected too, within the progress timeout plus the driver's keepalive time. The
 * driver aborts the other rank. */
static void test_peer_stopped_in_call_ends_with_abort(void **state)
{
    struct rk_batch *prompts = fixture_prompts(4);
    struct rk_client_stream *streams[WORLD_SIZE];
    struct fixture fixtures[WORLD_SIZE];
    struct rk_cancel_request cancel = {.abort_comm = true, .reason = "rank 1 is silent"};
    struct rk_str packed = {0};
    struct rk_status *st;
    int64_t begin_ns;

    (void)state;
    start_generation(fixtures, prompts, streams);
    rk_proc_signal(fixtures[1].proc, SIGSTOP);
    rk_time_sleep_ms(200);
    begin_ns = rk_time_now_ns();
    cancel.fence = fixtures[0].lease.fence;
    rk_pack_cancel_request(&packed, &cancel);
    assert_ok(rk_client_call(fixtures[0].client, RK_RPC_ID_CANCEL, &packed, NULL));
    rk_str_fini(&packed);
    fixture_read_result(&fixtures[0], streams[0], NULL);
    st = rk_client_finish(streams[0]);
    assert_true(rk_time_now_ns() - begin_ns < rk_proc_timeout_ms(2000) * 1000000);
    assert_refused(st, RK_ABORTED, "COMM_ABORTED");
    fixture_wait_state(&fixtures[0], "UNCONFIGURED");

    rk_proc_signal(fixtures[1].proc, SIGCONT);
    fixture_read_result(&fixtures[1], streams[1], NULL);
    st = rk_client_finish(streams[1]);
    assert_int_equal(rk_status_code(st), RK_ABORTED);
    rk_status_free(st);
    fixture_wait_state(&fixtures[1], "UNCONFIGURED");
    lead_both(fixtures, 2); /* both are usable, with their earlier models */
    for (int i = 0; i < WORLD_SIZE; i++)
        fixture_wait_state(&fixtures[i], "READY");
    rk_batch_destroy(prompts);
    for (int i = 0; i < WORLD_SIZE; i++)
        fixture_stop(&fixtures[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_peer_killed_in_call_is_named),
        cmocka_unit_test(test_peer_stopped_in_call_ends_with_abort),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
