/* DumpFlightRecorder: identity and configuration of this daemon, and its last operations, as one JSON text
 * in pieces. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/rk_alloc.h"
#include "base/rk_flight.h"
#include "base/rk_log.h"
#include "base/rk_time.h"
#include "daemon/daemon_internal.h"
#include "daemon/rpc/flight.h"
#include "generated/rk_version.h"
#include "proto/rk_stream.h"

#define PIECE_BYTES (256 << 10)
#define STALL_NS    (30 * 1000000000LL)

struct dump {
    struct rk_str text;
    size_t sent_bytes;
    int64_t sent_ns; /* the last piece */
};

void rk_flight_start(const struct rk_settings *settings)
{
    char *name, *previous, *path, *previous_path;

    if (!settings->flight_dir) {
        rk_flight_install(NULL);
        return;
    }
    name = rk_format("flight-%d.json", settings->slot);
    previous = rk_format("flight-%d.previous.json", settings->slot);
    path = rk_path_join(settings->flight_dir, name);
    previous_path = rk_path_join(settings->flight_dir, previous);
    if (rename(path, previous_path) == 0)
        RK_WARN("an earlier process of this slot failed; its flight recorder is %s", previous_path);
    rk_flight_install(path);
    rk_free(name);
    rk_free(previous);
    rk_free(path);
    rk_free(previous_path);
}

static void append(void *user, const char *data, size_t bytes)
{
    rk_str_append_bytes(user, data, bytes);
}

/* The configuration contains the paths of token and key files, not their contents. */
static void write_dump(struct rk_str *out, struct rk_daemon *daemon)
{
    struct rk_json *head = rk_json_new_object();
    char incarnation[20];
    char *text;

    snprintf(incarnation, sizeof(incarnation), "%016llx", (unsigned long long)daemon->incarnation);
    rk_json_set(head, "version", rk_json_new_string(RK_VERSION));
    rk_json_set(head, "git_commit", rk_json_new_string(RK_GIT_COMMIT));
    rk_json_set(head, "incarnation", rk_json_new_string(incarnation));
    rk_json_set(head, "host", rk_json_new_string(daemon->host));
    rk_json_set(head, "slot", rk_json_new_int(daemon->settings.slot));
    rk_json_set(head, "address", rk_json_new_string(rk_server_address(daemon->server)));
    rk_json_set(head, "state", rk_json_new_string(rk_daemon_state_name(daemon->state)));
    rk_json_set(head, "uptime_ms", rk_json_new_int((rk_time_now_ns() - daemon->started_ns) / 1000000));
    text = rk_json_dump(head, 0, false);
    rk_str_append_bytes(out, text, strlen(text) - 1); /* the object continues */
    rk_str_appendf(out, ",\n\"config\":%s,\n\"flight\":", daemon->config_text ? daemon->config_text : "null");
    rk_flight_write(append, out, "asked");
    rk_str_append(out, "}\n");
    rk_free(text);
    rk_json_free(head);
}

static void send_next(struct rk_call *call)
{
    struct dump *dump = rk_call_user(call);
    struct rk_dump_chunk chunk = {0};
    struct rk_str packed = {0};

    if (dump->sent_bytes == dump->text.bytes) {
        rk_call_finish(call, NULL);
        return;
    }
    chunk.json.data = (const uint8_t *)dump->text.text + dump->sent_bytes;
    chunk.json.bytes = RK_MIN(dump->text.bytes - dump->sent_bytes, (size_t)PIECE_BYTES);
    dump->sent_bytes += chunk.json.bytes;
    dump->sent_ns = rk_time_now_ns();
    rk_pack_dump_chunk(&packed, &chunk);
    rk_call_send(call, rk_stream_encode(&packed));
    rk_str_fini(&packed);
}

static void on_message(struct rk_call *call, struct grpc_byte_buffer *message)
{
    struct rk_daemon *daemon = rk_call_daemon(call);
    struct dump *dump;

    if (!message) {
        rk_call_finish(call,
                       RK_FAIL_REASON(RK_INVALID_ARGUMENT, "BAD_FIELD", "the call has no request message"));
        return;
    }
    if (daemon->num_dumps == RK_FLIGHT_DUMPS_MAX) {
        rk_call_finish(call, RK_FAIL(RK_RESOURCE_EXHAUSTED,
                                     "%d DumpFlightRecorder calls are open on this daemon, "
                                     "which is the limit",
                                     RK_FLIGHT_DUMPS_MAX));
        return;
    }
    dump = rk_calloc(1, sizeof(*dump));
    write_dump(&dump->text, daemon);
    daemon->num_dumps++;
    rk_call_set_user(call, dump);
    send_next(call);
}

static void on_tick(struct rk_call *call)
{
    const struct dump *dump = rk_call_user(call);

    if (dump && rk_call_is_sending(call) && rk_time_now_ns() - dump->sent_ns > STALL_NS)
        rk_call_cut(call, RK_FAIL(RK_RESOURCE_EXHAUSTED, "the client read nothing for %d s",
                                  (int)(STALL_NS / 1000000000)));
}

static void on_end(struct rk_call *call)
{
    struct dump *dump = rk_call_user(call);

    if (!dump)
        return;
    rk_call_daemon(call)->num_dumps--;
    rk_str_fini(&dump->text);
    rk_free(dump);
}

const struct rk_rpc_handler rk_rpc_dump_flight_recorder = {
    .on_message = on_message, .on_sent = send_next, .on_tick = on_tick, .on_end = on_end};
