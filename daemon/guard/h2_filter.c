#include "daemon/guard/h2_filter_internal.h"

#include <string.h>

#include "base/rk_array.h"
#include "base/rk_assert.h"

#define RESET_BYTES 4 /* payload of RST_STREAM */
#define SECOND_NS   1e9

enum {
    FRAME_DATA,
    FRAME_HEADERS,
    FRAME_PRIORITY,
    FRAME_RST_STREAM,
    FRAME_SETTINGS,
    FRAME_PUSH_PROMISE,
    FRAME_PING,
    FRAME_GOAWAY,
    FRAME_WINDOW_UPDATE,
    FRAME_CONTINUATION
};
enum { FLAG_END_STREAM = 1, FLAG_END_HEADERS = 4 };

static const char preface[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
#define PREFACE_BYTES (sizeof(preface) - 1)

struct head {
    uint32_t bytes, stream;
    uint8_t type, flags;
};

/* --- buckets --- */

void rk_h2_bucket_init(struct rk_h2_bucket *bucket, double burst, double rate, int64_t now_ns)
{
    *bucket = (struct rk_h2_bucket){.tokens = burst, .burst = burst, .rate = rate, .seen_ns = now_ns};
}

int64_t rk_h2_bucket_wait_until(struct rk_h2_bucket *bucket, int64_t now_ns)
{
    double gained = (double)(now_ns - bucket->seen_ns) * bucket->rate / SECOND_NS;

    bucket->tokens = RK_MIN(bucket->tokens + gained, bucket->burst);
    bucket->seen_ns = now_ns;
    if (bucket->tokens >= 1)
        return 0;
    return now_ns + 1 + (int64_t)((1 - bucket->tokens) * SECOND_NS / bucket->rate);
}

/* --- streams that are open --- */

/* Index of the stream, or of where it would be. */
static int find_open(const struct rk_h2_filter *filter, uint32_t stream, bool *is_there)
{
    int low = 0, high = filter->num_open;

    while (low < high) {
        int middle = (low + high) / 2;

        if (filter->open[middle] < stream)
            low = middle + 1;
        else
            high = middle;
    }
    *is_there = low < filter->num_open && filter->open[low] == stream;
    return low;
}

/* False when it was not open. */
static bool close_stream(struct rk_h2_filter *filter, uint32_t stream)
{
    bool is_there;
    int at = find_open(filter, stream, &is_there);

    if (!is_there)
        return false;
    filter->num_open--;
    memmove(&filter->open[at], &filter->open[at + 1],
            (size_t)(filter->num_open - at) * sizeof(filter->open[0]));
    return true;
}

/* --- frames of the client --- */

static struct head read_head(const uint8_t *data)
{
    return (struct head){
        .bytes = (uint32_t)data[0] << 16 | (uint32_t)data[1] << 8 | data[2],
        .type = data[3],
        .flags = data[4],
        .stream = ((uint32_t)data[5] << 24 | (uint32_t)data[6] << 16 | (uint32_t)data[7] << 8 | data[8]) &
                  0x7fffffff};
}

static rk_h2_verdict_t cut(struct rk_h2_filter *filter, const char *rule)
{
    filter->rule = rule;
    return RK_H2_CUT;
}

/* Takes a token of the connection's bucket and, unless it is one of the first or the peer is trusted, one of
 * the shared bucket; or neither. */
static rk_h2_verdict_t take(struct rk_h2_filter *filter, struct rk_h2_bucket *own, struct rk_h2_bucket *all,
                            int *num_free, int64_t now_ns)
{
    bool is_free = filter->is_trusted || *num_free > 0;
    int64_t own_until_ns = rk_h2_bucket_wait_until(own, now_ns);
    int64_t all_until_ns = is_free ? 0 : rk_h2_bucket_wait_until(all, now_ns);

    filter->wait_until_ns = RK_MAX(own_until_ns, all_until_ns);
    if (filter->wait_until_ns > 0)
        return RK_H2_WAIT;
    own->tokens--;
    if (!is_free)
        all->tokens--;
    *num_free -= *num_free > 0;
    return RK_H2_PASS;
}

static rk_h2_verdict_t take_control(struct rk_h2_filter *filter, int64_t now_ns)
{
    return take(filter, &filter->controls, &filter->shared->controls, &filter->free_controls, now_ns);
}

static rk_h2_verdict_t take_update(struct rk_h2_filter *filter, int64_t now_ns)
{
    int num_free = 1; /* without shared buckets */

    return filter->is_trusted ? RK_H2_PASS : take(filter, &filter->updates, NULL, &num_free, now_ns);
}

static rk_h2_verdict_t on_block_part(struct rk_h2_filter *filter, const struct head *head, int64_t now_ns)
{
    if (head->type == FRAME_HEADERS) {
        filter->block_bytes = 0;
        filter->block_frames = 0;
        filter->block_begin_ns = now_ns;
    }
    filter->block_bytes += head->bytes;
    filter->block_frames++;
    if (filter->block_bytes > RK_H2_BLOCK_BYTES)
        return cut(filter, "a header block of more than 32 KiB");
    if (filter->block_frames > RK_H2_BLOCK_FRAMES)
        return cut(filter, "a header block in more than 8 frames");
    filter->block_stream = head->flags & FLAG_END_HEADERS ? 0 : head->stream;
    return RK_H2_PASS;
}

static rk_h2_verdict_t on_headers(struct rk_h2_filter *filter, const struct head *head, int64_t now_ns)
{
    if (head->stream <= filter->last_stream) { /* trailers, which rankd's clients do not send */
        rk_h2_verdict_t verdict = take_control(filter, now_ns);

        return verdict == RK_H2_PASS ? on_block_part(filter, head, now_ns) : verdict;
    }
    if (head->stream % 2 == 0)
        return cut(filter, "a stream with an even number from the client");
    if (filter->num_open == RK_H2_OPEN_MAX)
        return cut(filter, "more than 128 open calls");
    filter->last_stream = head->stream;
    filter->open[filter->num_open++] = head->stream;
    return on_block_part(filter, head, now_ns);
}

static rk_h2_verdict_t on_reset(struct rk_h2_filter *filter, const struct head *head, int64_t now_ns)
{
    rk_h2_verdict_t verdict;
    bool is_open;

    find_open(filter, head->stream, &is_open);
    if (!is_open)
        return take_control(filter, now_ns);
    verdict = take(filter, &filter->resets, &filter->shared->resets, &filter->free_resets, now_ns);
    if (verdict == RK_H2_PASS)
        close_stream(filter, head->stream);
    return verdict;
}

static rk_h2_verdict_t on_data(struct rk_h2_filter *filter, const struct head *head, int64_t now_ns)
{
    bool ends = head->flags & FLAG_END_STREAM;

    if (head->bytes >= RK_H2_SMALL_DATA_BYTES || (ends && head->bytes > 0))
        return RK_H2_PASS;
    return head->bytes == 0 && !ends ? take_control(filter, now_ns) : take_update(filter, now_ns);
}

/* The verdict on a frame that begins. */
static rk_h2_verdict_t on_client_frame(struct rk_h2_filter *filter, const struct head *head, int64_t now_ns)
{
    if (!filter->is_greeted && head->type != FRAME_SETTINGS)
        return cut(filter, "the first frame is not SETTINGS");
    if (head->type != FRAME_DATA && head->bytes > RK_H2_CONTROL_BYTES)
        return cut(filter, "a frame of more than 32 KiB other than DATA");
    if ((head->type == FRAME_CONTINUATION) != (filter->block_stream != 0) ||
        (filter->block_stream && head->stream != filter->block_stream))
        return cut(filter, "an interrupted header block, or a CONTINUATION without one");
    filter->is_greeted = true;
    switch (head->type) {
    case FRAME_DATA:
        return on_data(filter, head, now_ns);
    case FRAME_HEADERS:
        return on_headers(filter, head, now_ns);
    case FRAME_CONTINUATION:
        return on_block_part(filter, head, now_ns);
    case FRAME_RST_STREAM:
        return on_reset(filter, head, now_ns);
    case FRAME_WINDOW_UPDATE:
        return take_update(filter, now_ns);
    case FRAME_PUSH_PROMISE:
        return cut(filter, "a push promise");
    default:
        return take_control(filter, now_ns);
    }
}

/* Bytes of the preface pass when they are complete. */
static rk_h2_verdict_t read_preface(struct rk_h2_filter *filter, const uint8_t *data, size_t bytes,
                                    size_t *passed)
{
    size_t count = RK_MIN(bytes, PREFACE_BYTES - filter->preface_bytes);

    if (memcmp(data, preface + filter->preface_bytes, count) != 0)
        return cut(filter, "no HTTP/2");
    filter->preface_bytes += count;
    *passed += count;
    return RK_H2_PASS;
}

/* How much of the current frame's payload passes. */
static size_t pass_payload(struct rk_h2_direction *direction, size_t bytes)
{
    size_t count = (size_t)RK_MIN((uint64_t)bytes, direction->payload_left);

    direction->payload_left -= count;
    return count;
}

rk_h2_verdict_t rk_h2_filter_client(struct rk_h2_filter *filter, const uint8_t *data, size_t bytes,
                                    int64_t now_ns, size_t *passed)
{
    rk_h2_verdict_t verdict = RK_H2_PASS;
    struct head head;

    *passed = 0;
    if (filter->rule)
        return RK_H2_CUT;
    if (bytes > 0 && filter->preface_bytes < PREFACE_BYTES)
        verdict = read_preface(filter, data, bytes, passed);
    while (verdict == RK_H2_PASS) {
        *passed += pass_payload(&filter->client, bytes - *passed);
        if (filter->client.payload_left > 0 || bytes - *passed < RK_H2_HEAD_BYTES)
            return RK_H2_PASS;
        head = read_head(data + *passed);
        verdict = on_client_frame(filter, &head, now_ns);
        if (verdict == RK_H2_PASS) {
            *passed += RK_H2_HEAD_BYTES;
            filter->client.payload_left = head.bytes;
        }
    }
    if (verdict == RK_H2_CUT)
        *passed = 0;
    return verdict;
}

/* --- frames of the server --- */

/* The server ends a stream; a reset by the server was caused by the client, and costs as much as a client's
 * reset. */
static void on_server_frame(struct rk_h2_filter *filter, const struct head *head, const uint8_t *payload,
                            int64_t now_ns)
{
    bool is_message = head->type == FRAME_DATA || head->type == FRAME_HEADERS;

    if (is_message && head->flags & FLAG_END_STREAM)
        close_stream(filter, head->stream);
    if (head->type != FRAME_RST_STREAM || !close_stream(filter, head->stream) ||
        (payload[0] | payload[1] | payload[2] | payload[3]) == 0)
        return;
    rk_h2_bucket_wait_until(&filter->resets, now_ns);
    filter->resets.tokens--;
}

void rk_h2_filter_server(struct rk_h2_filter *filter, const uint8_t *data, size_t bytes, int64_t now_ns,
                         size_t *passed)
{
    *passed = 0;
    for (;;) {
        struct head head;
        size_t wanted;

        *passed += pass_payload(&filter->server, bytes - *passed);
        if (filter->server.payload_left > 0 || bytes - *passed < RK_H2_HEAD_BYTES)
            return;
        head = read_head(data + *passed);
        wanted = head.type == FRAME_RST_STREAM && head.bytes == RESET_BYTES ? RESET_BYTES : 0;
        if (bytes - *passed < RK_H2_HEAD_BYTES + wanted)
            return;
        if (head.type != FRAME_RST_STREAM || wanted > 0)
            on_server_frame(filter, &head, data + *passed + RK_H2_HEAD_BYTES, now_ns);
        *passed += RK_H2_HEAD_BYTES;
        filter->server.payload_left = head.bytes;
    }
}

/* --- time --- */

void rk_h2_shared_init(struct rk_h2_shared *shared, int64_t now_ns)
{
    rk_h2_bucket_init(&shared->resets, RK_H2_ALL_RESETS_BURST, RK_H2_ALL_RESETS_RATE, now_ns);
    rk_h2_bucket_init(&shared->controls, RK_H2_ALL_CONTROLS_BURST, RK_H2_ALL_CONTROLS_RATE, now_ns);
}

void rk_h2_filter_init(struct rk_h2_filter *filter, struct rk_h2_shared *shared, int64_t now_ns)
{
    *filter = (struct rk_h2_filter){.shared = shared,
                                    .free_resets = RK_H2_FREE_RESETS,
                                    .free_controls = RK_H2_FREE_CONTROLS,
                                    .block_begin_ns = now_ns};
    rk_h2_bucket_init(&filter->resets, RK_H2_RESETS_BURST, RK_H2_RESETS_RATE, now_ns);
    rk_h2_bucket_init(&filter->controls, RK_H2_CONTROLS_BURST, RK_H2_CONTROLS_RATE, now_ns);
    rk_h2_bucket_init(&filter->updates, RK_H2_UPDATES_BURST, RK_H2_UPDATES_RATE, now_ns);
}

rk_h2_verdict_t rk_h2_filter_tick(struct rk_h2_filter *filter, int64_t now_ns)
{
    int64_t age_ms = (now_ns - filter->block_begin_ns) / 1000000;

    if (!filter->is_greeted && age_ms > RK_H2_GREETING_MS)
        return cut(filter, "no HTTP/2 within 5 s");
    if (filter->block_stream && age_ms > RK_H2_BLOCK_MS)
        return cut(filter, "a header block that does not end within 5 s");
    return RK_H2_PASS;
}
