/* Offload of parts of a model to the host, and onload.
 *
 * Layouts run in separate processes. The reference is a model that always stays on the device. */
#include "tests/support/test.h"

#include <stdlib.h>
#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_host_memory.h"
#include "engine/optim/trainer.h"
#include "tests/support/device.h"
#include "tests/support/models.h"
#include "tests/support/ranks.h"

#define CONFIG                                                                                              \
    "{\"model_type\": \"qwen3\", \"hidden_size\": 32, \"intermediate_size\": 48, \"num_hidden_layers\": 2," \
    " \"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"vocab_size\": 67, \"head_dim\": 8,"         \
    " \"max_position_embeddings\": 64, \"initializer_range\": 0.15}"
/* Experts, and a correction bias that is not trained. */
#define SPARSE                                                                                       \
    "{\"model_type\": \"deepseek_v3\", \"hidden_size\": 32, \"intermediate_size\": 48,"              \
    " \"num_hidden_layers\": 2, \"first_k_dense_replace\": 1, \"moe_intermediate_size\": 8,"         \
    " \"n_routed_experts\": 8, \"num_experts_per_tok\": 2, \"n_shared_experts\": 1, \"n_group\": 2," \
    " \"topk_group\": 1, \"num_attention_heads\": 4, \"q_lora_rank\": 11, \"kv_lora_rank\": 9,"      \
    " \"qk_nope_head_dim\": 6, \"qk_rope_head_dim\": 4, \"v_head_dim\": 8, \"vocab_size\": 67,"      \
    " \"num_nextn_predict_layers\": 0, \"max_position_embeddings\": 64, \"initializer_range\": 0.15}"
#define NUM_TOKENS   20
#define NUM_STEPS    4
#define NUM_MICRO    2
#define NUM_CYCLES   1000
#define TIMEOUT_S    60
#define DEVICE_BYTES ((size_t)32 << 20)

struct batch {
    struct rk_packed packed;
    int32_t tokens[NUM_TOKENS], positions[NUM_TOKENS], labels[NUM_TOKENS], cu_seqlens[2];
};

static void make_batch(struct batch *batch, int32_t index)
{
    *batch = (struct batch){.cu_seqlens = {0, NUM_TOKENS}};
    for (int32_t t = 0; t < NUM_TOKENS; t++) {
        batch->tokens[t] = (5 * t + 3 + 7 * index) % 67;
        batch->positions[t] = t;
        batch->labels[t] = (11 * t + 1 + index) % 67;
    }
    batch->packed = (struct rk_packed){.num_seqs = 1,
                                       .num_tokens = NUM_TOKENS,
                                       .max_seqlen = NUM_TOKENS,
                                       .tokens = batch->tokens,
                                       .positions = batch->positions,
                                       .cu_seqlens = batch->cu_seqlens,
                                       .labels = batch->labels};
}

static struct rk_status *micro_batch(struct rk_model *model, int32_t index, bool is_last)
{
    struct batch batch;

    make_batch(&batch, index);
    return rk_trainer_micro_batch(rk_model_trainer(model),
                                  &(struct rk_train_micro){.packed = &batch.packed,
                                                           .temperature = 1,
                                                           .outputs = RK_HEAD_BIT(RK_HEAD_LOG_PROBS),
                                                           .is_last = is_last,
                                                           .loss_fn = rk_test_weigh_tokens,
                                                           .user = &batch.packed});
}

static struct rk_status *log_probs(struct rk_model *model, double values[NUM_TOKENS])
{
    struct batch batch;

    make_batch(&batch, 5);
    return rk_model_forward(model, &batch.packed, 1, NULL, &(struct rk_head_arrays){.of = {values}});
}

/* --- the buffers of a model --- */

enum { NUM_BUFFERS = 3 + RK_OPTIM_STATES_MAX };

