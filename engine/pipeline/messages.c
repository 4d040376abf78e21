/* Messages between stages: on a separate stream, in the order of the schedule's list. */
#include "engine/pipeline/run_internal.h"

#include "base/rk_assert.h"
#include "base/rk_fault.h"

/* Allocates memory for the received tensor; *slot is the slot of the step. */
static struct rk_status *make_room(struct rk_pipeline_run *run, struct rk_pipeline_step step,
                                   struct rk_slot **slot)
{
    bool is_forward = step.kind == RK_PIPELINE_FORWARD;
    const struct rk_pass *pass;

    if (is_forward)
        RK_TRY(rk_run_take_slot(run, step, slot));
    else
        *slot = rk_run_find_slot(run, step);
    RK_ASSERT(*slot);
    pass = &(*slot)->micro.pass;
    return rk_step_2d(pass->kept, is_forward ? &(*slot)->in : &(*slot)->dout, pass->dtype, pass->num_rows,
                      pass->hidden_size);
}

/* Sends and receives nothing for a micro-batch without rows. */
static struct rk_status *transfer(struct rk_pipeline_run *run, const struct rk_pipeline_message *message,
                                  const struct rk_slot *slot)
{
    struct rk_comm_group *group = rk_mesh_comms_group(run->model->core->mesh, RK_GROUP_PP);
    bool is_forward = message->step.kind == RK_PIPELINE_FORWARD;

    if (slot->micro.pass.num_rows == 0)
        return NULL;
    if (message->is_send)
        return rk_comm_send(group, run->model->messages, is_forward ? slot->out : slot->din,
                            message->peer_stage);
    return rk_comm_recv(group, run->model->messages, is_forward ? slot->in : slot->dout, message->peer_stage);
}

/* Received tensors may be used from here on; slots whose last message this was are released. */
static struct rk_status *finish(struct rk_pipeline_run *run, const struct rk_pipeline_message *message)
{
    struct rk_slot *slot = rk_run_find_slot(run, message->step);
    bool is_last = message->step.kind == RK_PIPELINE_BACKWARD || !run->work->trains;

    if (!message->is_send)
        return rk_event_record(slot->has_arrived, run->model->messages);
    return is_last ? rk_slot_give_back(slot, run->model->messages) : NULL;
}

static struct rk_status *transfer_all(struct rk_pipeline_run *run, int64_t begin, int64_t end)
{
    struct rk_comm_group *group = rk_mesh_comms_group(run->model->core->mesh, RK_GROUP_PP);

    RK_TRY(rk_comm_batch_begin(group));
    for (int64_t i = begin; i < end; i++)
        RK_TRY(transfer(run, &run->messages[i], rk_run_find_slot(run, run->messages[i].step)));
    return rk_comm_batch_end(group);
}

static struct rk_status *exchange_fault(const struct rk_pipeline_run *run)
{
    const char *name = run->work->trains ? "pipeline.train" : "pipeline.forward";

    return rk_run_is_hit(run, name) ? RK_FAIL(RK_INTERNAL, "fault point %s", name) : NULL;
}

struct rk_status *rk_run_exchange(struct rk_pipeline_run *run, int64_t before)
{
    struct rk_model *model = run->model;
    int64_t begin = run->next_message, end = begin;

    while (end < run->num_messages && run->messages[end].before_step <= before)
        end++;
    run->first_message = begin;
    if (begin == end)
        return NULL;
    run->next_message = end;
    RK_TRY(exchange_fault(run));
    for (int64_t i = begin; i < end; i++) {
        struct rk_slot *slot;

        if (!run->messages[i].is_send)
            RK_TRY(make_room(run, run->messages[i].step, &slot));
    }
    RK_TRY(rk_event_record(model->is_ready, model->core->stream));
    RK_TRY(rk_stream_wait(model->messages, model->is_ready));
    RK_TRY(transfer_all(run, begin, end));
    run->first_message = end;
    for (int64_t i = begin; i < end; i++)
        RK_TRY(finish(run, &run->messages[i]));
    return NULL;
}

struct rk_status *rk_run_wait_for_messages(struct rk_model *model)
{
    if (!model->messages)
        return NULL;
    RK_TRY(rk_event_record(model->is_done, model->messages));
    return rk_stream_wait(model->core->stream, model->is_done);
}

/* Sends one number to and receives one from both neighbours in the ring of stages. A backend that connects
 * two ranks at their first message blocks each host until the other arrives; here all of them arrive at
 * once. */
static struct rk_status *greet_neighbours(struct rk_model *model)
{
    struct rk_comm_group *group = rk_mesh_comms_group(model->core->mesh, RK_GROUP_PP);
    int32_t size = rk_comm_group_size(group), rank = rk_comm_group_rank(group);
    const int32_t peers[] = {(rank + 1) % size, (rank + size - 1) % size};
    rk_tensor_t sent, received[2];

    rk_step_arena_reset(model->arena);
    RK_TRY(rk_step_1d(model->arena, &sent, RK_DTYPE_F32, 1));
    RK_TRY(rk_stream_zero(model->messages, sent.data, rk_tensor_bytes(sent)));
    RK_TRY(rk_comm_batch_begin(group));
    for (int i = 0; i < (size > 2 ? 2 : 1); i++) {
        RK_TRY(rk_step_1d(model->arena, &received[i], RK_DTYPE_F32, 1));
        RK_TRY(rk_comm_send(group, model->messages, sent, peers[i]));
        RK_TRY(rk_comm_recv(group, model->messages, received[i], peers[i]));
    }
    RK_TRY(rk_comm_batch_end(group));
    return rk_stream_sync(model->messages);
}

struct rk_status *rk_run_open_messages(struct rk_model *model)
{
    struct rk_device *device = rk_stream_device(model->core->stream);

    if (model->messages)
        return NULL;
    RK_TRY(rk_event_create(&model->is_ready, device));
    RK_TRY(rk_event_create(&model->is_done, device));
    RK_TRY(rk_stream_create_urgent(&model->messages, device, "pipeline"));
    return greet_neighbours(model);
}
