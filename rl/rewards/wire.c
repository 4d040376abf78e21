#include "rl/rewards/wire_internal.h"

#include <string.h>

#include "base/rk_alloc.h"
#include "rl/rewards/rewards.h"

#define MESSAGE_BYTES_MAX 1000
#define IGNORED_BYTES_MAX 300 /* of the names of ignored members in a message */

/* --- items --- */

/* Members for rewards over columns. */
static void set_columns(struct rk_json *json, const struct rk_reward_item *item)
{
    struct rk_json *ids = rk_json_new_array();

    for (int64_t i = 0; i < item->num_completion_ids; i++)
        rk_json_append(ids, rk_json_new_int(item->completion_ids[i]));
    rk_json_set(json, "completion_ids", ids);
    rk_json_set(json, "columns", rk_json_retain(item->columns));
    if (item->messages)
        rk_json_set(json, "prompt", rk_json_retain(item->messages));
}

struct rk_json *rk_reward_wire_item(const struct rk_reward_item *item, int64_t id)
{
    struct rk_json *json = rk_json_new_object();

    rk_json_set(json, "id", rk_json_new_int(id));
    rk_json_set(json, "data_source", rk_json_new_string(item->data_source));
    rk_json_set(json, "prompt", rk_json_new_string_bytes(item->prompt, item->prompt_bytes));
    rk_json_set(json, "solution_str", rk_json_new_string_bytes(item->solution_str, item->solution_bytes));
    rk_json_set(json, "ground_truth", rk_reward_truth(item));
    rk_json_set(json, "extra_info", item->extra_info ? rk_json_retain(item->extra_info) : rk_json_new_null());
    if (item->columns)
        set_columns(json, item);
    return json;
}

void rk_reward_wire_append_items(struct rk_str *out, const struct rk_reward_item *items,
                                 const int64_t *indices, int64_t count, int64_t first_id)
{
    struct rk_json *line = rk_json_new_object(), *list = rk_json_new_array();
    char *text;

    for (int64_t i = 0; i < count; i++)
        rk_json_append(list, rk_reward_wire_item(&items[indices[i]], first_id + indices[i]));
    rk_json_set(line, "items", list);
    text = rk_json_dump(line, 0, false);
    rk_str_appendf(out, "%s\n", text);
    rk_free(text);
    rk_json_free(line);
}

/* --- answers --- */

static bool is_name(const char *name)
{
    size_t bytes = strlen(name);

    for (const char *c = name; *c; c++) {
        bool is_letter = (*c >= 'a' && *c <= 'z') || (*c >= 'A' && *c <= 'Z') || (*c >= '0' && *c <= '9');

        if (!is_letter && !strchr("_-./@", *c))
            return false;
    }
    return bytes > 0 && bytes <= RK_REWARD_NAME_BYTES;
}

/* Takes one further member of an answer; false when it cannot be reported. Null members have no value. */
static bool take_extra(struct rk_json *extra, const char *name, const struct rk_json *value)
{
    rk_json_type_t type = rk_json_type(value);

    if (type == RK_JSON_NULL)
        return true;
    if (!is_name(name) || rk_json_count(extra) >= RK_REWARD_EXTRAS_MAX)
        return false;
    if (type == RK_JSON_BOOL)
        rk_json_set(extra, name, rk_json_new_real(rk_json_as_bool(value, false) ? 1.0 : 0.0));
    else if (type == RK_JSON_INT || type == RK_JSON_REAL)
        rk_json_set(extra, name, rk_json_new_real(rk_json_as_real(value, 0.0)));
    else if (type == RK_JSON_STRING)
        rk_json_set(extra, name, rk_json_retain(value));
    else
        return false;
    return true;
}

/* A member that cannot be reported is named in result->ignored; the score counts all the same. */
static void read_extras(struct rk_reward_result *result, const struct rk_json *answer)
{
    struct rk_json *extra = rk_json_new_object();
    struct rk_str ignored = {0};

    result->extra = extra;
    for (void *it = rk_json_iter(answer); it; it = rk_json_iter_next(answer, it)) {
        const char *name = rk_json_iter_key(it);

        if (strcmp(name, "id") == 0 || strcmp(name, "score") == 0)
            continue;
        if (!take_extra(extra, name, rk_json_iter_value(it)) && ignored.bytes < IGNORED_BYTES_MAX)
            rk_str_appendf(&ignored, "%s'%.100s'", ignored.bytes > 0 ? ", " : "", name);
    }
    if (ignored.bytes > 0)
        result->ignored = rk_str_take(&ignored);
    if (rk_json_count(extra) == 0) {
        rk_json_free(extra);
        result->extra = NULL;
    }
}

