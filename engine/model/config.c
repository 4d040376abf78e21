/* Keys of Hugging Face's config.json that all families read. A key that is absent or null has the family's
 * default; numbers may be integers or reals. Unknown keys are ignored, except those that change the
 * computation: they are rejected unless they have the implemented value. */
#include "engine/model/model.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_str.h"

#define SIZE_MAX_I32 INT32_MAX

static bool equals_text(const struct rk_json *value, const char *text)
{
    char *dumped = rk_json_dump(value, 0, true);
    bool equal = strcmp(dumped, text) == 0;
    double number;

    if (!equal && rk_parse_f64(text, &number)) /* 1 and 1.0 */
        equal = rk_json_as_real(value, NAN) == number;
    rk_free(dumped);
    return equal;
}

struct rk_status *rk_config_check_limits(const struct rk_json *hf_config,
                                         const struct rk_config_limit *limits, int64_t num_limits)
{
    for (int64_t i = 0; i < num_limits; i++) {
        const struct rk_json *value = rk_json_find(hf_config, limits[i].key);
        struct rk_status *st;
        char *text;

        if (rk_json_is_null(value) || equals_text(value, limits[i].allowed))
            continue;
        text = rk_json_dump(value, 0, false);
        st = RK_FAIL(RK_UNIMPLEMENTED, "%s=%.100s is not implemented, expected %s", limits[i].key, text,
                     limits[i].allowed);
        rk_free(text);
        return st;
    }
    return NULL;
}

static struct rk_status *read_eos(struct rk_model_config *out, const struct rk_json *hf_config)
{
    const struct rk_json *eos = rk_json_find(hf_config, "eos_token_id");
    bool is_list = !rk_json_is_null(eos) && rk_json_type(eos) == RK_JSON_ARRAY;
    int64_t count = rk_json_is_null(eos) ? 0 : is_list ? rk_json_count(eos) : 1;

    if (count > (int64_t)RK_ARRAY_LEN(out->eos_token_ids))
        return RK_FAIL(RK_INVALID_ARGUMENT, "eos_token_id: expected at most %zu ids, got %lld",
                       RK_ARRAY_LEN(out->eos_token_ids), (long long)count);
    for (int64_t i = 0; i < count; i++) {
        int64_t id = rk_json_as_int(is_list ? rk_json_at(eos, i) : eos, -1);

        if (id < 0 || id >= out->vocab_size)
            return RK_FAIL(RK_INVALID_ARGUMENT,
                           "eos_token_id: expected ids from 0 to %lld, or a list of them",
                           (long long)out->vocab_size - 1);
        out->eos_token_ids[out->num_eos_token_ids++] = id;
    }
    return NULL;
}

static struct rk_status *check_positive(const char *key, double value)
{
    if (value > 0 && isfinite(value))
        return NULL;
    return RK_FAIL(RK_INVALID_ARGUMENT, "%s: expected a positive number, got %g", key, value);
}

static struct rk_status *read_sizes(struct rk_model_config *out, const struct rk_json *hf_config)
{
    const struct {
        const char *key;
        int64_t *value, max;
    } sizes[] = {
        {"hidden_size", &out->hidden_size, SIZE_MAX_I32},
        {"intermediate_size", &out->intermediate_size, SIZE_MAX_I32},
        {"num_hidden_layers", &out->num_layers, RK_MODEL_MAX_LAYERS},
        {"num_attention_heads", &out->num_heads, SIZE_MAX_I32},
        {"num_key_value_heads", &out->num_kv_heads, SIZE_MAX_I32},
        {"head_dim", &out->head_dim, SIZE_MAX_I32},
        {"vocab_size", &out->vocab_size, SIZE_MAX_I32},
        {"max_position_embeddings", &out->max_position_embeddings, SIZE_MAX_I32},
    };

