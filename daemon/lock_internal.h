/* Locks and the one file that outlives the process. */
#ifndef RK_LOCK_INTERNAL_H
#define RK_LOCK_INTERNAL_H

#include <stdint.h>

#include "base/rk_status.h"

struct rk_lock;

/* Holds `path` (created when missing) until it is released or the process ends, however it ends. Reason
 * LOCK_HELD when another process has it. The content, pid and incarnation, is only informative. */
struct rk_status *rk_lock_take(struct rk_lock **out, const char *path, uint64_t incarnation) RK_NODISCARD;
/* NULL is a no-op. The file is kept: after a removal two processes could lock two files of one name. */
void rk_lock_release(struct rk_lock *lock);

/* The highest epoch that was ever granted, kept in DIR/epoch so that a restarted daemon refuses older
 * drivers. */
struct rk_status *rk_epoch_load(uint64_t *out, const char *dir) RK_NODISCARD; /* 0 when there is no file */
/* The epoch is on the disk when the function returns. */
struct rk_status *rk_epoch_store(const char *dir, uint64_t epoch) RK_NODISCARD;

#endif
