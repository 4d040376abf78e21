/* Schedules as lists. With w warm-up forwards a stage computes
 *
 *   forward 0..w-1,  then forward w+k and backward k for k = 0, 1, ...,  then the remaining backwards
 *
 * where forward k and backward k are entries of one table: micro-batches in groups of group_size, and in each
 * group chunk after chunk, the chunks of the backwards in reverse. 1F1B is the same with one chunk. */
#include "base/layout/rk_pipeline.h"

#include "base/rk_assert.h"

/* The schedule with its defaults filled in. */
struct sizes {
    int64_t pp, vpp, num_micro_batches, group_size;
};

static struct sizes sizes_of(const struct rk_pipeline_schedule *schedule)
{
    struct sizes sizes = {
        .pp = RK_MAX(schedule->pp, 1),
        .vpp = RK_MAX(schedule->vpp, 1),
        .num_micro_batches = schedule->num_micro_batches,
    };

    sizes.group_size = sizes.vpp > 1 && schedule->group_size ? schedule->group_size : sizes.pp;
    return sizes;
}

int32_t rk_pipeline_round_micro_batches(int32_t num_micro_batches, int32_t pp, int32_t vpp,
                                        int32_t group_size)
{
    int32_t group = group_size > 0 ? group_size : RK_MAX(pp, 1);

    RK_ASSERT(num_micro_batches >= 0);
    RK_ASSERT(num_micro_batches <= RK_PIPELINE_MAX_MICRO_BATCHES);
    RK_ASSERT(group <= RK_PIPELINE_MAX_MICRO_BATCHES);
    if (vpp <= 1)
        return num_micro_batches;
    return (num_micro_batches + group - 1) / group * group;
}

struct rk_status *rk_pipeline_schedule_check(const struct rk_pipeline_schedule *schedule)
{
    struct sizes n = sizes_of(schedule);

    if (schedule->pp < 0 || n.pp > RK_PIPELINE_MAX_STAGES || schedule->vpp < 0 ||
        n.vpp > RK_PIPELINE_MAX_CHUNKS)
        return RK_FAIL(RK_INVALID_ARGUMENT, "pipeline schedule: pp=%d is not in 0..%d or vpp=%d not in 0..%d",
                       schedule->pp, RK_PIPELINE_MAX_STAGES, schedule->vpp, RK_PIPELINE_MAX_CHUNKS);
    if (n.num_micro_batches < 1 || n.num_micro_batches > RK_PIPELINE_MAX_MICRO_BATCHES)
        return RK_FAIL(RK_INVALID_ARGUMENT, "pipeline schedule: %d micro-batches, expected 1..%d",
                       schedule->num_micro_batches, RK_PIPELINE_MAX_MICRO_BATCHES);
    if (n.vpp == 1)
        return NULL;
    if (n.pp == 1)
        return RK_FAIL(RK_INVALID_ARGUMENT, "pipeline schedule: vpp=%d needs pp > 1", schedule->vpp);
    if (n.group_size < n.pp)
        return RK_FAIL(RK_INVALID_ARGUMENT,
                       "pipeline schedule: groups of %d micro-batches are shorter than pp=%d",
                       schedule->group_size, schedule->pp);
    if (schedule->forward_only)
        return NULL;
    if (n.num_micro_batches < n.group_size ||
        (n.num_micro_batches % n.group_size && n.num_micro_batches % n.group_size < n.pp))
        return RK_FAIL(
            RK_INVALID_ARGUMENT,
            "interleaved pipeline schedule: %d micro-batches with pp=%d leave a last group of fewer than pp "
            "(groups of %d); expected a multiple of %d, e.g. %d",
            schedule->num_micro_batches, schedule->pp, (int32_t)n.group_size, (int32_t)n.group_size,
            rk_pipeline_round_micro_batches(schedule->num_micro_batches, schedule->pp, schedule->vpp,
                                            schedule->group_size));
    return NULL;
}

int64_t rk_pipeline_schedule_num_steps(const struct rk_pipeline_schedule *schedule)
{
    struct sizes n = sizes_of(schedule);

    return n.num_micro_batches * n.vpp * (schedule->forward_only ? 1 : 2);
}

