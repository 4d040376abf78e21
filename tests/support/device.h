/* The device under test: RK_TEST_DEVICE names it, "cpu" by default; RK_TEST_PLUGIN its library, by default
 * the one of this build. If it is "cuda", ranks of a test use "cuda:0", "cuda:1", ... "graphs" is the CPU
 * with graphs (graph_device.h). */
#ifndef RK_TEST_DEVICE_H
#define RK_TEST_DEVICE_H

#include <stdbool.h>

#include "base/rk_dtype.h"
#include "kernels/rk_device.h"

RK_BEGIN_DECLS

/* Ends the process with RK_TEST_EXIT_SKIPPED if the machine has no such device. */
struct rk_status *rk_test_device_open(struct rk_device **out, int num_threads) RK_NODISCARD;
/* rk_test_device_open for one of several ranks; never ends the process. */
struct rk_status *rk_test_device_open_rank(struct rk_device **out, int num_threads,
                                           int32_t rank) RK_NODISCARD;
/* Whether RK_TEST_DEVICE means one device per rank ("cuda"), and not a single one ("cuda:0", "cpu"). */
bool rk_test_device_is_per_rank(void);
/* Maximum number of ranks: those of the machine for "cuda", one for "cuda:0", INT32_MAX on the
 * CPU. Opens none in this process. */
int32_t rk_test_device_max_ranks(void);
/* Ends the process with code 77 if there are fewer. */
void rk_test_device_need_ranks(int32_t num_ranks);
/* The widest dtype that every operator supports: F64 on the CPU. Needs no open device. */
rk_dtype_t rk_test_device_dtype(void);
bool rk_test_device_is_cpu(const struct rk_device *device);

RK_END_DECLS

#endif
