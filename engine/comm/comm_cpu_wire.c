/* One connection of the CPU peer network: a plain socket or TLS, behind one interface. No call blocks; errno
 * says why a call moved no bytes. */
#include "engine/comm/comm_cpu_internal.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/rk_assert.h"

#define RECORD_BYTES 16384 /* of TLS */

ssize_t rk_cpu_wire_recv(const struct rk_cpu_wire *wire, void *data, size_t bytes)
{
    return wire->tls ? rk_tls_recv(wire->tls, data, bytes) : recv(wire->fd, data, bytes, MSG_DONTWAIT);
}

ssize_t rk_cpu_wire_send(const struct rk_cpu_wire *wire, const void *data, size_t bytes)
{
    return wire->tls ? rk_tls_send(wire->tls, data, bytes)
                     : send(wire->fd, data, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
}

/* Header and payload go into one TLS record, so a small frame does not become two records. After a partial
 * write, TLS requires the same bytes again; callers comply, because the return value counts none of them as
 * sent. */
static ssize_t send_parts_tls(struct rk_tls_conn *tls, const struct iovec *parts, int num_parts)
{
    uint8_t first[RECORD_BYTES];
    size_t head_bytes = parts[0].iov_len, more;
    ssize_t sent, rest;

    if (num_parts == 1)
        return rk_tls_send(tls, parts[0].iov_base, parts[0].iov_len);
    RK_ASSERT(head_bytes < sizeof(first));
    more = RK_MIN(parts[1].iov_len, sizeof(first) - head_bytes);
    memcpy(first, parts[0].iov_base, head_bytes);
    memcpy(first + head_bytes, parts[1].iov_base, more);
    sent = rk_tls_send(tls, first, head_bytes + more);
    if (sent < (ssize_t)(head_bytes + more) || more == parts[1].iov_len)
        return sent;
    rest = rk_tls_send(tls, (const char *)parts[1].iov_base + more, parts[1].iov_len - more);
    return rest > 0 ? sent + rest : sent;
}

static ssize_t recv_parts_tls(struct rk_tls_conn *tls, const struct iovec *parts, int num_parts)
{
    ssize_t got = rk_tls_recv(tls, parts[0].iov_base, parts[0].iov_len), rest;

    if (num_parts == 1 || got < (ssize_t)parts[0].iov_len)
        return got;
    rest = rk_tls_recv(tls, parts[1].iov_base, parts[1].iov_len);
    return rest > 0 ? got + rest : got;
}

ssize_t rk_cpu_wire_send_parts(const struct rk_cpu_wire *wire, struct iovec *parts, int num_parts)
{
    struct msghdr msg = {.msg_iov = parts, .msg_iovlen = (size_t)num_parts};

    return wire->tls ? send_parts_tls(wire->tls, parts, num_parts)
                     : sendmsg(wire->fd, &msg, MSG_NOSIGNAL | MSG_DONTWAIT);
}

ssize_t rk_cpu_wire_recv_parts(const struct rk_cpu_wire *wire, struct iovec *parts, int num_parts)
{
    struct msghdr msg = {.msg_iov = parts, .msg_iovlen = (size_t)num_parts};

    return wire->tls ? recv_parts_tls(wire->tls, parts, num_parts) : recvmsg(wire->fd, &msg, MSG_DONTWAIT);
}

void rk_cpu_wire_close(struct rk_cpu_wire *wire)
{
    rk_tls_conn_destroy(wire->tls);
    if (wire->fd >= 0)
        close(wire->fd);
    *wire = (struct rk_cpu_wire){.fd = -1};
}
