/* http: scores from a server. Items go out as POST requests with the objects of protocol 2 (docs/rewards.md):
 *
 *   POST url   {"items": [{"id": 17, "solution_str": ..., ...}]}
 *   200        {"results": [{"id": 17, "score": 1.0}]}
 *
 * One loop over curl's multi interface keeps up to max_concurrent requests open. Requests that met a server
 * that is busy or failing (429, 5xx) or could not be reached are repeated after a pause that doubles; those
 * that timed out are not. Keys: url, token_file, user, timeout (30s, of a request), batch_size (1),
 * max_concurrent (8), max_retries (3). */
#include "rl/rewards/rewards.h"

#include <stdio.h>
#include <string.h>

#include <curl/curl.h>

#include "base/rk_alloc.h"
#include "base/rk_assert.h"
#include "base/net/rk_secret.h"
#include "base/rk_str.h"
#include "base/rk_time.h"
#include "base/rk_small_file.h"
#include "rl/rewards/wire_internal.h"

#define TIMEOUT_MS         30000
#define CONNECT_TIMEOUT_MS 10000
#define MAX_CONCURRENT     8
#define CONCURRENT_LIMIT   1024
#define BATCH_SIZE_LIMIT   4096
#define MAX_RETRIES        3
#define RETRIES_LIMIT      100
#define PAUSE_MS           200 /* before the first repetition; doubles */
#define PAUSE_MS_MAX       10000
#define WATCH_MS           100 /* interval in which a wait checks for an interrupt */
#define ANSWER_BYTES_MAX   (64 << 20)
#define MS                 1000000LL

struct http {
    char *url, *user, *password; /* user: of Basic authentication, NULL without it */
    struct curl_slist *headers;
    CURLM *multi;
    int64_t timeout_ms, batch_size, max_concurrent, max_retries;
    int64_t next_id;
};

typedef enum slot_state { SLOT_FREE, SLOT_WAITING, SLOT_OPEN } slot_state_t;

/* One request. */
struct slot {
    slot_state_t state;
    CURL *easy;
    int64_t first, count; /* its items */
    int64_t num_tries;
    int64_t start_ns; /* waiting: when it is sent again */
    struct rk_str body, answer;
    bool is_too_long;
    char error[CURL_ERROR_SIZE];
};

struct run {
    struct http *http;
    const struct rk_reward_call *call;
    struct slot *slots;
    int64_t first_id;
    int64_t num_taken, num_done, num_failed;
};

/* --- configuration --- */

static void destroy(void *state)
{
    struct http *http = state;

    if (!http)
        return;
    curl_multi_cleanup(http->multi);
    curl_slist_free_all(http->headers);
    rk_free(http->url);
    rk_free(http->user);
    rk_free(http->password);
    rk_free(http);
}

bool rk_reward_url_has_user(const char *url)
{
    const char *scheme = strstr(url, "://"), *authority = scheme ? scheme + strlen("://") : url;

    return memchr(authority, '@', strcspn(authority, "/?#")) != NULL;
}

static struct rk_status *read_url(struct http *http, const struct rk_json *config)
{
    const char *url = NULL;

    RK_TRY(rk_json_get_string(config, "reward", "url", &url));
    if (rk_reward_url_has_user(url))
        return RK_FAIL(RK_INVALID_ARGUMENT, RK_REWARD_URL_USER);
    if (!rk_str_has_prefix(url, "http://") && !rk_str_has_prefix(url, "https://"))
        return RK_FAIL(RK_INVALID_ARGUMENT, "reward.url: expected http://... or https://..., got \"%s\"",
                       url);
    http->url = rk_strdup(url);
    return NULL;
}

static void add_header(struct http *http, const char *line)
{
    struct curl_slist *headers = curl_slist_append(http->headers, line);

    RK_ASSERT(headers); /* memory */
    http->headers = headers;
}

static struct rk_status *read_headers(struct http *http, const struct rk_json *config, const char *dir)
{
    const char *name = NULL, *user = NULL;
    char *path, *token = NULL, *line;
    struct rk_status *st;

