/* Instances of models with random weights, and their batches. */
#include "bench/models.h"

#include <stdio.h>
#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_rng.h"
#include "engine/rk_memory.h"

#define SEED          20240917
#define MAX_POSITIONS 4096

/* --- instances --- */

static int32_t num_ranks_of(const struct bench_instance_desc *desc)
{
    return RK_MAX(desc->tp, 1) * RK_MAX(desc->cp, 1) * RK_MAX(desc->dp, 1) * RK_MAX(desc->pp, 1);
}

static struct rk_status *open_mesh(struct bench_instance *out, struct bench_ctx *ctx,
                                   const struct bench_instance_desc *desc)
{
    struct rk_mesh_spec spec = {
        .tp = desc->tp, .cp = desc->cp, .ep = desc->ep, .dp = RK_MAX(desc->dp, 1), .pp = desc->pp};
    int32_t num_ranks = num_ranks_of(desc);

    RK_TRY(rk_mesh_create(&out->mesh, &spec, num_ranks));
    if (num_ranks == 1)
        return rk_mesh_comms_create_single(&out->comms);
    return rk_mesh_comms_create(&out->comms, out->mesh, ctx->world);
}

/* AdamW as in the PyTorch baseline; the learning rate is small enough that training on random data does not
 * diverge. */
static struct rk_status *read_optim(struct rk_optim_config *out, const struct bench_instance_desc *desc)
{
    static const char text[] =
        "{\"optim.optimizer\": \"adam\", \"optim.lr\": 1e-6, \"optim.min_lr\": 0,"
        " \"optim.lr_warmup_init\": 0, \"optim.lr_decay_style\": \"constant\","
        " \"optim.lr_warmup_steps\": -1, \"optim.lr_warmup_steps_ratio\": 0,"
        " \"optim.total_training_steps\": -1, \"optim.betas\": [0.9, 0.95], \"optim.eps\": 1e-8,"
        " \"optim.weight_decay\": 0.01, \"optim.clip_grad\": 1.0}";
    struct rk_json *options;
    struct rk_status *st;

    RK_TRY(rk_json_parse(&options, text, strlen(text), "optim", 0));
    st = rk_optim_config_read(out, options);
    rk_json_free(options);
    if (!st && desc->training == BENCH_GRADIENTS_ONLY)
        out->ops = NULL;
    return st;
}

/* Input of a memory plan, and the two structs that it points to. */
struct planning {
    struct rk_memory_plan_desc desc;
    struct rk_optim_config optim;
    struct rk_json *config;
};

static struct rk_status *planning_init(struct planning *out, struct bench_ctx *ctx,
                                       const struct bench_instance_desc *desc,
                                       const struct bench_model *shape, const struct rk_mesh *mesh)
{
    char *text = bench_model_config(shape, desc->max_positions > 0 ? desc->max_positions : MAX_POSITIONS);
    struct rk_status *st = rk_json_parse(&out->config, text, strlen(text), "config.json", 0);

    rk_free(text);
    RK_TRY(st);
    out->desc = (struct rk_memory_plan_desc){
        .struct_size = sizeof(out->desc),
        .model = {.struct_size = sizeof(out->desc.model),
                  .hf_config = out->config,
                  .dtype = RK_DTYPE_BF16,
                  .head = desc->head,
                  .numerics = desc->is_strict ? RK_NUMERICS_STRICT : RK_NUMERICS_FAST,
                  .recompute_num_layers = desc->recomputes ? 1 : 0,
                  .layout = {.sequence_parallel = !desc->is_whole,
                             .vpp = desc->vpp,
                             .num_layers_in_first_pipeline_stage = desc->num_first_layers,
                             .num_layers_in_last_pipeline_stage = desc->num_last_layers}},
        .mesh = mesh,
        .rank = num_ranks_of(desc) > 1 ? ctx->rank : 0,
        .rollout = desc->rollout,
        .limits = {.log_prob_tokens = desc->training == BENCH_NO_TRAINING ? desc->num_tokens : 0},
        .device = ctx->options->profiles ? NULL : ctx->device,
    };
    if (desc->training == BENCH_NO_TRAINING)
        return NULL;
    RK_TRY(read_optim(&out->optim, desc));
    out->desc.optim = &out->optim;
    out->desc.limits.train_tokens = desc->num_tokens;
    return NULL;
}