    for (size_t i = 0; i < RK_ARRAY_LEN(sizes); i++)
        RK_TRY(rk_json_opt_i64(hf_config, "", sizes[i].key, 1, sizes[i].max, sizes[i].value));
    if (out->num_kv_heads == 0)
        out->num_kv_heads = out->num_heads;
    if (out->head_dim == 0)
        out->head_dim = out->hidden_size / out->num_heads;
    if (out->num_heads % out->num_kv_heads != 0)
        return RK_FAIL(RK_INVALID_ARGUMENT,
                       "num_key_value_heads: expected a divisor of num_attention_heads=%lld, got %lld",
                       (long long)out->num_heads, (long long)out->num_kv_heads);
    if (out->head_dim < 2 || out->head_dim % 2 != 0)
        return RK_FAIL(RK_INVALID_ARGUMENT, "head_dim: expected an even number, got %lld",
                       (long long)out->head_dim);
    if (out->num_heads > SIZE_MAX_I32 / out->head_dim)
        return RK_FAIL(RK_INVALID_ARGUMENT,
                       "num_attention_heads=%lld with head_dim=%lld exceeds the supported size",
                       (long long)out->num_heads, (long long)out->head_dim);
    return NULL;
}

/* As in transformers: the number of label names, or else num_labels, or else 2. */
static struct rk_status *read_num_labels(struct rk_model_config *out, const struct rk_json *hf_config)
{
    const struct rk_json *names = rk_json_find(hf_config, "id2label");

    out->num_labels = 2;
    if (!rk_json_is_null(names)) {
        out->num_labels = rk_json_count(names);
        return check_positive("id2label", (double)out->num_labels);
    }
    return rk_json_opt_i64(hf_config, "", "num_labels", 1, 1 << 16, &out->num_labels);
}

/* Weights of DeepSeek-V3's form: F8_E4M3 with a scale for each block of 128 x 128. They are read into the
 * model's dtype: nothing is computed in FP8. */
static struct rk_status *check_quantization(const struct rk_json *hf_config)
{
    static const struct rk_config_limit limits[] = {
        {"quant_method", "\"fp8\""}, {"weight_block_size", "[128,128]"}, {"fmt", "\"e4m3\""}};
    const size_t num_required = 2; /* of these, the first */
    const struct rk_json *quantization = rk_json_find(hf_config, "quantization_config");
    struct rk_status *st;

    if (rk_json_is_null(quantization))
        return NULL;
    st = rk_config_check_limits(quantization, limits, RK_ARRAY_LEN(limits));
    for (size_t i = 0; i < num_required && !st; i++) {
        if (rk_json_is_null(rk_json_find(quantization, limits[i].key)))
            st = RK_FAIL(RK_UNIMPLEMENTED, "%s is missing, expected %s", limits[i].key, limits[i].allowed);
    }
    return st ? RK_WRAP(st, "quantization_config") : NULL;
}

struct rk_status *rk_config_read_common(struct rk_model_config *out, const struct rk_json *hf_config)
{
    static const struct rk_config_limit limits[] = {
        {"text_config", "null"}, /* a multimodal checkpoint */
        {"hidden_act", "\"silu\""},
        {"partial_rotary_factor", "1"},
        {"attn_logit_softcapping", "null"},
        {"final_logit_softcapping", "null"},
    };
    RK_TRY(rk_config_check_limits(hf_config, limits, RK_ARRAY_LEN(limits)));
    RK_TRY(check_quantization(hf_config));
    RK_TRY(read_sizes(out, hf_config));
    RK_TRY(read_num_labels(out, hf_config));
    RK_TRY(rk_json_opt_f64(hf_config, "", "rms_norm_eps", &out->rms_norm_eps));
    RK_TRY(rk_json_opt_f64(hf_config, "", "initializer_range", &out->initializer_range));
    RK_TRY(rk_json_opt_bool(hf_config, "", "tie_word_embeddings", &out->tie_word_embeddings));
    RK_TRY(check_positive("rms_norm_eps", out->rms_norm_eps));
    RK_TRY(check_positive("initializer_range", out->initializer_range));
    return read_eos(out, hf_config);
}

struct rk_status *rk_config_check_layer_types(const struct rk_model_config *config,
                                              const struct rk_json *hf_config)
{
    const struct rk_json *types = rk_json_find(hf_config, "layer_types");

    for (int64_t layer = 0; layer < rk_json_count(types); layer++) {
        bool slides = config->sliding_window > 0 && layer >= config->max_window_layers;
        const char *expected = slides ? "sliding_attention" : "full_attention";
        const char *type = rk_json_as_string(rk_json_at(types, layer), "");

        if (strcmp(type, expected) != 0)
            return RK_FAIL(RK_UNIMPLEMENTED,
                           "layer_types[%lld]=\"%.32s\" is not implemented, expected %s, as given by the "
                           "sliding window keys",
                           (long long)layer, type, expected);
    }
    return NULL;
}