    add_header(http, "Content-Type: application/json");
    add_header(http, "Expect:"); /* no wait for "100 Continue" */
    RK_TRY(rk_json_opt_string(config, "reward", "token_file", &name));
    RK_TRY(rk_json_opt_string(config, "reward", "user", &user));
    if (!name && user)
        return RK_FAIL(RK_INVALID_ARGUMENT,
                       "reward.user: expected with reward.token_file, which has the password");
    if (!name)
        return NULL;
    path = rk_resolve_path(dir, name);
    st = rk_read_token(&token, path, 0600);
    rk_free(path);
    if (st)
        return RK_WRAP(st, "reward.token_file");
    if (user) {
        http->user = rk_strdup(user);
        http->password = token;
        return NULL;
    }
    line = rk_format("Authorization: Bearer %s", token);
    add_header(http, line);
    rk_free(line);
    rk_free(token);
    return NULL;
}

static struct rk_status *read_config(struct http *http, const struct rk_json *config, const char *dir)
{
    RK_TRY(read_url(http, config));
    RK_TRY(rk_reward_opt_duration(config, "timeout", &http->timeout_ms));
    RK_TRY(rk_json_opt_i64(config, "reward", "batch_size", 1, BATCH_SIZE_LIMIT, &http->batch_size));
    RK_TRY(rk_json_opt_i64(config, "reward", "max_concurrent", 1, CONCURRENT_LIMIT, &http->max_concurrent));
    RK_TRY(rk_json_opt_i64(config, "reward", "max_retries", 0, RETRIES_LIMIT, &http->max_retries));
    return read_headers(http, config, dir);
}

static struct rk_status *create(void **state, const struct rk_json *config, const char *dir)
{
    struct http *http = rk_calloc(1, sizeof(*http));
    struct rk_status *st;

    http->timeout_ms = TIMEOUT_MS;
    http->batch_size = 1;
    http->max_concurrent = MAX_CONCURRENT;
    http->max_retries = MAX_RETRIES;
    RK_TRY_GOTO(st, read_config(http, config, dir), out);
    if (curl_global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK || !(http->multi = curl_multi_init()))
        st = RK_FAIL(RK_INTERNAL, "reward.url: libcurl does not start");
out:
    if (st) {
        destroy(http);
        http = NULL;
    }
    *state = http;
    return st;
}

/* --- one request --- */

static size_t on_answer(char *data, size_t size, size_t count, void *user)
{
    struct slot *slot = user;
    size_t bytes = size * count;

    if (slot->answer.bytes + bytes > RK_MIN((size_t)slot->count * RK_REWARD_ANSWER_BYTES, ANSWER_BYTES_MAX)) {
        slot->is_too_long = true;
        return 0;
    }
    rk_str_append_bytes(&slot->answer, data, bytes);
    return bytes;
}

static struct rk_status *open_request(struct run *run, struct slot *slot)
{
    const struct http *http = run->http;
    CURL *easy = curl_easy_init();

    RK_ASSERT(easy); /* memory */
    rk_str_clear(&slot->answer);
    slot->is_too_long = false;
    slot->error[0] = '\0';
    slot->num_tries++;
    curl_easy_setopt(easy, CURLOPT_URL, http->url);
    curl_easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(easy, CURLOPT_HTTPHEADER, http->headers);
    if (http->user) {
        curl_easy_setopt(easy, CURLOPT_USERNAME, http->user);
        curl_easy_setopt(easy, CURLOPT_PASSWORD, http->password);
    }
    curl_easy_setopt(easy, CURLOPT_POSTFIELDS, rk_str_text(&slot->body));
    curl_easy_setopt(easy, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)slot->body.bytes);
    curl_easy_setopt(easy, CURLOPT_TIMEOUT_MS, (long)http->timeout_ms);
    curl_easy_setopt(easy, CURLOPT_CONNECTTIMEOUT_MS, (long)RK_MIN(http->timeout_ms, CONNECT_TIMEOUT_MS));
    curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, on_answer);
    curl_easy_setopt(easy, CURLOPT_WRITEDATA, slot);
    curl_easy_setopt(easy, CURLOPT_ERRORBUFFER, slot->error);
    curl_easy_setopt(easy, CURLOPT_PRIVATE, slot);
    slot->easy = easy;
    slot->state = SLOT_OPEN;
    if (curl_multi_add_handle(http->multi, easy) != CURLM_OK)
        return RK_FAIL(RK_INTERNAL, "reward.url: libcurl takes no more requests");
    return NULL;
}

static void close_request(struct run *run, struct slot *slot)
{
    if (!slot->easy)
        return;
    curl_multi_remove_handle(run->http->multi, slot->easy);
    curl_easy_cleanup(slot->easy);
    slot->easy = NULL;
    slot->state = SLOT_FREE;
}

