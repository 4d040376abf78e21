#include "daemon/requests_internal.h"

#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_rng.h"
#include "tests/support/test.h"

#define LIMIT_BYTES 1000

static int num_dropped, num_destroyed;

static void drop_result(struct rk_request *request)
{
    assert_int_equal(request->state, RK_REQUEST_EXPIRED);
    num_dropped++;
}

static void destroy(struct rk_request *request)
{
    num_destroyed++;
    rk_free(request);
}

static struct rk_requests new_table(void)
{
    num_dropped = num_destroyed = 0;
    return (struct rk_requests){.limit_bytes = LIMIT_BYTES, .drop_result = drop_result, .destroy = destroy};
}

static struct rk_request *add(struct rk_requests *table, uint32_t number)
{
    struct rk_request *request = rk_calloc(1, sizeof(*request));

    memcpy(request->id, &number, sizeof(number));
    memcpy(request->digest, &number, sizeof(number));
    rk_requests_add(table, request);
    return request;
}

/* Goal: the five results for a header: new, running, done, evicted, another call. */
static void test_rk_requests_lookup_cases(void **state)
{
    struct rk_requests table = new_table();
    struct rk_request *request = add(&table, 1), *found = NULL;
    uint8_t other_id[RK_REQUEST_ID_BYTES] = {9}, other_digest[RK_SHA256_BYTES] = {9};
    struct rk_status *st;

    (void)state;
    assert_ok(rk_requests_lookup(&found, &table, other_id, request->digest));
    assert_null(found);
    assert_ok(rk_requests_lookup(&found, &table, request->id, request->digest));
    assert_ptr_equal(found, request);
    st = rk_requests_lookup(&found, &table, request->id, other_digest);
    assert_null(found);
    assert_string_equal(rk_status_reason(st), "DIGEST_MISMATCH");
    assert_fails(st, RK_INVALID_ARGUMENT, "01000000000000000000000000000000");

    rk_requests_finish(&table, request, 10);
    assert_ok(rk_requests_lookup(&found, &table, request->id, request->digest));
    assert_ptr_equal(found, request);
    rk_requests_drop_results(&table);
    st = rk_requests_lookup(&found, &table, request->id, request->digest);
    assert_null(found);
    assert_string_equal(rk_status_reason(st), "RESULT_EXPIRED");
    assert_fails(st, RK_ABORTED, "was executed");
    rk_requests_clear(&table);
    assert_int_equal(num_destroyed, 1);
}

/* Goal: results are evicted oldest first once their bytes exceed the limit; those without bytes are kept. */
static void test_rk_requests_finish_evicts_oldest_results(void **state)
{
    struct rk_requests table = new_table();
    struct rk_request *first = add(&table, 1), *empty = add(&table, 2), *third = add(&table, 3);
    struct rk_request *huge = add(&table, 4);

    (void)state;
    rk_requests_finish(&table, first, 600);
    rk_requests_finish(&table, empty, 0);
    rk_requests_finish(&table, third, 400);
    assert_int_equal(num_dropped, 0);
    assert_int_equal(table.stored_bytes, 1000);

    rk_requests_finish(&table, huge, 600);
    assert_int_equal(first->state, RK_REQUEST_EXPIRED);
    assert_int_equal(empty->state, RK_REQUEST_DONE);
    assert_int_equal(third->state, RK_REQUEST_DONE);
    assert_int_equal(huge->state, RK_REQUEST_DONE);
    assert_int_equal(table.stored_bytes, 1000);
    rk_requests_clear(&table);
}

/* Goal: a result larger than the table's limit is not kept, and evicts others only as far as needed. */
static void test_rk_requests_finish_too_large_result_expires_at_once(void **state)
{
    struct rk_requests table = new_table();
    struct rk_request *request = add(&table, 1);

    (void)state;
    rk_requests_finish(&table, request, LIMIT_BYTES + 1);
    assert_int_equal(request->state, RK_REQUEST_EXPIRED);
    assert_int_equal(table.stored_bytes, 0);
    assert_int_equal(num_dropped, 1);
    rk_requests_clear(&table);
}

/* Goal: the table never grows, running entries are never evicted, and the byte count is exact.
 * Method: random adds and finishes with at most as many running as the daemon accepts. */
static void test_rk_requests_add_random_load_keeps_running_entries(void **state)
{
    struct rk_requests table = new_table();
    struct rk_request *running[RK_LIMIT_QUEUED_CALLS];
    int64_t num_running = 0;
    struct rk_rng rng;

    (void)state;
    rk_rng_init(&rng, rk_test_seed(), 0);
    for (uint32_t step = 0; step < 5000; step++) {
        if (num_running < RK_LIMIT_QUEUED_CALLS && rk_rng_next_below(&rng, 2)) {
            running[num_running++] = add(&table, step);
        } else if (num_running > 0) {
            int64_t i = rk_rng_next_below(&rng, num_running);

            rk_requests_finish(&table, running[i], (size_t)rk_rng_next_below(&rng, 400));
            running[i] = running[--num_running];
        }
        assert_true(table.count <= RK_LIMIT_STORED_REQUESTS);
        assert_true(table.stored_bytes <= LIMIT_BYTES);
        assert_int_equal(rk_requests_num_running(&table), num_running);
        for (int64_t i = 0; i < num_running; i++)
            assert_ptr_equal(rk_requests_find(&table, running[i]->id), running[i]);
    }
    while (num_running > 0)
        rk_requests_finish(&table, running[--num_running], 0);
    rk_requests_clear(&table);
    assert_int_equal(table.count, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rk_requests_lookup_cases),
        cmocka_unit_test(test_rk_requests_finish_evicts_oldest_results),
        cmocka_unit_test(test_rk_requests_finish_too_large_result_expires_at_once),
        cmocka_unit_test(test_rk_requests_add_random_load_keeps_running_entries),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
