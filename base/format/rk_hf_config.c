#include "base/format/rk_hf_config.h"

#include <string.h>

#include "base/rk_str.h"

/* The families of the engine, which base does not include. */
static const char *const model_types[] = {
#define X(name) #name,
#include "base/format/families.def"
#undef X
};

struct rk_status *rk_hf_model_type_check(const char *model_type)
{
    struct rk_str known = {0};
    struct rk_status *st;

    for (size_t i = 0; i < RK_ARRAY_LEN(model_types); i++) {
        if (strcmp(model_types[i], model_type) == 0) {
            rk_str_fini(&known);
            return NULL;
        }
        rk_str_appendf(&known, "%s%s", i ? ", " : "", model_types[i]);
    }
    st = RK_FAIL(RK_UNIMPLEMENTED, "model_type='%.64s' is not implemented, expected one of: %s", model_type,
                 rk_str_text(&known));
    rk_str_fini(&known);
    return st;
}

struct rk_status *rk_hf_config_check(const struct rk_json *config)
{
    const char *type;
    const struct rk_json *quantization = rk_json_find(config, "quantization_config");
    const char *method = rk_json_as_string(rk_json_find(quantization, "quant_method"), NULL);

    RK_TRY(rk_json_get_string(config, "", "model_type", &type));
    RK_TRY(rk_hf_model_type_check(type));
    if (method && strcmp(method, "fp8") != 0)
        return RK_FAIL(RK_UNIMPLEMENTED,
                       "quantization_config: quant_method='%.64s' is not implemented, expected weights "
                       "without quantisation, or \"fp8\" in DeepSeek-V3's form",
                       method);
    return NULL;
}
