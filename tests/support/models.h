/* Models for tests: creates and destroys everything that a model needs, on one rank or on a layout. */
#ifndef RK_TEST_MODELS_H
#define RK_TEST_MODELS_H

#include <stdint.h>

#include "engine/rk_checkpoint.h"
#include "engine/rk_model.h"
#include "engine/rk_train.h"

RK_BEGIN_DECLS

struct rk_test_model_spec {
    const char *config; /* text of a config.json; NULL: that of `dir` */
    const char *dir;    /* weights are loaded from here; NULL: random from `seed` */
    uint64_t seed;
    const char *head; /* row of the head table; NULL: "lm" */
    rk_dtype_t dtype;
    rk_numerics_t numerics;
    int64_t recompute_num_layers;
    uint32_t offload;            /* parts that may be offloaded */
    const char *const *frozen;   /* as in struct rk_model_desc */
    int32_t tp, cp, dp, pp;      /* 0: 1 */
    int32_t ep, etp;             /* 0: 1, tp */
    int32_t moe_dispatch_tokens; /* 0: the default */
    bool moe_keep_dispatched;
    int32_t vpp;                 /* chunks of a stage; 0: 1 */
    int32_t num_first, num_last; /* layers of the first and of the last stage; 0: as many as the other
                                  * stages */
    bool sequence_parallel;      /* sequence parallelism */
    struct rk_moe_knobs moe;     /* of layers of experts */
    struct rk_comm_world *world; /* of tp * cp * dp * pp ranks; NULL for one rank */
    struct rk_stream *stream;    /* of the rank (rk_test_rank_stream), borrowed; NULL: one is created */
};

struct rk_test_model {
    struct rk_device *device;
    struct rk_stream *stream;
    struct rk_device *own_device; /* NULL where they are borrowed */
    struct rk_stream *own_stream;
    struct rk_mesh *mesh;
    struct rk_mesh_comms *comms;
    struct rk_model *model;
};

/* Must be closed, also after a failure. */
struct rk_status *rk_test_model_open(struct rk_test_model *out,
                                     const struct rk_test_model_spec *spec) RK_NODISCARD;
void rk_test_model_close(struct rk_test_model *test);
/* Makes a trainer, which rk_test_model_close destroys: rk_model_trainer. */
struct rk_status *rk_test_enable_training(struct rk_model *model,
                                          const struct rk_optim_config *config) RK_NODISCARD;

typedef enum rk_test_kind { RK_TEST_VALUE, RK_TEST_GRADIENT } rk_test_kind_t;
/* rk_model_gather_param or rk_trainer_gather_grad. */
struct rk_status *rk_test_gather(struct rk_model *model, int64_t i, rk_test_kind_t kind,
                                 double *out) RK_NODISCARD;
/* A save that is complete when it returns. */
struct rk_status *rk_test_save(struct rk_model *model, const struct rk_checkpoint_save *save,
                               struct rk_checkpoint_report *report) RK_NODISCARD;

/* The score of a text by a model with the head "score", on one rank. */
struct rk_status *rk_test_score(double *out, struct rk_test_model *test, const int32_t *ids,
                                int64_t count) RK_NODISCARD;

/* One forward pass; chosen_experts (zeroed, as in struct rk_forward_micro) receives what the routers choose.
 */
struct rk_status *rk_test_choose(struct rk_model *model, const struct rk_packed *packed,
                                 const struct rk_head_arrays *arrays, uint16_t *chosen_experts) RK_NODISCARD;

/* AdamW with constant learning rate. */
struct rk_optim_config rk_test_adamw(double lr, double weight_decay, double clip_grad);

/* A loss_fn whose `user` is the struct rk_packed: the gradient of the log-prob of token t is 1 / (t + 3). */
struct rk_status *rk_test_weigh_tokens(void *user, const struct rk_head_arrays *outputs,
                                       const struct rk_head_arrays *grads) RK_NODISCARD;
/* Begins a step, and runs a forward and a backward pass with that loss. */
struct rk_status *rk_test_train_pass(struct rk_model *model, const struct rk_packed *packed) RK_NODISCARD;
/* rk_test_train_pass with the mean of -log_prob as the loss, which *loss receives; the only pass of its step.
 */
struct rk_status *rk_test_mean_pass(double *loss, struct rk_model *model,
                                    const struct rk_packed *packed) RK_NODISCARD;

/* Maximum |actual - expected| divided by the maximum |expected|; +inf if a value is not finite, and if all of
 * `expected` is 0, which would make the comparison meaningless. */
double rk_test_error_by_max(const double *actual, const double *expected, int64_t count);

RK_END_DECLS

#endif
