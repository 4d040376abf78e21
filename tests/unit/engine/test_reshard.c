/* A model moved from one mesh to another: the destination's weights equal an export of the source and
 * generate the same tokens; failures are returned on all ranks. Rows that need more GPUs than the machine has
 * are skipped. */
#include "tests/support/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/rk_alloc.h"
#include "engine/model/model.h"
#include "engine/rk_reshard.h"
#include "engine/rk_rollout.h"
#include "tests/support/device.h"
#include "tests/support/fake_nccl.h"
#include "tests/support/ranks.h"

#define LLAMA                                                                                               \
    "{\"model_type\": \"llama\", \"hidden_size\": 32, \"intermediate_size\": 48, \"num_hidden_layers\": 2," \
    " \"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"vocab_size\": 131,"                         \
    " \"max_position_embeddings\": 64, \"initializer_range\": 0.3}"
/* Biases and a tied embedding. */
#define QWEN                                                                                                \
    "{\"model_type\": \"qwen2\", \"hidden_size\": 32, \"intermediate_size\": 48, \"num_hidden_layers\": 2," \
    " \"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"vocab_size\": 131,"                         \
    " \"max_position_embeddings\": 64, \"initializer_range\": 0.3, \"tie_word_embeddings\": true}"
/* Enough heads for eight ranks, and fewer key-value heads. */
#define WIDE                                                                                                \
    "{\"model_type\": \"llama\", \"hidden_size\": 32, \"intermediate_size\": 48, \"num_hidden_layers\": 2," \
    " \"num_attention_heads\": 8, \"num_key_value_heads\": 2, \"vocab_size\": 131,"                         \
    " \"max_position_embeddings\": 64, \"initializer_range\": 0.3}"
/* Enough layers for the chunks of a pipeline; the embedding is on two of its stages. */
#define DEEP                                                                                                \
    "{\"model_type\": \"qwen3\", \"hidden_size\": 32, \"intermediate_size\": 48, \"num_hidden_layers\": 6," \
    " \"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"head_dim\": 8, \"vocab_size\": 131,"        \
    " \"max_position_embeddings\": 64, \"initializer_range\": 0.3, \"tie_word_embeddings\": true}"
/* Experts beside a dense layer. */
#define SPARSE                                                                                  \
    "{\"model_type\": \"qwen2_moe\", \"hidden_size\": 32, \"intermediate_size\": 48,"           \
    " \"num_hidden_layers\": 4, \"mlp_only_layers\": [1], \"moe_intermediate_size\": 12,"       \
    " \"shared_expert_intermediate_size\": 20, \"num_experts\": 8, \"num_experts_per_tok\": 2," \
    " \"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"vocab_size\": 131,"             \
    " \"max_position_embeddings\": 64, \"initializer_range\": 0.3}"
/* Latents, and experts in all layers but the first; heads for tp=4. */
#define LATENT                                                                                       \
    "{\"model_type\": \"deepseek_v3\", \"hidden_size\": 32, \"intermediate_size\": 48,"              \
    " \"num_hidden_layers\": 4, \"first_k_dense_replace\": 1, \"moe_intermediate_size\": 12,"        \
    " \"n_routed_experts\": 8, \"num_experts_per_tok\": 2, \"n_shared_experts\": 1, \"n_group\": 2," \
    " \"topk_group\": 1, \"num_attention_heads\": 4, \"q_lora_rank\": 11, \"kv_lora_rank\": 9,"      \
    " \"qk_nope_head_dim\": 6, \"qk_rope_head_dim\": 4, \"v_head_dim\": 8, \"vocab_size\": 131,"     \
    " \"num_nextn_predict_layers\": 0, \"max_position_embeddings\": 64, \"initializer_range\": 0.3}"
#define NARROW                                                                                              \
    "{\"model_type\": \"llama\", \"hidden_size\": 16, \"intermediate_size\": 48, \"num_hidden_layers\": 2," \
    " \"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"vocab_size\": 131,"                         \
    " \"max_position_embeddings\": 64, \"initializer_range\": 0.3}"

