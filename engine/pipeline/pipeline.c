/* The executor of a pipeline's schedule (base/layout/rk_pipeline.h). Entry point: rk_pipeline_run.
 *
 * A slot holds the tensors that a chunk saves of a micro-batch for its backward pass. It is taken when the
 * input of the forward step is received (or computed, on the first chunk), and released when the gradient of
 * that input has been sent. Messages are on a separate stream in the order of the schedule's list, and a step
 * waits only for the message that is its input: messages for later steps may still be in flight. A receive is
 * listed no earlier than its sender is ready, because a waiting receive blocks the messages after it and
 * occupies some SMs of a GPU. */
#include "engine/pipeline/pipeline.h"
#include "engine/pipeline/run_internal.h"

#include "base/rk_alloc.h"

/* --- steps --- */

static struct rk_status *note_step(const struct rk_pipeline_run *run, struct rk_pipeline_step step,
                                   bool is_done)
{
    return run->work->on_step ? run->work->on_step(run->work->user, step, is_done) : NULL;
}

static struct rk_status *forward(struct rk_pipeline_run *run, struct rk_pipeline_step step)
{
    const struct rk_chunk *chunk = &run->model->core->chunks[step.chunk];
    struct rk_slot *slot = rk_run_find_slot(run, step);
    struct rk_micro_desc desc;

    RK_TRY(rk_run_ask_replica(run)); /* before the stream waits for the input: the host waits here */
    if (chunk->has_embedding)
        RK_TRY(rk_run_take_slot(run, step, &slot));
    else
        RK_TRY(rk_stream_wait(run->model->core->stream, slot->has_arrived));
    RK_TRY(note_step(run, step, false));
    if (run->is_cancelled)
        return rk_run_skip_forward(run, slot, chunk->has_head);
    RK_TRY(rk_micro_forward(&slot->micro, chunk, slot->in, run->work->trains, &slot->out));
    if (!chunk->has_head)
        return NULL;
    if (run->bound != step.micro_batch)
        RK_TRY(rk_run_bind(run, step.micro_batch, &desc));
    RK_TRY(run->work->handle_outputs(run->work->user, step.micro_batch, &slot->micro));
    return run->work->trains ? NULL : rk_slot_give_back(slot, run->model->core->stream);
}

/* Whether this is the last backward step through its chunk. */
static bool is_last_backward(const struct rk_pipeline_run *run, int64_t i)
{
    for (int64_t k = i + 1; k < run->num_steps; k++) {
        if (run->steps[k].kind == RK_PIPELINE_BACKWARD && run->steps[k].chunk == run->steps[i].chunk)
            return false;
    }
    return true;
}

static struct rk_status *backward(struct rk_pipeline_run *run, int64_t i)
{
    struct rk_pipeline_step step = run->steps[i];
    const struct rk_chunk *chunk = &run->model->core->chunks[step.chunk];
    struct rk_slot *slot = rk_run_find_slot(run, step);
    bool is_last = is_last_backward(run, i);

    if (is_last)
        RK_TRY(rk_run_ask_stage(run));
    if (!chunk->has_head)
        RK_TRY(rk_stream_wait(run->model->core->stream, slot->has_arrived));
    RK_TRY(note_step(run, step, false));
    if (run->is_cancelled)
        return rk_run_skip_backward(run, slot, chunk->has_embedding);
    RK_TRY(run->work->prepare_backward(run->work->user, &slot->micro, is_last));
    RK_TRY(rk_micro_backward(&slot->micro, chunk, slot->dout, &slot->din));
    RK_TRY(run->work->finish_backward(run->work->user));
    return chunk->has_embedding ? rk_slot_give_back(slot, run->model->core->stream) : NULL;
}

static struct rk_status *run_steps(struct rk_pipeline_run *run)
{
    for (run->step = 0; run->step < run->num_steps; run->step++) {
        RK_TRY(rk_run_exchange(run, run->step));
        if (run->steps[run->step].kind == RK_PIPELINE_FORWARD)
            RK_TRY(forward(run, run->steps[run->step]));
        else
            RK_TRY(backward(run, run->step));
        RK_TRY(note_step(run, run->steps[run->step], true));
    }
    RK_TRY(rk_run_exchange(run, run->num_steps));
    RK_TRY(rk_run_wait_for_messages(run->model));
    RK_TRY(rk_stream_sync(run->model->core->stream));
    return rk_run_ask_all(run);
}

/* --- error messages: position of a failure --- */

static const char *kind_text(rk_pipeline_kind_t kind)
{
    return kind == RK_PIPELINE_FORWARD ? "forward" : "backward";
}

static void append_step(struct rk_str *out, const struct rk_pipeline_run *run, struct rk_pipeline_step step)
{
    rk_str_appendf(out, "%s of micro-batch %d of %lld", kind_text(step.kind), step.micro_batch,
                   (long long)run->work->count);
    if (run->schedule.vpp > 1)
        rk_str_appendf(out, " in chunk %d", step.chunk);
}

/* "receives the backward of micro-batch 2 of 8 from stage 1, sends ..." */
static void append_messages(struct rk_str *out, const struct rk_pipeline_run *run)
{
    for (int64_t i = run->first_message; i < run->next_message; i++) {
        const struct rk_pipeline_message *message = &run->messages[i];

        rk_str_append(out, i > run->first_message ? ", " : "");
        rk_str_append(out, message->is_send ? "sends the " : "receives the ");
        append_step(out, run, message->step);
        rk_str_appendf(out, " %s stage %d", message->is_send ? "to" : "from", message->peer_stage);
    }
}

/* With asynchronous collectives an operation may fail after it was enqueued: the message names the step in
 * which the failure was detected. */
static struct rk_status *name_place(const struct rk_pipeline_run *run, struct rk_status *st)
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

/* Checks all micro-batches before the first message: a stage that failed in the middle would block the
 * others, which would then report an abort instead of the cause. So each micro-batch is bound, and packed by
 * its owner, one more time than the schedule needs: host work proportional to its tokens. */
static struct rk_status *check_micro_batches(struct rk_pipeline_run *run)
{
    for (int64_t i = 0; i < run->work->count && run->schedule.pp > 1; i++) {
        struct rk_micro_desc desc;

        RK_TRY(rk_run_bind(run, i, &desc));
        RK_TRY(rk_micro_check(run->model, &desc));
    }
    return NULL;
}

static struct rk_status *run_init(struct rk_pipeline_run *run)
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
        run->model->slots.items[i]->is_taken = false; /* left by a failed run */
    RK_TRY(rk_pipeline_schedule_check(&run->schedule));
    RK_TRY(check_micro_batches(run));
    run->num_steps = rk_pipeline_schedule_num_steps(&run->schedule);
    run->steps = rk_calloc((size_t)run->num_steps + 1, sizeof(*run->steps));
    rk_pipeline_schedule_steps(&run->schedule, run->stage, run->steps);
    if (run->schedule.pp == 1)
        return NULL;
    RK_TRY(rk_run_open_messages(run->model));
    return rk_pipeline_messages_create(&run->messages, &run->num_messages, &run->schedule, run->stage);
}

struct rk_status *rk_pipeline_run(struct rk_model *model, const struct rk_pipeline_work *work)
{
    struct rk_pipeline_run run = {.model = model, .work = work};
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
