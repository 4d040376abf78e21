/* Goal: every operation is bit-identical to a local computation, on every rank and in every run. Method: the
 * data of every rank is a pure function of seed, rank and index, so the expected result is computed without
 * communication, with scalar loops of this file, and compared as bytes. */
#include "tests/support/test.h"

#include <math.h>
#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_env.h"
#include "base/rk_rng.h"
#include "base/config/rk_config.h"
#include "engine/rk_comm.h"
#include "tests/support/device.h"
#include "tests/support/fake_nccl.h"
#include "tests/support/ranks.h"

/* A prime, so no offset inside the library (parts, chunks, pages) is a multiple of it, and misplaced data is
 * detected. */
#define POOL_ELEMENTS 65521
#define RANK_STRIDE   7919
#define LARGE         ((1 << 20) + 1)
#define FAKE_LARGE    100003 /* more than a mailbox of the fake NCCL, which is slow */
/* A message of a batch is larger than what a Unix socket holds, for every type. */
#define BATCH_ELEMENTS 700001

/* Random elements of every type. The input of a rank is a run of them that wraps around and begins at a
 * position that depends on the rank. Generated once, because millions of elements are compared. */
static char *pool[RK_DTYPE_COUNT];
/* Reductions of the first LARGE elements over the ranks of the current case; shorter tensors use a prefix. */
static char *expected_of[RK_DTYPE_COUNT][RK_REDUCE_OP_COUNT];
/* Stream of this process's rank. */
static struct rk_stream *stream;
static bool is_cpu_mesh; /* the backend defines every bit */

static const rk_dtype_t dtypes[] = {RK_DTYPE_F32, RK_DTYPE_F64, RK_DTYPE_BF16, RK_DTYPE_F16,
                                    RK_DTYPE_I32, RK_DTYPE_I64, RK_DTYPE_U8};
static int64_t sizes[] = {0, 1, 3, 1000, LARGE};
static const char *const reduce_names[] = {"sum", "max", "min", "ordered sum"};

static void put_value(void *data, rk_dtype_t dtype, int64_t i, struct rk_rng *rng)
{
    uint32_t a = rk_rng_next_u32(rng), b = rk_rng_next_u32(rng);
    /* Exponents spread over 2^16, so that the order of additions matters. */
    double real = ldexp((int32_t)a / 2147483648.0, (int)(b % 16) - 8);

    switch (dtype) {
    case RK_DTYPE_F64:
        ((double *)data)[i] = real;
        break;
    case RK_DTYPE_F32:
        ((float *)data)[i] = (float)real;
        break;
    case RK_DTYPE_BF16:
        ((uint16_t *)data)[i] = rk_f32_to_bf16((float)real);
        break;
    case RK_DTYPE_F16:
        ((uint16_t *)data)[i] = rk_f32_to_f16((float)real);
        break;
    case RK_DTYPE_I32:
        ((uint32_t *)data)[i] = a;
        break;
    case RK_DTYPE_I64:
        ((uint64_t *)data)[i] = (uint64_t)a << 32 | b;
        break;
    default:
        ((uint8_t *)data)[i] = (uint8_t)a;
    }
}

static void *make_input(rk_dtype_t dtype, int64_t count, int32_t rank)
{
    size_t elem_bytes = rk_dtype_bytes(dtype);
    char *data = rk_malloc((size_t)count * elem_bytes);
    int64_t from = rank * RANK_STRIDE % POOL_ELEMENTS;

    for (int64_t i = 0; i < count;) {
        int64_t run = RK_MIN(count - i, POOL_ELEMENTS - from);

        memcpy(data + (size_t)i * elem_bytes, pool[dtype] + (size_t)from * elem_bytes,
               (size_t)run * elem_bytes);
        i += run;
        from = 0;
    }
    return data;
}

static bool is_sum(rk_reduce_op_t op)
{
    return op == RK_REDUCE_SUM || op == RK_REDUCE_ORDERED_SUM;
}

static double fold_real(double a, double x, rk_reduce_op_t op)
{
    return is_sum(op) ? a + x : op == RK_REDUCE_MAX ? (x > a ? x : a) : (x < a ? x : a);
}

static float fold_f32(float a, float x, rk_reduce_op_t op)
{
    return is_sum(op) ? a + x : op == RK_REDUCE_MAX ? (x > a ? x : a) : (x < a ? x : a);
}