bool rk_config_has_null(const struct rk_json *hf_config, const char *key)
{
    const struct rk_json *value = rk_json_find(hf_config, key);

    return value && rk_json_is_null(value);
}

struct rk_status *rk_config_read_window(struct rk_model_config *out, const struct rk_json *hf_config)
{
    int64_t window = rk_config_has_null(hf_config, "sliding_window") ? 0 : 4096;
    bool is_used = false;

    out->max_window_layers = 28;
    RK_TRY(rk_json_opt_bool(hf_config, "", "use_sliding_window", &is_used));
    RK_TRY(rk_json_opt_i64(hf_config, "", "sliding_window", 1, INT32_MAX, &window));
    RK_TRY(rk_json_opt_i64(hf_config, "", "max_window_layers", 0, INT32_MAX, &out->max_window_layers));
    out->sliding_window = is_used ? (int32_t)window : 0;
    return rk_config_check_layer_types(out, hf_config);
}

static struct rk_status *check_factor(const struct rk_rope_scaling *scaling, const char *where)
{
    if (scaling->factor >= 1 && isfinite(scaling->factor))
        return NULL;
    return RK_FAIL(RK_INVALID_ARGUMENT, "%s.factor: expected at least 1, got %g", where, scaling->factor);
}

/* Given beside the object in config.json it has priority, as in transformers; without any, no positions were
 * added. `config` is NULL for an object of one kind of layer, for which transformers does not look there. */
static struct rk_status *read_original(struct rk_rope_scaling *scaling, int64_t max_position_embeddings,
                                       const struct rk_json *config, const struct rk_json *object,
                                       const char *where)
{
    static const char key[] = "original_max_position_embeddings";

    scaling->original_max_position_embeddings = max_position_embeddings;
    RK_TRY(rk_json_opt_i64(object, where, key, 1, SIZE_MAX_I32, &scaling->original_max_position_embeddings));
    if (!config)
        return NULL;
    return rk_json_opt_i64(config, "", key, 1, SIZE_MAX_I32, &scaling->original_max_position_embeddings);
}

static struct rk_status *read_llama3(struct rk_rope_scaling *scaling, int64_t max_position_embeddings,
                                     const struct rk_json *config, const struct rk_json *object,
                                     const char *where)
{
    scaling->type = RK_ROPE_LLAMA3;
    RK_TRY(rk_json_get_f64(object, where, "factor", &scaling->factor));
    RK_TRY(rk_json_get_f64(object, where, "low_freq_factor", &scaling->low_freq_factor));
    RK_TRY(rk_json_get_f64(object, where, "high_freq_factor", &scaling->high_freq_factor));
    RK_TRY(read_original(scaling, max_position_embeddings, config, object, where));
    RK_TRY(check_factor(scaling, where));
    if (!(scaling->low_freq_factor > 0) || !(scaling->high_freq_factor > scaling->low_freq_factor))
        return RK_FAIL(RK_INVALID_ARGUMENT,
                       "%s: expected 0 < low_freq_factor < high_freq_factor, got %g and %g", where,
                       scaling->low_freq_factor, scaling->high_freq_factor);
    return NULL;
}

static double yarn_mscale(double factor, double mscale)
{
    return factor <= 1 ? 1.0 : 0.1 * mscale * log(factor) + 1.0;
}

/* The factors of cos and sin and of the scores of latent attention, by transformers' rules, which treat zero
 * as an absent key. */
static struct rk_status *read_yarn_factors(struct rk_rope_scaling *scaling, const struct rk_json *object,
                                           const char *where)
{
    double mscale = 0, mscale_all_dim = 0, all_dim;

    RK_TRY(rk_json_opt_f64(object, where, "mscale", &mscale));
    RK_TRY(rk_json_opt_f64(object, where, "mscale_all_dim", &mscale_all_dim));
    all_dim = yarn_mscale(scaling->factor, mscale_all_dim);
    scaling->attention_factor = mscale != 0 && mscale_all_dim != 0
                                    ? yarn_mscale(scaling->factor, mscale) / all_dim
                                    : yarn_mscale(scaling->factor, 1.0);
    scaling->softmax_factor = mscale_all_dim != 0 ? all_dim * all_dim : 1.0;
    RK_TRY(rk_json_opt_f64(object, where, "attention_factor", &scaling->attention_factor));
    if (scaling->attention_factor > 0 && isfinite(scaling->attention_factor) && scaling->softmax_factor > 0 &&
        isfinite(scaling->softmax_factor))
        return NULL;
    return RK_FAIL(
        RK_INVALID_ARGUMENT,
        "%s: attention_factor, mscale and mscale_all_dim give factors of %g and %g, expected positive "
        "numbers",
        where, scaling->attention_factor, scaling->softmax_factor);
}

