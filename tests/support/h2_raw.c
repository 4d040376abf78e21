#include "tests/support/h2_raw.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/rk_assert.h"
#include "base/rk_time.h"

int h2_connect(const char *address)
{
    struct sockaddr_in to = {.sin_family = AF_INET};
    const char *colon = strrchr(address, ':');
    int64_t port = 0;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    RK_ASSERT(fd >= 0);
    RK_ASSERT(colon && rk_parse_i64(colon + 1, &port));
    to.sin_port = htons((uint16_t)port);
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (connect(fd, (struct sockaddr *)&to, sizeof(to)) != 0) {
        close(fd);
        return -1;
    }
    return fd;
}

void h2_frame(struct rk_str *out, int type, int flags, uint32_t stream, const void *payload, size_t bytes)
{
    const char head[H2_FRAME_BYTES] = {(char)(bytes >> 16),  (char)(bytes >> 8),  (char)bytes,
                                       (char)type,           (char)flags,         (char)(stream >> 24),
                                       (char)(stream >> 16), (char)(stream >> 8), (char)stream};

    rk_str_append_bytes(out, head, sizeof(head));
    if (payload)
        rk_str_append_bytes(out, payload, bytes);
    for (size_t i = 0; !payload && i < bytes; i++)
        rk_str_append_bytes(out, "", 1);
}

void h2_greeting(struct rk_str *out)
{
    rk_str_append(out, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
    h2_frame(out, H2_SETTINGS, 0, 0, NULL, 0);
}

/* A string of HPACK without Huffman coding. */
static void append_text(struct rk_str *out, const char *text)
{
    const char length = (char)strlen(text);

    RK_ASSERT(strlen(text) < 127);
    rk_str_append_bytes(out, &length, 1);
    rk_str_append(out, text);
}

void h2_call_block(struct rk_str *out, const char *path, const char *authorization)
{
    rk_str_append(out, "\x83\x86\x04"); /* :method POST, :scheme http, :path */
    append_text(out, path);
    rk_str_append(out, "\x01"); /* :authority */
    append_text(out, "localhost");
    rk_str_append(out, "\x0f\x10"); /* content-type */
    append_text(out, "application/grpc");
    rk_str_append_bytes(out, "\0", 1);
    append_text(out, "te");
    append_text(out, "trailers");
    if (authorization) {
        rk_str_append(out, "\x0f\x08");
        append_text(out, authorization);
    }
}

void h2_open_call(struct rk_str *out, uint32_t stream, const char *path, const char *authorization)
{
    struct rk_str block = {0};

    h2_call_block(&block, path, authorization);
    h2_frame(out, H2_HEADERS, H2_END_HEADERS, stream, block.text, block.bytes);
    rk_str_fini(&block);
}

/* Discards received data; false if the peer has closed. */
static bool throw_away(int fd)
{
    char scratch[4096];
    ssize_t got;

    do {
        got = recv(fd, scratch, sizeof(scratch), MSG_DONTWAIT);
    } while (got > 0);
    return got < 0 && (errno == EAGAIN || errno == EINTR);
}

bool h2_send(int fd, const struct rk_str *bytes, int timeout_ms)
{
    int64_t end_ns = rk_time_now_ns() + (int64_t)timeout_ms * 1000000;
    size_t at = 0;

    while (at < bytes->bytes) {
        struct pollfd poller = {.fd = fd, .events = POLLIN | POLLOUT};
        ssize_t sent = send(fd, bytes->text + at, bytes->bytes - at, MSG_DONTWAIT | MSG_NOSIGNAL);

        if (sent > 0)
            at += (size_t)sent;
        else if (errno != EAGAIN && errno != EINTR)
            return false;
        if (!throw_away(fd))
            return false;
        if (at < bytes->bytes && rk_time_now_ns() > end_ns)
            return false;
        if (sent < 0)
            poll(&poller, 1, 10);
    }
    return true;
}

bool h2_wait_closed(int fd, int timeout_ms)
{
    int64_t end_ns = rk_time_now_ns() + (int64_t)timeout_ms * 1000000;

    while (throw_away(fd)) {
        struct pollfd poller = {.fd = fd, .events = POLLIN};

        if (rk_time_now_ns() > end_ns)
            return false;
        poll(&poller, 1, 10);
    }
    return true;
}
