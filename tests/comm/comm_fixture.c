#include "tests/comm/comm_fixture.h"

#include <signal.h>

#include "base/rk_alloc.h"
#include "base/rk_time.h"
#include "tests/support/device.h"
#include "tests/support/test.h"

#define NS_PER_MS 1000000LL

const int32_t comm_all_ranks[COMM_MAX_RANKS] = {0, 1, 2, 3};

struct comm_run *comm_run_create(void)
{
    struct comm_run *run = rk_test_shared_alloc(sizeof(*run));

    run->rendezvous = rk_test_rendezvous_create();
    run->again = rk_test_rendezvous_create();
    return run;
}

void comm_run_destroy(struct comm_run *run)
{
    rk_test_rendezvous_destroy(run->again);
    rk_test_rendezvous_destroy(run->rendezvous);
    rk_test_shared_free(run, sizeof(*run));
}

int32_t comm_num_ranks(void)
{
    return RK_MIN(COMM_MAX_RANKS, rk_test_device_max_ranks());
}

void comm_expect_pass(rk_test_rank_fn_t fn, int32_t num_ranks, const struct rk_comm_world_config *config)
{
    struct comm_run *run = comm_run_create();

    if (config)
        run->config = *config;
    assert_int_equal(rk_test_run_ranks(num_ranks, fn, run, COMM_RUN_S), 0);
    comm_run_destroy(run);
}

void comm_expect_killed(rk_test_rank_fn_t fn)
{
    struct rk_test_rank_result results[COMM_MAX_RANKS];
    struct comm_run *run = comm_run_create();
    int32_t num_ranks = comm_num_ranks();

    assert_int_equal(rk_test_run_ranks_results(num_ranks, fn, run, COMM_RUN_S, results), 1);
    assert_int_equal(results[num_ranks - 1].signal, SIGKILL);
    print_message("named after %lld ms\n", (long long)atomic_load(&run->delay_ms));
    comm_run_destroy(run);
}

int comm_check_in_time(struct comm_run *run, int64_t limit_ms)
{
    int64_t delay_ms = (rk_time_now_ns() - atomic_load(&run->fault_ns)) / NS_PER_MS;

    atomic_store(&run->delay_ms, delay_ms);
    RK_RANK_CHECK(delay_ms < limit_ms, "took %lld ms", (long long)delay_ms);
    return 0;
}

int comm_check_idle(const struct rk_comm_world *world)
{
    int64_t deadline_ns = rk_time_now_ns() + 5000 * NS_PER_MS;
    struct rk_comm_activity activity;

    do {
        rk_time_sleep_ms(1);
        rk_comm_world_activity(world, &activity);
    } while (activity.in_operation && rk_time_now_ns() < deadline_ns);
    RK_RANK_CHECK(!activity.in_operation, "in %s", activity.name);
    return 0;
}

void *comm_abort_later(void *world)
{
    rk_time_sleep_ms(300);
    rk_comm_world_abort(world, "lease lapsed");
    return NULL;
}

int comm_fill_ones(struct rk_stream *stream, float *data, int64_t count)
{
    float *host = rk_calloc((size_t)count, sizeof(*host));

    for (int64_t i = 0; i < count; i++)
        host[i] = 1;
    RK_RANK_OK(rk_stream_copy(stream, data, host, (size_t)count * sizeof(*host), RK_COPY_H2D));
    RK_RANK_OK(rk_stream_sync(stream));
    rk_free(host);
    return 0;
}
