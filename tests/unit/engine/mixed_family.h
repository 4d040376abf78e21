/* A model family with several kinds of layers, for tests: "dense", and "latent", whose attention caches one
 * tensor of 576 values per token: the keys, the first 512 columns of which are the values, shared by all
 * heads (DeepSeek-V2, arXiv:2405.04434, without the projections around the cache). The last 64 columns of
 * queries and keys are rotated with a separate table.
 *
 * config.json: model_type "mixed", the keys of Llama, and lists of the layers that are not dense:
 * "latent_layers"; "neighbour_layers", which request a pairing of columns that the engine does not
 * support. */
#ifndef RK_TEST_MIXED_FAMILY_H
#define RK_TEST_MIXED_FAMILY_H

#include "base/rk_compiler.h"

RK_BEGIN_DECLS

#define RK_TEST_LATENT_WIDTH  576
#define RK_TEST_LATENT_VALUES 512

struct rk_model_family;

/* For rk_family_set_extra. */
extern const struct rk_model_family rk_test_mixed_family;

RK_END_DECLS

#endif