static void take_items(struct run *run, struct slot *slot)
{
    int64_t left = run->call->num_items - run->num_taken;
    int64_t *indices;

    slot->first = run->num_taken;
    slot->count = RK_MIN(run->http->batch_size, left);
    slot->num_tries = 0;
    run->num_taken += slot->count;
    indices = rk_calloc((size_t)slot->count, sizeof(*indices));
    for (int64_t i = 0; i < slot->count; i++)
        indices[i] = slot->first + i;
    rk_str_clear(&slot->body);
    rk_reward_wire_append_items(&slot->body, run->call->items, indices, slot->count, run->first_id);
    rk_free(indices);
}

/* --- answers --- */

/* Fails all items of the request, or all items without a result. */
static void fail_rest(struct run *run, const struct slot *slot, const bool *has_result,
                      rk_reward_outcome_t outcome, const char *why)
{
    for (int64_t i = 0; i < slot->count; i++) {
        if (!has_result || !has_result[i])
            rk_reward_fail(&run->call->results[slot->first + i], outcome, "%s", why);
    }
}

static struct rk_status *take_result(struct run *run, const struct slot *slot, bool *has_result,
                                     const struct rk_json *answer)
{
    struct rk_reward_result result;
    int64_t id = 0, i;
    struct rk_status *st = rk_reward_wire_read_answer(&id, &result, answer);

    i = id - run->first_id - slot->first;
    if (!st && (i < 0 || i >= slot->count))
        st = RK_FAIL(RK_INVALID_ARGUMENT, "an answer for the item %lld, which the request does not have",
                     (long long)id);
    if (!st && has_result[i])
        st = RK_FAIL(RK_INVALID_ARGUMENT, "two answers for the item %lld", (long long)id);
    if (st) {
        rk_reward_results_fini(&result, 1);
        return st;
    }
    has_result[i] = true;
    run->call->results[slot->first + i] = result;
    return NULL;
}

static void take_answer(struct run *run, const struct slot *slot)
{
    bool *has_result = rk_calloc((size_t)slot->count, sizeof(*has_result));
    struct rk_json *json = NULL;
    const struct rk_json *results;
    struct rk_status *st = rk_reward_wire_parse(&json, rk_str_text(&slot->answer), slot->answer.bytes);

    results = rk_json_find(json, "results");
    if (!st && rk_json_type(results) != RK_JSON_ARRAY)
        st = RK_FAIL(RK_INVALID_ARGUMENT, "answer: expected {\"results\": [...]}");
    for (int64_t i = 0; !st && i < rk_json_count(results); i++)
        st = take_result(run, slot, has_result, rk_json_at(results, i));
    /* After a violation nothing in the answer can be trusted. */
    fail_rest(run, slot, st ? NULL : has_result, RK_REWARD_ERROR,
              st ? rk_status_message(st) : "the answer lacks this item");
    rk_status_free(st);
    rk_json_free(json);
    rk_free(has_result);
}

static bool may_retry(CURLcode code, long http_code)
{
    switch (code) {
    case CURLE_OK:
        return http_code == 429 || http_code >= 500;
    case CURLE_COULDNT_RESOLVE_HOST:
    case CURLE_COULDNT_CONNECT:
    case CURLE_SEND_ERROR:
    case CURLE_RECV_ERROR:
    case CURLE_GOT_NOTHING:
    case CURLE_PARTIAL_FILE:
        return true;
    default:
        return false;
    }
}

static void count_results(struct run *run, const struct slot *slot)
{
    for (int64_t i = 0; i < slot->count; i++) {
        rk_reward_outcome_t outcome = run->call->results[slot->first + i].outcome;

        run->num_failed += outcome != RK_REWARD_SCORED && outcome != RK_REWARD_SKIPPED;
    }
    run->num_done += slot->count;
}

