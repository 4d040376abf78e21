/* A device of the tests: the CPU with graphs. While a stream records, operators, copies and what a library
 * over the device appends are kept with a copy of their arguments; a launch runs them one after the other
 * before it returns. What an argument points at must stay, as on a GPU. "graphs:0", "graphs:1", ... are its
 * names. */
#ifndef RK_TEST_GRAPH_DEVICE_H
#define RK_TEST_GRAPH_DEVICE_H

#include <stdbool.h>
#include <stddef.h>

#include "kernels/rk_device.h"

RK_BEGIN_DECLS

/* Makes it known; again is a no-op. */
struct rk_status *rk_test_graphs_register(void) RK_NODISCARD;

/* Something to be repeated. `args` is copied; `release` (may be NULL) is called with the copy when the graph
 * is destroyed. */
struct rk_test_recorded {
    struct rk_status *(*run)(struct rk_stream *cpu_stream, const void *args);
    void (*release)(const void *args);
    const void *args;
    size_t args_bytes;
};
/* For libraries over the device; `native` is what rk_stream_native gives, NULL on others. False when it does
 * not record: then the caller runs it. */
bool rk_test_graphs_append(void *native, const struct rk_test_recorded *recorded);

/* From now on there is memory for so many graphs at a time; -1: for all. */
void rk_test_graphs_limit(int64_t max_graphs);

RK_END_DECLS

#endif
