/* Loading a training checkpoint. All files are read twice. First the ranks verify the checksums, each of some
 * files. Only when all are valid does each rank read the elements of its shard; then the dp ranks all-gather
 * parameters as after a step. */
#include "engine/ckpt/state_internal.h"

#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_assert.h"
#include "base/rk_crc32c.h"
#include "base/rk_log.h"

#define SUM_BYTES      ((uint64_t)32 << 20)
#define CHUNK_ELEMENTS ((int64_t)2 << 20)
#define NUM_SLOTS      8
/* Slots that threads fill while the device copies from the others. */
#define NUM_FILLING 6

struct load {
    struct rk_model *model;
    const char *part_dir;
    const struct rk_engine_hooks *hooks;
    uint32_t contents, kinds;
    struct rk_ckpt_manifest manifest;
    struct rk_state_counters counters;
    struct rk_shards *shards;
    struct rk_pool *pool;
    uint64_t done_bytes, total_bytes;
};

/* Reports progress; fails when this rank was asked to stop. */
static struct rk_status *advance(struct load *load, const char *phase, uint64_t bytes)
{
    const struct rk_engine_hooks *hooks = load->hooks;

    load->done_bytes += bytes;
    if (hooks && hooks->on_progress)
        hooks->on_progress(hooks->user, phase, load->done_bytes, load->total_bytes);
    if (hooks && hooks->is_cancelled && hooks->is_cancelled(hooks->user))
        return RK_FAIL(RK_CANCELLED, "cancelled");
    return NULL;
}

/* --- contents to load --- */

static struct rk_status *choose_contents(struct load *load, uint32_t wanted)
{
    const uint32_t unread = RK_CHECKPOINT_HF_MODEL | RK_CHECKPOINT_GRADIENTS;
    uint32_t present = 0, able = RK_CHECKPOINT_MODEL | RK_CHECKPOINT_EXTRA;

    for (int32_t i = 0; i < RK_CHECKPOINT_CONTENTS_COUNT; i++) {
        const char *name = rk_checkpoint_content_name(i);

        if (rk_ckpt_manifest_has(&load->manifest, name))
            present |= 1u << i;
        else if (wanted >> i & 1)
            return RK_FAIL(RK_INVALID_ARGUMENT, "contents: '%s' is not in the checkpoint", name);
    }
    if (load->model->trainer && load->model->trainer->config.ops)
        able |= RK_CHECKPOINT_OPTIMIZER;
    load->contents = (wanted ? wanted : present & able) & ~unread;
    load->kinds = rk_state_kinds(load->model, load->contents);
    return rk_model_check_contents(load->model, load->contents);
}

static struct rk_status *examine(struct load *load, uint32_t wanted)
{
    RK_TRY(rk_ckpt_check(&load->manifest, load->part_dir, RK_CKPT_CHECK_SIZES));
    RK_TRY(choose_contents(load, wanted));
    RK_TRY(rk_state_check_layout(load->model, &load->manifest, load->part_dir));
    RK_TRY(rk_state_read_counters(&load->counters, load->model, &load->manifest,
                                  load->contents & RK_CHECKPOINT_OPTIMIZER));
    RK_TRY(rk_shards_open(&load->shards, load->part_dir, &load->manifest, load->model, load->kinds));
    return rk_pool_create(&load->pool);
}

/* --- checksums --- */

struct sum {
    struct rk_pool_task task;
    const char *path;
    uint64_t begin, bytes;
    uint32_t crc;
    struct rk_status *status;
};

static void sum_run(void *user)
{
    struct sum *sum = user;

    sum->status = rk_crc32c_of_range(&sum->crc, sum->path, sum->begin, sum->bytes);
}

/* Joins all parts, also after a failure. */
static struct rk_status *join_sums(struct load *load, struct sum *sums, int64_t count, uint32_t *crc)
{
    struct rk_status *st = NULL;

