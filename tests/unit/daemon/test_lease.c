#include "daemon/lease_internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/rk_rng.h"
#include "tests/support/test.h"

#define INCARNATION 0x1234567890abcdefULL
#define TTL_MS      30000
#define GRACE_MS    60000

static const uint8_t id_a[RK_LEASE_ID_BYTES] = {1}, id_b[RK_LEASE_ID_BYTES] = {2};

static struct rk_acquire_lease_request request_of(const char *driver, uint64_t epoch)
{
    return (struct rk_acquire_lease_request){.driver_id = driver, .epoch = epoch};
}

static struct rk_fence fence_of(uint64_t epoch, const uint8_t *id)
{
    return (struct rk_fence){
        .epoch = epoch, .lease_id = {.data = id, .bytes = RK_LEASE_ID_BYTES}, .incarnation = INCARNATION};
}

/* A lease that driver "a" got at time 0 under epoch 5. */
static struct rk_lease granted(void)
{
    struct rk_acquire_lease_request request = request_of("a", 5);
    struct rk_lease lease;

    rk_lease_init(&lease, INCARNATION, 4);
    assert_ok(rk_lease_check_acquire(&lease, 0, &request));
    rk_lease_grant(&lease, 0, &request, TTL_MS, id_a);
    return lease;
}

/* Goal: every reason to reject a lease, and similar cases that are granted. */
static void test_rk_lease_check_acquire_cases(void **state)
{
    static const struct {
        const char *label;
        struct rk_acquire_lease_request request;
        int64_t now_ms;
        rk_code_t code;
        const char *text;
    } cases[] = {
        {"held",
         {.driver_id = "b", .epoch = 6},
         1000,
         RK_FAILED_PRECONDITION,
         "\"a\" holds the lease, epoch 5, 29 s"},
        {"held and stale", {.driver_id = "b", .epoch = 5}, 0, RK_FAILED_PRECONDITION, "holds the lease"},
        {"takeover, same epoch",
         {.driver_id = "b", .epoch = 5, .takeover = true},
         0,
         RK_FAILED_PRECONDITION,
         "epoch 5 was asked for, expected one above 5"},
        {"takeover, older epoch",
         {.driver_id = "b", .epoch = 1, .takeover = true},
         0,
         RK_FAILED_PRECONDITION,
         "expected one above 5"},
        {"lapsed, same epoch",
         {.driver_id = "a", .epoch = 5},
         TTL_MS,
         RK_FAILED_PRECONDITION,
         "expected one above 5"},
        {"epoch 0", {.driver_id = "b", .epoch = 0, .takeover = true}, 0, RK_INVALID_ARGUMENT, "epoch=0"},
        {"huge epoch",
         {.driver_id = "b", .epoch = UINT64_MAX, .takeover = true},
         0,
         RK_INVALID_ARGUMENT,
         "epoch=18446744073709551615"},
        {"nameless", {.driver_id = "", .epoch = 6, .takeover = true}, 0, RK_INVALID_ARGUMENT, "driver_id"},
        {"other process",
         {.driver_id = "b", .epoch = 6, .takeover = true, .incarnation = 7},
         0,
         RK_FAILED_PRECONDITION,
         "restarted"},
        {"takeover", {.driver_id = "b", .epoch = 6, .takeover = true}, 0, RK_OK, NULL},
        {"lapsed", {.driver_id = "b", .epoch = 6}, TTL_MS, RK_OK, NULL},
        {"no room above",
         {.driver_id = "b", .epoch = INT64_MAX, .takeover = true},
         0,
         RK_INVALID_ARGUMENT,
         "at most 2^48 above"},
        {"leap",
         {.driver_id = "b", .epoch = 6 + (1LL << 48), .takeover = true},
         0,
         RK_INVALID_ARGUMENT,
         "2^48"},
        {"epochs may jump", {.driver_id = "b", .epoch = 5 + (1LL << 48), .takeover = true}, 0, RK_OK, NULL},
        {"this process",
         {.driver_id = "b", .epoch = 6, .takeover = true, .incarnation = INCARNATION},
         0,
         RK_OK,
         NULL},
    };
    struct rk_lease lease = granted();

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        struct rk_status *st = rk_lease_check_acquire(&lease, cases[i].now_ms, &cases[i].request);

        print_message("%s\n", cases[i].label);
        if (cases[i].code == RK_OK)
            assert_ok(st);
        else
            assert_fails(st, cases[i].code, cases[i].text);
    }
}

