/* The wrapper around collective backends and their table, with a backend that only counts calls. */
#include "tests/support/test.h"

#include <stdio.h>
#include <string.h>

#include "engine/comm/comm.h"

static struct {
    int num_ops, num_aborts, num_polls, num_open;
    bool must_fail, must_fail_poll;
} fake;

static struct rk_status *fake_endpoint_open(void **out, const struct rk_comm_endpoint_config *config,
                                            char address[RK_COMM_ADDRESS_BYTES])
{
    (void)config;
    (void)address;
    *out = &fake;
    fake.num_open++;
    return NULL;
}

static void fake_endpoint_close(void *endpoint)
{
    assert_ptr_equal(endpoint, &fake);
    fake.num_open--;
}

static struct rk_status *fake_make_id(uint8_t id[RK_COMM_ID_BYTES])
{
    memset(id, 7, RK_COMM_ID_BYTES);
    return NULL;
}

static struct rk_status *fake_world_create(struct rk_comm_world *world, void *endpoint,
                                           const struct rk_comm_world_config *config)
{
    assert_int_equal(config->connect_timeout_ms, 120000);
    assert_int_equal(config->progress_timeout_ms, 5000);
    assert_int_equal(config->collective_timeout_ms, 600000);
    fake_endpoint_close(endpoint);
    world->impl = &fake;
    return NULL;
}

static void fake_world_destroy(struct rk_comm_world *world)
{
    assert_ptr_equal(world->impl, &fake);
}

static void fake_world_abort(struct rk_comm_world *world, const struct rk_status *error)
{
    assert_true(atomic_load(&world->has_failed));
    assert_non_null(error);
    fake.num_aborts++;
}

static void fake_world_poll(struct rk_comm_world *world)
{
    fake.num_polls++;
    if (fake.must_fail_poll)
        rk_comm_world_fail(world, RK_FAIL_REASON(RK_ABORTED, "PEER_LOST", "rank 2 is lost"));
}

static struct rk_status *count_op(void)
{
    fake.num_ops++;
    return fake.must_fail ? RK_FAIL(RK_RESOURCE_EXHAUSTED, "no memory left") : NULL;
}

static struct rk_status *fake_all_reduce(struct rk_comm_group *group, struct rk_stream *stream,
                                         rk_tensor_t inout, rk_reduce_op_t op)
{
    (void)group, (void)stream, (void)inout, (void)op;
    return count_op();
}

static struct rk_status *fake_all_gather(struct rk_comm_group *group, struct rk_stream *stream,
                                         rk_tensor_t out, rk_tensor_t in)
{
    (void)group, (void)stream, (void)out, (void)in;
    return count_op();
}

static struct rk_status *fake_reduce_scatter(struct rk_comm_group *group, struct rk_stream *stream,
                                             rk_tensor_t out, rk_tensor_t in, rk_reduce_op_t op)
{
    (void)group, (void)stream, (void)out, (void)in, (void)op;
    return count_op();
}

static struct rk_status *fake_broadcast(struct rk_comm_group *group, struct rk_stream *stream,
                                        rk_tensor_t inout, int32_t root)
{
    (void)group, (void)stream, (void)inout, (void)root;
    return count_op();
}

static struct rk_status *fake_all_to_all(struct rk_comm_group *group, struct rk_stream *stream,
                                         rk_tensor_t out, const int64_t *recv_rows, rk_tensor_t in,
                                         const int64_t *send_rows)
{
    (void)group, (void)stream, (void)out, (void)recv_rows, (void)in, (void)send_rows;
    return count_op();
}

static struct rk_status *fake_batch(struct rk_comm_group *group, const struct rk_comm_p2p *list,
                                    int64_t count)
{
    (void)group;
    assert_int_equal(count, 2);
    assert_true(list[0].is_send);
    assert_false(list[1].is_send);
    return count_op();
}

static struct rk_status *fake_barrier(struct rk_comm_group *group, struct rk_stream *stream)
{
    (void)group, (void)stream;
    return count_op();
}

static const struct rk_comm_ops fake_ops = {
    .name = "fake",
    .abi = RK_COMM_ABI,
    .endpoint_open = fake_endpoint_open,
    .endpoint_close = fake_endpoint_close,
    .make_id = fake_make_id,
    .world_create = fake_world_create,
    .world_destroy = fake_world_destroy,
    .world_abort = fake_world_abort,
    .world_poll = fake_world_poll,
    .all_reduce = fake_all_reduce,
    .all_gather = fake_all_gather,
    .reduce_scatter = fake_reduce_scatter,
    .broadcast = fake_broadcast,
    .all_to_all = fake_all_to_all,
    .batch = fake_batch,
    .barrier = fake_barrier,
};

static void test_comm_register_refuses_what_does_not_fit(void **state)
{
    struct rk_comm_ops ops = fake_ops;
    char text[64];

    (void)state;
    ops.abi = RK_COMM_ABI + 1;
    snprintf(text, sizeof(text), "collectives 'fake' have abi=%d, expected %d", RK_COMM_ABI + 1, RK_COMM_ABI);
    assert_fails(rk_comm_register(&ops), RK_FAILED_PRECONDITION, text);
    ops = fake_ops;
    ops.barrier = NULL;
    assert_fails(rk_comm_register(&ops), RK_FAILED_PRECONDITION, "lack the required entry 'barrier'");
    ops = fake_ops;
    ops.name = "cpu";
    assert_fails(rk_comm_register(&ops), RK_ALREADY_EXISTS, "collectives 'cpu' are registered already");
    assert_ok(rk_comm_register(&fake_ops));
    assert_fails(rk_comm_register(&fake_ops), RK_ALREADY_EXISTS, "collectives 'fake'");
}

