/* A command line that starts a trainer of verl: its launcher, module and overrides. */
#ifndef RK_VERL_COMMAND_INTERNAL_H
#define RK_VERL_COMMAND_INTERNAL_H

#include <stdbool.h>
#include <stdint.h>

#include "base/rk_array.h"
#include "base/rk_status.h"

struct rk_verl_command {
    const char *module; /* "verl.trainer.main_ppo" */
    char *launcher;     /* the words before it without their values, for messages */
    bool is_sft;
    int64_t nodes, gpus_per_node;     /* of torchrun; 0: not given */
    int64_t node_rank;                /* of torchrun; 0: not given */
    RK_ARRAY(const char *) overrides; /* KEY=VALUE; borrowed from the words */
    RK_ARRAY(const char *) ignored;   /* options of Hydra that name its configuration files */
};

/* Reads the words, which `out` borrows. INVALID_ARGUMENT names the module or word that rankd cannot run.
 * rk_verl_command_fini, on failure too. */
struct rk_status *rk_verl_command_read(struct rk_verl_command *out, const char *const *words,
                                       int64_t count) RK_NODISCARD;
void rk_verl_command_fini(struct rk_verl_command *command);

#endif