static int64_t fold_int(int64_t a, int64_t x, rk_reduce_op_t op)
{
    if (is_sum(op))
        return (int64_t)((uint64_t)a + (uint64_t)x);
    return op == RK_REDUCE_MAX ? (x > a ? x : a) : (x < a ? x : a);
}

static void reduce_narrow(uint16_t *out, const uint16_t *const *in, int32_t n, int64_t i, bool is_bf16,
                          rk_reduce_op_t op)
{
    float acc = is_bf16 ? rk_bf16_to_f32(in[0][i]) : rk_f16_to_f32(in[0][i]);

    for (int32_t r = 1; r < n; r++)
        acc = fold_f32(acc, is_bf16 ? rk_bf16_to_f32(in[r][i]) : rk_f16_to_f32(in[r][i]), op);
    out[i] = is_bf16 ? rk_f32_to_bf16(acc) : rk_f32_to_f16(acc);
}

#define REDUCE_PLAIN(T, fold)                                  \
    do {                                                       \
        T acc = ((const T *)inputs[0])[i];                     \
                                                               \
        for (int32_t r = 1; r < n; r++)                        \
            acc = (T)fold(acc, ((const T *)inputs[r])[i], op); \
        ((T *)out)[i] = acc;                                   \
    } while (0)

/* The expected reduction over the inputs of ranks 0 .. n-1. */
static void *reduce_locally(rk_dtype_t dtype, int64_t count, int32_t n, rk_reduce_op_t op)
{
    void *inputs[RK_TEST_MAX_RANKS], *out = rk_malloc((size_t)count * rk_dtype_bytes(dtype));

    for (int32_t r = 0; r < n; r++)
        inputs[r] = make_input(dtype, count, r);
    for (int64_t i = 0; i < count; i++) {
        switch (dtype) {
        case RK_DTYPE_F32:
            REDUCE_PLAIN(float, fold_f32);
            break;
        case RK_DTYPE_F64:
            REDUCE_PLAIN(double, fold_real);
            break;
        case RK_DTYPE_I32:
            REDUCE_PLAIN(int32_t, fold_int);
            break;
        case RK_DTYPE_I64:
            REDUCE_PLAIN(int64_t, fold_int);
            break;
        case RK_DTYPE_U8:
            REDUCE_PLAIN(uint8_t, fold_int);
            break;
        default:
            reduce_narrow(out, (const uint16_t *const *)inputs, n, i, dtype == RK_DTYPE_BF16, op);
        }
    }
    for (int32_t r = 0; r < n; r++)
        rk_free(inputs[r]);
    return out;
}

static rk_tensor_t flat(void *data, rk_dtype_t dtype, int64_t count)
{
    return rk_tensor_1d(data, dtype, count);
}

/* Device memory with these bytes; zeros for NULL. */
static int to_device(char **out, const void *host, size_t bytes)
{
    void *memory;

    RK_RANK_OK(rk_device_alloc(rk_stream_device(stream), &memory, bytes, "tensor of the test"));
    if (host)
        RK_RANK_OK(rk_stream_copy(stream, memory, host, bytes, RK_COPY_H2D));
    *out = memory;
    return 0;
}

static int from_device(void *host, const char *memory, size_t bytes)
{
    RK_RANK_OK(rk_stream_copy(stream, host, memory, bytes, RK_COPY_D2H));
    RK_RANK_OK(rk_stream_sync(stream));
    return 0;
}

static void free_device(char *memory)
{
    rk_device_free(rk_stream_device(stream), memory);
}

/* The input of a rank, on the device. */
static int input_to_device(char **out, rk_dtype_t dtype, int64_t count, int32_t rank)
{
    void *host = make_input(dtype, count, rank);
    int failed = to_device(out, host, (size_t)count * rk_dtype_bytes(dtype));

    rk_free(host);
    return failed;
}

/* NCCL may add floats of more than two ranks in any order and round in between: the maximum difference of two
 * orders, relative to the largest possible sum of magnitudes (2^8 per rank). */
static double order_error(rk_dtype_t dtype)
{
    double eps = dtype == RK_DTYPE_F64   ? 0x1p-53
                 : dtype == RK_DTYPE_F32 ? 0x1p-24
                 : dtype == RK_DTYPE_F16 ? 0x1p-11
                                         : 0x1p-8;

    return eps * 256 * RK_TEST_MAX_RANKS;
}

