/* Files of share/rankd that rankctl starts or reads. */
#ifndef RK_SHARE_H
#define RK_SHARE_H

#include "base/rk_status.h"

/* The absolute path of a file of share/rankd ("python/rankd_reward.py"), which is found relative to the
 * program (installed or in a build directory) or to the library. NOT_FOUND. rk_free *out. */
struct rk_status *rk_share_find(char **out, const char *file) RK_NODISCARD;

#endif