/* Goal: only the driver that holds a valid lease gets it again without takeover, with a higher epoch; the key
 * identifies the driver, not its name. */
static void test_rk_lease_check_acquire_by_the_same_driver(void **state)
{
    static const uint8_t key_a[RK_LEASE_KEY_BYTES] = {7}, key_b[RK_LEASE_KEY_BYTES] = {8};
    static const struct {
        const char *label;
        const uint8_t *held_by, *asked_by; /* NULL: without a key */
        size_t bytes;
        uint64_t epoch;
        rk_code_t code;
        const char *reason;
    } cases[] = {
        {"the same", key_a, key_a, RK_LEASE_KEY_BYTES, 6, RK_OK, ""},
        {"the same, stale", key_a, key_a, RK_LEASE_KEY_BYTES, 5, RK_FAILED_PRECONDITION, "STALE_EPOCH"},
        {"another key", key_a, key_b, RK_LEASE_KEY_BYTES, 6, RK_FAILED_PRECONDITION, "LEASE_HELD"},
        {"no key", key_a, NULL, 0, 6, RK_FAILED_PRECONDITION, "LEASE_HELD"},
        {"held without a key", NULL, key_a, RK_LEASE_KEY_BYTES, 6, RK_FAILED_PRECONDITION, "LEASE_HELD"},
        {"both without a key", NULL, NULL, 0, 6, RK_FAILED_PRECONDITION, "LEASE_HELD"},
        {"short key", key_a, key_a, 15, 6, RK_INVALID_ARGUMENT, "BAD_FIELD"},
    };

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        struct rk_acquire_lease_request first = request_of("a", 5), again = request_of("a", cases[i].epoch);
        struct rk_lease lease;
        struct rk_status *st;

        print_message("%s\n", cases[i].label);
        first.driver_key =
            (struct rk_bytes){cases[i].held_by, cases[i].held_by ? (size_t)RK_LEASE_KEY_BYTES : 0};
        again.driver_key = (struct rk_bytes){cases[i].asked_by, cases[i].bytes};
        rk_lease_init(&lease, INCARNATION, 4);
        rk_lease_grant(&lease, 0, &first, TTL_MS, id_a);
        st = rk_lease_check_acquire(&lease, 1000, &again);
        assert_int_equal(rk_status_code(st), cases[i].code);
        if (st)
            assert_string_equal(rk_status_reason(st), cases[i].reason);
        rk_status_free(st);
    }
}

/* Goal: a driver's name is safe to print on a terminal. */
static void test_rk_lease_check_acquire_driver_names(void **state)
{
    static const struct {
        const char *name, *text; /* NULL: granted */
    } cases[] = {
        {"night-run", NULL},
        {"J\303\274rgen \302\240", NULL},
        {"", "driver_id is empty"},
        {"b\033[2J", "driver_id: control character at byte 1"},
        {"\n", "control character at byte 0"},
        {"b\177", "control character at byte 1"},
        {"\302\2332J", "control character at byte 0"},
    };
    struct rk_lease lease = granted();

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        struct rk_acquire_lease_request request = request_of(cases[i].name, 6);
        struct rk_status *st = rk_lease_check_acquire(&lease, TTL_MS, &request);

        if (cases[i].text)
            assert_fails(st, RK_INVALID_ARGUMENT, cases[i].text);
        else
            assert_ok(st);
    }
}

