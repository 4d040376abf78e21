/* The executor of a pipeline's schedule (base/rk_pipeline.h). Start reading at rk_pipeline_run.
 *
 * What a chunk keeps of a micro-batch for its backward pass lies in a slot. A slot is taken when the input of
 * the forward step is received (or made, on the first chunk), and given back when the gradient of that input
 * has been sent. Messages travel on a stream of their own, in the order of the schedule's list, and a step
 * waits for the one that is its input: what was exchanged in front of it for later steps may still be on its
 * way. Receives do not stand earlier in that list than their senders are ready, since one that waits for its
 * sender holds up the messages behind it, and on a GPU some of the processors. */
#include "engine/pipeline/pipeline_internal.h"

#include "base/rk_alloc.h"
#include "base/rk_assert.h"
#include "base/rk_fault.h"

struct rk_pipeline_slot {
    struct rk_pass_memory memory;
    struct rk_event *has_arrived; /* recorded behind the message that was received last */
    struct rk_event *is_free;     /* recorded when the slot was given back */
    bool was_used, is_taken;
    int32_t micro_batch, chunk;
    struct rk_micro micro;
    rk_tensor_t in, out;   /* of the forward step */
    rk_tensor_t dout, din; /* of the backward step */
};

struct run {
    struct rk_model *model;
    const struct rk_pipeline_work *work;
    struct rk_pipeline_schedule schedule;
    int32_t stage;
    struct rk_pipeline_step *steps;
    int64_t num_steps;
    const struct rk_engine_hooks *hooks; /* of the micro-batch that was bound last; may be NULL */
    bool is_cancelled;                   /* the rest of the messages is exchanged without computing */
    bool has_asked_stage;
    struct rk_pipeline_message *messages;
    int64_t num_messages, next_message;
    int64_t step;          /* the current one, or the one that the messages go in front of */
    int64_t first_message; /* of those that are exchanged now; next_message: none are */
    int64_t bound;         /* the micro-batch that work->bind was called for last; -1: none */
};

/* Dry runs are no runs: they do not count. */
static bool is_hit(const struct run *run, const char *fault)
{
    (void)fault; /* in builds without fault points */
    return !rk_comm_group_is_plan(rk_mesh_comms_group(run->model->core->mesh, RK_GROUP_PP)) &&
           RK_FAULT(fault);
}

/* --- slots --- */

static void slot_destroy(struct rk_pipeline_slot *slot)
{
    rk_step_arena_destroy(slot->memory.arena);
    rk_arena_destroy(slot->memory.host);
    rk_event_destroy(slot->has_arrived);
    rk_event_destroy(slot->is_free);
    rk_free(slot);
}

void rk_pipeline_slots_destroy(struct rk_model *model)
{
    for (int64_t i = 0; i < model->slots.count; i++)
        slot_destroy(model->slots.items[i]);
    rk_array_fini(&model->slots);
    rk_event_destroy(model->is_ready);
    rk_event_destroy(model->is_done);
    rk_stream_destroy(model->messages);
    model->messages = NULL;
    model->is_ready = model->is_done = NULL;
}

static struct rk_status *add_slot(struct rk_model *model, struct rk_pipeline_slot **out)
{
    struct rk_device *device = rk_stream_device(model->core->stream);
    struct rk_pipeline_slot *slot = rk_calloc(1, sizeof(*slot));
    struct rk_status *st;

    slot->memory.arena = rk_step_arena_create(device);
    slot->memory.host = rk_arena_create(RK_PASS_HOST_BLOCK_BYTES, 0);
    st = rk_event_create(&slot->is_free, device);
    if (!st)
        st = rk_event_create(&slot->has_arrived, device);
    if (st) {
        slot_destroy(slot);
        return st;
    }
    rk_array_append(&model->slots, slot);
    *out = slot;
    return model->slot_bytes > 0 || model->slot_host_bytes > 0
               ? rk_step_arena_reserve(slot->memory.arena, model->slot_bytes, model->slot_host_bytes)
               : NULL;
}

