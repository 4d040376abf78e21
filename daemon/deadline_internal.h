/* The last resort for libraries that wait for ever when the system gives them no thread: the process ends
 * with a message. One deadline at a time; main thread. */
#ifndef RK_DEADLINE_INTERNAL_H
#define RK_DEADLINE_INTERNAL_H

#define RK_DEADLINE_START_S 60 /* of gRPC's start */
#define RK_DEADLINE_END_S   10 /* of its end, also of one that did not start */

/* Unless rk_deadline_clear comes first, the process says the text and exits with the code after so many
 * seconds. Any thread that does not block SIGALRM takes it. */
void rk_deadline_set(int seconds, int exit_code, const char *text);
void rk_deadline_clear(void);

#endif
