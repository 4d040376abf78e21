/* The buffers of a model, and moving parts of them to host memory and back. All copies are enqueued on the
 * model's stream: later work there sees the contents, and memory is released only after that stream and the
 * trainer's have passed their last use and the copy. */
#include "engine/model/model.h"

#include "base/rk_assert.h"
#include "base/rk_fault.h"

/* --- buffers --- */

static uint32_t part_of(rk_memory_kind_t kind)
{
    if (kind == RK_MEMORY_PARAMETERS)
        return RK_PART_PARAMETERS;
    return kind == RK_MEMORY_GRADIENTS ? RK_PART_GRADIENTS : RK_PART_OPTIMIZER;
}

struct rk_status *rk_model_add_buffer(struct rk_model_core *core, rk_memory_kind_t kind, size_t bytes,
                                      const char *what, void **data)
{
    struct rk_model_buffer *buffer = &core->buffers[core->num_buffers];

    *data = NULL;
    if (bytes == 0)
        return NULL;
    RK_ASSERT(core->num_buffers < RK_MODEL_BUFFERS_MAX);
    *buffer = (struct rk_model_buffer){.kind = kind, .part = part_of(kind)};
    core->num_buffers++; /* also after a failure: the buffer may have addresses without memory */
    RK_TRY(rk_movable_create(&buffer->memory, rk_stream_device(core->stream), bytes,
                             core->offload & buffer->part, what));
    *data = buffer->memory.data;
    return NULL;
}

void rk_model_keep_buffers(struct rk_model_core *core, int32_t count)
{
    while (core->num_buffers > count)
        rk_movable_fini(&core->buffers[--core->num_buffers].memory);
}

void rk_model_add_buffer_memory(const struct rk_model_core *core, struct rk_model_memory *memory)
{
    uint64_t *const sums[RK_MEMORY_KIND_COUNT] = {
        [RK_MEMORY_PARAMETERS] = &memory->param_bytes,
        [RK_MEMORY_GRADIENTS] = &memory->grad_bytes,
        [RK_MEMORY_MASTERS] = &memory->master_bytes,
        [RK_MEMORY_OPTIMIZER] = &memory->optimizer_bytes,
    };

    for (int32_t i = 0; i < core->num_buffers; i++)
        *sums[core->buffers[i].kind] += rk_movable_held_bytes(&core->buffers[i].memory);
}

/* --- moves --- */

/* Buffers that a move is about. */
struct selection {
    int32_t count;
    struct rk_model_buffer *of[RK_MODEL_BUFFERS_MAX];
};

/* The buffers of these parts that may be offloaded. Of a model that shares weights only the parameters. */
static struct selection select_parts(const struct rk_model *model, uint32_t parts)
{
    uint32_t own = model->owns_core ? RK_PARTS_ALL : RK_PART_PARAMETERS;
    struct selection selection = {0};

    RK_ASSERT(!(parts & ~RK_PARTS_ALL));
    for (int32_t i = 0; i < model->core->num_buffers; i++) {
        struct rk_model_buffer *buffer = &model->core->buffers[i];

        if (buffer->part & parts & own && buffer->memory.is_range)
            selection.of[selection.count++] = buffer;
    }
    return selection;
}

struct rk_status *rk_model_reserve_offload(struct rk_model *model, uint32_t parts)
{
    struct selection selection = select_parts(model, parts);

    for (int32_t i = 0; i < selection.count; i++)
        RK_TRY(rk_movable_reserve(&selection.of[i]->memory));
    return NULL;
}

static struct rk_status *copy_out(struct rk_model *model, const struct selection *leaving, uint32_t kept)
{
    for (int32_t i = 0; i < leaving->count; i++) {
        if (leaving->of[i]->part & kept && !leaving->of[i]->memory.has_copy)
            RK_TRY(rk_movable_copy_out(&leaving->of[i]->memory, model->core->stream));
    }
    if (RK_FAULT("offload.copy"))
        return RK_FAIL(RK_INTERNAL, "fault point offload.copy");
    if (model->trainer_stream)
        RK_TRY(rk_stream_sync(model->trainer_stream));
    return rk_stream_sync(model->core->stream);
}

/* Prefixes a failure with, for example, "moving gradients, optimizer state to host memory". */
static struct rk_status *name_buffers(struct rk_status *st, const struct selection *buffers,
                                      const char *where)
{
    struct rk_str text = {0};

    if (!st)
        return NULL;
    for (int32_t i = 0; i < buffers->count; i++)
        rk_str_appendf(&text, "%s%s", i > 0 ? ", " : "", buffers->of[i]->memory.what);
    st = RK_WRAP(st, "moving %s to %s", rk_str_text(&text), where);
    rk_str_fini(&text);
    return st;
}

static struct rk_status *move_out(struct rk_model *model, const struct selection *leaving, uint32_t parts,
                                  uint32_t kept)
{
    RK_TRY(rk_model_reserve_offload(model, parts & kept));
    RK_TRY(copy_out(model, leaving, kept));
    for (int32_t i = 0; i < leaving->count; i++)
        RK_TRY(rk_movable_leave(&leaving->of[i]->memory, leaving->of[i]->part & kept));
    return NULL;
}

struct rk_status *rk_model_offload(struct rk_model *model, uint32_t parts, bool keeps_gradients)
{
    uint32_t kept = keeps_gradients ? RK_PARTS_ALL : RK_PARTS_ALL & ~RK_PART_GRADIENTS;
    struct selection all = select_parts(model, parts), leaving = {0};

    for (int32_t i = 0; i < all.count; i++) {
        if (rk_movable_can_leave(&all.of[i]->memory))
            leaving.of[leaving.count++] = all.of[i];
    }
    if (leaving.count == 0)
        return NULL;
    return name_buffers(move_out(model, &leaving, parts, kept), &leaving, "host memory");
}

static struct rk_status *move_in(struct rk_model *model, const struct selection *buffers, bool writes)
{
    if (RK_FAULT("onload.copy"))
        return RK_FAIL(RK_INTERNAL, "fault point onload.copy");
    for (int32_t i = 0; i < buffers->count; i++) {
        RK_TRY(rk_movable_come_back(&buffers->of[i]->memory, model->core->stream));
        if (writes)
            buffers->of[i]->memory.has_copy = false;
    }
    return NULL;
}

struct rk_status *rk_model_onload(struct rk_model *model, uint32_t parts, bool writes)
{
    struct selection buffers = select_parts(model, parts);

    if (buffers.count == 0)
        return NULL;
    return name_buffers(move_in(model, &buffers, writes), &buffers, "the device");
}

uint32_t rk_model_offloaded(const struct rk_model *model)
{
    struct selection buffers = select_parts(model, RK_PARTS_ALL);
    uint32_t parts = 0;

    for (int32_t i = 0; i < buffers.count; i++) {
        if (buffers.of[i]->memory.is_away)
            parts |= buffers.of[i]->part;
    }
    return parts;
}

static uint64_t sum_bytes(const struct rk_model *model, uint32_t parts,
                          uint64_t (*bytes_of)(const struct rk_movable *movable))
{
    struct selection buffers = select_parts(model, parts);
    uint64_t bytes = 0;

    for (int32_t i = 0; i < buffers.count; i++)
        bytes += bytes_of(&buffers.of[i]->memory);
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
