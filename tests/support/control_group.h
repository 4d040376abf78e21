/* A control group with a bound on memory (cgroup v1 or v2), for processes that a test starts. Making one
 * takes root, or a delegated group. */
#ifndef RK_TEST_CONTROL_GROUP_H
#define RK_TEST_CONTROL_GROUP_H

#include <stdint.h>

#include "base/rk_compiler.h"

RK_BEGIN_DECLS

struct rk_test_group;

/* NULL when this process cannot make one; *why (rk_free it) then says what was tried, else it is NULL. */
struct rk_test_group *rk_test_group_create(char **why, int64_t bytes);
/* Removes it; no process may be left in it. NULL is a no-op. */
void rk_test_group_destroy(struct rk_test_group *group);
/* The test's process goes into the group, or back to where it was. What it starts meanwhile stays. */
void rk_test_group_enter(struct rk_test_group *group);
void rk_test_group_leave(struct rk_test_group *group);
/* The most memory that the group has had, the kernel's for sockets and files included; -1: this kernel does
 * not tell. */
int64_t rk_test_group_peak_bytes(struct rk_test_group *group);
/* Processes that the kernel has killed because the group was full. */
int64_t rk_test_group_num_killed(struct rk_test_group *group);

RK_END_DECLS

#endif
