/* Pipes through which the guard moves bytes from one socket to another without copying them: the kernel
 * passes references to its pages (splice). They belong to the thread of the guard. */
#ifndef RK_PIPE_INTERNAL_H
#define RK_PIPE_INTERNAL_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#define RK_PIPE_POOL_MAX 4 /* free pipes that are kept for reuse */

struct rk_pipe {
    int read_fd, write_fd;
    size_t bytes; /* in the pipe */
};

/* Zero-initialised. */
struct rk_pipe_pool {
    struct rk_pipe *free[RK_PIPE_POOL_MAX]; /* all are empty */
    int num_free;
    bool is_useless; /* the kernel cannot splice these sockets */
};

void rk_pipe_pool_fini(struct rk_pipe_pool *pool);
/* An empty pipe, NULL when there is none: no descriptors, or the pool is useless. */
struct rk_pipe *rk_pipe_take(struct rk_pipe_pool *pool);
/* Closes a pipe that has bytes. */
void rk_pipe_give(struct rk_pipe_pool *pool, struct rk_pipe *pipe);
/* From a socket into an empty pipe, as recv without blocking. Where the kernel cannot do it, the pool becomes
 * useless, and errno is EINTR. */
ssize_t rk_pipe_fill(struct rk_pipe_pool *pool, struct rk_pipe *pipe, int from, size_t bytes_max);
/* To a non-blocking socket, as send; the process must ignore SIGPIPE. */
ssize_t rk_pipe_drain(struct rk_pipe *pipe, int to);

#endif