    *crc = 0;
    for (int64_t i = 0; i < count; i++) {
        rk_pool_wait(load->pool, &sums[i].task);
        *crc = rk_crc32c_join(*crc, sums[i].crc, sums[i].bytes);
        st = rk_status_first(st, sums[i].status);
        if (!st)
            st = advance(load, "verify", sums[i].bytes);
    }
    return st;
}

static struct rk_status *check_sum(struct load *load, const struct rk_ckpt_file *file)
{
    int64_t count = (int64_t)((file->bytes + SUM_BYTES - 1) / SUM_BYTES);
    struct sum *sums = rk_calloc((size_t)count + 1, sizeof(*sums));
    char *path = rk_path_join(load->part_dir, file->name);
    struct rk_status *st;
    uint32_t crc;

    for (int64_t i = 0; i < count; i++) {
        sums[i] = (struct sum){.path = path, .begin = (uint64_t)i * SUM_BYTES};
        sums[i].bytes = RK_MIN(SUM_BYTES, file->bytes - sums[i].begin);
        sums[i].task = (struct rk_pool_task){.run = sum_run, .user = &sums[i]};
        rk_pool_submit(load->pool, &sums[i].task);
    }
    st = join_sums(load, sums, count, &crc);
    if (!st && crc != file->crc32c)
        st = RK_FAIL_REASON(RK_DATA_LOSS, "CHECKSUM", "'%s' has checksum %08x, expected %08x", path, crc,
                            file->crc32c);
    rk_free(path);
    rk_free(sums);
    return st;
}

/* Verifies the files assigned to this rank. */
static struct rk_status *check_sums(struct load *load)
{
    struct rk_comm_group *all = rk_mesh_comms_group(load->model->core->mesh, RK_GROUP_ALL);
    int32_t rank = rk_comm_group_rank(all), size = rk_comm_group_size(all);

    load->done_bytes = load->total_bytes = 0;
    for (int64_t i = rank; i < load->manifest.files.count; i += size)
        load->total_bytes += load->manifest.files.items[i].bytes;
    for (int64_t i = rank; i < load->manifest.files.count; i += size)
        RK_TRY(check_sum(load, &load->manifest.files.items[i]));
    return NULL;
}

/* --- filling the buffers on the device --- */

/* A chunk between the files and the device. */
struct slot {
    struct rk_pool_task task;
    struct rk_shards_read read;
    const struct rk_shards *shards;
    void *rounded; /* the same values in the dtype of parameters; NULL: not needed */
    rk_dtype_t rounded_dtype;
    void *to, *to_rounded; /* on the device; NULL: not loaded */
    struct rk_event *is_empty;
    struct rk_status *status;
    bool is_used;
};

struct filler {
    struct load *load;
    void *pinned;     /* source of the copies to the device */
    void *scratch;    /* for conversions from other dtypes */
    rk_dtype_t dtype; /* of masters and optimizer states */
    int64_t chunk_elements;
    struct slot slots[NUM_SLOTS];
    int64_t num_filled, num_emptied;
};

static void fill_slot(void *user)
{
    struct slot *slot = user;

    slot->status = rk_shards_read(slot->shards, &slot->read);
    if (!slot->status && slot->to_rounded)
        rk_convert(slot->rounded, slot->rounded_dtype, slot->read.out, slot->read.dtype, slot->read.count);
}

/* Allocates for every slot the values, the rounded values and scratch memory. */
static struct rk_status *filler_open(struct filler *filler, struct load *load)
{
    const struct rk_model_core *core = load->model->core;
    struct rk_device *device = rk_stream_device(core->stream);
    size_t count, value_bytes, slot_bytes;