#define F32  RK_DTYPE_F32
#define BF16 RK_DTYPE_BF16

#define RUN_TIMEOUT_S  90
#define SOURCE_VERSION 7
#define NUM_PROMPTS    16
#define NUM_NEW        8

/* Ranks [first, first + tp * dp * pp) of the world. */
struct layout {
    int32_t tp, dp, first;
    rk_dtype_t dtype;
    const char *config;
    int32_t pp, vpp, ep;         /* 0: 1 */
    int32_t etp;                 /* 0: tp */
    int32_t num_first, num_last; /* layers of the first and last stage; 0: as many as the others */
    bool is_there;               /* of a destination: every rank has its part already */
};

struct reshard_case {
    const char *label;
    int32_t num_ranks;
    struct layout source, destination;
    int64_t bucket_bytes;
};

/* Data shared by the ranks of a run. */
struct run {
    struct rk_test_rendezvous *rendezvous;
    const struct reshard_case *test;
    const char *dir; /* of the source's export */
    int32_t cancel_rank;
    /* Written by the ranks. */
    struct shared {
        int32_t tokens[NUM_PROMPTS][NUM_NEW]; /* of the source */
        struct rk_reshard_result results[RK_TEST_MAX_RANKS];
    } * shared;
};

/* One rank's part. */
struct part {
    struct rk_comm_world *world;
    int32_t rank;
    struct rk_mesh *meshes[2];
    struct rk_mesh_comms *comms[2];
    struct rk_model *models[2]; /* source, destination; NULL on ranks outside the mesh */
    struct rk_reshard_link *link;
    struct rk_stream *stream;
    void *scratch;
};

static struct rk_status *open_model(struct rk_model **out, const struct part *part,
                                    const struct layout *layout, int side, uint64_t seed)
{
    struct rk_model_desc desc = {.struct_size = sizeof(desc),
                                 .dtype = layout->dtype,
                                 .stream = part->stream,
                                 .mesh = part->comms[side],
                                 .layout = {.sequence_parallel = layout->etp > 1,
                                            .vpp = layout->vpp,
                                            .num_layers_in_first_pipeline_stage = layout->num_first,
                                            .num_layers_in_last_pipeline_stage = layout->num_last}};
    struct rk_json *config;
    struct rk_status *st;

    *out = NULL;
    if (!rk_mesh_comms_is_member(part->comms[side]))
        return NULL;
    RK_TRY(rk_json_parse(&config, layout->config, strlen(layout->config), "config.json", 0));
    desc.hf_config = config;
    st = rk_model_create(out, &desc);
    rk_json_free(config);
    return st ? st : rk_model_init_random(*out, seed, NULL);
}

static struct rk_status *open_part(struct part *part, const struct run *run, int32_t rank)
{
    const struct layout *layouts[] = {&run->test->source, &run->test->destination};
    int32_t num_ranks = run->test->num_ranks;

    *part = (struct part){.rank = rank, .stream = rk_test_rank_stream(rank)};
    RK_TRY(rk_test_world_create(&part->world, run->rendezvous, rank, num_ranks, "unix", NULL));
    RK_TRY(rk_device_alloc(rk_stream_device(part->stream), &part->scratch, RK_AGREE_BYTES, "scratch"));
    for (int side = 0; side < 2; side++) {
        struct rk_mesh_spec spec = {.tp = layouts[side]->tp,
                                    .dp = layouts[side]->dp,
                                    .pp = RK_MAX(layouts[side]->pp, 1),
                                    .ep = RK_MAX(layouts[side]->ep, 1),
                                    .etp = layouts[side]->etp};
        int32_t ranks[RK_TEST_MAX_RANKS];

        spec.num_ranks = spec.tp * spec.dp * spec.pp;
        spec.ranks = ranks;
        for (int32_t i = 0; i < spec.num_ranks; i++)
            ranks[i] = layouts[side]->first + i;
        RK_TRY(rk_mesh_create(&part->meshes[side], &spec, num_ranks));
        RK_TRY(rk_mesh_comms_create(&part->comms[side], part->meshes[side], part->world));
        RK_TRY(open_model(&part->models[side], part, layouts[side], side, 5 + (uint64_t)side));
    }
    if (part->models[0])
        part->models[0]->core->weight_version = SOURCE_VERSION;
    return rk_reshard_link_create(&part->link, part->world, part->meshes[0], part->meshes[1]);
}

