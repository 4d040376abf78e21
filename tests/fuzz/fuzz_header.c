/* Goal: the code that processes a call's header before accepting it handles every header, and the batch of a
 * valid header is unchanged by split and concat, and by a description. */
#include "tests/fuzz/fuzz.h"

#include "base/rk_alloc.h"
#include "base/rk_arena.h"
#include "base/rk_assert.h"
#include "dispatch/rk_batch.h"
#include "dispatch/rk_plan.h"
#include "proto/rk_methods.h"
#include "proto/rk_stream.h"

#include <string.h>

#define MAX_BATCH_BYTES (1 << 20)
#define MAX_ROWS        64
#define PART_ROWS       3

static void assert_same_columns(const struct rk_batch *a, const struct rk_batch *b)
{
    RK_ASSERT(rk_batch_num_rows(a) == rk_batch_num_rows(b));
    RK_ASSERT(rk_batch_num_columns(a) == rk_batch_num_columns(b));
    for (int64_t i = 0; i < rk_batch_num_columns(a); i++)
        RK_ASSERT(rk_column_equal(rk_batch_column_at(a, i), rk_batch_find(b, rk_batch_name_at(a, i))));
}

static void check_split_and_concat(const struct rk_batch *batch)
{
    struct rk_batch *parts[MAX_ROWS], *whole;
    int64_t num_parts = (rk_batch_num_rows(batch) + PART_ROWS - 1) / PART_ROWS;
    struct rk_status *st;

    for (int64_t i = 0; i < num_parts; i++)
        RK_ASSERT(rk_batch_slice(&parts[i], batch, i * PART_ROWS, (i + 1) * PART_ROWS, 1) == NULL);
    st = rk_batch_concat(&whole, (const struct rk_batch *const *)parts, num_parts);
    /* Only metrics of an invalid form may be rejected. */
    if (!st)
        assert_same_columns(batch, whole);
    rk_status_free(st);
    rk_batch_destroy(whole);
    for (int64_t i = 0; i < num_parts; i++)
        rk_batch_destroy(parts[i]);
}

static void check_describe(const struct rk_batch *batch, struct rk_arena *arena)
{
    const struct rk_column **columns;
    struct rk_batch_spec spec;
    struct rk_batch *again;
    void **data;

    RK_ASSERT(rk_batch_describe(&spec, &columns, arena, batch, NULL) == NULL);
    RK_ASSERT(rk_batch_from_spec(&again, &data, arena, &spec) == NULL);
    for (int64_t i = 0; i < spec.num_tensors; i++)
        memcpy(data[i], rk_column_values(columns[i]), rk_column_bytes(columns[i]));
    assert_same_columns(batch, again);
    RK_ASSERT(rk_json_equal(rk_batch_meta(batch), rk_batch_meta(again)));
    rk_batch_destroy(again);
}

static void check_batch(const struct rk_batch_spec *spec, struct rk_arena *arena)
{
    struct rk_assembler *assembler;
    struct rk_batch *batch = NULL;
    void **data;
    struct rk_status *st = rk_assembler_create(&assembler, spec, MAX_BATCH_BYTES);

    if (!st)
        st = rk_batch_from_spec(&batch, &data, arena, spec);
    if (!st) {
        check_describe(batch, arena);
        if (spec->batch_size > 0 && spec->batch_size <= MAX_ROWS)
            check_split_and_concat(batch);
    }
    rk_batch_destroy(batch);
    rk_assembler_destroy(assembler);
    rk_status_free(st);
}

static void check_header(const struct rk_execute_header *header, struct rk_arena *arena)
{
    struct rk_json *options = rk_meta_to_json(&header->options), *completed = NULL;

    for (int id = 0; id < RK_METHOD_COUNT; id++) {
        const struct rk_method *method = rk_method_get((rk_method_id_t)id);

        rk_status_free(rk_batch_spec_check(&header->input, method));
        rk_status_free(rk_method_complete_options(&completed, method, options));
        rk_json_free(completed);
    }
    rk_json_free(options);
    rk_status_free(rk_plan_check(&header->plan, header->input.batch_size, 2));
    check_batch(&header->input, arena);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct rk_arena *arena = rk_arena_create(4096, 0);
    struct rk_execute_request request;
    struct rk_status *st = rk_unpack_execute_request(&request, arena, data, bytes);

    if (!st && request.kind == RK_EXECUTE_HEADER)
        check_header(&request.header, arena);
    rk_status_free(st);
    rk_arena_destroy(arena);
    return 0;
}
