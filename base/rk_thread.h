/* Threads: reaching a limit on their number is an error, not an abort. */
#ifndef RK_THREAD_H
#define RK_THREAD_H

#include <pthread.h>

#include "base/rk_status.h"

RK_BEGIN_DECLS

/* RESOURCE_EXHAUSTED when the system cannot create a thread; `what` is for the message. Join a started
 * thread. */
struct rk_status *rk_thread_start(pthread_t *out, void *(*run)(void *user), void *user,
                                  const char *what) RK_NODISCARD;

/* Processors that this process may run on; at least 1. */
int rk_thread_num_cpus(void);

/* Whether the system can create that many threads now, for libraries that abort or hang otherwise. As
 * rk_thread_start. */
struct rk_status *rk_thread_check_room(int count, const char *what) RK_NODISCARD;

RK_END_DECLS

#endif