static bool is_float(rk_dtype_t dtype)
{
    return dtype != RK_DTYPE_I32 && dtype != RK_DTYPE_I64 && dtype != RK_DTYPE_U8;
}

/* `memory` is on the device. Bit-identical unless `max_error` is larger than 0. */
static int check_result(const char *what, const char *memory, const void *expected, rk_dtype_t dtype,
                        int64_t count, double max_error)
{
    size_t elem_bytes = rk_dtype_bytes(dtype), bytes = (size_t)count * elem_bytes;
    char *actual = rk_malloc(bytes);
    int failed = from_device(actual, memory, bytes);

    for (int64_t i = 0; i < count && !failed && memcmp(actual, expected, bytes) != 0; i++) {
        const char *a = actual + (size_t)i * elem_bytes, *b = (const char *)expected + (size_t)i * elem_bytes;
        double x = 0, y = 0;

        if (memcmp(a, b, elem_bytes) == 0)
            continue;
        if (max_error > 0) {
            rk_load_f64(&x, a, dtype, 1);
            rk_load_f64(&y, b, dtype, 1);
        }
        RK_RANK_CHECK(max_error > 0 && fabs(x - y) <= max_error, "%s %s: element %lld of %lld, %g and %g",
                      what, rk_dtype_name(dtype), (long long)i, (long long)count, x, y);
    }
    rk_free(actual);
    return failed;
}

static int check_bytes(const char *what, const char *memory, const void *expected, rk_dtype_t dtype,
                       int64_t count)
{
    return check_result(what, memory, expected, dtype, count, 0);
}

/* 0 if the result is bit-identical by definition. */
static double reduce_error(const struct rk_comm_group *group, rk_dtype_t dtype, rk_reduce_op_t op)
{
    bool is_exact = is_cpu_mesh || op != RK_REDUCE_SUM || !is_float(dtype) || rk_comm_group_size(group) <= 2;

    return is_exact ? 0 : order_error(dtype);
}

/* --- one function per operation: dtype and total number of elements --- */

static int check_all_reduce(struct rk_comm_group *group, rk_dtype_t dtype, int64_t count, rk_reduce_op_t op,
                            const char *expected)
{
    char *data;
    int failed = input_to_device(&data, dtype, count, rk_comm_group_rank(group));

    if (failed)
        return failed;
    RK_RANK_OK(rk_comm_all_reduce(group, stream, flat(data, dtype, count), op));
    failed = check_result(reduce_names[op], data, expected, dtype, count, reduce_error(group, dtype, op));
    free_device(data);
    return failed;
}

/* Once into separate memory and once into the rank's own part of the input. */
static int check_reduce_scatter(struct rk_comm_group *group, rk_dtype_t dtype, int64_t count,
                                rk_reduce_op_t op, const char *expected)
{
    int32_t n = rk_comm_group_size(group), rank = rk_comm_group_rank(group);
    double error = reduce_error(group, dtype, op);
    int64_t part = count / n;
    size_t part_bytes = (size_t)part * rk_dtype_bytes(dtype);
    char *in, *out, *own;
    int failed = input_to_device(&in, dtype, part * n, rank) || to_device(&out, NULL, part_bytes);

    if (failed)
        return failed;
    expected += (size_t)rank * part_bytes;
    own = in + (size_t)rank * part_bytes;
    RK_RANK_OK(rk_comm_reduce_scatter(group, stream, flat(out, dtype, part), flat(in, dtype, part * n), op));
    failed = check_result("reduce_scatter", out, expected, dtype, part, error);
    RK_RANK_OK(rk_comm_reduce_scatter(group, stream, flat(own, dtype, part), flat(in, dtype, part * n), op));
    failed += check_result("reduce_scatter in place", own, expected, dtype, part, error);
    free_device(out);
    free_device(in);
    return failed;
}

