/* A device of the tests: the CPU with graphs, and with streams that run beside the host as far as libraries
 * over the device are concerned. What such a library appends, events and launches of graphs are done later,
 * in order, by a thread of the stream; operators and copies wait until the stream has come to its end, and
 * run in the call. While a stream records, everything is kept with a copy of its arguments instead. What an
 * argument points at must stay, as on a GPU, and a thread that records or asks for an event must have called
 * rk_device_use. "graphs:0", "graphs:1", ... are its names. */
#ifndef RK_TEST_GRAPH_DEVICE_H
#define RK_TEST_GRAPH_DEVICE_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/rk_device.h"
#include "tests/support/stream_queue.h"

RK_BEGIN_DECLS

/* Makes it known; again is a no-op. */
struct rk_status *rk_test_graphs_register(void) RK_NODISCARD;

/* For libraries over the device; `native` is what rk_stream_native gives, NULL on others: then false, and the
 * caller runs the task. */
bool rk_test_graphs_append(void *native, const struct rk_test_task *task);

/* From now on there is memory for so many graphs at a time, and none that is free; -1: for all. */
void rk_test_graphs_limit(int64_t max_graphs);

/* Who asks for an event waits until it is false again: a driver that does not answer. */
void rk_test_graphs_hold_queries(bool holds);

RK_END_DECLS

#endif
