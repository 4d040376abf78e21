/* The private directory of the daemons that a driver starts for itself. */
#ifndef RK_LOCAL_INTERNAL_H
#define RK_LOCAL_INTERNAL_H

#include <stdbool.h>

#include "base/rk_status.h"

/* rankctl-XXXXXX below $XDG_RUNTIME_DIR, else /tmp. It contains the daemons' sockets, their token and their
 * configuration, an empty one: the configuration in /etc is for the permanent daemons of this machine. */
struct rk_local_dir {
    char *path; /* NULL: there is none */
    int lock;   /* held as long as the owner or one of its daemons runs; -1: not held */
};

/* Creates a directory; first removes directories of this user whose owners were killed. Close `dir` after a
 * failure too. */
struct rk_status *rk_local_dir_open(struct rk_local_dir *dir) RK_NODISCARD;
/* Removes the directory, with the files of its daemons. A directory that is kept for daemons that continue is
 * removed by a later open, once the last daemon has ended: each holds the lock too. */
void rk_local_dir_close(struct rk_local_dir *dir, bool is_kept);
char *rk_local_dir_config(const struct rk_local_dir *dir); /* path of the empty configuration; rk_free it */
char *rk_local_dir_token(const struct rk_local_dir *dir);  /* path of the token; rk_free it */

#endif