static void close_part(struct part *part)
{
    rk_reshard_link_destroy(part->link);
    for (int side = 0; side < 2; side++) {
        rk_model_destroy(part->models[side]);
        rk_mesh_comms_destroy(part->comms[side]);
        rk_mesh_destroy(part->meshes[side]);
    }
    rk_device_free(rk_stream_device(part->stream), part->scratch);
    rk_comm_world_destroy(part->world);
}

static bool asks_to_stop(void *user)
{
    return *(bool *)user;
}

static struct rk_status *reshard(const struct part *part, const struct run *run,
                                 struct rk_reshard_result *result)
{
    bool stops = run->cancel_rank == part->rank;
    const struct rk_engine_hooks hooks = {.user = &stops, .is_cancelled = asks_to_stop};

    return rk_reshard_run(result, &(struct rk_reshard_args){.struct_size = sizeof(struct rk_reshard_args),
                                                            .link = part->link,
                                                            .source = part->models[0],
                                                            .destination = part->models[1],
                                                            .stream = part->stream,
                                                            .scratch = part->scratch,
                                                            .bucket_bytes = run->test->bucket_bytes,
                                                            .hooks = &hooks});
}

static bool has_devices(const struct run *run)
{
    return run->test->num_ranks <= rk_test_device_max_ranks();
}

static void run_all(struct run *run, rk_test_rank_fn_t fn, struct rk_test_rank_result *results)
{
    run->rendezvous = rk_test_rendezvous_create();
    if (results)
        rk_test_run_ranks_results(run->test->num_ranks, fn, run, RUN_TIMEOUT_S, results);
    else if (rk_test_run_ranks(run->test->num_ranks, fn, run, RUN_TIMEOUT_S) != 0)
        fail_msg("%s", run->test->label);
    rk_test_rendezvous_destroy(run->rendezvous);
}

/* --- what arrives --- */

/* Greedy tokens of the model for prompts of one to NUM_PROMPTS ids. */
static struct rk_status *decode_greedily(struct rk_model *model, int32_t tokens[NUM_PROMPTS][NUM_NEW])
{
    const struct rk_rollout_config config = {.max_num_seqs = 4, .max_num_batched_tokens = 40};
    struct rk_rollout_request requests[NUM_PROMPTS] = {0};
    struct rk_rollout_result results[NUM_PROMPTS] = {0};
    float log_probs[NUM_PROMPTS][NUM_NEW];
    int32_t prompt[NUM_PROMPTS];
    struct rk_rollout *rollout;
    struct rk_status *st;

    for (int32_t i = 0; i < NUM_PROMPTS; i++) {
        prompt[i] = (17 * i + 3) % 131;
        requests[i] = (struct rk_rollout_request){
            .prompt = prompt, .prompt_len = i + 1, .max_tokens = NUM_NEW, .top_p = 1};
        results[i] = (struct rk_rollout_result){.tokens = tokens[i], .log_probs = log_probs[i]};
    }
    RK_TRY(rk_rollout_create(&rollout, model, &config));
    st = rk_rollout_generate(rollout, requests, NUM_PROMPTS, results, NULL);
    rk_rollout_destroy(rollout);
    return st;
}

/* Compares the model with one loaded from the source's export. */
static int check_values(const struct part *part, const struct run *run)
{
    const struct rk_model_core *core = part->models[1]->core;
    size_t bytes = (size_t)core->params.num_elements * rk_dtype_bytes(core->dtype);
    char *expected = rk_calloc(bytes, 1), *actual = rk_calloc(bytes, 1);
    struct rk_model *model;
    bool is_equal;

    RK_RANK_OK(open_model(&model, part, &run->test->destination, 1, 8));
    RK_RANK_OK(rk_model_load_hf(model, run->dir, NULL));
    RK_RANK_OK(rk_stream_copy(part->stream, expected, model->core->values, bytes, RK_COPY_D2H));
    RK_RANK_OK(rk_stream_copy(part->stream, actual, core->values, bytes, RK_COPY_D2H));
    RK_RANK_OK(rk_stream_sync(part->stream));
    is_equal = memcmp(expected, actual, bytes) == 0;
    rk_model_destroy(model);
    rk_free(expected);
    rk_free(actual);
    RK_RANK_CHECK(is_equal, "rank %d does not have the weights of the export", part->rank);
    return 0;
}