/* Parameters, gradients, masters and states; the last ones are empty if the model has none. */
static void find_buffers(const struct rk_model *model, struct rk_movable *out[NUM_BUFFERS])
{
    static struct rk_movable none;
    struct rk_model_core *core = model->core;
    const rk_memory_kind_t kinds[] = {RK_MEMORY_PARAMETERS, RK_MEMORY_GRADIENTS, RK_MEMORY_MASTERS};
    int32_t num_states = 0;

    for (int i = 0; i < NUM_BUFFERS; i++)
        out[i] = &none;
    for (int32_t b = 0; b < core->num_buffers; b++) {
        for (int i = 0; i < 3; i++)
            out[i] = core->buffers[b].kind == kinds[i] ? &core->buffers[b].memory : out[i];
        if (core->buffers[b].kind == RK_MEMORY_OPTIMIZER)
            out[3 + num_states++] = &core->buffers[b].memory;
    }
}

static struct rk_status *download(struct rk_model *model, const struct rk_movable *buffer, void **out)
{
    *out = rk_calloc(1, RK_MAX(buffer->bytes, (size_t)1));
    RK_TRY(rk_stream_copy(model->core->stream, *out, buffer->data, buffer->bytes, RK_COPY_D2H));
    return rk_stream_sync(model->core->stream);
}

/* Finds the buffer that differs; -1: none. */
static struct rk_status *compare(struct rk_model *a, struct rk_model *b, int *differs)
{
    struct rk_movable *of_a[NUM_BUFFERS], *of_b[NUM_BUFFERS];

    find_buffers(a, of_a);
    find_buffers(b, of_b);
    *differs = -1;
    for (int i = 0; i < NUM_BUFFERS; i++) {
        void *left, *right;

        RK_TRY(download(a, of_a[i], &left));
        RK_TRY(download(b, of_b[i], &right));
        if (of_a[i]->bytes != of_b[i]->bytes || memcmp(left, right, of_a[i]->bytes) != 0)
            *differs = i;
        rk_free(left);
        rk_free(right);
    }
    return NULL;
}

static void find_addresses(const struct rk_model *model, void *out[NUM_BUFFERS])
{
    struct rk_movable *buffers[NUM_BUFFERS];

    find_buffers(model, buffers);
    for (int i = 0; i < NUM_BUFFERS; i++)
        out[i] = buffers[i]->data;
}

/* --- layouts --- */

struct layout_case {
    const char *label;
    int32_t tp, dp;
    rk_dtype_t dtype;
    uint32_t offload;
    bool adds_in_shards;
    const char *config; /* NULL: CONFIG */
    int32_t ep;         /* 0: 1 */
};

static const struct layout_case cases[] = {
    {"f32", 1, 1, RK_DTYPE_F32, RK_PARTS_ALL, false, NULL, 0},
    {"bf16", 1, 1, RK_DTYPE_BF16, RK_PARTS_ALL, false, NULL, 0},
    {"bf16, optimizer only", 1, 1, RK_DTYPE_BF16, RK_PART_OPTIMIZER, false, NULL, 0},
    {"bf16, parameters only", 1, 1, RK_DTYPE_BF16, RK_PART_PARAMETERS, false, NULL, 0},
    {"bf16, tp=2 dp=2", 2, 2, RK_DTYPE_BF16, RK_PARTS_ALL, false, NULL, 0},
    {"f32, dp=2", 1, 2, RK_DTYPE_F32, RK_PARTS_ALL, false, NULL, 0},
    {"bf16, tp=2 dp=2, sums in shards", 2, 2, RK_DTYPE_BF16, RK_PARTS_ALL, true, NULL, 0},
    {"bf16, experts, tp=2", 2, 1, RK_DTYPE_BF16, RK_PARTS_ALL, false, SPARSE, 0},
    {"bf16, experts, dp=4 ep=2", 1, 4, RK_DTYPE_BF16, RK_PARTS_ALL, false, SPARSE, 2},
    {"f32, experts, tp=2 dp=2 ep=2, optimizer only", 2, 2, RK_DTYPE_F32, RK_PART_OPTIMIZER, false, SPARSE, 2},
};

