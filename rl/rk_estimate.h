/* Estimated time of passes: floating-point operations divided by the devices' rate. A simple
 * model to judge a layout before a run. Generation is not included: it is bound by memory
 * bandwidth. */
#ifndef RK_ESTIMATE_H
#define RK_ESTIMATE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/rk_json.h"

/* Maximum number of layers, as in the engine. */
#define RK_ESTIMATE_LAYERS_MAX 4096

/* Floating-point operations of one token in a forward pass, all ranks together; a backward pass takes twice
 * as many. */
struct rk_estimate {
    int64_t num_layers;
    double layer;                             /* GEMMs and causal attention of one layer without experts */
    double sparse_layer;                      /* of a layer with experts: only experts that a token goes to */
    double head;                              /* logits */
    double attention;                         /* part of both kinds of layers, divided by seqlen */
    bool is_sparse[RK_ESTIMATE_LAYERS_MAX];   /* [num_layers] */
    int64_t num_experts, num_experts_per_tok; /* of a sparse layer; num_experts 0: there is none */
};

/* Weights that a token meets in the GEMMs of a layer (of its experts, the router and the shared expert only),
 * on average over the layers of the config.json, divided by the columns of attention: the mean of scores' and
 * values', over all heads. A causal sequence of s tokens takes time in proportion to (this * s + s * s).
 * Latent attention counts in its expanded form. 0 when sizes are missing. */
double rk_estimate_linear_cost(const struct rk_json *hf_config);
/* Routed experts of a layer, from the key of any family; 0: none. */
int64_t rk_estimate_num_experts(const struct rk_json *hf_config);
/* Whether any layer has experts: a model of a family with experts may leave all its layers dense. */
bool rk_estimate_has_experts(const struct rk_json *hf_config);
/* Parameters of the model without norms and biases, with all experts; 0 when sizes are missing. */
double rk_estimate_num_params(const struct rk_json *hf_config);
/* Estimate of a model, from its config.json, for sequences of seqlen tokens, over which attention is
 * averaged. False when the configuration (which may be NULL) lacks the sizes. */
bool rk_estimate_of(struct rk_estimate *out, const struct rk_json *hf_config, int64_t seqlen);
/* Operations of layers [begin, end) for a token in a forward pass. */
double rk_estimate_layers(const struct rk_estimate *estimate, int64_t begin, int64_t end);
/* Operations for a token in a forward pass. */
double rk_estimate_forward(const struct rk_estimate *estimate);
/* Operations for a token in forward and backward pass; `recomputes`: the layers' forward passes run again in
 * the backward pass. */
double rk_estimate_train(const struct rk_estimate *estimate, bool recomputes);
/* Operations of a forward pass over sequences of these lengths. A backward pass takes twice as many. 0 when
 * the configuration lacks the sizes. */
double rk_estimate_batch_forward(const struct rk_json *hf_config, const int64_t *seqlens, int64_t num_rows);
/* Dense bf16 operations a second of a device by its maker's data sheet (verl's table: the same figures for
 * the same names); 0 when unknown. */
double rk_estimate_peak_flops(const char *device_model);

#endif