/* Goal: the reason of each fence that does not prove the lease. */
static void test_rk_lease_check_bad_fence_is_refused(void **state)
{
    struct rk_lease lease = granted();
    struct rk_fence good = fence_of(5, id_a), fence;
    struct rk_status *st;

    (void)state;
    assert_ok(rk_lease_check(&lease, TTL_MS - 1, &good));
    st = rk_lease_check(&lease, TTL_MS, &good);
    assert_string_equal(rk_status_reason(st), "LEASE_EXPIRED");
    rk_status_free(st);

    fence = fence_of(4, id_a);
    st = rk_lease_check(&lease, 0, &fence);
    assert_string_equal(rk_status_reason(st), "STALE_EPOCH");
    rk_status_free(st);

    fence = fence_of(6, id_a);
    st = rk_lease_check(&lease, 0, &fence);
    assert_string_equal(rk_status_reason(st), "STALE_EPOCH");
    rk_status_free(st);

    fence = fence_of(5, id_b);
    st = rk_lease_check(&lease, 0, &fence);
    assert_string_equal(rk_status_reason(st), "STALE_EPOCH");
    rk_status_free(st);

    fence = good;
    fence.lease_id.bytes = 3;
    st = rk_lease_check(&lease, 0, &fence);
    assert_string_equal(rk_status_reason(st), "STALE_EPOCH");
    rk_status_free(st);

    fence = good;
    fence.incarnation++;
    st = rk_lease_check(&lease, 0, &fence);
    assert_string_equal(rk_status_reason(st), "WRONG_INCARNATION");
    rk_status_free(st);

    st = rk_lease_check(&lease, 0, &(struct rk_fence){0});
    assert_string_equal(rk_status_reason(st), "BAD_FIELD");
    assert_fails(st, RK_INVALID_ARGUMENT, "no fence");

    rk_lease_release(&lease, 10, GRACE_MS);
    st = rk_lease_check(&lease, 10, &good);
    assert_string_equal(rk_status_reason(st), "LEASE_EXPIRED");
    rk_status_free(st);
}

/* Goal: a lease expires once and its grace period ends once, counted from the expiry and not from the
 * tick. */
static void test_rk_lease_tick_reports_each_event_once(void **state)
{
    struct rk_lease lease = granted();

    (void)state;
    assert_int_equal(rk_lease_tick(&lease, TTL_MS - 1, GRACE_MS), RK_LEASE_NOTHING);
    assert_int_equal(rk_lease_tick(&lease, TTL_MS + 500, GRACE_MS), RK_LEASE_LAPSED);
    assert_int_equal(rk_lease_tick(&lease, TTL_MS + 501, GRACE_MS), RK_LEASE_NOTHING);
    assert_int_equal(rk_lease_tick(&lease, TTL_MS + GRACE_MS - 1, GRACE_MS), RK_LEASE_NOTHING);
    assert_int_equal(rk_lease_tick(&lease, TTL_MS + GRACE_MS, GRACE_MS), RK_LEASE_GRACE_OVER);
    assert_int_equal(rk_lease_tick(&lease, TTL_MS + 10 * GRACE_MS, GRACE_MS), RK_LEASE_NOTHING);
}

/* Goal: a grant within the grace period keeps the models. */
static void test_rk_lease_grant_ends_grace(void **state)
{
    struct rk_acquire_lease_request request = request_of("b", 6);
    struct rk_lease lease = granted();

    (void)state;
    rk_lease_release(&lease, 1000, GRACE_MS);
    assert_ok(rk_lease_check_acquire(&lease, 2000, &request));
    rk_lease_grant(&lease, 1000 + GRACE_MS - 1, &request, TTL_MS, id_b);
    assert_int_equal(rk_lease_tick(&lease, 1000 + GRACE_MS, GRACE_MS), RK_LEASE_NOTHING);
    assert_true(rk_lease_is_live(&lease, 1000 + GRACE_MS));
}