void rk_pipeline_add_memory(const struct rk_model *model, struct rk_model_memory *memory)
{
    memory->num_slots = model->slots.count;
    for (int64_t i = 0; i < model->slots.count; i++) {
        struct rk_step_arena_stats step = rk_step_arena_stats(model->slots.items[i]->memory.arena);

        memory->activation_bytes += step.tensors.capacity_bytes;
        memory->pass_host_bytes += step.staging.capacity_bytes;
        memory->slot_peak_bytes = RK_MAX(memory->slot_peak_bytes, step.tensors.peak_bytes);
        memory->slot_host_peak_bytes = RK_MAX(memory->slot_host_peak_bytes, step.staging.peak_bytes);
        memory->step_overflows += step.tensors.overflows + step.staging.overflows;
    }
}

struct rk_status *rk_pipeline_reserve(struct rk_model *model, const struct rk_model_memory *plan)
{
    model->slot_bytes = plan->slot_peak_bytes;
    model->slot_host_bytes = plan->slot_host_peak_bytes;
    while (model->slots.count < plan->num_slots) {
        struct rk_pipeline_slot *slot;

        RK_TRY(add_slot(model, &slot));
    }
    return NULL;
}

static struct rk_status *bind(struct run *run, int64_t i, struct rk_micro_desc *desc)
{
    run->bound = i;
    RK_TRY(run->work->bind(run->work->user, i, desc));
    run->hooks = desc->hooks;
    return NULL;
}

/* A free slot, whose micro-batch has begun. */
static struct rk_status *take_slot(struct run *run, struct rk_pipeline_step step,
                                   struct rk_pipeline_slot **out)
{
    struct rk_model *model = run->model;
    struct rk_pipeline_slot *slot = NULL;
    struct rk_micro_desc desc;

    for (int64_t i = 0; i < model->slots.count && !slot; i++) {
        if (!model->slots.items[i]->is_taken)
            slot = model->slots.items[i];
    }
    if (!slot)
        RK_TRY(add_slot(model, &slot));
    if (step.micro_batch > 0 && is_hit(run, "pipeline.memory"))
        return RK_FAIL_REASON(RK_RESOURCE_EXHAUSTED, "DEVICE_OOM", "fault point pipeline.memory");
    if (slot->was_used)
        RK_TRY(rk_event_sync(slot->is_free));
    slot->is_taken = slot->was_used = true;
    slot->micro_batch = step.micro_batch;
    slot->chunk = step.chunk;
    slot->in = slot->out = slot->dout = slot->din = (rk_tensor_t){0};
    RK_TRY(bind(run, step.micro_batch, &desc));
    *out = slot;
    return rk_micro_begin(&slot->micro, model, run->schedule.pp > 1 ? &slot->memory : NULL, &desc);
}

static struct rk_pipeline_slot *find_slot(const struct run *run, struct rk_pipeline_step step)
{
    for (int64_t i = 0; i < run->model->slots.count; i++) {
        struct rk_pipeline_slot *slot = run->model->slots.items[i];

        if (slot->is_taken && slot->micro_batch == step.micro_batch && slot->chunk == step.chunk)
            return slot;
    }
    return NULL;
}

static struct rk_status *give_back(struct rk_pipeline_slot *slot, struct rk_stream *stream)
{
    slot->is_taken = false;
    return rk_event_record(slot->is_free, stream);
}

/* --- messages --- */

/* Memory for what is received; *slot is that of the step. */
static struct rk_status *make_room(struct run *run, struct rk_pipeline_step step,
                                   struct rk_pipeline_slot **slot)
{
    bool is_forward = step.kind == RK_PIPELINE_FORWARD;
    const struct rk_pass *pass;

    if (is_forward)
        RK_TRY(take_slot(run, step, slot));
    else
        *slot = find_slot(run, step);
    RK_ASSERT(*slot);
    pass = &(*slot)->micro.pass;
    return rk_step_2d(pass->kept, is_forward ? &(*slot)->in : &(*slot)->dout, pass->dtype, pass->num_rows,
                      pass->hidden_size);
}

/* Sends and receives nothing for a micro-batch without rows. */
static struct rk_status *transfer(struct run *run, const struct rk_pipeline_message *message,
                                  const struct rk_pipeline_slot *slot)
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

/* What was received can be used from here on; slots whose last message this was are given back. */
static struct rk_status *finish(struct run *run, const struct rk_pipeline_message *message)
{
    struct rk_pipeline_slot *slot = find_slot(run, message->step);
    bool is_last = message->step.kind == RK_PIPELINE_BACKWARD || !run->work->trains;