/* A request that has ended: its results, or the time at which it is repeated. */
static void finish_request(struct run *run, struct slot *slot, CURLcode code)
{
    const struct http *http = run->http;
    long http_code = 0;
    char why[CURL_ERROR_SIZE + 64];

    curl_easy_getinfo(slot->easy, CURLINFO_RESPONSE_CODE, &http_code);
    close_request(run, slot);
    if (may_retry(code, http_code) && slot->num_tries <= http->max_retries) {
        int64_t pause_ms = PAUSE_MS << RK_MIN(slot->num_tries - 1, 10);

        slot->state = SLOT_WAITING;
        slot->start_ns = rk_time_now_ns() + RK_MIN(pause_ms, PAUSE_MS_MAX) * MS;
        return;
    }
    if (slot->is_too_long)
        (void)snprintf(why, sizeof(why), "the answer is longer than %d bytes an item",
                       RK_REWARD_ANSWER_BYTES);
    else if (code == CURLE_OPERATION_TIMEDOUT)
        (void)snprintf(why, sizeof(why), "no answer within %lld ms", (long long)http->timeout_ms);
    else if (code != CURLE_OK)
        (void)snprintf(why, sizeof(why), "%s", *slot->error ? slot->error : curl_easy_strerror(code));
    else
        (void)snprintf(why, sizeof(why), "the server answered with HTTP status %ld", http_code);
    if (code == CURLE_OK && http_code == 200)
        take_answer(run, slot);
    else
        fail_rest(run, slot, NULL, code == CURLE_OPERATION_TIMEDOUT ? RK_REWARD_TIMEOUT : RK_REWARD_ERROR,
                  why);
    count_results(run, slot);
}

/* --- the loop --- */

static struct rk_status *fill_slots(struct run *run)
{
    int64_t now_ns = rk_time_now_ns();

    for (int64_t i = 0; i < run->http->max_concurrent; i++) {
        struct slot *slot = &run->slots[i];
        bool is_due = slot->state == SLOT_WAITING && now_ns >= slot->start_ns;

        if (slot->state == SLOT_FREE && run->num_taken < run->call->num_items) {
            take_items(run, slot);
            is_due = true;
        }
        if (is_due)
            RK_TRY(open_request(run, slot));
    }
    return NULL;
}

static int wait_ms(const struct run *run)
{
    int64_t wait_ns = WATCH_MS * MS, now_ns = rk_time_now_ns();

    for (int64_t i = 0; i < run->http->max_concurrent; i++) {
        if (run->slots[i].state == SLOT_WAITING)
            wait_ns = RK_MIN(wait_ns, run->slots[i].start_ns - now_ns);
    }
    return (int)((RK_MAX(wait_ns, 0) + MS - 1) / MS);
}

static struct rk_status *turn(struct run *run)
{
    CURLM *multi = run->http->multi;
    bool has_finished = false; /* so that the next request can start at once */
    int num_running, num_left;
    CURLMsg *message;

    RK_TRY(fill_slots(run));
    if (curl_multi_perform(multi, &num_running) != CURLM_OK)
        return RK_FAIL(RK_INTERNAL, "reward.url: libcurl failed");
    while ((message = curl_multi_info_read(multi, &num_left)) != NULL) {
        CURLcode code = message->data.result;
        struct slot *slot = NULL;

        if (message->msg != CURLMSG_DONE)
            continue;
        curl_easy_getinfo(message->easy_handle, CURLINFO_PRIVATE, &slot);
        finish_request(run, slot, code);
        has_finished = true;
    }
    if (!has_finished && curl_multi_poll(multi, NULL, 0, wait_ms(run), NULL) != CURLM_OK)
        return RK_FAIL(RK_INTERNAL, "reward.url: libcurl cannot wait");
    return NULL;
}

static struct rk_status *score(void *state, const struct rk_reward_call *call)
{
    struct http *http = state;
    struct run run = {.http = http, .call = call, .first_id = http->next_id};
    struct rk_status *st = NULL;

    http->next_id += call->num_items;
    run.slots = rk_calloc((size_t)http->max_concurrent, sizeof(*run.slots));
    while (!st && run.num_done < call->num_items && run.num_failed <= call->max_failed) {
        if (rk_reward_is_cancelled(call->watch))
            st = RK_FAIL(RK_CANCELLED, "interrupted while %lld of %lld items had a score",
                         (long long)run.num_done, (long long)call->num_items);
        else
            st = turn(&run);
    }
    for (int64_t i = 0; i < http->max_concurrent; i++) {
        close_request(&run, &run.slots[i]);
        rk_str_fini(&run.slots[i].body);
        rk_str_fini(&run.slots[i].answer);
    }
    rk_free(run.slots);
    return st;
}

static const char *const keys[] = {"url",        "user",           "token_file",  "timeout",
                                   "batch_size", "max_concurrent", "max_retries", NULL};

const struct rk_reward_ops rk_reward_http = {
    .name = "http",
    .keys = keys,
    .create = create,
    .destroy = destroy,
    .score_items = score,
};