static int check_all_gather(struct rk_comm_group *group, rk_dtype_t dtype, int64_t count)
{
    int32_t n = rk_comm_group_size(group), rank = rk_comm_group_rank(group);
    int64_t part = count / n;
    size_t part_bytes = (size_t)part * rk_dtype_bytes(dtype);
    char *in, *out;
    int failed = input_to_device(&in, dtype, part, rank) || to_device(&out, NULL, (size_t)n * part_bytes);

    if (failed)
        return failed;
    RK_RANK_OK(rk_comm_all_gather(group, stream, flat(out, dtype, part * n), flat(in, dtype, part)));
    /* Again, in place from the rank's own part of the output. */
    for (int32_t r = 0; r < n; r++) {
        if (r != rank)
            RK_RANK_OK(rk_stream_zero(stream, out + (size_t)r * part_bytes, part_bytes));
    }
    RK_RANK_OK(rk_comm_all_gather(group, stream, flat(out, dtype, part * n),
                                  flat(out + (size_t)rank * part_bytes, dtype, part)));
    for (int32_t r = 0; r < n; r++) {
        char *expected = make_input(dtype, part, r);

        failed += check_bytes("all_gather", out + (size_t)r * part_bytes, expected, dtype, part);
        rk_free(expected);
    }
    free_device(out);
    free_device(in);
    return failed;
}

static int check_broadcast(struct rk_comm_group *group, rk_dtype_t dtype, int64_t count, int32_t root)
{
    void *expected = make_input(dtype, count, root);
    char *data;
    int failed = input_to_device(&data, dtype, count, rk_comm_group_rank(group));

    if (failed)
        return failed;
    RK_RANK_OK(rk_comm_broadcast(group, stream, flat(data, dtype, count), root));
    failed = check_bytes("broadcast", data, expected, dtype, count);
    rk_free(expected);
    free_device(data);
    return failed;
}

/* Rows that rank `from` sends to rank `to`; some are 0. */
static int64_t rows_between(int32_t from, int32_t to, int64_t scale)
{
    return (from * 3 + to * 2) % 4 == 0 ? 0 : scale * (1 + (from + 2 * to) % 3);
}

static int check_all_to_all(struct rk_comm_group *group, rk_dtype_t dtype, int64_t scale)
{
    int32_t n = rk_comm_group_size(group), rank = rk_comm_group_rank(group);
    int64_t send_rows[RK_TEST_MAX_RANKS], recv_rows[RK_TEST_MAX_RANKS], num_sent = 0, num_received = 0;
    size_t row_bytes = 3 * rk_dtype_bytes(dtype), offset = 0;
    char *in, *out;
    int failed = 0;

    for (int32_t r = 0; r < n; r++) {
        num_sent += send_rows[r] = rows_between(rank, r, scale);
        num_received += recv_rows[r] = rows_between(r, rank, scale);
    }
    if (input_to_device(&in, dtype, num_sent * 3, rank) ||
        to_device(&out, NULL, (size_t)num_received * row_bytes))
        return 1;
    RK_RANK_OK(rk_comm_all_to_all(group, stream, rk_tensor_2d(out, dtype, num_received, 3), recv_rows,
                                  rk_tensor_2d(in, dtype, num_sent, 3), send_rows));
    for (int32_t r = 0; r < n; r++) {
        int64_t skipped = 0;
        char *theirs;

        for (int32_t to = 0; to < rank; to++)
            skipped += rows_between(r, to, scale);
        theirs = make_input(dtype, (skipped + recv_rows[r]) * 3, r);
        failed += check_bytes("all_to_all", out + offset, theirs + (size_t)skipped * row_bytes, dtype,
                              recv_rows[r] * 3);
        offset += (size_t)recv_rows[r] * row_bytes;
        rk_free(theirs);
    }
    free_device(out);
    free_device(in);
    return failed;
}

/* Every rank sends to every rank, all sends first: more than the sockets buffer, so only full duplex
 * completes. Two messages in each direction keep their order. */