static struct rk_status *open_model(struct rk_test_model *test, const struct layout_case *row,
                                    uint32_t offload, struct rk_stream *stream, struct rk_comm_world *world)
{
    struct rk_optim_config optim = rk_test_adamw(1e-2, 0.1, 1.0);

    optim.adds_in_shards = row->adds_in_shards;
    RK_TRY(rk_test_model_open(test, &(struct rk_test_model_spec){
                                        .config = row->config ? row->config : CONFIG,
                                        .seed = 3,
                                        .dtype = row->dtype,
                                        .tp = row->tp,
                                        .dp = row->dp,
                                        .ep = row->ep,
                                        .offload = offload,
                                        .world = world,
                                        .stream = stream,
                                    }));
    return rk_test_enable_training(test->model, &optim);
}

/* Offloads and onloads everything. */
static struct rk_status *cycle(struct rk_model *model, bool keeps_gradients, bool writes)
{
    RK_TRY(rk_model_offload(model, RK_PARTS_ALL, keeps_gradients));
    RK_TRY(rk_model_offload(model, RK_PARTS_ALL, keeps_gradients)); /* the second call has no effect */
    RK_TRY(rk_model_onload(model, RK_PARTS_ALL, writes));
    return rk_model_onload(model, RK_PARTS_ALL, writes);
}

/* One step as in a worker's update; with `moves`, parts are offloaded before it, between its micro-batches
 * with their gradients, and after it. */
static struct rk_status *run_step(struct rk_model *model, int32_t step, bool moves)
{
    struct rk_step_stats stats;

    if (moves) {
        RK_TRY(rk_model_offload(model, RK_PARTS_ALL, false));
        RK_TRY(rk_model_onload(model, RK_PARTS_ALL, true));
    }
    RK_TRY(rk_trainer_begin(rk_model_trainer(model)));
    for (int32_t m = 0; m < NUM_MICRO; m++) {
        RK_TRY(micro_batch(model, NUM_MICRO * step + m, m == NUM_MICRO - 1));
        if (moves && m < NUM_MICRO - 1)
            RK_TRY(cycle(model, true, true));
    }
    return rk_trainer_step(rk_model_trainer(model), &stats);
}

/* A pass that needs the parameters only. */
static struct rk_status *run_forward(struct rk_model *model, double values[NUM_TOKENS], bool moves)
{
    if (moves) {
        RK_TRY(rk_model_offload(model, RK_PARTS_ALL, true));
        RK_TRY(rk_model_onload(model, RK_PART_PARAMETERS, false));
    }
    RK_TRY(log_probs(model, values));
    return moves ? rk_model_onload(model, RK_PARTS_ALL, true) : NULL;
}

static int compare_steps(struct rk_model *stays, struct rk_model *moves)
{
    for (int32_t step = 0; step < NUM_STEPS; step++) {
        double expected[NUM_TOKENS], actual[NUM_TOKENS];
        int differs;

        RK_RANK_OK(run_step(stays, step, false));
        RK_RANK_OK(run_step(moves, step, true));
        RK_RANK_OK(run_forward(stays, expected, false));
        RK_RANK_OK(run_forward(moves, actual, true));
        RK_RANK_OK(compare(stays, moves, &differs));
        RK_RANK_CHECK(differs < 0, "step %d: buffer %d differs", step, differs);
        RK_RANK_CHECK(memcmp(expected, actual, sizeof(actual)) == 0, "step %d: log-probs differ", step);
    }
    return 0;
}

static int run_rank(struct rk_comm_world *world, void *user)
{
    const struct layout_case *row = user;
    void *before[NUM_BUFFERS], *after[NUM_BUFFERS];
    struct rk_stream *stream = rk_test_rank_stream(rk_comm_world_rank(world));
    struct rk_test_model stays, moves;

    RK_RANK_OK(open_model(&stays, row, 0, stream, world));
    RK_RANK_OK(open_model(&moves, row, row->offload, stream, world));
    find_addresses(moves.model, before);
    if (compare_steps(stays.model, moves.model))
        return 1;
    find_addresses(moves.model, after);
    RK_RANK_CHECK(memcmp(before, after, sizeof(after)) == 0, "addresses have changed");
    rk_test_model_close(&stays);
    rk_test_model_close(&moves);
    return 0;
}