static void read_score(struct rk_reward_result *result, const struct rk_json *answer,
                       const struct rk_json *score)
{
    if (rk_json_type(score) != RK_JSON_INT && rk_json_type(score) != RK_JSON_REAL) {
        rk_reward_fail(result, RK_REWARD_ERROR, "the answer's score: expected a number, got %s",
                       rk_json_type_name(rk_json_type(score)));
        return;
    }
    result->score = rk_json_as_real(score, 0.0);
    read_extras(result, answer);
}

struct rk_status *rk_reward_wire_read_answer(int64_t *id, struct rk_reward_result *result,
                                             const struct rk_json *answer)
{
    const struct rk_json *score, *error, *skip;

    *result = (struct rk_reward_result){0};
    if (rk_json_type(answer) != RK_JSON_OBJECT)
        return RK_FAIL(RK_INVALID_ARGUMENT, "expected an object with id and score");
    RK_TRY(rk_json_get_i64(answer, "", "id", 0, INT64_MAX, id));
    score = rk_json_find(answer, "score");
    error = rk_json_find(answer, "error");
    skip = rk_json_find(answer, "skip");
    if (!!score + !rk_json_is_null(error) + !rk_json_is_null(skip) != 1)
        rk_reward_fail(result, RK_REWARD_ERROR, "the answer: expected exactly one of score, error and skip");
    else if (score)
        read_score(result, answer, score);
    else if (skip && rk_json_as_bool(skip, false))
        rk_reward_fail(result, RK_REWARD_SKIPPED, "skipped by the scorer");
    else if (error && rk_json_type(error) == RK_JSON_STRING)
        rk_reward_fail(result, RK_REWARD_ERROR, "%.*s", MESSAGE_BYTES_MAX, rk_json_as_string(error, ""));
    else
        rk_reward_fail(result, RK_REWARD_ERROR, "the answer: expected a text as error, true as skip");
    return NULL;
}

/* Python's json.dumps writes NaN and Infinity. */
struct rk_status *rk_reward_wire_parse(struct rk_json **out, const char *text, size_t bytes)
{
    struct rk_status *st = rk_json_parse(out, text, bytes, "answer", RK_JSON_ALLOW_NUL);

    if (!st || (!memmem(text, bytes, "NaN", 3) && !memmem(text, bytes, "Infinity", 8)))
        return st;
    return RK_WRAP(st, "NaN or Infinity, which JSON does not have, in an answer; expected finite numbers");
}

struct rk_status *rk_reward_wire_parse_answer(int64_t *id, struct rk_reward_result *result, const char *line,
                                              size_t bytes)
{
    struct rk_json *json = NULL;
    struct rk_status *st;

    *result = (struct rk_reward_result){0};
    RK_TRY(rk_reward_wire_parse(&json, line, bytes));
    st = rk_reward_wire_read_answer(id, result, json);
    rk_json_free(json);
    return st ? RK_WRAP(st, "answer") : NULL;
}

/* --- hello --- */

static struct rk_status *check_hello(const struct rk_json *json)
{
    const struct rk_json *error = rk_json_find(json, "error");

    if (rk_json_as_int(rk_json_find(json, "hello"), 0) != RK_REWARD_PROTOCOL)
        return RK_FAIL(RK_INVALID_ARGUMENT,
                       "expected {\"hello\": %d} as the first line: reward programs speak protocol %d "
                       "(docs/rewards.md)",
                       RK_REWARD_PROTOCOL, RK_REWARD_PROTOCOL);
    if (!rk_json_is_null(error))
        return RK_FAIL(RK_FAILED_PRECONDITION, "cannot start: %.*s", MESSAGE_BYTES_MAX,
                       rk_json_as_string(error, "the error of its hello is not a text"));
    return NULL;
}

struct rk_status *rk_reward_wire_check_hello(const char *line, size_t bytes)
{
    struct rk_json *json = NULL;
    struct rk_status *parse = rk_json_parse(&json, line, bytes, "hello", RK_JSON_ALLOW_NUL);
    struct rk_status *st;

    RK_IGNORE(parse, "a line that is not JSON is not a hello");
    st = check_hello(json);
    rk_json_free(json);
    return st;
}
