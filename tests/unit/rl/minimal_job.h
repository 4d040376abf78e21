/* The smallest job that satisfies every rule on 4 daemons. */
#ifndef RK_TEST_MINIMAL_JOB_H
#define RK_TEST_MINIMAL_JOB_H

#include <stdint.h>

struct rk_config;

/* With up to 8 additional "KEY=VALUE" settings; the caller destroys it. */
struct rk_config *test_minimal_job(const char *const *more, int64_t num_more);

#endif