    filler->load = load;
    filler->dtype = rk_master_dtype(core->dtype);
    filler->chunk_elements = RK_MIN(CHUNK_ELEMENTS, core->params.num_elements);
    count = (size_t)filler->chunk_elements;
    value_bytes = count * rk_dtype_bytes(filler->dtype);
    slot_bytes = value_bytes + count * rk_dtype_bytes(core->dtype);
    RK_TRY(rk_device_host_alloc(device, &filler->pinned, NUM_SLOTS * slot_bytes, "checkpoint chunks"));
    RK_TRY(rk_try_alloc(&filler->scratch, NUM_SLOTS * count * sizeof(double), "checkpoint chunks"));
    for (int i = 0; i < NUM_SLOTS; i++) {
        struct slot *slot = &filler->slots[i];
        char *memory = (char *)filler->pinned + (size_t)i * slot_bytes;

        slot->task = (struct rk_pool_task){.run = fill_slot, .user = slot};
        slot->shards = load->shards;
        slot->read = (struct rk_shards_read){
            .dtype = filler->dtype, .out = memory, .scratch = (double *)filler->scratch + (size_t)i * count};
        slot->rounded = memory + value_bytes;
        slot->rounded_dtype = core->dtype;
        RK_TRY(rk_event_create(&slot->is_empty, device));
    }
    return NULL;
}

static struct rk_status *copy_to_device(struct rk_stream *stream, void *to, const void *from,
                                        rk_dtype_t dtype, int64_t count)
{
    return to ? rk_stream_copy(stream, to, from, (size_t)count * rk_dtype_bytes(dtype), RK_COPY_H2D) : NULL;
}

/* Copies the oldest filled slot to the device. */
static struct rk_status *hand_on(struct filler *filler)
{
    struct slot *slot = &filler->slots[filler->num_emptied++ % NUM_SLOTS];
    struct rk_stream *stream = filler->load->model->core->stream;
    struct rk_status *st;

    rk_pool_wait(filler->load->pool, &slot->task);
    st = slot->status;
    slot->status = NULL;
    RK_TRY(st);
    RK_TRY(copy_to_device(stream, slot->to, slot->read.out, slot->read.dtype, slot->read.count));
    RK_TRY(copy_to_device(stream, slot->to_rounded, slot->rounded, slot->rounded_dtype, slot->read.count));
    return rk_event_record(slot->is_empty, stream);
}

static struct rk_status *filler_close(struct filler *filler, struct rk_status *st)
{
    struct rk_stream *stream = filler->load->model->core->stream;

    while (filler->num_emptied < filler->num_filled) {
        struct rk_status *of_slot = hand_on(filler);

        st = rk_status_first(st, of_slot);
    }
    st = rk_status_first(st, rk_stream_sync(stream));
    for (int i = 0; i < NUM_SLOTS; i++)
        rk_event_destroy(filler->slots[i].is_empty);
    rk_device_host_free(rk_stream_device(stream), filler->pinned);
    rk_free(filler->scratch);
    return st;
}

/* Elements [begin, begin + count) of this rank's box of a parameter, `at` in its buffers. */
struct chunk {
    int32_t kind;
    int64_t param, begin, count;
    struct rk_param_box box;
    struct rk_shard_run at; /* begin: in the flat buffers; shard: in the shard's buffers */
};

static void *element(void *buffer, rk_dtype_t dtype, int64_t i)
{
    return (char *)buffer + (size_t)i * rk_dtype_bytes(dtype);
}

static void aim(struct slot *slot, const struct rk_model *model, const struct chunk *chunk)
{
    const struct rk_model_core *core = model->core;
    struct rk_state_buffer buffer = rk_state_buffer_of(model, chunk->kind, chunk->param);

    slot->to = buffer.is_sharded ? element(buffer.data, buffer.dtype, chunk->at.shard) : NULL;
    slot->to_rounded = chunk->kind == 0 ? element(core->values, core->dtype, chunk->at.begin) : NULL;
    slot->read.kind = chunk->kind;
    slot->read.param = chunk->param;
    slot->read.box = chunk->box;
    slot->read.begin = chunk->begin;
    slot->read.count = chunk->count;
}

static struct rk_status *fill_chunk(struct filler *filler, const struct chunk *chunk)
{
    struct slot *slot = &filler->slots[filler->num_filled % NUM_SLOTS];