    if (!message->is_send)
        return rk_event_record(slot->has_arrived, run->model->messages);
    return is_last ? give_back(slot, run->model->messages) : NULL;
}

static struct rk_status *transfer_all(struct run *run, int64_t begin, int64_t end)
{
    struct rk_comm_group *group = rk_mesh_comms_group(run->model->core->mesh, RK_GROUP_PP);

    RK_TRY(rk_comm_batch_begin(group));
    for (int64_t i = begin; i < end; i++)
        RK_TRY(transfer(run, &run->messages[i], find_slot(run, run->messages[i].step)));
    return rk_comm_batch_end(group);
}

static struct rk_status *exchange_fault(const struct run *run)
{
    const char *name = run->work->trains ? "pipeline.train" : "pipeline.forward";

    return is_hit(run, name) ? RK_FAIL(RK_INTERNAL, "fault point %s", name) : NULL;
}

/* All messages in front of step `before`, together, behind the steps so far. */
static struct rk_status *exchange(struct run *run, int64_t before)
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
        struct rk_pipeline_slot *slot;

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

static struct rk_status *wait_for_messages(struct rk_model *model)
{
    if (!model->messages)
        return NULL;
    RK_TRY(rk_event_record(model->is_done, model->messages));
    return rk_stream_wait(model->core->stream, model->is_done);
}

/* --- cancelling --- */

/* Whether one of the ranks of these groups is asked to stop; all of them hear the same. */
static struct rk_status *ask(struct run *run, const rk_mesh_group_kind_t *kinds, size_t num_kinds)
{
    const struct rk_engine_hooks *hooks = run->hooks;
    int32_t goes_on = 1;

    if (!hooks || !hooks->is_cancelled || run->schedule.pp == 1)
        return NULL;
    if (run->is_cancelled || hooks->is_cancelled(hooks->user))
        goes_on = 0;
    for (size_t i = 0; i < num_kinds; i++) {
        if (rk_comm_group_size(rk_mesh_comms_group(run->model->core->mesh, kinds[i])) > 1)
            RK_TRY(rk_model_min(run->model, kinds[i], &goes_on, 1));
    }
    run->is_cancelled = !goes_on;
    return NULL;
}

/* In front of a forward step: the ranks that share its collectives. The other stages need not know: they get
 * zeros instead of results. */
static struct rk_status *ask_replica(struct run *run)
{
    static const rk_mesh_group_kind_t kinds[] = {RK_GROUP_TP_CP};

    return run->is_cancelled ? NULL : ask(run, kinds, RK_ARRAY_LEN(kinds));
}

/* In front of the first backward step in which sums over the replicas may begin. All forward steps are over,
 * so that nothing changes the answer any more. */
static struct rk_status *ask_stage(struct run *run)
{
    static const rk_mesh_group_kind_t kinds[] = {RK_GROUP_TP_CP, RK_GROUP_DP};

    if (run->has_asked_stage)
        return NULL;
    run->has_asked_stage = true;
    return ask(run, kinds, RK_ARRAY_LEN(kinds));
}

/* Behind the last step: all ranks. */
static struct rk_status *ask_all(struct run *run)
{
    static const rk_mesh_group_kind_t kinds[] = {RK_GROUP_ALL};

    RK_TRY(ask(run, kinds, RK_ARRAY_LEN(kinds)));
    return run->is_cancelled ? RK_FAIL(RK_CANCELLED, "cancelled") : NULL;
}

/* In the place of a result that another stage waits for. */
static struct rk_status *make_zeros(const struct rk_pipeline_slot *slot, rk_tensor_t *out)
{
    const struct rk_pass *pass = &slot->micro.pass;

    RK_TRY(rk_step_2d(slot->memory.arena, out, pass->dtype, pass->num_rows, pass->hidden_size));
    return pass->num_rows > 0 ? rk_stream_zero(pass->stream, out->data, rk_tensor_bytes(*out)) : NULL;
}

static struct rk_status *skip_forward(const struct run *run, struct rk_pipeline_slot *slot, bool has_head)
{
    if (!has_head)
        return make_zeros(slot, &slot->out);
    return run->work->trains ? NULL : give_back(slot, run->model->core->stream);
}