static struct rk_comm_world *open_fake(void)
{
    const struct rk_comm_endpoint_config endpoint_config = {
        .struct_size = sizeof(endpoint_config), .backend = "fake", .make_id = true};
    struct rk_comm_world_config config = {.struct_size = sizeof(config), .rank = 1, .world_size = 3};
    struct rk_comm_endpoint *endpoint;
    struct rk_comm_world *world;

    memset(&fake, 0, sizeof(fake));
    assert_ok(rk_comm_endpoint_open(&endpoint, &endpoint_config));
    assert_string_equal(rk_comm_endpoint_address(endpoint), "");
    config.id = rk_comm_endpoint_id(endpoint);
    assert_ok(rk_comm_world_create(&world, endpoint, &config));
    assert_int_equal(fake.num_open, 0);
    return world;
}

static const int32_t ranks[] = {2, 1};

static void test_comm_operations_reach_the_backend_when_there_is_work(void **state)
{
    struct rk_comm_world *world = open_fake();
    float x[6] = {0};
    rk_tensor_t whole = rk_tensor_1d(x, RK_DTYPE_F32, 6), half = rk_tensor_1d(x, RK_DTYPE_F32, 3);
    rk_tensor_t empty = rk_tensor_1d(NULL, RK_DTYPE_F32, 0);
    const int64_t no_rows[] = {0, 0};
    struct rk_comm_group *group;
    struct rk_comm_activity activity;

    (void)state;
    assert_ok(rk_comm_group_create(&group, world, "a name that is much too long for the activity record",
                                   ranks, 2));
    assert_int_equal(rk_comm_group_rank(group), 1);
    assert_int_equal(rk_comm_group_size(group), 2);
    assert_ok(rk_comm_all_reduce(group, NULL, empty, RK_REDUCE_SUM));
    assert_ok(rk_comm_all_gather(group, NULL, empty, empty));
    assert_ok(rk_comm_broadcast(group, NULL, empty, 0));
    assert_int_equal(fake.num_ops, 0);
    assert_ok(rk_comm_all_to_all(group, NULL, empty, no_rows, empty, no_rows)); /* other ranks may have
                                                                                 * rows */
    assert_ok(rk_comm_all_reduce(group, NULL, whole, RK_REDUCE_MIN));
    assert_ok(rk_comm_all_gather(group, NULL, whole, half));
    assert_ok(rk_comm_reduce_scatter(group, NULL, half, whole, RK_REDUCE_SUM));
    assert_ok(rk_comm_broadcast(group, NULL, whole, 1));
    assert_ok(rk_comm_barrier(group, NULL));
    assert_int_equal(fake.num_ops, 6);
    assert_ok(rk_comm_batch_begin(group));
    assert_ok(rk_comm_send(group, NULL, whole, 0));
    assert_ok(rk_comm_recv(group, NULL, whole, 0));
    assert_int_equal(fake.num_ops, 6);
    assert_ok(rk_comm_batch_end(group));
    assert_int_equal(fake.num_ops, 7);
    rk_comm_world_activity(world, &activity);
    assert_int_equal(activity.seq, 10);
    assert_false(activity.in_operation);
    assert_string_equal(activity.name, "batch of group a name that is much too long fo");
    rk_comm_group_destroy(group);
    rk_comm_world_destroy(world);
}

/* Goal: the first failure is kept, is propagated once, and makes all later operations fail. */
static void test_comm_failure_ends_the_world(void **state)
{
    struct rk_comm_world *world = open_fake();
    struct rk_comm_group *group;

    (void)state;
    assert_ok(rk_comm_group_create(&group, world, "dp", ranks, 2));
    assert_ok(rk_comm_world_check(world));
    fake.must_fail = true;
    assert_fails(rk_comm_barrier(group, NULL), RK_RESOURCE_EXHAUSTED, "no memory left");
    assert_int_equal(fake.num_aborts, 1);
    assert_fails(rk_comm_barrier(group, NULL), RK_RESOURCE_EXHAUSTED, "no memory left");
    rk_comm_world_abort(world, "too late");
    assert_fails(rk_comm_world_check(world), RK_RESOURCE_EXHAUSTED, "no memory left");
    assert_int_equal(fake.num_ops, 1);
    assert_int_equal(fake.num_aborts, 1);
    assert_int_equal(fake.num_polls, 1); /* no polls after the failure */
    rk_comm_group_destroy(group);
    rk_comm_world_destroy(world);
}

static void test_comm_world_check_asks_the_backend(void **state)
{
    struct rk_comm_world *world = open_fake();

    (void)state;
    fake.must_fail_poll = true;
    assert_fails(rk_comm_world_check(world), RK_ABORTED, "rank 2 is lost");
    assert_fails(rk_comm_world_check(world), RK_ABORTED, "rank 2 is lost");
    assert_int_equal(fake.num_polls, 1);
    rk_comm_world_destroy(world);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_comm_register_refuses_what_does_not_fit),
        cmocka_unit_test(test_comm_operations_reach_the_backend_when_there_is_work),
        cmocka_unit_test(test_comm_failure_ends_the_world),
        cmocka_unit_test(test_comm_world_check_asks_the_backend),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
