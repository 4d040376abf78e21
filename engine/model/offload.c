/* Moves parts of a model to host memory and back. All copies are enqueued on the model's stream: later work
 * there sees the contents, and buffers are freed only after that stream and the stream of buckets have passed
 * their last use and the copy. */
#include "engine/model/model.h"

#include "base/rk_assert.h"
#include "base/rk_fault.h"
#include "engine/optim/trainer.h"

/* The buffers that a model has, by part. */
struct buffers {
    int32_t count;
    struct {
        struct rk_movable *movable;
        uint32_t part;
    } of[4 + RK_OPTIM_STATES_MAX];
};

static void add(struct buffers *buffers, struct rk_movable *movable, uint32_t part, uint32_t parts)
{
    if (!(part & parts) || !movable->is_range)
        return;
    RK_ASSERT(buffers->count < (int32_t)RK_ARRAY_LEN(buffers->of));
    buffers->of[buffers->count].movable = movable;
    buffers->of[buffers->count++].part = part;
}

static struct buffers buffers_of(const struct rk_model *model, uint32_t parts)
{
    struct rk_train *train = model->train;
    struct buffers buffers = {0};

    RK_ASSERT(!(parts & ~RK_PARTS_ALL));
    add(&buffers, &model->core->value_memory, RK_PART_PARAMETERS, parts);
    if (!train)
        return buffers;
    add(&buffers, &train->grad_memory, RK_PART_GRADIENTS, parts);
    add(&buffers, &train->sum_memory, RK_PART_GRADIENTS, parts);
    add(&buffers, &train->master_memory, RK_PART_OPTIMIZER, parts);
    for (int s = 0; s < RK_OPTIM_STATES_MAX; s++)
        add(&buffers, &train->state_memory[s], RK_PART_OPTIMIZER, parts);
    return buffers;
}

struct rk_status *rk_model_reserve_offload(struct rk_model *model, uint32_t parts)
{
    struct buffers buffers = buffers_of(model, parts);

    for (int32_t i = 0; i < buffers.count; i++)
        RK_TRY(rk_movable_reserve(buffers.of[i].movable));
    return NULL;
}

static struct rk_status *copy_out(struct rk_model *model, const struct buffers *leaving, uint32_t kept)
{
    for (int32_t i = 0; i < leaving->count; i++) {
        if (leaving->of[i].part & kept && !leaving->of[i].movable->has_copy)
            RK_TRY(rk_movable_copy_out(leaving->of[i].movable, model->core->stream));
    }
    if (RK_FAULT("offload.copy"))
        return RK_FAIL(RK_INTERNAL, "fault point offload.copy");
    if (model->train)
        RK_TRY(rk_train_wait(model));
    return rk_stream_sync(model->core->stream);
}

/* Prefixes a failure with, for example, "moving gradients, optimizer state to host memory". */
static struct rk_status *name_buffers(struct rk_status *st, const struct buffers *buffers, const char *where)
{
    struct rk_str text = {0};

    if (!st)
        return NULL;
    for (int32_t i = 0; i < buffers->count; i++)
        rk_str_appendf(&text, "%s%s", i > 0 ? ", " : "", buffers->of[i].movable->what);
    st = RK_WRAP(st, "moving %s to %s", rk_str_text(&text), where);
    rk_str_fini(&text);
    return st;
}

static struct rk_status *move_out(struct rk_model *model, const struct buffers *leaving, uint32_t parts,
                                  uint32_t kept)
{
    RK_TRY(rk_model_reserve_offload(model, parts & kept));
    RK_TRY(copy_out(model, leaving, kept));
    for (int32_t i = 0; i < leaving->count; i++)
        RK_TRY(rk_movable_leave(leaving->of[i].movable, leaving->of[i].part & kept));
    return NULL;
}

struct rk_status *rk_model_offload(struct rk_model *model, uint32_t parts, bool keeps_gradients)
{
    uint32_t kept = keeps_gradients ? RK_PARTS_ALL : RK_PARTS_ALL & ~RK_PART_GRADIENTS;
    struct buffers all = buffers_of(model, parts), leaving = {0};

    for (int32_t i = 0; i < all.count; i++) {
        if (rk_movable_can_leave(all.of[i].movable))
            leaving.of[leaving.count++] = all.of[i];
    }
    if (leaving.count == 0)
        return NULL;
    return name_buffers(move_out(model, &leaving, parts, kept), &leaving, "host memory");
}

static struct rk_status *move_in(struct rk_model *model, const struct buffers *buffers, bool writes)
{
    if (RK_FAULT("onload.copy"))
        return RK_FAIL(RK_INTERNAL, "fault point onload.copy");
    for (int32_t i = 0; i < buffers->count; i++) {
        RK_TRY(rk_movable_come_back(buffers->of[i].movable, model->core->stream));
        if (writes)
            buffers->of[i].movable->has_copy = false;
    }
    return NULL;
}

struct rk_status *rk_model_onload(struct rk_model *model, uint32_t parts, bool writes)
{
    struct buffers buffers = buffers_of(model, parts);

    if (buffers.count == 0)
        return NULL;
    return name_buffers(move_in(model, &buffers, writes), &buffers, "the device");
}

uint32_t rk_model_offloaded(const struct rk_model *model)
{
    struct buffers buffers = buffers_of(model, RK_PARTS_ALL);
    uint32_t parts = 0;

    for (int32_t i = 0; i < buffers.count; i++) {
        if (buffers.of[i].movable->is_away)
            parts |= buffers.of[i].part;
    }
    return parts;
}

static uint64_t sum_bytes(const struct rk_model *model, uint32_t parts,
                          uint64_t (*bytes_of)(const struct rk_movable *movable))
{
    struct buffers buffers = buffers_of(model, parts);
    uint64_t bytes = 0;

    for (int32_t i = 0; i < buffers.count; i++)
        bytes += bytes_of(buffers.of[i].movable);
    return bytes;
}

static uint64_t copy_bytes_of(const struct rk_movable *movable)
{
    return movable->bytes;
}

static uint64_t host_bytes_of(const struct rk_movable *movable)
{
    return movable->host ? movable->bytes : 0;
}

uint64_t rk_model_offload_bytes(const struct rk_model *model)
{
    return sum_bytes(model, RK_PARTS_ALL, rk_movable_full_bytes);
}

uint64_t rk_model_offload_copy_bytes(const struct rk_model *model)
{
    return sum_bytes(model, RK_PARTS_ALL & ~RK_PART_GRADIENTS, copy_bytes_of);
}

uint64_t rk_model_offload_host_bytes(const struct rk_model *model)
{
    return sum_bytes(model, RK_PARTS_ALL, host_bytes_of);
}
