#include "tests/comm/comm_fixture.h"

#include "base/rk_alloc.h"
#include "tests/support/device.h"

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