static struct rk_status *skip_backward(const struct run *run, struct rk_pipeline_slot *slot,
                                       bool has_embedding)
{
    return has_embedding ? give_back(slot, run->model->core->stream) : make_zeros(slot, &slot->din);
}

/* --- steps --- */

static struct rk_status *note_step(const struct run *run, struct rk_pipeline_step step, bool is_done)
{
    return run->work->on_step ? run->work->on_step(run->work->user, step, is_done) : NULL;
}

static struct rk_status *forward(struct run *run, struct rk_pipeline_step step)
{
    const struct rk_chunk *chunk = &run->model->core->chunks[step.chunk];
    struct rk_pipeline_slot *slot = find_slot(run, step);
    struct rk_micro_desc desc;

    RK_TRY(ask_replica(run)); /* before the stream waits for the input, as the host waits for it */
    if (chunk->has_embedding)
        RK_TRY(take_slot(run, step, &slot));
    else
        RK_TRY(rk_stream_wait(run->model->core->stream, slot->has_arrived));
    RK_TRY(note_step(run, step, false));
    if (run->is_cancelled)
        return skip_forward(run, slot, chunk->has_head);
    RK_TRY(rk_micro_forward(&slot->micro, chunk, slot->in, run->work->trains, &slot->out));
    if (!chunk->has_head)
        return NULL;
    if (run->bound != step.micro_batch)
        RK_TRY(bind(run, step.micro_batch, &desc));
    RK_TRY(run->work->handle_outputs(run->work->user, step.micro_batch, &slot->micro));
    return run->work->trains ? NULL : give_back(slot, run->model->core->stream);
}

/* Whether this is the last backward step through its chunk. */
static bool is_last_backward(const struct run *run, int64_t i)
{
    for (int64_t k = i + 1; k < run->num_steps; k++) {
        if (run->steps[k].kind == RK_PIPELINE_BACKWARD && run->steps[k].chunk == run->steps[i].chunk)
            return false;
    }
    return true;
}

static struct rk_status *backward(struct run *run, int64_t i)
{
    struct rk_pipeline_step step = run->steps[i];
    const struct rk_chunk *chunk = &run->model->core->chunks[step.chunk];
    struct rk_pipeline_slot *slot = find_slot(run, step);
    bool is_last = is_last_backward(run, i);

    if (is_last)
        RK_TRY(ask_stage(run));
    if (!chunk->has_head)
        RK_TRY(rk_stream_wait(run->model->core->stream, slot->has_arrived));
    RK_TRY(note_step(run, step, false));
    if (run->is_cancelled)
        return skip_backward(run, slot, chunk->has_embedding);
    RK_TRY(run->work->prepare_backward(run->work->user, &slot->micro, is_last));
    RK_TRY(rk_micro_backward(&slot->micro, chunk, slot->dout, &slot->din));
    RK_TRY(run->work->finish_backward(run->work->user));
    return chunk->has_embedding ? give_back(slot, run->model->core->stream) : NULL;
}

static struct rk_status *run_steps(struct run *run)
{
    for (run->step = 0; run->step < run->num_steps; run->step++) {
        RK_TRY(exchange(run, run->step));
        if (run->steps[run->step].kind == RK_PIPELINE_FORWARD)
            RK_TRY(forward(run, run->steps[run->step]));
        else
            RK_TRY(backward(run, run->step));
        RK_TRY(note_step(run, run->steps[run->step], true));
    }
    RK_TRY(exchange(run, run->num_steps));
    RK_TRY(wait_for_messages(run->model));
    RK_TRY(rk_stream_sync(run->model->core->stream));
    return ask_all(run);
}

/* --- where a run failed --- */

static const char *kind_text(rk_pipeline_kind_t kind)
{
    return kind == RK_PIPELINE_FORWARD ? "forward" : "backward";
}

static void append_step(struct rk_str *out, const struct run *run, struct rk_pipeline_step step)
{
    rk_str_appendf(out, "%s of micro-batch %d of %lld", kind_text(step.kind), step.micro_batch,
                   (long long)run->work->count);
    if (run->schedule.vpp > 1)
        rk_str_appendf(out, " in chunk %d", step.chunk);
}