/* Goal: the TTL is the requested one within the limits, or the default. */
static void test_rk_lease_grant_ttl_is_clamped(void **state)
{
    static const struct {
        uint32_t asked_ms;
        int64_t granted_ms;
    } cases[] = {{0, TTL_MS}, {1, RK_LEASE_TTL_MIN_MS}, {12345, 12345}, {UINT32_MAX, RK_LEASE_TTL_MAX_MS}};

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        struct rk_acquire_lease_request request = request_of("a", 1);
        struct rk_lease lease;

        request.ttl_ms = cases[i].asked_ms;
        rk_lease_init(&lease, INCARNATION, 0);
        rk_lease_grant(&lease, 100, &request, TTL_MS, id_a);
        assert_int_equal(lease.ttl_ms, cases[i].granted_ms);
        assert_int_equal(lease.expires_ms, 100 + cases[i].granted_ms);
    }
}

static void test_rk_lease_check_seq_orders_calls(void **state)
{
    struct rk_acquire_lease_request request = request_of("b", 6);
    struct rk_lease lease = granted();
    struct rk_status *st;

    (void)state;
    assert_ok(rk_lease_check_seq(&lease, 1));
    assert_fails(rk_lease_check_seq(&lease, 0), RK_INVALID_ARGUMENT, "seq=0");
    st = rk_lease_check_seq(&lease, 2);
    assert_string_equal(rk_status_reason(st), "SEQ_GAP");
    assert_fails(st, RK_FAILED_PRECONDITION, "seq=2, expected 1 in epoch 5");
    rk_lease_commit_seq(&lease, 1);
    st = rk_lease_check_seq(&lease, 1);
    assert_string_equal(rk_status_reason(st), "RESULT_EXPIRED");
    assert_fails(st, RK_ABORTED, "the next is 2");
    assert_ok(rk_lease_check_seq(&lease, 2));

    assert_int_equal(lease.finished_seq, 0);
    rk_lease_finish_seq(&lease, 5, 1);
    assert_int_equal(lease.finished_seq, 1);
    rk_lease_grant(&lease, 0, &request, TTL_MS, id_b);
    assert_ok(rk_lease_check_seq(&lease, 1)); /* from 1 in every epoch */
    rk_lease_finish_seq(&lease, 5, 1);        /* a call of the old epoch ends late */
    assert_int_equal(lease.finished_seq, 0);
}

/* --- model test --- */

#define NUM_DRIVERS 4

struct driver {
    char name[8];
    bool has_fence;
    struct rk_fence fence;
    uint8_t id[RK_LEASE_ID_BYTES];
    int64_t heard_ms; /* last time the daemon accepted something of it */
};

struct model {
    struct rk_lease lease;
    struct driver drivers[NUM_DRIVERS];
    int owner; /* driver of the last grant; -1: none yet */
    bool is_released;
    uint64_t last_epoch; /* granted */
    uint64_t num_committed;
    int64_t now_ms;
};

static bool model_is_live(const struct model *model)
{
    return model->owner >= 0 && !model->is_released &&
           model->now_ms < model->drivers[model->owner].heard_ms + TTL_MS;
}

static void model_acquire(struct model *model, int who, uint64_t epoch, bool takeover)
{
    struct driver *driver = &model->drivers[who];
    struct rk_acquire_lease_request request = request_of(driver->name, epoch);
    bool is_expected = epoch > model->last_epoch && (takeover || !model_is_live(model));
    struct rk_status *st;

    request.takeover = takeover;
    st = rk_lease_check_acquire(&model->lease, model->now_ms, &request);
    assert_int_equal(st == NULL, is_expected);
    rk_status_free(st);
    if (!is_expected)
        return;
    memset(driver->id, 0, sizeof(driver->id));
    memcpy(driver->id, &epoch, sizeof(epoch));
    rk_lease_grant(&model->lease, model->now_ms, &request, TTL_MS, driver->id);
    driver->fence = fence_of(epoch, driver->id);
    driver->has_fence = true;
    driver->heard_ms = model->now_ms;
    model->owner = who;
    model->is_released = false;
    model->last_epoch = epoch;
    model->num_committed = 0;
}

