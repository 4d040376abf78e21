/* Declares a model: its parameters, the stage of each, and the blocks that a rank runs. */
#include "engine/model/model.h"

#include <fnmatch.h>
#include <stdio.h>

#include "base/rk_alloc.h"
#include "base/rk_assert.h"
#include "base/layout/rk_mesh.h"

/* Declares the weight of a norm of the residual stream. */
static struct rk_weight declare_norm(struct rk_model_core *core, const char *name)
{
    struct rk_param_spec spec = {.rows = core->config.hidden_size, .split_dim = -1, .sees_rows = true};

    return (struct rk_weight){.param = rk_params_add(&core->params, &spec, "%s", name), .rows = spec.rows};
}

/* Finds or adds the block's RoPE table; blocks with equal parameters share one. */
static struct rk_status *add_rope(struct rk_model_core *core, struct rk_block *block)
{
    const struct rk_rope_spec *rope = &block->decl.rope;
    size_t bytes;

    block->rope = -1;
    if (rope->width == 0)
        return NULL;
    RK_ASSERT(rope->width > 0);
    if (rope->width % 2 != 0)
        return RK_FAIL(
            RK_UNIMPLEMENTED,
            "block %s of layer %lld applies RoPE to %lld columns of a head, expected an even number",
            block->ops->name, (long long)block->layer, (long long)rope->width);
    for (block->rope = 0; block->rope < core->num_ropes; block->rope++) {
        if (rk_rope_equal(&core->ropes[block->rope], rope))
            return NULL;
    }
    bytes = (size_t)++core->num_ropes * sizeof(*core->ropes);
    core->ropes = rk_realloc(core->ropes, bytes);
    core->ropes[block->rope] = *rope;
    return NULL;
}

static struct rk_status *declare_block(struct rk_model_core *core, struct rk_block *block,
                                       const struct rk_block_site *site)
{
    block->own = rk_calloc(1, block->ops->block_bytes);
    RK_TRY(block->ops->declare(block, &core->params, site));
    block->first_cache = core->num_caches;
    core->num_caches += block->decl.num_caches;
    block->route = core->num_routes;
    core->num_routes += block->decl.has_routes;
    return add_rope(core, block);
}

static struct rk_status *declare_layer(struct rk_model_core *core, int64_t number)
{
    const struct rk_layer_values values = rk_config_layer_values(&core->config, number);
    struct rk_layer *layer = &core->layers[number];

    layer->begin = core->num_blocks;
    for (const struct rk_block_desc *desc = layer->kind->blocks; desc->ops; desc++) {
        struct rk_block *block = &core->blocks[core->num_blocks++];
        struct rk_block_site site = {.values = &values,
                                     .hidden_size = core->config.hidden_size,
                                     .layout = &core->layout,
                                     .layer = number,
                                     .module = desc->module};
        char name[96];

        block->ops = desc->ops;
        block->layer = number;
        snprintf(name, sizeof(name), "model.layers.%lld.%s.weight", (long long)number, desc->norm);
        block->norm = declare_norm(core, name);
        RK_TRY(declare_block(core, block, &site));
    }
    layer->end = core->num_blocks;
    return NULL;
}

/* Sets the kind of each layer and allocates the blocks. */
static void list_layers(struct rk_model_core *core, const struct rk_model_family *family)
{
    int64_t num_layers = core->config.num_layers, num_blocks = 0;
    int num_kinds = 0;

    while (family->layer_kinds[num_kinds].name)
        num_kinds++;
    core->layers = rk_calloc((size_t)num_layers, sizeof(*core->layers));
    for (int64_t i = 0; i < num_layers; i++) {
        RK_ASSERT(core->config.layer_kinds[i] < num_kinds);
        core->layers[i].kind = &family->layer_kinds[core->config.layer_kinds[i]];
        for (const struct rk_block_desc *desc = core->layers[i].kind->blocks; desc->ops; desc++)
            num_blocks++;
    }
    core->blocks = rk_calloc((size_t)num_blocks, sizeof(*core->blocks));
}