    if (slot->is_used)
        RK_TRY(rk_event_sync(slot->is_empty));
    slot->is_used = true;
    aim(slot, filler->load->model, chunk);
    rk_pool_submit(filler->load->pool, &slot->task);
    filler->num_filled++;
    RK_TRY(advance(filler->load, "load", (uint64_t)chunk->count * rk_dtype_bytes(filler->dtype)));
    return filler->num_filled - filler->num_emptied > NUM_FILLING ? hand_on(filler) : NULL;
}

static struct rk_status *fill_run(struct filler *filler, struct chunk chunk, const struct rk_shard_run *run,
                                  int64_t offset)
{
    for (int64_t done = 0; done < run->count; done += chunk.count) {
        chunk.count = RK_MIN(filler->chunk_elements, run->count - done);
        chunk.begin = run->begin - offset + done;
        chunk.at = (struct rk_shard_run){.begin = run->begin + done, .shard = run->shard + done};
        RK_TRY(fill_chunk(filler, &chunk));
    }
    return NULL;
}

/* Moments of a parameter that was not trained when the checkpoint was saved. */
static struct rk_status *zero_run(const struct rk_model *model, int32_t kind, int64_t param,
                                  const struct rk_shard_run *run)
{
    struct rk_state_buffer buffer = rk_state_buffer_of(model, kind, param);

    return rk_stream_zero(model->core->stream, element(buffer.data, buffer.dtype, run->shard),
                          (size_t)run->count * rk_dtype_bytes(buffer.dtype));
}

/* Fills this rank's shard of its part, or the whole part of a parameter that is not trained. A replicated
 * parameter is stored once; every rank that holds it reads it. */
static struct rk_status *fill_param(struct filler *filler, int32_t kind, int64_t i)
{
    const struct rk_model *model = filler->load->model;
    const struct rk_placement *placement = rk_params_placement(&model->core->params, i);
    struct chunk chunk = {.kind = kind, .param = i};
    bool is_stored = kind == 0 || !rk_shards_lacks_state(filler->load->shards, i);
    struct rk_shard_run run = {0};
    int64_t end;

    if (!placement->is_held || !rk_state_has(model, kind, i))
        return NULL;
    chunk.box = rk_param_get_box(rk_params_at(&model->core->params, i), placement);
    end = placement->offset + chunk.box.shape[0] * chunk.box.shape[1];
    if (!model->trainer || !rk_params_is_trained(&model->core->params, i)) {
        run = (struct rk_shard_run){.begin = placement->offset, .count = end - placement->offset};
        return fill_run(filler, chunk, &run, placement->offset);
    }
    while (rk_shards_next_run(&model->trainer->shards, placement->offset, end, &run))
        RK_TRY(is_stored ? fill_run(filler, chunk, &run, placement->offset) : zero_run(model, kind, i, &run));
    return NULL;
}

/* Weights first, then the states of the optimizer. */
static struct rk_status *fill_all(struct load *load)
{
    struct filler filler = {0};
    struct rk_status *st = filler_open(&filler, load);

    load->done_bytes = 0;
    load->total_bytes = rk_ckpt_manifest_bytes(&load->manifest); /* upper bound: this rank's part is less */
    for (int32_t kind = 0; kind < RK_STATE_KINDS_MAX; kind++) {
        for (int64_t i = 0; !st && load->kinds >> kind & 1 && i < load->model->core->params.count; i++)
            st = fill_param(&filler, kind, i);
    }
    return filler_close(&filler, st);
}

/* --- afterwards --- */

static struct rk_status *spread(struct rk_trainer *trainer)
{
    for (int g = 0; g < RK_GRAD_GROUPS; g++) {
        const struct rk_trainer_group *group = &trainer->groups[g];

        for (int64_t b = 0; b < group->buckets.count; b++)
            RK_TRY(rk_trainer_gather_params(trainer, (rk_grad_group_t)g, &group->buckets.items[b]));
    }
    RK_TRY(rk_trainer_wait(trainer));
    return rk_stream_sync(trainer->model->core->stream);
}

static struct rk_status *forget_moments(struct rk_trainer *trainer)
{
    struct rk_stream *stream = trainer->model->core->stream;