/* A model with several stages, or with experts on other replicas, cannot generate. */
static bool generates(const struct layout *layout)
{
    return layout->pp <= 1 && (layout->ep <= 1 || (layout->ep == layout->tp && layout->etp == 1));
}

static int moves_rank(int32_t rank, int32_t num_ranks, void *user)
{
    const struct run *run = user;
    struct rk_reshard_result *result = &run->shared->results[rank];
    int32_t tokens[NUM_PROMPTS][NUM_NEW];
    struct part part;

    RK_RANK_OK(open_part(&part, run, rank));
    if (part.models[0])
        RK_RANK_OK(rk_model_export_hf(part.models[0], run->dir, 0, NULL));
    rk_test_meet(run->rendezvous, num_ranks);
    if (rk_reshard_link_is_member(part.link)) {
        RK_RANK_OK(reshard(&part, run, result));
        RK_RANK_CHECK(result->weight_version == SOURCE_VERSION, "version %llu",
                      (unsigned long long)result->weight_version);
    }
    if (part.models[0] && generates(&run->test->source))
        RK_RANK_OK(decode_greedily(part.models[0], run->shared->tokens));
    rk_test_meet(run->rendezvous, num_ranks);
    if (part.models[1]) {
        RK_RANK_CHECK(rk_model_weight_version(part.models[1]) == SOURCE_VERSION, "version %llu",
                      (unsigned long long)rk_model_weight_version(part.models[1]));
        if (check_values(&part, run))
            return 1;
        if (generates(&run->test->destination))
            RK_RANK_OK(decode_greedily(part.models[1], tokens));
        /* bf16 sums of other tp sizes may round to other ids. */
        RK_RANK_CHECK(!generates(&run->test->source) || !generates(&run->test->destination) ||
                          run->test->source.dtype == BF16 || run->test->destination.dtype == BF16 ||
                          memcmp(tokens, run->shared->tokens, sizeof(tokens)) == 0,
                      "rank %d decodes other tokens than the source", rank);
    }
    close_part(&part);
    return 0;
}

#define SIDE(tp_, dp_, first_, dtype_, config_)                                             \
    {                                                                                       \
        .tp = (tp_), .dp = (dp_), .first = (first_), .dtype = (dtype_), .config = (config_) \
    }
/* On the first ranks. */
#define STAGES(tp_, dp_, dtype_, config_, ...)                                        \
    {                                                                                 \
        .tp = (tp_), .dp = (dp_), .dtype = (dtype_), .config = (config_), __VA_ARGS__ \
    }

