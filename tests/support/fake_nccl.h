/* A fake NCCL, for the tests of the NCCL backend: ranks are forked processes of one host, and tensors are in
 * host memory. An operation runs in the call, or, on the tests' device with graphs (graph_device.h),
 * asynchronously on its stream. It has the properties that the backend relies on: communicators that connect
 * while they are polled, operations that wait for the peers, an abort from another thread that ends them. And
 * it does what NCCL may do: sums over more than two ranks are not in rank order, and results of non-blocking
 * calls are written late. */
#ifndef RK_TEST_FAKE_NCCL_H
#define RK_TEST_FAKE_NCCL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/rk_compiler.h"

RK_BEGIN_DECLS

/* Injected failures; in memory that the ranks share. */
struct rk_fake_nccl_faults {
    atomic_int missing_pid;     /* process whose library does not load */
    atomic_int init_rank;       /* 1 + rank whose connecting fails */
    atomic_int slow_rank;       /* 1 + rank whose call to connect takes 3 s */
    atomic_int async_rank;      /* 1 + rank whose groups report an asynchronous error */
    atomic_int call_rank;       /* 1 + rank whose operations fail */
    atomic_int abort_rank;      /* 1 + rank whose aborts never end */
    atomic_bool is_never_ready; /* connecting never ends */
};

/* RK_TEST_COMM=nccl: registers "nccl" over this library, for this process and those it forks. No-op
 * otherwise. Call it before ranks are started. */
void rk_fake_nccl_setup(void);
/* NULL unless set up. All zero at first. */
struct rk_fake_nccl_faults *rk_fake_nccl_faults(void);

RK_END_DECLS

#endif