/* As in transformers, null stands for the ratio of the two numbers of positions. */
static struct rk_status *read_yarn_factor(struct rk_rope_scaling *scaling, int64_t max_position_embeddings,
                                          const struct rk_json *object, const char *where)
{
    if (scaling->original_max_position_embeddings == max_position_embeddings)
        return rk_json_get_f64(object, where, "factor", &scaling->factor);
    scaling->factor = (double)max_position_embeddings / (double)scaling->original_max_position_embeddings;
    return rk_json_opt_f64(object, where, "factor", &scaling->factor);
}

/* As in transformers, zero is an absent key. */
static struct rk_status *read_betas(struct rk_rope_scaling *scaling, const struct rk_json *object,
                                    const char *where)
{
    RK_TRY(rk_json_opt_f64(object, where, "beta_fast", &scaling->beta_fast));
    RK_TRY(rk_json_opt_f64(object, where, "beta_slow", &scaling->beta_slow));
    if (scaling->beta_fast == 0)
        scaling->beta_fast = 32;
    if (scaling->beta_slow == 0)
        scaling->beta_slow = 1;
    if (scaling->beta_slow > 0 && scaling->beta_fast >= scaling->beta_slow && isfinite(scaling->beta_fast))
        return NULL;
    return RK_FAIL(RK_INVALID_ARGUMENT, "%s: expected 0 < beta_slow <= beta_fast, got %g and %g", where,
                   scaling->beta_slow, scaling->beta_fast);
}

static struct rk_status *read_yarn(struct rk_rope_scaling *scaling, int64_t max_position_embeddings,
                                   const struct rk_json *config, const struct rk_json *object,
                                   const char *where)
{
    scaling->type = RK_ROPE_YARN;
    scaling->truncates = true;
    RK_TRY(read_betas(scaling, object, where));
    RK_TRY(rk_json_opt_bool(object, where, "truncate", &scaling->truncates));
    RK_TRY(read_original(scaling, max_position_embeddings, config, object, where));
    RK_TRY(read_yarn_factor(scaling, max_position_embeddings, object, where));
    RK_TRY(check_factor(scaling, where));
    return read_yarn_factors(scaling, object, where);
}

/* One object of the old form (rope_scaling) or the new one (rope_parameters). */
static struct rk_status *read_scaling(struct rk_model_config *out, const struct rk_json *config,
                                      const struct rk_json *object, const char *where)
{
    struct rk_rope_scaling *scaling = &out->rope_scaling;
    const char *type = "default";

    RK_TRY(rk_json_opt_string(object, where, "type", &type)); /* the legacy key */
    RK_TRY(rk_json_opt_string(object, where, "rope_type", &type));
    *scaling = (struct rk_rope_scaling){0};
    if (strcmp(type, "llama3") == 0)
        return read_llama3(scaling, out->max_position_embeddings, config, object, where);
    if (strcmp(type, "yarn") == 0)
        return read_yarn(scaling, out->max_position_embeddings, config, object, where);
    if (strcmp(type, "default") == 0)
        return NULL;
    return RK_FAIL(RK_UNIMPLEMENTED,
                   "%s.rope_type='%.32s' is not implemented, expected default, llama3 or yarn", where, type);
}

static struct rk_status *read_rope_values(struct rk_model_config *out, const struct rk_json *config,
                                          const struct rk_json *object, const char *where)
{
    static const struct rk_config_limit limits[] = {{"partial_rotary_factor", "1"}};

    if (rk_json_type(object) != RK_JSON_OBJECT)
        return RK_FAIL(RK_INVALID_ARGUMENT, "%s: expected an object, got %s", where,
                       rk_json_type_name(rk_json_type(object)));
    RK_TRY(rk_config_check_limits(object, limits, RK_ARRAY_LEN(limits)));
    RK_TRY(rk_json_opt_f64(object, where, "rope_theta", &out->rope_theta));
    return read_scaling(out, config, object, where);
}