static int check_batch(struct rk_comm_group *group, rk_dtype_t dtype, int64_t count)
{
    int32_t n = rk_comm_group_size(group), rank = rk_comm_group_rank(group), number = rank + 100;
    char *in, *out[RK_TEST_MAX_RANKS], *small_in, *small_out[RK_TEST_MAX_RANKS];
    int failed = input_to_device(&in, dtype, count, rank) || to_device(&small_in, &number, sizeof(number));

    RK_RANK_OK(rk_comm_batch_begin(group));
    for (int32_t r = 0; r < n && !failed; r++) {
        failed = to_device(&out[r], NULL, (size_t)count * rk_dtype_bytes(dtype)) ||
                 to_device(&small_out[r], NULL, sizeof(number));
        if (r == rank)
            continue;
        RK_RANK_OK(rk_comm_send(group, stream, flat(in, dtype, count), r));
        RK_RANK_OK(rk_comm_send(group, stream, flat(small_in, RK_DTYPE_I32, 1), r));
    }
    if (failed)
        return failed;
    for (int32_t r = n - 1; r >= 0; r--) {
        if (r == rank)
            continue;
        RK_RANK_OK(rk_comm_recv(group, stream, flat(out[r], dtype, count), r));
        RK_RANK_OK(rk_comm_recv(group, stream, flat(small_out[r], RK_DTYPE_I32, 1), r));
    }
    RK_RANK_OK(rk_comm_batch_end(group));
    for (int32_t r = 0; r < n; r++) {
        void *expected = make_input(dtype, count, r);

        number = r + 100;
        if (r != rank)
            failed += check_bytes("batch", out[r], expected, dtype, count) +
                      check_bytes("batch, small", small_out[r], &number, RK_DTYPE_I32, 1);
        rk_free(expected);
        free_device(small_out[r]);
        free_device(out[r]);
    }
    free_device(small_in);
    free_device(in);
    return failed;
}

/* A token is passed once around the ring, without batches; every rank adds its number to it. */
static int check_ring(struct rk_comm_group *group)
{
    int32_t n = rk_comm_group_size(group), rank = rk_comm_group_rank(group), token = 5;
    rk_tensor_t tensor;
    char *memory;
    int failed;

    if (n == 1)
        return 0;
    if (to_device(&memory, &token, sizeof(token)))
        return 1;
    tensor = flat(memory, RK_DTYPE_I32, 1);
    if (rank == 0)
        RK_RANK_OK(rk_comm_send(group, stream, tensor, 1));
    RK_RANK_OK(rk_comm_recv(group, stream, tensor, (rank + n - 1) % n));
    if (from_device(&token, memory, sizeof(token)))
        return 1;
    token++;
    RK_RANK_OK(rk_stream_copy(stream, memory, &token, sizeof(token), RK_COPY_H2D));
    if (rank > 0)
        RK_RANK_OK(rk_comm_send(group, stream, tensor, (rank + 1) % n));
    RK_RANK_CHECK(token == 5 + (rank == 0 ? n : rank), "token %d", token);
    failed = check_bytes("ring", memory, &token, RK_DTYPE_I32, 1);
    free_device(memory);
    return failed;
}

/* --- the matrix --- */

static bool has_ordered_sum(rk_dtype_t dtype)
{
    return dtype == RK_DTYPE_F32 || dtype == RK_DTYPE_F64 || dtype == RK_DTYPE_BF16;
}

static int check_all(struct rk_comm_group *group, rk_dtype_t dtype, int64_t count)
{
    int failed = 0;

    for (int op = 0; op < RK_REDUCE_OP_COUNT; op++) {
        const char *expected = expected_of[dtype][op];

        if (op == RK_REDUCE_ORDERED_SUM && !has_ordered_sum(dtype))
            continue;
        failed += check_all_reduce(group, dtype, count, (rk_reduce_op_t)op, expected);
        failed += check_reduce_scatter(group, dtype, count, (rk_reduce_op_t)op, expected);
    }
    failed += check_all_gather(group, dtype, count);
    failed += check_broadcast(group, dtype, count, 0);
    failed += check_broadcast(group, dtype, count, rk_comm_group_size(group) - 1);
    failed += check_all_to_all(group, dtype, count / 8);
    failed += check_batch(group, dtype, RK_MIN(count, BATCH_ELEMENTS));
    return failed;
}

static void open_stream(const struct rk_comm_world *world)
{
    stream = rk_test_rank_stream(rk_comm_world_rank(world));
    is_cpu_mesh = !rk_env("RK_TEST_COMM") && rk_test_device_is_cpu(rk_stream_device(stream));
}

