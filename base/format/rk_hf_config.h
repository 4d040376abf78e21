/* Whether rankd supports the model of a Hugging Face config.json at all. The driver checks it before a daemon
 * starts, the engine when it reads a model. */
#ifndef RK_HF_CONFIG_H
#define RK_HF_CONFIG_H

#include "base/rk_json.h"
#include "base/rk_status.h"

RK_BEGIN_DECLS

/* UNIMPLEMENTED, with the list of families, for an unknown model_type. */
struct rk_status *rk_hf_model_type_check(const char *model_type) RK_NODISCARD;
/* UNIMPLEMENTED, with the list of families, for an unknown model_type, and for weights that are quantised in
 * another way than DeepSeek-V3's FP8. Does not check that values exist and have the right type. */
struct rk_status *rk_hf_config_check(const struct rk_json *config) RK_NODISCARD;

RK_END_DECLS

#endif
