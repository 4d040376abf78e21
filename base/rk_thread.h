/* Threads: a limit on their number is an error and not the end. */
#ifndef RK_THREAD_H
#define RK_THREAD_H

#include <pthread.h>

#include "base/rk_status.h"

RK_BEGIN_DECLS

/* RESOURCE_EXHAUSTED when the system gives no thread; `what` is for the message. Join what was started. */
struct rk_status *rk_thread_start(pthread_t *out, void *(*run)(void *user), void *user,
                                  const char *what) RK_NODISCARD;

/* Processors that this process may run on; at least 1. */
int rk_thread_num_cpus(void);

/* Whether the system would give that many threads now, for libraries that die or hang when it does not. As
 * rk_thread_start. */
struct rk_status *rk_thread_check_room(int count, const char *what) RK_NODISCARD;

RK_END_DECLS

#endif