static int run_matrix(struct rk_comm_world *world, void *user)
{
    int32_t n = rk_comm_world_size(world), ranks[RK_TEST_MAX_RANKS];
    struct rk_comm_group *group;
    uint64_t reserved_bytes, planned_bytes;
    int failed = 0;

    (void)user;
    open_stream(world);
    for (int32_t r = 0; r < n; r++)
        ranks[r] = r;
    RK_RANK_OK(rk_comm_group_create(&group, world, "all", ranks, n));
    planned_bytes =
        rk_device_get_stats(rk_stream_device(stream)).allocated_bytes + rk_comm_ordered_sum_bytes(group);
    RK_RANK_OK(rk_comm_reserve_ordered_sum(group));
    reserved_bytes = rk_device_get_stats(rk_stream_device(stream)).allocated_bytes;
    RK_RANK_CHECK(reserved_bytes == planned_bytes, "ordered sums took other memory than they said");
    RK_RANK_CHECK(rk_comm_ordered_sum_bytes(group) == 0, "ordered sums want memory that they have");
    for (size_t d = 0; d < RK_ARRAY_LEN(dtypes); d++) {
        for (size_t s = 0; s < RK_ARRAY_LEN(sizes); s++)
            failed += check_all(group, dtypes[d], sizes[s]);
    }
    failed += check_ring(group);
    RK_RANK_OK(rk_comm_barrier(group, stream));
    RK_RANK_OK(rk_stream_sync(stream));
    RK_RANK_CHECK(rk_device_get_stats(rk_stream_device(stream)).allocated_bytes == reserved_bytes,
                  "an operation took device memory");
    rk_comm_group_destroy(group);
    return failed;
}

/* Computed before the ranks are forked, so that they share the result: otherwise it would take most of this
 * test's time. */
static void compute_expected(int32_t num_ranks)
{
    for (size_t d = 0; d < RK_ARRAY_LEN(dtypes); d++) {
        for (int op = 0; op < RK_REDUCE_OP_COUNT; op++)
            expected_of[dtypes[d]][op] = reduce_locally(dtypes[d], LARGE, num_ranks, (rk_reduce_op_t)op);
    }
}

static void free_expected(void)
{
    for (size_t d = 0; d < RK_ARRAY_LEN(dtypes); d++) {
        for (int op = 0; op < RK_REDUCE_OP_COUNT; op++)
            rk_free(expected_of[dtypes[d]][op]);
    }
}

/* Each number of ranks over both transports. */
static void test_comm_every_operation_matches_local_computation(void **state)
{
    static const char *const hosts[] = {"unix", "localhost"};
    size_t num_hosts = rk_env("RK_TEST_COMM") ? 1 : RK_ARRAY_LEN(hosts);
    size_t first_host = rk_env("RK_TEST_TLS") ? 1 : 0; /* TLS is over TCP only */

    (void)state;
    rk_test_device_need_ranks(2);
    for (int32_t num_ranks = 1; num_ranks <= RK_MIN(4, rk_test_device_max_ranks()); num_ranks++) {
        compute_expected(num_ranks);
        for (size_t h = first_host; h < num_hosts; h++) {
            print_message("%d ranks, %s\n", num_ranks, hosts[h]);
            assert_int_equal(rk_test_run_world(num_ranks, hosts[h], run_matrix, NULL, 200), 0);
        }
        free_expected();
    }
}

/* --- NaN --- */

struct nan_case {
    const char *label;
    float in[3];
    float sum, max, min;
};

static const struct nan_case nan_cases[] = {
    {"first", {NAN, 1, 2}, NAN, NAN, NAN},
    {"middle", {1, NAN, 2}, NAN, NAN, NAN},
    {"last", {1, 2, NAN}, NAN, NAN, NAN},
    {"none", {1, 3, 2}, 6, 3, 1},
    {"infinities", {INFINITY, 1, -INFINITY}, NAN, INFINITY, -INFINITY},
};

/* The input of one rank, as every float type; the output, widened. */
static int reduce_nan(struct rk_comm_group *group, float in, rk_reduce_op_t op, float got[4])
{
    static const rk_dtype_t types[] = {RK_DTYPE_F32, RK_DTYPE_F64, RK_DTYPE_BF16, RK_DTYPE_F16};

    for (size_t t = 0; t < RK_ARRAY_LEN(types); t++) {
        double wide = (double)in, result;
        uint64_t narrow = 0;
        size_t bytes = rk_dtype_bytes(types[t]);
        char *memory;

        rk_store_f64(&narrow, types[t], &wide, 1);
        if (to_device(&memory, &narrow, bytes))
            return 1;
        RK_RANK_OK(rk_comm_all_reduce(group, stream, flat(memory, types[t], 1), op));
        if (from_device(&narrow, memory, bytes))
            return 1;
        rk_load_f64(&result, &narrow, types[t], 1);
        got[t] = (float)result;
        free_device(memory);
    }
    return 0;
}