/* Whether the object has one member per kind of layer. */
static bool is_by_kind(const struct rk_json *object)
{
    if (rk_json_type(object) != RK_JSON_OBJECT)
        return false;
    for (void *it = rk_json_iter(object); it; it = rk_json_iter_next(object, it)) {
        if (rk_json_type(rk_json_iter_value(it)) == RK_JSON_OBJECT)
            return true;
    }
    return false;
}

static bool same_rope(const struct rk_model_config *a, const struct rk_model_config *b)
{
    const struct rk_rope_spec ropes[2] = {rk_rope_of_config(a), rk_rope_of_config(b)};

    return rk_rope_equal(&ropes[0], &ropes[1]);
}

/* Reads the members of the kinds that the model's layers have; other members are ignored. All layers must
 * have the same RoPE here. */
static struct rk_status *read_rope_by_kind(struct rk_model_config *out, const struct rk_json *object,
                                           const char *key)
{
    int64_t num_sliding = out->sliding_window > 0 ? RK_MAX(out->num_layers - out->max_window_layers, 0) : 0;
    const struct {
        const char *name;
        int64_t num_layers;
    } kinds[] = {{"full_attention", out->num_layers - num_sliding}, {"sliding_attention", num_sliding}};
    struct rk_model_config before = *out;
    bool is_read = false;

    for (size_t i = 0; i < RK_ARRAY_LEN(kinds); i++) {
        const struct rk_json *member = rk_json_find(object, kinds[i].name);
        struct rk_model_config read = before;
        char where[64];

        if (kinds[i].num_layers == 0)
            continue;
        snprintf(where, sizeof(where), "%s.%s", key, kinds[i].name);
        if (rk_json_is_null(member))
            return RK_FAIL(RK_INVALID_ARGUMENT, "%s is missing, expected for %lld layers of this kind", where,
                           (long long)kinds[i].num_layers);
        RK_TRY(read_rope_values(&read, NULL, member, where));
        if (is_read && !same_rope(&read, out))
            return RK_FAIL(RK_UNIMPLEMENTED,
                           "%s: RoPE parameters other than those of %s.%s are not implemented", where, key,
                           kinds[0].name);
        *out = read;
        is_read = true;
    }
    return NULL;
}

static struct rk_status *read_rope_object(struct rk_model_config *out, const struct rk_json *hf_config,
                                          const char *key)
{
    const struct rk_json *object = rk_json_find(hf_config, key);

    if (rk_json_is_null(object))
        return NULL;
    return is_by_kind(object) ? read_rope_by_kind(out, object, key)
                              : read_rope_values(out, hf_config, object, key);
}

/* If a file has both objects, transformers takes rope_scaling and drops the other one, with its theta.
 * Someone who added rope_scaling to a file with rope_parameters means otherwise, so it is refused unless both
 * readings agree. */
static struct rk_status *check_both_ropes(const struct rk_model_config *config,
                                          const struct rk_model_config *before,
                                          const struct rk_json *hf_config)
{
    struct rk_model_config merged = *before;

    if (rk_json_is_null(rk_json_find(hf_config, "rope_parameters")))
        return NULL;
    RK_TRY(read_rope_object(&merged, hf_config, "rope_parameters"));
    RK_TRY(read_rope_object(&merged, hf_config, "rope_scaling"));
    if (same_rope(config, &merged))
        return NULL;
    return RK_FAIL(RK_INVALID_ARGUMENT,
                   "rope_scaling and rope_parameters are both given; transformers drops rope_parameters then "
                   "(rope_theta becomes %g instead of %g): expected one of them, with rope_theta in it",
                   config->rope_theta, merged.rope_theta);
}

struct rk_status *rk_config_read_rope(struct rk_model_config *out, const struct rk_json *hf_config)
{
    const struct rk_json *scaling = rk_json_find(hf_config, "rope_scaling");
    bool is_scaled =
        rk_json_type(scaling) == RK_JSON_OBJECT ? rk_json_count(scaling) > 0 : !rk_json_is_null(scaling);
    struct rk_model_config before;

    RK_TRY(rk_json_opt_f64(hf_config, "", "rope_theta", &out->rope_theta));
    before = *out;
    RK_TRY(read_rope_object(out, hf_config, is_scaled ? "rope_scaling" : "rope_parameters"));
    if (is_scaled)
        RK_TRY(check_both_ropes(out, &before, hf_config));
    return check_positive("rope_theta", out->rope_theta);
}