/* Goal: offload and onload at any point of training change no bit and no address, on any layout. */
static void test_training_with_parts_that_leave_has_the_same_bits(void **state)
{
    (void)state;
    for (size_t c = 0; c < RK_ARRAY_LEN(cases); c++)
        rk_test_run_case(cases[c].label, cases[c].tp * cases[c].dp, run_rank, &cases[c], TIMEOUT_S);
}

/* --- one rank --- */

static const struct layout_case one_rank = {"bf16", 1, 1, RK_DTYPE_BF16, RK_PARTS_ALL, false, NULL, 0};

static void open_one(struct rk_test_model *test)
{
    assert_ok(open_model(test, &one_rank, one_rank.offload, NULL, NULL));
}

/* Goal: offload returns the memory to the device and is included in the report; after onload the memory is as
 * before. */
static void test_offload_gives_device_memory_back(void **state)
{
    struct rk_test_model test;
    struct rk_model_memory full, away;
    struct rk_device_stats before, after;

    (void)state;
    open_one(&test);
    full = rk_model_get_memory(test.model);
    before = rk_device_get_stats(test.device);
    assert_int_equal(full.offload_host_bytes, 0);
    assert_int_equal(rk_model_offloaded(test.model), 0);
    assert_ok(rk_model_offload(test.model, RK_PARTS_ALL, false));
    away = rk_model_get_memory(test.model);
    after = rk_device_get_stats(test.device);
    assert_int_equal(rk_model_offloaded(test.model), RK_PARTS_ALL);
    assert_int_equal(away.grad_bytes + away.master_bytes + away.optimizer_bytes, 0);
    assert_int_equal(before.allocated_bytes - after.allocated_bytes, rk_model_offload_bytes(test.model));
    assert_int_equal(full.param_bytes - away.param_bytes + full.grad_bytes + full.master_bytes +
                         full.optimizer_bytes,
                     rk_model_offload_bytes(test.model));
    /* bf16 parameters, masters and two states of 4 bytes. Gradients have no copy: no pending step needs
     * them. */
    assert_int_equal(away.offload_host_bytes, test.model->core->params.num_elements * (2 + 3 * 4));
    assert_ok(rk_model_onload(test.model, RK_PART_OPTIMIZER, false));
    assert_int_equal(rk_model_offloaded(test.model), RK_PART_PARAMETERS | RK_PART_GRADIENTS);
    assert_ok(rk_model_onload(test.model, RK_PARTS_ALL, false));
    after = rk_device_get_stats(test.device);
    assert_int_equal(after.allocated_bytes, before.allocated_bytes);
    assert_int_equal(after.peak_bytes, before.peak_bytes);
    rk_test_model_close(&test);
}

/* Goal: contents that the host already has are not copied again; those that may have been written to are.
 * Method: values written after an onload without `writes` are lost; those after one with it are not. */
static void test_offload_copies_what_may_have_been_written(void **state)
{
    static const uint16_t old[4] = {1, 2, 3, 4}, unannounced[4] = {5, 6, 7, 8},
                          announced[4] = {9, 10, 11, 12};
    struct rk_test_model test;
    struct rk_stream *stream;
    uint16_t actual[4];
    void *values;

    (void)state;
    open_one(&test);
    stream = test.stream;
    values = test.model->core->values;
    assert_ok(rk_stream_copy(stream, values, old, sizeof(old), RK_COPY_H2D));
    assert_ok(cycle(test.model, false, false));
    assert_ok(rk_stream_copy(stream, values, unannounced, sizeof(old), RK_COPY_H2D));
    assert_ok(cycle(test.model, false, true));
    assert_ok(rk_stream_copy(stream, actual, values, sizeof(actual), RK_COPY_D2H));
    assert_ok(rk_stream_sync(stream));
    assert_memory_equal(actual, old, sizeof(old));
    assert_ok(rk_stream_copy(stream, values, announced, sizeof(old), RK_COPY_H2D));
    assert_ok(cycle(test.model, false, false));
    assert_ok(rk_stream_copy(stream, actual, values, sizeof(actual), RK_COPY_D2H));
    assert_ok(rk_stream_sync(stream));
    assert_memory_equal(actual, announced, sizeof(old));
    rk_test_model_close(&test);
}