static int run_nan(struct rk_comm_world *world, void *user)
{
    static const int32_t ranks[] = {0, 1, 2};
    int32_t rank = rk_comm_world_rank(world);
    struct rk_comm_group *group;

    (void)user;
    open_stream(world);
    RK_RANK_OK(rk_comm_group_create(&group, world, "all", ranks, 3));
    for (size_t c = 0; c < RK_ARRAY_LEN(nan_cases); c++) {
        const float expected[] = {nan_cases[c].sum, nan_cases[c].max, nan_cases[c].min};

        /* With NCCL only sums have a defined result for NaN. */
        for (int op = 0; op < (is_cpu_mesh ? 3 : 1); op++) {
            float got[4];

            if (reduce_nan(group, nan_cases[c].in[rank], (rk_reduce_op_t)op, got))
                return 1;
            for (int t = 0; t < 4; t++)
                RK_RANK_CHECK(got[t] == expected[op] || (isnan(got[t]) && isnan(expected[op])),
                              "%s, %s, type %d: %g", nan_cases[c].label, reduce_names[op], t, (double)got[t]);
        }
    }
    rk_comm_group_destroy(group);
    return 0;
}

static void test_comm_all_reduce_of_nan_gives_nan(void **state)
{
    (void)state;
    if (rk_test_device_max_ranks() < 3)
        rk_test_skip("needs 3 devices");
    assert_int_equal(rk_test_run_world(3, "unix", run_nan, NULL, 30), 0);
}

/* A group of one needs neither a world nor, if nothing is moved, a stream. */
static void test_comm_null_group_is_alone(void **state)
{
    float x[] = {1, 2};
    rk_tensor_t tensor = flat(x, RK_DTYPE_F32, 2);
    const int64_t rows[] = {2};

    (void)state;
    assert_int_equal(rk_comm_group_size(NULL), 1);
    assert_int_equal(rk_comm_group_rank(NULL), 0);
    assert_ok(rk_comm_all_reduce(NULL, NULL, tensor, RK_REDUCE_SUM));
    assert_ok(rk_comm_all_gather(NULL, NULL, tensor, tensor));
    assert_ok(rk_comm_reduce_scatter(NULL, NULL, tensor, tensor, RK_REDUCE_MAX));
    assert_ok(rk_comm_broadcast(NULL, NULL, tensor, 0));
    assert_ok(rk_comm_all_to_all(NULL, NULL, tensor, rows, tensor, rows));
    assert_ok(rk_comm_barrier(NULL, NULL));
    assert_ok(rk_comm_batch_begin(NULL));
    assert_ok(rk_comm_batch_end(NULL));
    assert_true(x[0] == 1 && x[1] == 2);
}

static int fill_pool(void **state)
{
    struct rk_rng rng;

    (void)state;
    rk_rng_init(&rng, rk_test_seed(), 1);
    for (size_t d = 0; d < RK_ARRAY_LEN(dtypes); d++) {
        pool[dtypes[d]] = rk_calloc(POOL_ELEMENTS, rk_dtype_bytes(dtypes[d]));
        for (int64_t i = 0; i < POOL_ELEMENTS; i++)
            put_value(pool[dtypes[d]], dtypes[d], i, &rng);
    }
    return 0;
}

static int free_pool(void **state)
{
    (void)state;
    for (size_t d = 0; d < RK_ARRAY_LEN(dtypes); d++)
        rk_free(pool[dtypes[d]]);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_comm_every_operation_matches_local_computation),
        cmocka_unit_test(test_comm_all_reduce_of_nan_gives_nan),
        cmocka_unit_test(test_comm_null_group_is_alone),
    };

    rk_fake_nccl_setup();
    if (rk_env("RK_TEST_COMM"))
        sizes[RK_ARRAY_LEN(sizes) - 1] = FAKE_LARGE;
    return cmocka_run_group_tests(tests, fill_pool, free_pool);
}
