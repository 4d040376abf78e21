/* Comparison of the collectives of several ranks, from flight recorders written by hand here. */
#include "cmd/collectives_internal.h"

#include <string.h>

#include "base/rk_alloc.h"
#include "tests/support/test.h"

#define NOW_MS 100000

/* One recorder: operations are given as "what where seq tag first stride size begin_ms end_ms" (end_ms 0: it
 * has not ended), in a list that ends with NULL. */
struct operation {
    const char *what, *where;
    int seq, tag, first, stride, size, begin_ms, end_ms;
};

static struct rk_json *make_flight(const struct operation *operations, int count)
{
    struct rk_str text = {0};
    struct rk_json *json;

    rk_str_appendf(&text, "{\"monotonic_ns\":%d000000,\"operations\":[", NOW_MS);
    for (int i = 0; i < count; i++) {
        const struct operation *one = &operations[i];

        rk_str_appendf(&text,
                       "%s{\"kind\":\"%s\",\"what\":\"%s\",\"where\":\"%s\",\"seq\":%d,"
                       "\"group\":{\"tag\":%d,\"first\":%d,\"stride\":%d,\"size\":%d},"
                       "\"begin_ns\":%d000000,\"end_ns\":",
                       i ? "," : "", strcmp(one->what, "configure") == 0 ? "call" : "collective", one->what,
                       one->where, one->seq, one->tag, one->first, one->stride, one->size, one->begin_ms);
        if (one->end_ms)
            rk_str_appendf(&text, "%d000000}", one->end_ms);
        else
            rk_str_append(&text, "null}");
    }
    rk_str_append(&text, "]}");
    assert_ok(rk_json_parse(&json, rk_str_text(&text), text.bytes, "test", 0));
    rk_str_fini(&text);
    return json;
}

static void add(struct rk_collectives *all, int32_t rank, const struct operation *operations, int count)
{
    struct rk_json *json = make_flight(operations, count);

    rk_collectives_add(all, rank, json);
    rk_json_free(json);
}

static char *format(const struct rk_collectives *all)
{
    struct rk_str text = {0};

    rk_collectives_format(all, &text);
    return rk_str_take(&text);
}

/* Goal: a rank that has not started a collective which another rank is in is named with its position; groups
 * of the same name with different members are different groups. */
static void test_a_rank_that_has_not_arrived(void **state)
{
    static const struct operation rank0[] = {{"all_gather", "tp", 40, 1, 0, 1, 2, 97000, 97001},
                                             {"all_reduce", "tp", 41, 1, 0, 1, 2, 97500, 0},
                                             {"all_reduce", "dp", 7, 2, 0, 2, 2, 96000, 96010}};
    static const struct operation rank1[] = {{"all_gather", "tp", 40, 1, 0, 1, 2, 97000, 97002},
                                             {"all_reduce", "dp", 9, 2, 1, 2, 2, 98000, 98001}};
    static const struct operation rank2[] = {{"all_reduce", "dp", 7, 2, 0, 2, 2, 96001, 96010},
                                             {"all_gather", "tp", 55, 1, 2, 1, 2, 99990, 0}};
    static const struct operation rank3[] = {{"all_reduce", "dp", 9, 2, 1, 2, 2, 98000, 98001},
                                             {"all_gather", "tp", 54, 1, 2, 1, 2, 99980, 99985}};
    struct rk_collectives all = {.groups = {0}};
    char *text;

    (void)state;
    add(&all, 3, rank3, RK_ARRAY_LEN(rank3)); /* in any order */
    add(&all, 1, rank1, RK_ARRAY_LEN(rank1));
    add(&all, 0, rank0, RK_ARRAY_LEN(rank0));
    add(&all, 2, rank2, RK_ARRAY_LEN(rank2));
    rk_collectives_compare(&all);
    assert_int_equal(all.groups.count, 4);
    assert_int_equal(all.groups.items[0].state, RK_COLLECTIVES_WAITING); /* the tp group of ranks 0 and 1 */
    assert_int_equal(all.groups.items[0].highest, 41);
    assert_int_equal(all.groups.items[0].lowest, 40);
    assert_int_equal(all.groups.items[1].state, RK_COLLECTIVES_MOVING); /* the tp group of ranks 2 and 3, for
                                                                         * 10 ms */
    assert_int_equal(all.groups.items[2].state, RK_COLLECTIVES_EQUAL);
    assert_int_equal(all.groups.items[3].state, RK_COLLECTIVES_EQUAL);
    text = format(&all);
    assert_non_null(strstr(text, "collectives of 4 ranks: 2 groups at the same number, 1 moving, 1 waiting"));
    assert_non_null(strstr(text, "group tp (2 ranks)"));
    assert_non_null(strstr(text, "rank 0: in all_reduce #41 for 2.5 s"));
    assert_non_null(strstr(text, "rank 1: all_gather #40 ended 3.0 s ago"));
    assert_null(strstr(text, "rank 2"));
    assert_null(strstr(text, "group dp"));
    rk_free(text);
    rk_collectives_fini(&all);
}

/* Goal: members without any entry are named, whether their recorder was read or not; if members are not
 * evenly spaced, their number is given instead. */
