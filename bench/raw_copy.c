/* A plain copy through a socket, for comparison with byte streams. */
#include "bench/bench_rpc.h"

#include <arpa/inet.h>
#include <errno.h>
#include <math.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/rk_alloc.h"
#include "base/rk_thread.h"
#include "base/rk_time.h"

#define PART_BYTES ((size_t)1 << 20)

struct writer {
    int fd;
    const char *data;
    size_t bytes;
};

static void *write_all(void *user)
{
    const struct writer *writer = user;
    size_t done = 0;

    while (done < writer->bytes) {
        ssize_t sent =
            send(writer->fd, writer->data + done, RK_MIN(PART_BYTES, writer->bytes - done), MSG_NOSIGNAL);

        if (sent < 0 && errno != EINTR)
            break; /* the reader detects the missing bytes */
        done += sent > 0 ? (size_t)sent : 0;
    }
    (void)shutdown(writer->fd, SHUT_WR);
    return NULL;
}

static struct rk_status *read_all(int fd, char *data, size_t bytes)
{
    size_t done = 0;

    while (done < bytes) {
        ssize_t got = recv(fd, data + done, RK_MIN(PART_BYTES, bytes - done), 0);

        if (got == 0 || (got < 0 && errno != EINTR))
            return RK_FAIL(RK_INTERNAL, "a socket of this process was closed after %zu of %zu bytes", done,
                           bytes);
        done += got > 0 ? (size_t)got : 0;
    }
    return NULL;
}

static bool connect_tcp(int fds[2])
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t bytes = sizeof(address);
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool is_good = listener >= 0 && bind(listener, (struct sockaddr *)&address, bytes) == 0 &&
                   listen(listener, 1) == 0 &&
                   getsockname(listener, (struct sockaddr *)&address, &bytes) == 0;

    fds[0] = is_good ? socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0) : -1;
    is_good = fds[0] >= 0 && connect(fds[0], (struct sockaddr *)&address, bytes) == 0;
    fds[1] = is_good ? accept4(listener, NULL, NULL, SOCK_CLOEXEC) : -1;
    if (listener >= 0)
        close(listener);
    if (fds[1] < 0 && fds[0] >= 0)
        close(fds[0]);
    return fds[1] >= 0;
}

static struct rk_status *copy_once(double *seconds, bool over_tcp, char *to, const char *from, size_t bytes)
{
    struct writer writer = {.data = from, .bytes = bytes};
    int64_t begin_ns;
    struct rk_status *st;
    pthread_t thread;
    int fds[2];

    if (over_tcp ? !connect_tcp(fds) : socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) != 0)
        return RK_FAIL(RK_INTERNAL, "cannot connect two sockets: %s", strerror(errno));
    writer.fd = fds[0];
    begin_ns = rk_time_now_ns();
    st = rk_thread_start(&thread, write_all, &writer, "the raw copy");
    if (!st) {
        st = read_all(fds[1], to, bytes);
        *seconds = (double)(rk_time_now_ns() - begin_ns) * 1e-9;
        pthread_join(thread, NULL);
    }
    close(fds[0]);
    close(fds[1]);
    return st;
}

struct rk_status *bench_raw_copy(double *seconds, bool over_tcp, size_t bytes, int num_times)
{
    char *from = rk_malloc(bytes), *to = rk_malloc(bytes);
    struct rk_status *st = NULL;
    double once;

    memset(from, 1, bytes);
    memset(to, 0, bytes);
    *seconds = INFINITY;
    for (int i = 0; i < num_times && !st; i++) {
        st = copy_once(&once, over_tcp, to, from, bytes);
        if (!st)
            *seconds = fmin(*seconds, once);
    }
    rk_free(from);
    rk_free(to);
    return st;
}