/* "receives the backward of micro-batch 2 of 8 from stage 1, sends ..." */
static void append_messages(struct rk_str *out, const struct run *run)
{
    for (int64_t i = run->first_message; i < run->next_message; i++) {
        const struct rk_pipeline_message *message = &run->messages[i];

        rk_str_append(out, i > run->first_message ? ", " : "");
        rk_str_append(out, message->is_send ? "sends the " : "receives the ");
        append_step(out, run, message->step);
        rk_str_appendf(out, " %s stage %d", message->is_send ? "to" : "from", message->peer_stage);
    }
}

/* Over collectives that are asynchronous an operation fails later than it was begun: the place is where that
 * was noticed. */
static struct rk_status *name_place(const struct run *run, struct rk_status *st)
{
    struct rk_str text = {0};

    if (!st || run->schedule.pp == 1)
        return st;
    rk_str_appendf(&text, "stage %d of %d", run->stage, run->schedule.pp);
    if (run->first_message < run->next_message) {
        rk_str_append(&text, ", pipeline.exchange: ");
        append_messages(&text, run);
    } else if (run->step < run->num_steps) {
        rk_str_append(&text, ", ");
        append_step(&text, run, run->steps[run->step]);
    }
    st = RK_WRAP(st, "%s", rk_str_text(&text));
    rk_str_fini(&text);
    return st;
}

/* --- the run --- */

/* A stage that gave up in the middle would leave the others waiting, and end them with an abort instead of
 * what is wrong. For this each micro-batch of a pipeline is bound, and by its owner packed, once more than
 * the schedule does: host work in proportion to its tokens, before the first message. */
static struct rk_status *check_micro_batches(struct run *run)
{
    for (int64_t i = 0; i < run->work->count && run->schedule.pp > 1; i++) {
        struct rk_micro_desc desc;

        RK_TRY(bind(run, i, &desc));
        RK_TRY(rk_micro_check(run->model, &desc));
    }
    return NULL;
}

/* One number to and from both neighbours in the ring of stages. A backend that connects two ranks at their
 * first message blocks both hosts meanwhile, each until the other one comes; here all of them come at once.
 */
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

static struct rk_status *open_messages(struct rk_model *model)
{
    struct rk_device *device = rk_stream_device(model->core->stream);

    if (model->messages)
        return NULL;
    RK_TRY(rk_event_create(&model->is_ready, device));
    RK_TRY(rk_event_create(&model->is_done, device));
    RK_TRY(rk_stream_create_urgent(&model->messages, device, "pipeline"));
    return greet_neighbours(model);
}

static struct rk_status *run_init(struct run *run)
{
    const struct rk_model_core *core = run->model->core;

    run->schedule = (struct rk_pipeline_schedule){
        .pp = rk_pipeline_num_stages(core->pipeline),
        .vpp = rk_pipeline_num_chunks(core->pipeline),
        .num_micro_batches = (int32_t)run->work->count,
        .forward_only = !run->work->trains,
    };
    run->stage = core->params.coords.axis[RK_AXIS_PP];
    run->bound = -1;
    for (int64_t i = 0; i < run->model->slots.count; i++)
        run->model->slots.items[i]->is_taken = false; /* of a run that failed */
    RK_TRY(rk_pipeline_schedule_check(&run->schedule));
    RK_TRY(check_micro_batches(run));
    run->num_steps = rk_pipeline_schedule_num_steps(&run->schedule);
    run->steps = rk_calloc((size_t)run->num_steps + 1, sizeof(*run->steps));
    rk_pipeline_schedule_steps(&run->schedule, run->stage, run->steps);
    if (run->schedule.pp == 1)
        return NULL;
    RK_TRY(open_messages(run->model));
    return rk_pipeline_messages_create(&run->messages, &run->num_messages, &run->schedule, run->stage);
}

struct rk_status *rk_pipeline_run(struct rk_model *model, const struct rk_pipeline_work *work)
{
    struct run run = {.model = model, .work = work};
    struct rk_status *st;

    if (work->count == 0)
        return NULL;
    st = run_init(&run);
    if (!st)
        st = name_place(&run, run_steps(&run));
    rk_free(run.steps);
    rk_free(run.messages);
    return st;
}