static void test_ranks_without_entries(void **state)
{
    static const struct operation rank4[] = {{"broadcast", "all", 1, 3, 0, 2, 4, 90000, 0},
                                             {"barrier", "world", 2, 4, 0, 0, 3, 90000, 0}};
    struct rk_collectives all = {.groups = {0}};
    struct rk_json *json;
    char *text;

    (void)state;
    add(&all, 4, rank4, 2);
    add(&all, 0, NULL, 0);
    rk_collectives_compare(&all);
    assert_int_equal(all.groups.items[0].state, RK_COLLECTIVES_WAITING);
    assert_int_equal(all.groups.items[0].missing.count, 3);
    text = format(&all);
    assert_non_null(strstr(text, "rank 0: no collective of this group is on record"));
    assert_non_null(strstr(text, "rank 2: its flight recorder could not be read"));
    assert_non_null(strstr(text, "rank 6: its flight recorder could not be read"));
    assert_non_null(strstr(text, "    2 more: no collective"));
    rk_free(text);
    json = rk_collectives_json(&all);
    assert_int_equal(rk_json_count(rk_json_find(json, "groups")), 2);
    assert_int_equal(
        rk_json_as_int(
            rk_json_at(rk_json_find(rk_json_at(rk_json_find(json, "groups"), 0), "missing_ranks"), 1), 0),
        2);
    rk_json_free(json);
    rk_collectives_fini(&all);
}

/* Goal: if the other ranks have completed a collective, a rank without its entry is reported as behind only
 * if its recorder covers that time; an overwritten entry is not reported. */
static void test_overwritten_entries_are_no_alarm(void **state)
{
    static const struct operation through[] = {{"all_reduce", "dp", 3, 2, 0, 1, 2, 50000, 50010}};
    static const struct operation young[] = {{"all_reduce", "tp", 9000, 1, 0, 0, 1, 99000, 99001}};
    static const struct operation old[] = {{"all_reduce", "tp", 9000, 1, 0, 0, 1, 20000, 20001}};

    (void)state;
    for (int i = 0; i < 2; i++) {
        struct rk_collectives all = {.groups = {0}};

        add(&all, 0, through, 1);
        add(&all, 1, i == 0 ? young : old, 1);
        rk_collectives_compare(&all);
        assert_int_equal(all.groups.items[1].missing.count, 1);
        assert_int_equal(all.groups.items[1].state, i == 0 ? RK_COLLECTIVES_EQUAL : RK_COLLECTIVES_WAITING);
        rk_collectives_fini(&all);
    }
}

/* Goal: operations of an earlier world are ignored although its groups had the same names and numbers; sends
 * and receives in progress are shown; different operations with the same sequence number are found. */
static void test_worlds_transfers_and_mixed_operations(void **state)
{
    static const struct operation rank0[] = {{"all_reduce", "tp", 900, 1, 0, 1, 2, 10000, 10001},
                                             {"configure", "", 3, 0, 0, 0, 1, 20000, 20005},
                                             {"all_reduce", "tp", 5, 1, 0, 1, 2, 30000, 0},
                                             {"recv", "pp", 0, 2, 0, 1, 2, 95000, 0},
                                             {"send", "pp", 0, 2, 0, 1, 2, 94000, 94001}};
    static const struct operation rank1[] = {{"configure", "", 3, 0, 0, 0, 1, 20000, 20005},
                                             {"all_gather", "tp", 5, 1, 0, 1, 2, 30000, 0}};
    struct rk_collectives all = {.groups = {0}};
    char *text;

    (void)state;
    add(&all, 0, rank0, RK_ARRAY_LEN(rank0));
    add(&all, 1, rank1, RK_ARRAY_LEN(rank1));
    rk_collectives_compare(&all);
    assert_int_equal(all.groups.count, 1);
    assert_int_equal(all.groups.items[0].state, RK_COLLECTIVES_DIFFER);
    assert_int_equal(all.groups.items[0].highest, 5);
    assert_int_equal(all.transfers.count, 1);
    text = format(&all);
    assert_non_null(strstr(text, "1 with different operations"));
    assert_non_null(strstr(text, "rank 0: in all_reduce #5 for 70.0 s"));
    assert_non_null(strstr(text, "rank 1: in all_gather #5 for 70.0 s"));
    assert_non_null(strstr(text, "rank 0: in recv for 5.0 s"));
    rk_free(text);
    rk_collectives_fini(&all);
}

/* Goal: a recorder of another version or with invalid content does not cause a crash. */
static void test_recorders_without_what_is_needed(void **state)
{
    static const char *const texts[] = {
        "{}",
        "[]",
        "null",
        "{\"operations\":3}",
        "{\"operations\":[1,null,{}]}",
        "{\"operations\":[{\"kind\":\"collective\",\"what\":\"all_reduce\",\"seq\":4}]}",
        "{\"operations\":[{\"kind\":\"collective\",\"group\":7,\"seq\":4,\"begin_ns\":\"x\"}]}"};
    struct rk_collectives all = {.groups = {0}};
    char *text;

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(texts); i++) {
        struct rk_json *json;

        assert_ok(rk_json_parse(&json, texts[i], strlen(texts[i]), "test", 0));
        rk_collectives_add(&all, (int32_t)i, json);
        rk_json_free(json);
    }
    rk_collectives_compare(&all);
    text = format(&all);
    assert_non_null(strstr(text, "collectives of 7 ranks"));
    rk_free(text);
    rk_collectives_fini(&all);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_rank_that_has_not_arrived),
        cmocka_unit_test(test_ranks_without_entries),
        cmocka_unit_test(test_overwritten_entries_are_no_alarm),
        cmocka_unit_test(test_worlds_transfers_and_mixed_operations),
        cmocka_unit_test(test_recorders_without_what_is_needed),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
