#include "daemon/guard/pipe_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include "base/rk_alloc.h"
#include "base/rk_assert.h"

/* A pipe has a slot for every 4 KiB; over loopback one slot refers to up to 32 KiB. If the system refuses
 * this size, the pipe keeps its default of 64 KiB. */
#define PIPE_BYTES (256 << 10)

static struct rk_pipe *create(void)
{
    struct rk_pipe *pipe;
    int fds[2];

    if (pipe2(fds, O_NONBLOCK | O_CLOEXEC) != 0)
        return NULL;
    (void)fcntl(fds[1], F_SETPIPE_SZ, PIPE_BYTES);
    pipe = rk_calloc(1, sizeof(*pipe));
    pipe->read_fd = fds[0];
    pipe->write_fd = fds[1];
    return pipe;
}

static void destroy(struct rk_pipe *pipe)
{
    close(pipe->read_fd);
    close(pipe->write_fd);
    rk_free(pipe);
}

void rk_pipe_pool_fini(struct rk_pipe_pool *pool)
{
    while (pool->num_free > 0)
        destroy(pool->free[--pool->num_free]);
}

struct rk_pipe *rk_pipe_take(struct rk_pipe_pool *pool)
{
    if (pool->is_useless)
        return NULL;
    return pool->num_free > 0 ? pool->free[--pool->num_free] : create();
}

void rk_pipe_give(struct rk_pipe_pool *pool, struct rk_pipe *pipe)
{
    if (pipe->bytes == 0 && pool->num_free < RK_PIPE_POOL_MAX)
        pool->free[pool->num_free++] = pipe;
    else
        destroy(pipe);
}

ssize_t rk_pipe_fill(struct rk_pipe_pool *pool, struct rk_pipe *pipe, int from, size_t bytes_max)
{
    ssize_t got;

    RK_ASSERT(pipe->bytes == 0);
    got = splice(from, NULL, pipe->write_fd, NULL, bytes_max, SPLICE_F_MOVE | SPLICE_F_NONBLOCK);
    if (got > 0)
        pipe->bytes = (size_t)got;
    if (got < 0 && (errno == EINVAL || errno == ENOSYS)) {
        pool->is_useless = true;
        errno = EINTR;
    }
    return got;
}

ssize_t rk_pipe_drain(struct rk_pipe *pipe, int to)
{
    ssize_t sent = splice(pipe->read_fd, NULL, to, NULL, pipe->bytes, SPLICE_F_MOVE | SPLICE_F_NONBLOCK);

    if (sent > 0)
        pipe->bytes -= (size_t)sent;
    return sent;
}
