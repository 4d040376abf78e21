/* Jobs made of settings. */
#ifndef RK_TEST_MINIMAL_JOB_H
#define RK_TEST_MINIMAL_JOB_H

#include <stdint.h>

struct rk_config;

#define TEST_SETTINGS_MAX 24

/* A job of the "KEY=VALUE" settings in `base` and, until a NULL or `most`, in `more`; the caller destroys it.
 */
struct rk_config *test_job(const char *const *base, int64_t num_base, const char *const *more, int64_t most);
/* The smallest job that satisfies every rule on 4 daemons, with up to 8 additional "KEY=VALUE" settings; the
 * caller destroys it. */
struct rk_config *test_minimal_job(const char *const *more, int64_t num_more);

#endif
