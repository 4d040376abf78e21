#include "driver-cli/driver/estimate_internal.h"

/* Larger sizes are invalid; the daemons report them. */
#define SIZE_MAX_KNOWN (1 << 24)

static int64_t size_at(const struct rk_json *config, const char *key, int64_t fallback)
{
    int64_t value = rk_json_as_int(rk_json_find(config, key), fallback);

    return value > 0 && value <= SIZE_MAX_KNOWN ? value : 0;
}

bool rk_estimate_of(struct rk_estimate *out, const struct rk_json *hf_config, int64_t seqlen)
{
    double hidden = (double)size_at(hf_config, "hidden_size", 0);
    double ffn = (double)size_at(hf_config, "intermediate_size", 0);
    double vocab = (double)size_at(hf_config, "vocab_size", 0);
    int64_t heads = size_at(hf_config, "num_attention_heads", 0);
    int64_t kv_heads = size_at(hf_config, "num_key_value_heads", heads);
    int64_t head_dim = size_at(hf_config, "head_dim", heads > 0 ? (int64_t)hidden / heads : 0);
    double width = (double)heads * (double)head_dim, kv_width = (double)kv_heads * (double)head_dim;

    *out = (struct rk_estimate){.num_layers = size_at(hf_config, "num_hidden_layers", 0)};
    if (hidden < 1 || ffn < 1 || vocab < 1 || width < 1 || kv_width < 1 || out->num_layers < 1)
        return false;
    /* q, k, v, o and the three of the MLP; scores and values over half of the sequence on average */
    out->layer = 2 * (2 * hidden * width + 2 * hidden * kv_width + 3 * hidden * ffn) +
                 4 * width * ((double)seqlen / 2);
    out->head = 2 * hidden * vocab;
    return true;
}

double rk_estimate_forward(const struct rk_estimate *estimate)
{
    return (double)estimate->num_layers * estimate->layer + estimate->head;
}

double rk_estimate_train(const struct rk_estimate *estimate, bool recomputes)
{
    return (double)estimate->num_layers * estimate->layer * (recomputes ? 4 : 3) + 3 * estimate->head;
}