/* As in a daemon: plan, create, allocate the memory of the passes, fill. */
static struct rk_status *make_model(struct bench_instance *out, struct bench_ctx *ctx,
                                    const struct bench_instance_desc *desc, struct rk_memory_plan_desc *plan)
{
    struct rk_memory_plan planned;

    RK_TRY(rk_memory_plan_make(&planned, plan));
    plan->model.stream = ctx->stream;
    plan->model.mesh = out->comms;
    RK_TRY(rk_model_create(&out->model, &plan->model));
    if (plan->optim)
        RK_TRY(rk_trainer_create(&out->trainer, out->model, plan->optim));
    if (desc->rollout)
        RK_TRY(rk_rollout_create(&out->rollout, out->model, desc->rollout));
    RK_TRY(rk_memory_plan_reserve(&planned, out->model));
    return rk_model_init_random(out->model, SEED, NULL);
}

const struct bench_model *bench_instance_shape(const struct bench_ctx *ctx,
                                               const struct bench_instance_desc *desc)
{
    if (ctx->options->is_tiny && (desc->pp > 1 || desc->is_deep))
        return &bench_model_tiny_deep;
    return bench_shape(ctx, desc->model);
}

struct rk_status *bench_instance_open(struct bench_instance *out, struct bench_ctx *ctx,
                                      const struct bench_instance_desc *desc)
{
    struct planning planning = {0};
    struct rk_status *st;

    *out = (struct bench_instance){.shape = *bench_instance_shape(ctx, desc)};
    if (desc->num_layers > 0)
        out->shape.num_layers = desc->num_layers;
    RK_TRY(open_mesh(out, ctx, desc));
    st = planning_init(&planning, ctx, desc, &out->shape, out->mesh);
    if (!st)
        st = make_model(out, ctx, desc, &planning.desc);
    rk_json_free(planning.config);
    return st;
}

void bench_instance_close(struct bench_instance *instance)
{
    rk_rollout_destroy(instance->rollout);
    rk_trainer_destroy(instance->trainer);
    rk_model_destroy(instance->model);
    rk_mesh_comms_destroy(instance->comms);
    rk_mesh_destroy(instance->mesh);
    *instance = (struct bench_instance){0};
}

/* --- batches --- */

void bench_batch_init(struct bench_batch *batch, int32_t num_seqs, int32_t seq_len, int64_t vocab_size)
{
    int64_t num_tokens = (int64_t)num_seqs * seq_len;
    int32_t *tokens, *positions, *labels, *cu_seqlens;
    struct rk_rng rng;

    batch->ints = rk_calloc((size_t)(3 * num_tokens + num_seqs + 1), sizeof(int32_t));
    batch->log_probs = rk_calloc((size_t)num_tokens, sizeof(double));
    batch->entropy = rk_calloc((size_t)num_tokens, sizeof(double));
    tokens = batch->ints;
    positions = tokens + num_tokens;
    labels = positions + num_tokens;
    cu_seqlens = labels + num_tokens;
    rk_rng_init(&rng, SEED, 1);
    for (int64_t t = 0; t < num_tokens; t++)
        tokens[t] = (int32_t)rk_rng_next_below(&rng, vocab_size);
    for (int64_t t = 0; t < num_tokens; t++) {
        positions[t] = (int32_t)(t % seq_len);
        labels[t] = positions[t] + 1 < seq_len ? tokens[t + 1] : RK_LABEL_NONE;
    }
    for (int32_t s = 0; s <= num_seqs; s++)
        cu_seqlens[s] = s * seq_len;
    batch->packed = (struct rk_packed){.num_seqs = num_seqs,
                                       .num_tokens = num_tokens,
                                       .max_seqlen = seq_len,
                                       .tokens = tokens,
                                       .positions = positions,
                                       .cu_seqlens = cu_seqlens,
                                       .labels = labels};
}

void bench_batch_fini(struct bench_batch *batch)
{
    rk_free(batch->ints);
    rk_free(batch->log_probs);
    rk_free(batch->entropy);
    *batch = (struct bench_batch){0};
}
