/* A control group with a bound on memory (cgroup v1 or v2), for processes that a test starts. Creating one
 * requires root, or a delegated group. */
#ifndef RK_TEST_CONTROL_GROUP_H
#define RK_TEST_CONTROL_GROUP_H

#include <stdint.h>

#include "base/rk_compiler.h"

RK_BEGIN_DECLS

struct rk_test_group;

/* NULL if this process cannot create one; then *why (rk_free it) has the reasons, otherwise it is NULL. */
struct rk_test_group *rk_test_group_create(char **why, int64_t bytes);
/* Removes it; it must have no processes. NULL is a no-op. */
void rk_test_group_destroy(struct rk_test_group *group);
/* Moves the test's process into the group, or back. Processes that it starts meanwhile stay in the group. */
void rk_test_group_enter(struct rk_test_group *group);
void rk_test_group_leave(struct rk_test_group *group);
/* Peak memory of the group, including the kernel's memory for sockets and files; -1: not supported by this
 * kernel. */
int64_t rk_test_group_peak_bytes(struct rk_test_group *group);
/* Number of processes that the kernel has killed because of the group's limit. */
int64_t rk_test_group_num_killed(struct rk_test_group *group);

RK_END_DECLS

#endif
