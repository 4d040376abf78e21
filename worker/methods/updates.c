/* The update methods: each is an objective and its input. */
#include "worker/methods/methods.h"

#include "worker/methods/update_internal.h"

#define UPDATE(method, ...)                                      \
    struct rk_status *rk_m_##method(struct rk_method_call *call) \
    {                                                            \
        static const struct rk_update_kind kind = {__VA_ARGS__}; \
                                                                 \
        return rk_update_run(call, &kind);                       \
    }

UPDATE(update_actor, .objective = RK_OBJECTIVE_POLICY, .mask_column = "response_mask", .prefix = "actor",
       .has_temperature = true, .replays_routes = true)
UPDATE(update_critic, .objective = RK_OBJECTIVE_VALUE, .mask_column = "response_mask", .prefix = "critic")
/* On the marked tokens of whole sequences. */
UPDATE(update_sft, .objective = RK_OBJECTIVE_SFT, .mask_column = "loss_mask", .prefix = "train")
UPDATE(update_dpo, .objective = RK_OBJECTIVE_DPO, .mask_column = "response_mask", .prefix = "train",
       .has_pairs = true)
/* Gradients of a sum over tokens, for optim_step. No normalisation: the caller provides weights and
 * advantages, and gradients of several calls are added. */
UPDATE(forward_backward, .objective = RK_OBJECTIVE_SUM, .mask_column = "response_mask", .prefix = "actor",
       .only_accumulates = true)