    for (int32_t s = 0; trainer->config.ops && s < trainer->config.ops->num_states; s++)
        RK_TRY(rk_stream_zero(stream, trainer->states[s],
                              (size_t)trainer->shard_count * rk_dtype_bytes(trainer->grad_dtype)));
    return rk_stream_sync(stream);
}

#define ADVICE "the file is damaged, or a diverged run wrote it"

/* The optimizer's states of this rank, of which the next step makes weights. */
static struct rk_status *check_states(const struct rk_trainer *trainer)
{
    for (int32_t s = 0; s < trainer->config.ops->num_states; s++) {
        int64_t count;

        RK_TRY(rk_model_count_non_finite(trainer->model->core, trainer->states[s], trainer->grad_dtype,
                                         trainer->shard_count, &count));
        if (count > 0)
            return RK_FAIL_REASON(
                RK_DATA_LOSS, "NON_FINITE",
                "optimizer.state.%s: %lld of %lld values on this rank are NaN or infinite: " ADVICE,
                trainer->config.ops->state_names[s], (long long)count, (long long)trainer->shard_count);
    }
    return NULL;
}

/* Checks what was loaded on this rank. */
static struct rk_status *check_finite(struct load *load)
{
    if (load->contents & RK_CHECKPOINT_MODEL)
        RK_TRY(rk_model_check_finite(load->model, ADVICE));
    return load->contents & RK_CHECKPOINT_OPTIMIZER ? check_states(load->model->trainer) : NULL;
}

static struct rk_status *complete(struct load *load)
{
    struct rk_model *model = load->model;
    struct rk_trainer *trainer = model->trainer;
    bool has_model = load->contents & RK_CHECKPOINT_MODEL;
    bool has_optimizer = load->contents & RK_CHECKPOINT_OPTIMIZER;

    if (has_model && trainer)
        RK_TRY(spread(trainer));
    if (has_model && trainer && !has_optimizer)
        RK_TRY(forget_moments(trainer));
    if (has_model)
        model->core->weight_version = (uint64_t)load->counters.weight_version;
    if (trainer && (has_model || has_optimizer)) { /* masters and states are zero without optimizer state in
                                                    * the checkpoint */
        trainer->applied_steps = load->counters.applied_steps;
        trainer->lr_steps = load->counters.lr_steps;
        trainer->skipped_in_a_row = (int32_t)load->counters.skipped_in_a_row;
    }
    return NULL;
}

static struct rk_status *load_all(struct load *load, uint32_t wanted, struct rk_checkpoint_loaded *loaded)
{
    struct rk_model *model = load->model;

    RK_TRY(rk_model_agree(model, examine(load, wanted)));
    RK_TRY(rk_model_agree(model, check_sums(load)));
    loaded->is_mixed = load->kinds != 0;
    RK_TRY(rk_model_agree(model, fill_all(load)));
    RK_TRY(rk_model_agree(model, complete(load)));
    RK_TRY(rk_model_agree(model, check_finite(load)));
    *loaded = (struct rk_checkpoint_loaded){.global_step = load->manifest.global_step,
                                            .weight_version = model->core->weight_version,
                                            .contents = load->contents};
    return NULL;
}

struct rk_status *rk_model_load_checkpoint(struct rk_model *model, const char *part_dir, uint32_t contents,
                                           const struct rk_engine_hooks *hooks,
                                           struct rk_checkpoint_loaded *loaded)
{
    struct load load = {.model = model, .part_dir = part_dir, .hooks = hooks};
    struct rk_status *st;

    *loaded = (struct rk_checkpoint_loaded){0};
    st = load_all(&load, contents, loaded);
    if (!st)
        RK_INFO("checkpoint '%s' of global_step %lld loaded", part_dir, (long long)loaded->global_step);
    rk_pool_destroy(load.pool);
    rk_shards_close(load.shards);
    rk_ckpt_manifest_fini(&load.manifest);
    return st ? RK_WRAP(st, "loading checkpoint '%s'", part_dir) : NULL;
}