/* Finds the blocks of this stage's chunks; every rank has declared the blocks of all stages. */
static void find_chunks(struct rk_model_core *core, int32_t stage)
{
    core->num_chunks = rk_pipeline_num_chunks(core->pipeline);
    core->chunks = rk_calloc((size_t)core->num_chunks, sizeof(*core->chunks));
    for (int32_t c = 0; c < core->num_chunks; c++) {
        struct rk_pipeline_chunk layers = rk_pipeline_get_chunk(core->pipeline, stage, c);
        struct rk_chunk *chunk = &core->chunks[c];

        *chunk = (struct rk_chunk){.has_embedding = layers.has_embed, .has_head = layers.has_head};
        if (layers.layer_end > layers.layer_begin) {
            chunk->begin = core->layers[layers.layer_begin].begin;
            chunk->end = core->layers[layers.layer_end - 1].end;
        }
    }
}

static struct rk_status *declare_layers(struct rk_model_core *core, const struct rk_model_family *family)
{
    list_layers(core, family);
    for (int64_t layer = 0; layer < core->config.num_layers; layer++) {
        core->params.stage = rk_pipeline_find_layer(core->pipeline, (int32_t)layer).stage;
        RK_TRY(declare_layer(core, layer));
    }
    return NULL;
}

static struct rk_status *make_pipeline(struct rk_model_core *core, const struct rk_mesh *mesh)
{
    const struct rk_model_layout *layout = &core->layout;
    struct rk_pipeline_spec spec = {
        .num_layers = (int32_t)core->config.num_layers,
        .pp = rk_mesh_axis_size(mesh, RK_AXIS_PP),
        .vpp = layout->vpp,
        .num_layers_in_first_pipeline_stage = layout->num_layers_in_first_pipeline_stage,
        .num_layers_in_last_pipeline_stage = layout->num_layers_in_last_pipeline_stage,
    };

    return rk_pipeline_create(&core->pipeline, &spec);
}

static bool matches(const char *name, const char *const *patterns)
{
    for (; patterns && *patterns; patterns++) {
        if (fnmatch(*patterns, name, 0) == 0)
            return true;
    }
    return false;
}

static void freeze(struct rk_model_core *core)
{
    for (int64_t i = 0; i < core->params.count; i++) {
        struct rk_param *param = &core->params.params[i];

        if ((core->moe.freezes_router && param->flags & RK_PARAM_ROUTER) ||
            matches(param->name, core->frozen))
            param->flags |= RK_PARAM_FROZEN;
    }
}

struct rk_status *rk_model_declare(struct rk_model_core *core, const struct rk_mesh *mesh,
                                   const struct rk_mesh_coords *coords)
{
    bool is_tied = core->config.tie_word_embeddings;
    const struct rk_model_family *family = rk_family_find(core->config.family);
    int32_t last_stage = rk_mesh_axis_size(mesh, RK_AXIS_PP) - 1;

    RK_ASSERT(family);
    RK_TRY(make_pipeline(core, mesh));
    RK_TRY(rk_params_init(&core->params, mesh, coords));
    core->params.splits_rows = core->layout.sequence_parallel && rk_params_tp_size(&core->params) > 1;
    core->embedding.weight = rk_vocabulary_declare(&core->params, &core->config, "model.embed_tokens.weight",
                                                   is_tied ? "lm_head.weight" : NULL);
    core->embedding.vocab_begin = core->embedding.weight.rows * coords->axis[RK_AXIS_TP];
    RK_TRY(declare_layers(core, family));
    find_chunks(core, coords->axis[RK_AXIS_PP]);
    core->params.stage = last_stage;
    core->final_norm = declare_norm(core, "model.norm.weight");
    core->head.ops->declare(&core->head, &core->params,
                            &(struct rk_head_site){&core->config, &core->embedding.weight});
    if (core->head.weight.param == core->embedding.weight.param)
        rk_params_share(&core->params, core->embedding.weight.param, last_stage);
    freeze(core);
    return rk_params_lay_out(&core->params);
}

void rk_model_declare_fini(struct rk_model_core *core)
{
    rk_params_fini(&core->params);
    for (int64_t i = 0; i < core->num_blocks; i++)
        rk_free(core->blocks[i].own);
    rk_free(core->blocks);
    rk_free(core->layers);
    rk_free(core->chunks);
    rk_free(core->ropes);
    rk_pipeline_destroy(core->pipeline);
    core->chunks = NULL;
    core->pipeline = NULL;
    core->blocks = NULL;
    core->layers = NULL;
    core->ropes = NULL;
    core->num_blocks = 0;
}