static const struct reshard_case cases[] = {
    {"tp 2 to tp 1", 2, SIDE(2, 1, 0, F32, LLAMA), SIDE(1, 2, 0, F32, LLAMA), 1 << 20},
    {"dp 2 to tp 2", 2, SIDE(1, 2, 0, F32, QWEN), SIDE(2, 1, 0, F32, QWEN), 1 << 20},
    {"tp 4 to tp 2, small buckets", 4, SIDE(4, 1, 0, BF16, QWEN), SIDE(2, 2, 0, BF16, QWEN), 4096},
    {"tp 2 to tp 4, more ranks than key-value heads", 4, SIDE(2, 2, 0, F32, LLAMA), SIDE(4, 1, 0, F32, LLAMA),
     1 << 20},
    {"disjoint ranks", 3, SIDE(2, 1, 0, F32, QWEN), SIDE(1, 1, 2, F32, QWEN), 1000},
    {"ranks in one mesh only, and in none", 4, SIDE(2, 1, 0, BF16, LLAMA), SIDE(2, 1, 1, BF16, LLAMA),
     1 << 20},
    {"to fewer bits", 2, SIDE(2, 1, 0, F32, LLAMA), SIDE(1, 2, 0, BF16, LLAMA), 1 << 20},
    {"tp 4 dp 2 to tp 2 dp 4", 8, SIDE(4, 2, 0, F32, WIDE), SIDE(2, 4, 0, F32, WIDE), 4096},
    {"dp 8 to tp 8", 8, SIDE(1, 8, 0, F32, WIDE), SIDE(8, 1, 0, F32, WIDE), 1 << 20},
    {"tp 8 to dp 8", 8, SIDE(8, 1, 0, F32, WIDE), SIDE(1, 8, 0, F32, WIDE), 4096},
    {"pp 2 to tp 1 dp 2", 2, STAGES(1, 1, F32, LLAMA, .pp = 2), SIDE(1, 2, 0, F32, LLAMA), 1 << 20},
    {"pp 2 vpp 2 uneven to tp 2, tied", 2, STAGES(1, 1, BF16, DEEP, .pp = 2, .vpp = 2, .num_first = 4),
     SIDE(2, 1, 0, BF16, DEEP), 4096},
    {"tp 2 pp 2 to tp 2 dp 2", 4, STAGES(2, 1, F32, QWEN, .pp = 2), SIDE(2, 2, 0, F32, QWEN), 4096},
    {"pp 3 uneven to ranks apart", 5, STAGES(1, 1, F32, DEEP, .pp = 3, .num_first = 3, .num_last = 1),
     SIDE(2, 1, 3, BF16, DEEP), 1000},
    {"tp 2 dp 2 pp 2 to tp 4 dp 2", 8, STAGES(2, 2, F32, WIDE, .pp = 2), SIDE(4, 2, 0, F32, WIDE), 4096},
    {"ep 2 to tp 2", 2, STAGES(1, 2, F32, SPARSE, .ep = 2), SIDE(2, 1, 0, F32, SPARSE), 4096},
    {"ep 4 to tp 1 dp 4", 4, STAGES(1, 4, F32, SPARSE, .ep = 4), SIDE(1, 4, 0, F32, SPARSE), 1 << 20},
    {"tp 2 pp 2 ep 2 to tp 4 dp 2", 8, STAGES(2, 2, BF16, SPARSE, .pp = 2, .ep = 2),
     SIDE(4, 2, 0, BF16, SPARSE), 4096},
    {"ep 2 to tp 2 with whole experts", 2, STAGES(1, 2, F32, SPARSE, .ep = 2),
     STAGES(2, 1, F32, SPARSE, .ep = 2, .etp = 1, .is_there = true), 4096},
    {"ep 4 to tp 2 with whole experts, dp 2", 4, STAGES(1, 4, F32, SPARSE, .ep = 4),
     STAGES(2, 2, F32, SPARSE, .ep = 2, .etp = 1), 1 << 20},
    {"dp 4 to tp 4 with whole experts", 4, SIDE(1, 4, 0, F32, SPARSE),
     STAGES(4, 1, F32, SPARSE, .ep = 4, .etp = 1), 4096},
    {"tp 2 to whole experts of the same tp", 2, SIDE(2, 1, 0, F32, SPARSE),
     STAGES(2, 1, F32, SPARSE, .ep = 2, .etp = 1), 1000},
    {"whole experts of tp 4 to tp 2", 4, STAGES(4, 1, F32, SPARSE, .ep = 4, .etp = 1),
     SIDE(2, 2, 0, F32, SPARSE), 4096},
    {"tp 2 pp 2 to tp 4 with whole experts", 4, STAGES(2, 1, BF16, SPARSE, .pp = 2),
     STAGES(4, 1, BF16, SPARSE, .ep = 4, .etp = 1), 4096},
    {"experts over 2 of tp 4 to tp 2", 4, STAGES(4, 1, F32, SPARSE, .ep = 2, .etp = 2),
     SIDE(2, 2, 0, F32, SPARSE), 4096},
    {"copies of experts over 2 of tp 4 to tp 4", 4, STAGES(4, 1, F32, SPARSE, .etp = 2),
     SIDE(4, 1, 0, F32, SPARSE), 4096},
    {"dp 4 to ep 2", 4, SIDE(1, 4, 0, F32, SPARSE), STAGES(1, 4, F32, SPARSE, .ep = 2), 1 << 20},
    {"latents, tp 2 to tp 1", 2, SIDE(2, 1, 0, F32, LATENT), SIDE(1, 2, 0, F32, LATENT), 4096},
    {"latents, pp 2 ep 2 to tp 4", 4, STAGES(1, 2, F32, LATENT, .pp = 2, .ep = 2), SIDE(4, 1, 0, F32, LATENT),
     1000},
    {"latents, tp 2 ep 2 to ranks apart", 6, STAGES(2, 2, BF16, LATENT, .ep = 2), SIDE(2, 1, 4, BF16, LATENT),
     4096},
    {"equal layouts", 2, SIDE(2, 1, 0, F32, LLAMA), SIDE(2, 1, 0, F32, LLAMA), 1 << 20},
};

