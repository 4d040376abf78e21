/* Models by name: Hugging Face's local cache. rankd downloads nothing. */
#ifndef RK_HUB_H
#define RK_HUB_H

#include "base/rk_status.h"

/* The directory for `path` of a job: itself, relative to `base`, if it exists; else, for a name of
 * the form Org/Name, the snapshot of its branch main in the cache (HF_HUB_CACHE, HF_HOME/hub or
 * ~/.cache/huggingface/hub); else "base/path", which another machine may have. rk_free it. */
char *rk_hub_resolve(const char *base, const char *path);
/* NOT_FOUND for a model directory that is not on this machine: `path` is the job's value, `full` the result
 * of rk_hub_resolve. For Org/Name the message has the command that downloads it. */
struct rk_status *rk_hub_not_found(const char *path, const char *full) RK_NODISCARD;

#endif
