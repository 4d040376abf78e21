/* Between rk_ckpt_manifest.c and rk_ckpt_dir.c. */
#ifndef RK_CKPT_DIR_INTERNAL_H
#define RK_CKPT_DIR_INTERNAL_H

#include "base/rk_ckpt_dir.h"

/* UNIMPLEMENTED (reason FOREIGN_CHECKPOINT) when the directory looks like a checkpoint that verl wrote. */
struct rk_status *rk_ckpt_check_foreign(const char *part_dir) RK_NODISCARD;

#endif