/* Goal: for every pair of layouts the destination has the weights of the export on every rank, and the same
 * greedy tokens. */
static void test_destination_has_the_weights_of_the_export(void **state)
{
    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        struct run run = {.test = &cases[i], .cancel_rank = -1};
        uint64_t sent = 0, received = 0;
        char name[32], *dir;

        if (!rk_test_in_part())
            continue;
        if (!has_devices(&run)) {
            rk_test_skip_part("%s: needs %d devices", run.test->label, run.test->num_ranks);
            continue;
        }
        snprintf(name, sizeof(name), "export_%zu", i);
        run.dir = dir = rk_test_temp_path(name);
        run.shared = rk_test_shared_alloc(sizeof(*run.shared));
        run_all(&run, moves_rank, NULL);
        for (int32_t rank = 0; rank < run.test->num_ranks; rank++) {
            sent += run.shared->results[rank].traffic.sent_bytes;
            received += run.shared->results[rank].traffic.received_bytes;
        }
        assert_true(sent == received);
        if (strcmp(run.test->label, "equal layouts") == 0 || run.test->destination.is_there ||
            (run.test->source.tp == 1 && generates(&run.test->source)))
            assert_int_equal(sent, 0);
        else
            assert_true(sent > 0);
        rk_test_shared_free(run.shared, sizeof(*run.shared));
        rk_free(dir);
    }
}

/* --- failures --- */

#ifdef RK_FAULTS
static int lost_piece_rank(int32_t rank, int32_t num_ranks, void *user)
{
    struct rk_reshard_result result;
    struct part part;

    (void)num_ranks;
    if (rank == 1)
        setenv("RANKD_FAULTS", "reshard.unpack=fail@2", 1);
    RK_RANK_OK(open_part(&part, user, rank));
    if (rk_test_rank_check_error(
            reshard(&part, user, &result), RK_DATA_LOSS, "FINGERPRINT",
            "tensor 'model.layers.0.self_attn.q_proj.weight' of ranks 1 differs from that "
            "of ranks 0, 1"))
        return 1;
    RK_RANK_CHECK(result.has_begun && result.is_known_to_peers, "it has not begun, or the peers wait");
    RK_RANK_CHECK(!part.models[1] || rk_model_weight_version(part.models[1]) == 0, "the version has changed");
    unsetenv("RANKD_FAULTS");
    RK_RANK_OK(reshard(&part, user, &result)); /* the ranks are still synchronized */
    close_part(&part);
    return 0;
}

static void test_lost_piece_is_named_on_all_ranks(void **state)
{
    struct run run = {.test = &cases[0], .cancel_rank = -1};

    (void)state;
    run_all(&run, lost_piece_rank, NULL);
}