/* Goal: repeated offload and onload do not increase the memory. */
static void test_a_thousand_cycles_take_no_memory(void **state)
{
    struct rk_device_stats before, after;
    uint64_t resident = 0;
    struct rk_test_model test;

    (void)state;
    open_one(&test);
    for (int i = 0; i < NUM_CYCLES; i++) {
        assert_ok(cycle(test.model, i % 2 == 0, i % 3 == 0));
        if (i == NUM_CYCLES / 10) {
            before = rk_device_get_stats(test.device);
            resident = rk_host_resident_bytes("");
        }
    }
    after = rk_device_get_stats(test.device);
    assert_int_equal(after.num_allocations, before.num_allocations);
    assert_int_equal(after.allocated_bytes, before.allocated_bytes);
    assert_int_equal(after.host_bytes, before.host_bytes);
    assert_int_equal(after.peak_bytes, before.peak_bytes);
    if (resident > 0) /* a leak of one buffer per cycle would be 900 times 100 kB */
        assert_in_range(rk_host_resident_bytes(""), 0, resident + (16 << 20));
    rk_test_model_close(&test);
}

#ifdef RK_FAULTS
/* Goal: without host memory the offload is refused, and training continues unchanged. */
static void test_without_host_memory_the_model_is_unchanged(void **state)
{
    struct rk_test_model test, other;
    int differs;

    (void)state;
    open_one(&test);
    assert_ok(open_model(&other, &one_rank, 0, NULL, NULL));
    assert_int_equal(setenv("RANKD_FAULTS", "offload.host=fail@2", 1), 0);
    assert_fails(rk_model_reserve_offload(test.model, RK_PARTS_ALL), RK_RESOURCE_EXHAUSTED, "gradients: ");
    assert_int_equal(setenv("RANKD_FAULTS", "offload.host=fail", 1), 0);
    assert_fails(rk_model_offload(test.model, RK_PARTS_ALL, true), RK_RESOURCE_EXHAUSTED,
                 "bytes of host memory");
    assert_int_equal(unsetenv("RANKD_FAULTS"), 0);
    assert_int_equal(rk_model_offloaded(test.model), 0);
    assert_ok(run_step(test.model, 0, false));
    assert_ok(run_step(other.model, 0, false));
    assert_ok(cycle(test.model, true, true));
    assert_ok(compare(test.model, other.model, &differs));
    assert_int_equal(differs, -1);
    rk_test_model_close(&test);
    rk_test_model_close(&other);
}

/* Goal: after a failed copy everything is still on the device. */
static void test_failed_copy_leaves_parts_where_they_were(void **state)
{
    struct rk_test_model test;

    (void)state;
    open_one(&test);
    assert_int_equal(setenv("RANKD_FAULTS", "offload.copy=fail", 1), 0);
    assert_fails(rk_model_offload(test.model, RK_PARTS_ALL, false), RK_INTERNAL, "offload.copy");
    assert_int_equal(unsetenv("RANKD_FAULTS"), 0);
    assert_int_equal(rk_model_offloaded(test.model), 0);
    assert_ok(run_step(test.model, 0, true));
    rk_test_model_close(&test);
}
#endif

/* Goal: parts that cannot be onloaded for lack of device memory are not lost. Method: a device with room for
 * the parameters and the gradients, but not for the masters after them. */
