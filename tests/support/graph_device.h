/* A device of the tests: the CPU with graphs, and with streams that are asynchronous for libraries over the
 * device. Tasks of such a library, events and launches of graphs are executed later, in order, by a thread of
 * the stream; operators and copies wait until the stream is idle, and run in the call. While a stream
 * records, operations are stored with a copy of their arguments instead. Memory that arguments point to must
 * stay valid, as on a GPU, and a thread that records or queries an event must have called rk_device_use.
 * "graphs:0", "graphs:1", ... are its names. */
#ifndef RK_TEST_GRAPH_DEVICE_H
#define RK_TEST_GRAPH_DEVICE_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/rk_device.h"
#include "tests/support/stream_queue.h"

RK_BEGIN_DECLS

/* Registers the device; a second call is a no-op. */
struct rk_status *rk_test_graphs_register(void) RK_NODISCARD;

/* For libraries over the device; `native` is the result of rk_stream_native, NULL on other devices: then
 * returns false, and the caller runs the task. */
bool rk_test_graphs_append(void *native, const struct rk_test_task *task);

/* From now on there is memory for this number of graphs, and no free memory beyond; -1: no limit. */
void rk_test_graphs_limit(int64_t max_graphs);

/* While true, event queries block: simulates a driver that does not respond. */
void rk_test_graphs_hold_queries(bool holds);

RK_END_DECLS

#endif