static int killed_rank(int32_t rank, int32_t num_ranks, void *user)
{
    struct rk_reshard_result result;
    struct part part;
    struct rk_status *st;

    (void)num_ranks;
    if (rank == 2)
        setenv("RANKD_FAULTS", "reshard.round=kill@2", 1);
    RK_RANK_OK(open_part(&part, user, rank));
    st = reshard(&part, user, &result);
    RK_RANK_CHECK(st, "the death of rank 2 was not noticed");
    RK_RANK_CHECK(strcmp(rk_status_reason(st), "PEER_LOST") == 0, "%s: %s", rk_status_reason(st),
                  rk_status_message(st));
    RK_RANK_CHECK(strstr(rk_status_message(st), "rank 2"), "%s", rk_status_message(st));
    rk_status_free(st);
    close_part(&part);
    return 0;
}

static void test_killed_rank_is_named(void **state)
{
    struct run run = {.test = &cases[2], .cancel_rank = -1};
    struct rk_test_rank_result results[RK_TEST_MAX_RANKS];

    (void)state;
    if (!has_devices(&run))
        rk_test_skip("needs %d devices", run.test->num_ranks);
    run_all(&run, killed_rank, results);
    for (int32_t rank = 0; rank < run.test->num_ranks; rank++) {
        assert_false(results[rank].timed_out);
        assert_int_equal(results[rank].exit_code, rank == 2 ? -1 : 0);
    }
}
#endif

static int cancelled_rank(int32_t rank, int32_t num_ranks, void *user)
{
    struct rk_reshard_result result;
    struct part part;

    (void)num_ranks;
    RK_RANK_OK(open_part(&part, user, rank));
    if (rk_test_rank_check_error(reshard(&part, user, &result), RK_CANCELLED, "",
                                 "before any weights were moved"))
        return 1;
    RK_RANK_CHECK(!result.has_begun && result.is_known_to_peers, "it has begun");
    close_part(&part);
    return 0;
}

static void test_cancel_of_one_rank_stops_all_before_they_begin(void **state)
{
    struct run run = {.test = &cases[4], .cancel_rank = 2};

    (void)state;
    if (!has_devices(&run))
        rk_test_skip("needs %d devices", run.test->num_ranks);
    run_all(&run, cancelled_rank, NULL);
}

static int other_model_rank(int32_t rank, int32_t num_ranks, void *user)
{
    const struct run *run = user;
    struct rk_reshard_result result;
    struct part part;

    (void)num_ranks;
    RK_RANK_OK(open_part(&part, run, rank));
    if (rk_test_rank_check_error(reshard(&part, run, &result), RK_INVALID_ARGUMENT, "", run->dir))
        return 1;
    RK_RANK_CHECK(!result.has_begun && result.is_known_to_peers, "it has begun");
    close_part(&part);
    return 0;
}

/* Goal: different models are refused on all ranks, also if no rank has both. */
static void test_other_model_is_refused(void **state)
{
    static const struct reshard_case together = {"other model", 2, SIDE(2, 1, 0, F32, LLAMA),
                                                 SIDE(1, 2, 0, F32, NARROW), 1 << 20};
    static const struct reshard_case apart = {"other model elsewhere", 3, SIDE(2, 1, 0, F32, LLAMA),
                                              SIDE(1, 1, 2, F32, NARROW), 1 << 20};
    struct run run = {.test = &together,
                      .cancel_rank = -1,
                      .dir = "tensor 'model.embed_tokens.weight' is [131, 32] in the source and [131, 16]"};

    (void)state;
    run_all(&run, other_model_rank, NULL);
    run.test = &apart;
    if (!has_devices(&run))
        rk_test_skip("with a rollout on ranks of its own: needs %d devices", run.test->num_ranks);
    run.dir = "different plans";
    run_all(&run, other_model_rank, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_destination_has_the_weights_of_the_export),
#ifdef RK_FAULTS
        cmocka_unit_test(test_lost_piece_is_named_on_all_ranks),
        cmocka_unit_test(test_killed_rank_is_named),
#endif
        cmocka_unit_test(test_cancel_of_one_rank_stops_all_before_they_begin),
        cmocka_unit_test(test_other_model_is_refused),
    };

    rk_test_device_need_ranks(2);
    rk_fake_nccl_setup();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