/* The k-th forward or backward of every stage. */
static struct rk_pipeline_step table_entry(const struct sizes *n, rk_pipeline_kind_t kind, int64_t k)
{
    int64_t group = k / (n->group_size * n->vpp);
    int64_t first = group * n->group_size;
    int64_t count = RK_MIN(n->group_size, n->num_micro_batches - first);
    int64_t inside = k - first * n->vpp;
    int64_t chunk = inside / count;

    RK_ASSERT(k >= 0);
    RK_ASSERT(count > 0);
    RK_ASSERT(chunk < n->vpp);
    return (struct rk_pipeline_step){
        .kind = kind,
        .micro_batch = (int32_t)(first + inside % count),
        .chunk = (int32_t)(kind == RK_PIPELINE_FORWARD ? chunk : n->vpp - 1 - chunk),
    };
}

void rk_pipeline_schedule_steps(const struct rk_pipeline_schedule *schedule, int32_t stage,
                                struct rk_pipeline_step *steps)
{
    struct sizes n = sizes_of(schedule);
    int64_t num_forwards = n.num_micro_batches * n.vpp, next = 0;
    int64_t num_warm_up = n.vpp == 1 ? n.pp - 1 - stage : 2 * (n.pp - 1 - stage) + (n.vpp - 1) * n.group_size;

    RK_ASSERT(stage >= 0);
    RK_ASSERT(stage < n.pp);
    if (schedule->forward_only || num_warm_up > num_forwards)
        num_warm_up = num_forwards;
    for (int64_t k = 0; k < num_warm_up; k++)
        steps[next++] = table_entry(&n, RK_PIPELINE_FORWARD, k);
    for (int64_t k = 0; k < num_forwards && !schedule->forward_only; k++) {
        if (num_warm_up + k < num_forwards)
            steps[next++] = table_entry(&n, RK_PIPELINE_FORWARD, num_warm_up + k);
        steps[next++] = table_entry(&n, RK_PIPELINE_BACKWARD, k);
    }
    RK_ASSERT(next == rk_pipeline_schedule_num_steps(schedule));
}

int64_t rk_pipeline_max_live(const struct rk_pipeline_step *steps, int64_t num_steps)
{
    int64_t live = 0, max = 0, num_backwards = 0;

    for (int64_t i = 0; i < num_steps; i++) {
        bool is_backward = steps[i].kind == RK_PIPELINE_BACKWARD;

        live += is_backward ? -1 : 1;
        num_backwards += is_backward;
        max = RK_MAX(max, live);
    }
    return num_backwards ? max : 0;
}

/* The place `distance` (1 or -1) positions further; false outside the pipeline. */
static bool neighbour(const struct rk_pipeline_schedule *schedule, int32_t stage, int32_t chunk, int distance,
                      struct rk_pipeline_place *peer)
{
    struct sizes n = sizes_of(schedule);
    int64_t position = chunk * n.pp + stage + distance;

    RK_ASSERT(stage >= 0 && stage < n.pp);
    RK_ASSERT(chunk >= 0 && chunk < n.vpp);
    *peer = (struct rk_pipeline_place){-1, -1};
    if (position < 0 || position >= n.pp * n.vpp)
        return false;
    *peer = (struct rk_pipeline_place){(int32_t)(position % n.pp), (int32_t)(position / n.pp)};
    return true;
}

bool rk_pipeline_recv_from(const struct rk_pipeline_schedule *schedule, int32_t stage,
                           struct rk_pipeline_step step, struct rk_pipeline_place *peer)
{
    return neighbour(schedule, stage, step.chunk, step.kind == RK_PIPELINE_FORWARD ? -1 : 1, peer);
}

bool rk_pipeline_send_to(const struct rk_pipeline_schedule *schedule, int32_t stage,
                         struct rk_pipeline_step step, struct rk_pipeline_place *peer)
{
    return neighbour(schedule, stage, step.chunk, step.kind == RK_PIPELINE_FORWARD ? 1 : -1, peer);
}