/* A fenced call of any driver with its fence, which may be old. Returns whether it was accepted. */
static bool model_call(struct model *model, int who)
{
    struct driver *driver = &model->drivers[who];
    struct rk_status *st;
    bool is_expected;

    if (!driver->has_fence)
        return false;
    is_expected = who == model->owner && driver->fence.epoch == model->last_epoch && model_is_live(model);
    st = rk_lease_check(&model->lease, model->now_ms, &driver->fence);
    assert_int_equal(st == NULL, is_expected);
    rk_status_free(st);
    if (!is_expected)
        return false;
    rk_lease_renew(&model->lease, model->now_ms);
    driver->heard_ms = model->now_ms;
    return true;
}

static void model_step(struct model *model, struct rk_rng *rng)
{
    int who = (int)rk_rng_next_below(rng, NUM_DRIVERS);
    uint64_t seq = model->num_committed + (uint64_t)rk_rng_next_below(rng, 3);
    struct rk_status *st;

    switch (rk_rng_next_below(rng, 8)) {
    case 0:
        model_acquire(model, who, model->last_epoch + (uint64_t)rk_rng_next_below(rng, 3),
                      rk_rng_next_below(rng, 4) == 0);
        break;
    case 1:
        if (model_call(model, who) && rk_rng_next_below(rng, 4) == 0) {
            rk_lease_release(&model->lease, model->now_ms, GRACE_MS);
            model->is_released = true;
        }
        break;
    case 2:
    case 3:
        if (!model_call(model, who))
            break;
        st = rk_lease_check_seq(&model->lease, seq);
        assert_int_equal(st == NULL, seq == model->num_committed + 1);
        if (!st)
            rk_lease_commit_seq(&model->lease, ++model->num_committed);
        rk_status_free(st);
        break;
    case 4:
        model->now_ms += rk_rng_next_below(rng, 2 * TTL_MS);
        rk_lease_tick(&model->lease, model->now_ms, GRACE_MS);
        break;
    default:
        model->now_ms += rk_rng_next_below(rng, TTL_MS / 4);
        model_call(model, who);
        break;
    }
    assert_int_equal(rk_lease_is_live(&model->lease, model->now_ms), model_is_live(model));
    assert_int_equal(model->lease.epoch, model->last_epoch);
    assert_int_equal(model->lease.committed_seq, model->num_committed);
}

/* Goal: at any time only calls of the last granted driver are accepted, epochs only increase, numbers have no
 * gaps. Method: random histories of four drivers with a virtual clock, compared step by step with a model
 * that remembers who was granted what and when it was last heard. */
static void test_rk_lease_random_histories_follow_the_model(void **state)
{
    uint64_t seed = rk_test_seed();

    (void)state;
    for (uint64_t history = 0; history < 200; history++) {
        struct model model = {.owner = -1};
        struct rk_rng rng;

        rk_rng_init(&rng, seed, history);
        rk_lease_init(&model.lease, INCARNATION, 0);
        for (int i = 0; i < NUM_DRIVERS; i++)
            snprintf(model.drivers[i].name, sizeof(model.drivers[i].name), "d%d", i);
        for (int step = 0; step < 300; step++)
            model_step(&model, &rng);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rk_lease_check_acquire_cases),
        cmocka_unit_test(test_rk_lease_check_acquire_driver_names),
        cmocka_unit_test(test_rk_lease_check_acquire_by_the_same_driver),
        cmocka_unit_test(test_rk_lease_check_bad_fence_is_refused),
        cmocka_unit_test(test_rk_lease_tick_reports_each_event_once),
        cmocka_unit_test(test_rk_lease_grant_ends_grace),
        cmocka_unit_test(test_rk_lease_grant_ttl_is_clamped),
        cmocka_unit_test(test_rk_lease_check_seq_orders_calls),
        cmocka_unit_test(test_rk_lease_random_histories_follow_the_model),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
