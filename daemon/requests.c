#include "daemon/requests_internal.h"

#include <string.h>

#include "base/rk_assert.h"
#include "base/rk_random.h"

_Static_assert(RK_LIMIT_QUEUED_CALLS < RK_LIMIT_STORED_REQUESTS,
               "a full table always has an entry that ended");

struct rk_request *rk_requests_find(const struct rk_requests *table, const void *id)
{
    for (int64_t i = 0; i < table->count; i++) {
        if (memcmp(table->entries[i]->id, id, RK_REQUEST_ID_BYTES) == 0)
            return table->entries[i];
    }
    return NULL;
}

struct rk_status *rk_requests_lookup(struct rk_request **out, const struct rk_requests *table, const void *id,
                                     const uint8_t digest[RK_SHA256_BYTES])
{
    struct rk_request *request = rk_requests_find(table, id);
    char hex[2 * RK_REQUEST_ID_BYTES + 1];

    *out = NULL;
    if (!request)
        return NULL;
    rk_hex(id, RK_REQUEST_ID_BYTES, hex);
    if (memcmp(request->digest, digest, RK_SHA256_BYTES) != 0)
        return RK_FAIL_REASON(RK_INVALID_ARGUMENT, "DIGEST_MISMATCH",
                              "request_id %s was used for a call with another header", hex);
    if (request->state == RK_REQUEST_EXPIRED)
        return RK_FAIL_REASON(RK_ABORTED, "RESULT_EXPIRED",
                              "request %s was executed, but its result has been dropped", hex);
    *out = request;
    return NULL;
}

static void expire(struct rk_requests *table, struct rk_request *request)
{
    RK_ASSERT(request->state == RK_REQUEST_DONE);
    RK_ASSERT(table->stored_bytes >= request->result_bytes);
    table->stored_bytes -= request->result_bytes;
    request->result_bytes = 0;
    request->state = RK_REQUEST_EXPIRED;
    table->drop_result(request);
}

static void remove_oldest(struct rk_requests *table)
{
    struct rk_request *request;
    int64_t i = 0;

    while (i < table->count && table->entries[i]->state == RK_REQUEST_RUNNING)
        i++;
    RK_ASSERT(i < table->count);
    request = table->entries[i];
    table->count--;
    memmove(&table->entries[i], &table->entries[i + 1],
            (size_t)(table->count - i) * sizeof(table->entries[0]));
    if (request->state == RK_REQUEST_DONE)
        expire(table, request);
    table->destroy(request);
}

void rk_requests_add(struct rk_requests *table, struct rk_request *request)
{
    RK_ASSERT(request->state == RK_REQUEST_OPEN);
    RK_ASSERT(!rk_requests_find(table, request->id));
    if (table->count == RK_LIMIT_STORED_REQUESTS)
        remove_oldest(table);
    request->state = RK_REQUEST_RUNNING;
    table->entries[table->count++] = request;
}

void rk_requests_finish(struct rk_requests *table, struct rk_request *request, size_t result_bytes)
{
    RK_ASSERT(request->state == RK_REQUEST_RUNNING);
    request->state = RK_REQUEST_DONE;
    request->result_bytes = result_bytes;
    table->stored_bytes += result_bytes;
    for (int64_t i = 0; i < table->count && table->stored_bytes > table->limit_bytes; i++) {
        if (table->entries[i]->state == RK_REQUEST_DONE && table->entries[i]->result_bytes > 0)
            expire(table, table->entries[i]);
    }
}

int64_t rk_requests_num_running(const struct rk_requests *table)
{
    int64_t num_running = 0;

    for (int64_t i = 0; i < table->count; i++)
        num_running += table->entries[i]->state == RK_REQUEST_RUNNING;
    return num_running;
}

void rk_requests_drop_results(struct rk_requests *table)
{
    for (int64_t i = 0; i < table->count; i++) {
        if (table->entries[i]->state == RK_REQUEST_DONE)
            expire(table, table->entries[i]);
    }
}

void rk_requests_clear(struct rk_requests *table)
{
    while (table->count > 0)
        remove_oldest(table);
    RK_ASSERT(table->stored_bytes == 0);
}
