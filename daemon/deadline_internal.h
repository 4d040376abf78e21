/* Last resort for libraries that wait without end when the system cannot create a thread: the process ends
 * with a message. One deadline at a time; main thread. */
#ifndef RK_DEADLINE_INTERNAL_H
#define RK_DEADLINE_INTERNAL_H

#define RK_DEADLINE_START_S 60 /* of gRPC's start */
#define RK_DEADLINE_END_S   10 /* of its shutdown, also if it did not start */

/* Unless rk_deadline_clear is called first, the process prints the text and exits with the code after
 * that many seconds. SIGALRM may run on any thread that does not block it. */
void rk_deadline_set(int seconds, int exit_code, const char *text);
void rk_deadline_clear(void);

#endif
