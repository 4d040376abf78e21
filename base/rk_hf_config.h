/* What a config.json of Hugging Face says that decides whether rankd has the model at all. The driver asks
 * before a daemon starts, the engine when it reads a model. */
#ifndef RK_HF_CONFIG_H
#define RK_HF_CONFIG_H

#include "base/rk_json.h"
#include "base/rk_status.h"

RK_BEGIN_DECLS

/* UNIMPLEMENTED, with those that there are, for another value of model_type. */
struct rk_status *rk_hf_model_type_check(const char *model_type) RK_NODISCARD;
/* UNIMPLEMENTED, with the families that there are, for another model_type, and for weights that are quantised
 * in another way than DeepSeek-V3's FP8. A value that is missing or of a wrong type is no matter here. */
struct rk_status *rk_hf_config_check(const struct rk_json *config) RK_NODISCARD;

RK_END_DECLS

#endif
