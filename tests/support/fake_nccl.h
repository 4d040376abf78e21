/* A library in the place of NCCL, for the tests of the backend over it: ranks are forked processes of one
 * host, and tensors lie in host memory. An operation runs while it is called, or, on the tests' device with
 * graphs (graph_device.h), when its stream comes to it. It keeps what the backend relies on: communicators
 * that come up while they are polled, operations that wait for the peers, an abort from another thread that
 * ends them. And it does what NCCL may do: sums over more than two ranks take another order than the ranks',
 * and results of non-blocking calls are written late. */
#ifndef RK_TEST_FAKE_NCCL_H
#define RK_TEST_FAKE_NCCL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/rk_compiler.h"

RK_BEGIN_DECLS

/* What the library does wrong; in memory that the ranks share. */
struct rk_fake_nccl_faults {
    atomic_int missing_pid;     /* process whose library does not load */
    atomic_int init_rank;       /* 1 + rank whose connecting fails */
    atomic_int slow_rank;       /* 1 + rank whose call to connect takes 3 s */
    atomic_int async_rank;      /* 1 + rank whose groups report an asynchronous error */
    atomic_int call_rank;       /* 1 + rank whose operations fail */
    atomic_int abort_rank;      /* 1 + rank whose communicators never come down */
    atomic_bool is_never_ready; /* connecting goes on for ever */
};

/* RK_TEST_COMM=nccl: makes "nccl" over this library known, for this process and those it forks. Nothing
 * otherwise. Before ranks are started. */
void rk_fake_nccl_setup(void);
/* NULL unless set up. All zero at first. */
struct rk_fake_nccl_faults *rk_fake_nccl_faults(void);

RK_END_DECLS

#endif
