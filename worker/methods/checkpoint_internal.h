/* Functions that the methods of checkpoints share (checkpoint.c). */
#ifndef RK_METHODS_CHECKPOINT_INTERNAL_H
#define RK_METHODS_CHECKPOINT_INTERNAL_H

#include "worker/methods/methods.h"

/* Bits of the option `contents`; 0 when it is null. */
struct rk_status *rk_checkpoint_read_contents(const struct rk_method_call *call, uint32_t *out) RK_NODISCARD;
/* The report as meta of an empty batch. */
struct rk_status *rk_checkpoint_put_report(struct rk_method_call *call,
                                           const struct rk_checkpoint_report *report) RK_NODISCARD;
/* Contents as an array of names. */
struct rk_json *rk_checkpoint_format_contents(uint32_t contents);

#endif