static void test_onload_without_device_memory_can_be_repeated(void **state)
{
    const struct rk_device_config config = {
        .struct_size = sizeof(config), .name = "cpu", .num_threads = 1, .memory_limit_bytes = DEVICE_BYTES};
    struct rk_test_model test, other;
    struct rk_device *device;
    struct rk_stream *stream;
    void *filler;
    int differs;

    (void)state;
    assert_ok(rk_device_open(&device, &config));
    assert_ok(rk_stream_create(&stream, device, "test"));
    assert_ok(open_model(&test, &one_rank, RK_PARTS_ALL, stream, NULL));
    assert_ok(open_model(&other, &one_rank, 0, stream, NULL));
    assert_ok(rk_model_offload(test.model, RK_PARTS_ALL, true));
    assert_ok(rk_device_alloc(
        device, &filler,
        DEVICE_BYTES - rk_device_get_stats(device).allocated_bytes - 5 * RK_RANGE_GRANULE / 2, "filler"));
    assert_fails(rk_model_onload(test.model, RK_PARTS_ALL, true), RK_RESOURCE_EXHAUSTED, "master weights: ");
    assert_int_equal(rk_model_offloaded(test.model), RK_PART_OPTIMIZER);
    rk_device_free(device, filler);
    assert_ok(rk_model_onload(test.model, RK_PARTS_ALL, true));
    assert_ok(compare(test.model, other.model, &differs));
    assert_int_equal(differs, -1);
    rk_test_model_close(&test);
    rk_test_model_close(&other);
    rk_stream_destroy(stream);
    rk_device_close(device);
}

/* Goal: a trainer that gets no device memory leaves nothing behind, not even addresses. Method: a device with
 * room for the gradients, but not for the masters after them; closing it aborts if a range is left. */
static void test_failed_trainer_gives_its_ranges_back(void **state)
{
    const struct rk_device_config config = {
        .struct_size = sizeof(config), .name = "cpu", .num_threads = 1, .memory_limit_bytes = DEVICE_BYTES};
    const struct rk_optim_config optim = rk_test_adamw(1e-2, 0, 1);
    struct rk_device_stats before;
    struct rk_test_model test;
    struct rk_device *device;
    struct rk_stream *stream;
    void *filler;

    (void)state;
    assert_ok(rk_device_open(&device, &config));
    assert_ok(rk_stream_create(&stream, device, "test"));
    assert_ok(rk_test_model_open(
        &test, &(struct rk_test_model_spec){
                   .config = CONFIG, .dtype = RK_DTYPE_BF16, .offload = RK_PARTS_ALL, .stream = stream}));
    assert_ok(rk_device_alloc(
        device, &filler,
        DEVICE_BYTES - rk_device_get_stats(device).allocated_bytes - 3 * RK_RANGE_GRANULE / 2, "filler"));
    before = rk_device_get_stats(device);
    assert_fails(rk_test_enable_training(test.model, &optim), RK_RESOURCE_EXHAUSTED, "master weights: ");
    assert_int_equal(rk_device_get_stats(device).allocated_bytes, before.allocated_bytes);
    rk_device_free(device, filler);
    assert_ok(rk_test_enable_training(test.model, &optim));
    rk_test_model_close(&test);
    rk_stream_destroy(stream);
    rk_device_close(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        /* First, since it forks. */
        cmocka_unit_test(test_training_with_parts_that_leave_has_the_same_bits),
        cmocka_unit_test(test_offload_gives_device_memory_back),
        cmocka_unit_test(test_offload_copies_what_may_have_been_written),
        cmocka_unit_test(test_a_thousand_cycles_take_no_memory),
#ifdef RK_FAULTS
        cmocka_unit_test(test_without_host_memory_the_model_is_unchanged),
        cmocka_unit_test(test_failed_copy_leaves_parts_where_they_were),
#endif
        cmocka_unit_test(test_onload_without_device_memory_can_be_repeated),
        cmocka_unit_test(test_failed_trainer_gives_its_ranges_back),
    };

    return cmocka_run_group_tests_name("offload", tests, NULL, NULL);
}
