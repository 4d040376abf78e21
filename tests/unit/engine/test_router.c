/* What routers did in a step: loads and entropy over all layers and ranks, in every layout as on one rank,
 * with padding and recomputed passes left out; losses on their scores; updates of correction biases. That
 * gradients and biases do not depend on the layout is tested by the gate (tests/equivalence, models *_aux and
 * *_bias). */
#include "tests/support/test.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/rk_alloc.h"
#include "base/rk_str.h"
#include "engine/optim/trainer.h"
#include "engine/rk_checkpoint.h"
#include "tests/support/models.h"
#include "tests/support/ranks.h"

#define SIZES                                                                     \
    "\"hidden_size\": 32, \"num_hidden_layers\": 4, \"num_attention_heads\": 4,"  \
    " \"num_key_value_heads\": 2, \"intermediate_size\": 24, \"vocab_size\": 67," \
    " \"max_position_embeddings\": 64, \"initializer_range\": 0.15"
#define SPARSE                                                                           \
    "{\"model_type\": \"qwen2_moe\", \"moe_intermediate_size\": 12, \"num_experts\": 8," \
    " \"shared_expert_intermediate_size\": 16, \"num_experts_per_tok\": 2,"              \
    " \"mlp_only_layers\": [1], " SIZES "}"
/* Sigmoids, groups and a correction bias. */
#define SIGMOID     SIGMOID_OF("8", "4", "2")
#define TEN_EXPERTS SIGMOID_OF("10", "1", "1")
#define SIGMOID_OF(experts, groups, top_groups)                                             \
    "{\"model_type\": \"deepseek_v3\", \"hidden_size\": 32, \"num_hidden_layers\": 3,"      \
    " \"num_attention_heads\": 4, \"intermediate_size\": 24, \"vocab_size\": 67,"           \
    " \"max_position_embeddings\": 64, \"initializer_range\": 0.15, \"q_lora_rank\": null," \
    " \"kv_lora_rank\": 12, \"qk_nope_head_dim\": 6, \"qk_rope_head_dim\": 4,"              \
    " \"v_head_dim\": 5, \"first_k_dense_replace\": 0, \"n_routed_experts\": " experts ","  \
    " \"num_experts_per_tok\": 2, \"n_group\": " groups ", \"topk_group\": " top_groups     \
    ", \"n_shared_experts\": 1,"                                                            \
    " \"moe_intermediate_size\": 12}"
#define DENSE         "{\"model_type\": \"qwen3\", " SIZES "}"
#define NUM_EXPERTS   8
#define TOP_K         2
#define NUM_ROUTES    3
#define NUM_SEQS      6
#define NUM_TOKENS    45
#define RUN_TIMEOUT_S 60

/* --- the step of every case --- */

static const int32_t seq_lens[NUM_SEQS] = {7, 1, 13, 5, 17, 2};

/* Sequences of a replica's micro-batch; every replica takes every dp-th, in num_micro micro-batches. */
struct batch {
    struct rk_packed packed;
    int32_t tokens[NUM_TOKENS], positions[NUM_TOKENS], cu_seqlens[NUM_SEQS + 1];
    uint16_t routed_experts[NUM_TOKENS * NUM_ROUTES * TOP_K];
    int32_t dp, dp_rank, num_micro;
    bool gives_routes;
};

/* The experts that token t of sequence s goes to, where they are given. */
static uint16_t route_of(int32_t s, int32_t t, int32_t layer, int32_t k)
{
    return (uint16_t)((t * t + 3 * s + layer + k * (1 + layer)) % NUM_EXPERTS);
}

static void add_sequence(struct batch *batch, int32_t s)
{
    struct rk_packed *packed = &batch->packed;

    for (int32_t t = 0; t < seq_lens[s]; t++) {
        int64_t at = packed->num_tokens++;

        batch->tokens[at] = (t * 29 + 7 * s + 3) % 67;
        batch->positions[at] = t;
        for (int32_t i = 0; i < NUM_ROUTES * TOP_K; i++)
            batch->routed_experts[at * NUM_ROUTES * TOP_K + i] = route_of(s, t, i / TOP_K, i % TOP_K);
    }
    packed->max_seqlen = RK_MAX(packed->max_seqlen, seq_lens[s]);
    batch->cu_seqlens[++packed->num_seqs] = (int32_t)packed->num_tokens;
}

static struct rk_status *loss_fn(void *user, const struct rk_head_arrays *outputs,
                                 const struct rk_head_arrays *grads)
{
    const struct batch *batch = user;

    (void)outputs;
    for (int64_t t = 0; t < batch->packed.num_tokens; t++)
        grads->of[RK_HEAD_LOG_PROBS][t] = -1.0 / NUM_TOKENS;
    return NULL;
}

static struct rk_status *bind(void *user, int64_t i, struct rk_train_micro *micro)
{
    struct batch *batch = user;

    batch->packed = (struct rk_packed){.tokens = batch->tokens,
                                       .positions = batch->positions,
                                       .cu_seqlens = batch->cu_seqlens,
                                       .labels = batch->tokens};
    batch->packed.routed_experts = batch->gives_routes ? batch->routed_experts : NULL;
    batch->cu_seqlens[0] = 0;
    for (int32_t s = 0; s < NUM_SEQS; s++) {
        if (s % batch->dp == batch->dp_rank && s / batch->dp % batch->num_micro == i)
            add_sequence(batch, s);
    }
    *micro = (struct rk_train_micro){.packed = &batch->packed,
                                     .temperature = 1,
                                     .outputs = RK_HEAD_BIT(RK_HEAD_LOG_PROBS),
                                     .loss_fn = loss_fn,
                                     .user = batch};
    return NULL;
}

struct layout {
    const char *name;
    int32_t tp, cp, dp, pp, ep, etp, num_micro;
    bool sequence_parallel, gives_routes;
    int64_t recompute_num_layers;
    struct rk_moe_knobs moe;
    bool is_bf16;
};

static struct rk_status *run_passes(struct rk_test_model *test, const struct layout *layout)
{
    int32_t num_micro = RK_MAX(layout->num_micro, 1);
    struct batch batch = {.dp = RK_MAX(layout->dp, 1),
                          .dp_rank = rk_mesh_comms_coords(test->comms)->axis[RK_AXIS_DP],
                          .num_micro = num_micro,
                          .gives_routes = layout->gives_routes};

    RK_TRY(rk_trainer_begin(rk_model_trainer(test->model)));
    return rk_trainer_micro_batches(
        rk_model_trainer(test->model),
        &(struct rk_train_work){.count = num_micro, .bind = bind, .user = &batch});
}

static struct rk_status *run_step(struct rk_test_model *test, const struct layout *layout,
                                  struct rk_step_stats *stats)
{
    RK_TRY(run_passes(test, layout));
    return rk_trainer_step(rk_model_trainer(test->model), stats);
}

static struct rk_status *open_training(struct rk_test_model *test, const char *config,
                                       const struct layout *layout, struct rk_comm_world *world)
{
    const struct rk_optim_config optim = rk_test_adamw(1e-2, 0.1, 0);
    const struct rk_test_model_spec spec = {.config = config,
                                            .seed = 5,
                                            .dtype = layout->is_bf16 ? RK_DTYPE_BF16 : RK_DTYPE_F64,
                                            .recompute_num_layers = layout->recompute_num_layers,
                                            .tp = layout->tp,
                                            .cp = layout->cp,
                                            .dp = layout->dp,
                                            .pp = layout->pp,
                                            .ep = layout->ep,
                                            .etp = layout->etp,
                                            .sequence_parallel = layout->sequence_parallel,
                                            .moe = layout->moe,
                                            .world = world};

    RK_TRY(rk_test_model_open(test, &spec));
    return rk_test_enable_training(test->model, &optim);
}

/* --- tests --- */

/* Goal: the statistics of two layers, one without tokens between them, equal those computed by hand. */
static void test_stats_equal_values_computed_by_hand(void **state)
{
    enum { EXPERTS = 4, COLUMNS = EXPERTS + RK_NUM_ROUTER_SUMS };
    double host[3][COLUMNS] = {{3, 1, 0, 4}, {0}, {2, 2, 2, 2}};
    struct rk_router_sums sums = {.num_layers = 3,
                                  .num_experts = EXPERTS,
                                  .columns = COLUMNS,
                                  .host = host[0],
                                  .losses = {.balance_coeff = 0.5, .z_coeff = 0.1}};
    struct rk_router_stats stats;

    (void)state;
    host[0][EXPERTS + RK_ROUTER_TOKENS] = host[2][EXPERTS + RK_ROUTER_TOKENS] = 4;
    host[0][EXPERTS + RK_ROUTER_ENTROPY] = 2;
    host[2][EXPERTS + RK_ROUTER_ENTROPY] = 5;
    host[0][EXPERTS + RK_ROUTER_BALANCE] = 0.75;
    host[2][EXPERTS + RK_ROUTER_BALANCE] = 0.5;
    host[2][EXPERTS + RK_ROUTER_Z] = 12;
    rk_router_stats_of(&stats, &sums);
    assert_int_equal(stats.num_layers, 2);
    assert_true(stats.max_load == 1.5); /* 4 over 8 / 4, and 1 */
    assert_true(stats.max_load_of_layers == 2.0);
    assert_true(stats.entropy == (0.5 + 1.25) / 2);
    assert_string_equal(stats.balance_name, "load_balancing_loss");
    assert_true(stats.balance_loss == 1.25);
    assert_true(stats.has_z_loss && stats.z_loss == 1.5);
    sums.num_layers = 0;
    sums.losses = (struct rk_router_losses){0};
    rk_router_stats_of(&stats, &sums);
    assert_int_equal(stats.num_layers, 0);
    assert_true(stats.max_load == 0.0 && stats.entropy == 0.0);
    assert_true(!stats.balance_name && !stats.has_z_loss);
}

/* Goal: with given experts the counts are those of a table, and each step has its own. */
static void test_counts_are_those_of_given_experts(void **state)
{
    const struct layout layout = {.num_micro = 2, .gives_routes = true};
    double expected[NUM_ROUTES][NUM_EXPERTS] = {{0}};
    const struct rk_router_sums *sums;
    struct rk_step_stats stats;
    struct rk_test_model test;

    (void)state;
    for (int32_t s = 0; s < NUM_SEQS; s++) {
        for (int32_t t = 0; t < seq_lens[s]; t++) {
            for (int32_t i = 0; i < NUM_ROUTES * TOP_K; i++)
                expected[i / TOP_K][route_of(s, t, i / TOP_K, i % TOP_K)]++;
        }
    }
    assert_ok(open_training(&test, SPARSE, &layout, NULL));
    sums = &test.model->trainer->routers;
    for (int step = 0; step < 2; step++) {
        assert_ok(run_step(&test, &layout, &stats));
        assert_int_equal(stats.routers.num_layers, NUM_ROUTES);
        for (int layer = 0; layer < NUM_ROUTES; layer++) {
            const double *row = sums->host + layer * sums->columns;

            for (int e = 0; e < NUM_EXPERTS; e++)
                assert_true(row[e] == expected[layer][e]);
            assert_true(row[NUM_EXPERTS + RK_ROUTER_TOKENS] == NUM_TOKENS);
        }
    }
    rk_test_model_close(&test);
}

static void zero_routers(struct rk_test_model *test)
{
    for (int64_t i = 0; i < rk_model_num_params(test->model); i++) {
        const struct rk_placement *placement = rk_model_placement_at(test->model, i);
        double *values = (double *)test->model->core->values + placement->offset;

        if (strstr(rk_model_param_at(test->model, i)->name, "mlp.gate.weight"))
            assert_ok(rk_stream_zero(test->stream, values,
                                     (size_t)rk_placement_num_elements(placement) * sizeof(*values)));
    }
}

/* Goal: a router whose weights are 0 has the entropy of an even distribution, and sends all tokens to the
 * first experts. */
static void test_even_scores_have_the_largest_entropy_and_load(void **state)
{
    const struct layout layout = {0};
    struct rk_step_stats stats;
    struct rk_test_model test;

    (void)state;
    assert_ok(open_training(&test, SPARSE, &layout, NULL));
    zero_routers(&test);
    assert_ok(run_step(&test, &layout, &stats));
    assert_float_equal(stats.routers.entropy, log(NUM_EXPERTS), 1e-12);
    assert_true(stats.routers.max_load == (double)NUM_EXPERTS / TOP_K);
    assert_true(stats.routers.max_load_of_layers == (double)NUM_EXPERTS / TOP_K);
    rk_test_model_close(&test);
}

/* --- losses --- */

#define AUX(type)                                                             \
    {                                                                         \
        .balancing_type = (type), .aux_loss_coeff = 0.3, .z_loss_coeff = 0.05 \
    }

/* Goal: the losses of routers whose weights are 0 equal the values computed by hand, for any division into
 * micro-batches: 1, because all tokens go to top_k experts and all have the same p, and log(num_experts)^2.
 */
static void test_losses_of_even_scores_equal_values_computed_by_hand(void **state)
{
    static const struct {
        struct layout layout;
        const char *name;
    } cases[] = {
        {{.moe = AUX("aux_loss")}, "load_balancing_loss"},
        {{.moe = AUX("aux_loss"), .num_micro = 3}, "load_balancing_loss"},
        {{.moe = AUX("seq_aux_loss"), .num_micro = 2}, "seq_load_balancing_loss"},
        {{.moe = AUX("seq_aux_loss"), .num_micro = 2, .gives_routes = true}, "seq_load_balancing_loss"},
    };

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        struct rk_step_stats stats;
        struct rk_test_model test;

        assert_ok(open_training(&test, SPARSE, &cases[i].layout, NULL));
        zero_routers(&test);
        assert_ok(run_step(&test, &cases[i].layout, &stats));
        assert_string_equal(stats.routers.balance_name, cases[i].name);
        assert_float_equal(stats.routers.balance_loss, 1.0, 1e-12);
        assert_true(stats.routers.has_z_loss);
        assert_float_equal(stats.routers.z_loss, log(NUM_EXPERTS) * log(NUM_EXPERTS), 1e-12);
        rk_test_model_close(&test);
    }
}

struct loss_case {
    const char *label, *config;
    struct layout layout;
};

static const struct loss_case loss_cases[] = {
    {"aux_loss", SPARSE, {.moe = AUX("aux_loss"), .num_micro = 2}},
    {"seq_aux_loss", SPARSE, {.moe = AUX("seq_aux_loss")}},
    {"z alone", SPARSE, {.moe = {.balancing_type = "none", .aux_loss_coeff = 0.3, .z_loss_coeff = 0.05}}},
    {"given experts", SPARSE, {.moe = AUX("seq_aux_loss"), .num_micro = 3, .gives_routes = true}},
    {"sigmoids and groups", SIGMOID, {.moe = AUX("seq_aux_loss"), .num_micro = 2}},
};

/* Adds the main loss of a micro-batch. */
static void add_main_loss(struct rk_test_model *test, struct batch *batch, int64_t i, double *loss)
{
    double log_probs[NUM_TOKENS];
    struct rk_train_micro micro;

    assert_ok(bind(batch, i, &micro));
    assert_ok(rk_model_forward(test->model, &batch->packed, 1, NULL,
                               &(struct rk_head_arrays){.of = {[RK_HEAD_LOG_PROBS] = log_probs}}));
    for (int64_t t = 0; t < batch->packed.num_tokens; t++)
        *loss -= log_probs[t] / NUM_TOKENS;
}

/* The loss whose gradient a step computes: the terms of routers are those that passes sum up. */
static double total_loss(struct rk_test_model *test, const struct layout *layout)
{
    struct rk_router_sums *sums = &test->model->trainer->routers;
    struct batch batch = {
        .dp = 1, .num_micro = RK_MAX(layout->num_micro, 1), .gives_routes = layout->gives_routes};
    double loss = 0.0;

    for (int64_t i = 0; i < batch.num_micro; i++)
        add_main_loss(test, &batch, i, &loss);
    assert_ok(run_passes(test, layout));
    assert_ok(rk_router_sums_fetch(sums, test->model->core));
    assert_ok(rk_stream_sync(test->stream));
    for (int64_t layer = 0; layer < sums->num_layers; layer++) {
        const double *terms = sums->host + layer * sums->columns + sums->num_experts;

        loss += terms[RK_ROUTER_BALANCE] + layout->moe.z_loss_coeff * terms[RK_ROUTER_Z] / NUM_TOKENS;
    }
    return loss;
}

static void check_element(struct rk_test_model *test, const struct loss_case *c, int64_t param, int64_t i,
                          double gradient)
{
    const double step = 1e-5;
    double *value =
        (double *)test->model->core->values + rk_model_placement_at(test->model, param)->offset + i;
    double old = *value, up, down, slope;

    *value = old + step;
    up = total_loss(test, &c->layout);
    *value = old - step;
    down = total_loss(test, &c->layout);
    *value = old;
    slope = (up - down) / (2 * step);
    if (!(fabs(slope - gradient) <= 1e-7 * (1.0 + fabs(slope))))
        fail_msg("%s: %s[%d]: gradient %.10g, differences give %.10g", c->label,
                 rk_model_param_at(test->model, param)->name, (int)i, gradient, slope);
}

/* Elements of the first tensors, of norms and attention before routers, and of all routers. */
static void check_gradients(struct rk_test_model *test, const struct loss_case *c)
{
    for (int64_t i = 0; i < rk_model_num_params(test->model); i++) {
        const struct rk_param *param = rk_model_param_at(test->model, i);
        int64_t count = rk_param_num_elements(param);
        double *gradient;

        if (strstr(param->name, "experts.") || param->flags & RK_PARAM_FROZEN)
            continue;
        gradient = rk_calloc((size_t)count, sizeof(*gradient));
        assert_ok(run_passes(test, &c->layout));
        assert_ok(rk_trainer_gather_grad(rk_model_trainer(test->model), i, gradient));
        for (int64_t k = 1; k <= 2; k++)
            check_element(test, c, i, k * count / 3, gradient[k * count / 3]);
        rk_free(gradient);
    }
}

/* Goal: gradients with losses of routers equal finite differences of the whole loss. */
static void test_gradients_of_losses_equal_differences(void **state)
{
    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(loss_cases); i++) {
        struct rk_test_model test;

        assert_ok(open_training(&test, loss_cases[i].config, &loss_cases[i].layout, NULL));
        check_gradients(&test, &loss_cases[i]);
        rk_test_model_close(&test);
    }
}

/* Goal: a coefficient of a model that takes none is named with its value. */
static void test_losses_that_do_not_fit_are_refused(void **state)
{
    static const struct {
        const char *config;
        struct layout layout;
        const char *names[2];
    } cases[] = {
        {DENSE, {.moe = {.aux_loss_coeff = 0.01}}, {RK_KNOB_AUX_LOSS "=0.01", "expected 0"}},
        {SPARSE, {.moe = {.updates_bias = true}}, {RK_KNOB_EXPERT_BIAS "=true", "expected false"}},
        {DENSE, {.moe = {.updates_bias = true}}, {RK_KNOB_EXPERT_BIAS "=true", "expected false"}},
        {DENSE, {.moe = {.z_loss_coeff = 0.001}}, {RK_KNOB_Z_LOSS "=0.001", "expected 0"}},
        {SPARSE,
         {.moe = {.aux_loss_coeff = 0.5, .freezes_router = true}},
         {RK_KNOB_AUX_LOSS "=0.5", RK_KNOB_FREEZE_ROUTER "=true"}},
        {SPARSE,
         {.moe = {.z_loss_coeff = 0.5, .freezes_router = true}},
         {RK_KNOB_Z_LOSS "=0.5", RK_KNOB_FREEZE_ROUTER "=true"}},
    };

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        struct rk_test_model test;
        struct rk_status *st = open_training(&test, cases[i].config, &cases[i].layout, NULL);

        assert_int_equal(rk_status_code(st), RK_INVALID_ARGUMENT);
        for (int n = 0; n < 2; n++)
            assert_non_null(strstr(rk_status_message(st), cases[i].names[n]));
        rk_status_free(st);
        rk_test_model_close(&test);
    }
}

/* --- correction biases --- */

#define NUM_BIASES 3 /* layers of SIGMOID */
#define RATE       0.03125

/* The values of all layers. */
static void read_biases(struct rk_test_model *test, double biases[NUM_BIASES][NUM_EXPERTS])
{
    double parts[RK_PARAM_WIDE_PARTS][NUM_EXPERTS];
    int num_biases = 0;

    for (int64_t i = 0; i < rk_model_num_params(test->model); i++) {
        if (!strstr(rk_model_param_at(test->model, i)->name, "e_score_correction_bias"))
            continue;
        assert_true(num_biases < NUM_BIASES);
        assert_ok(rk_model_gather_param(test->model, i, parts[0]));
        for (int e = 0; e < NUM_EXPERTS; e++)
            biases[num_biases][e] = parts[0][e] + parts[1][e] + parts[2][e];
        num_biases++;
    }
    assert_int_equal(num_biases, NUM_BIASES);
}

/* Adds the moves that the counts of the last step ask for. */
static void add_moves(const struct rk_router_sums *sums, double biases[NUM_BIASES][NUM_EXPERTS])
{
    const double mean = (double)NUM_TOKENS * TOP_K / NUM_EXPERTS;

    for (int layer = 0; layer < NUM_BIASES; layer++) {
        for (int e = 0; e < NUM_EXPERTS; e++) {
            double load = sums->host[layer * sums->columns + e];

            biases[layer][e] += load < mean ? RATE : load > mean ? -RATE : 0.0;
        }
    }
}

/* Goal: biases move by the rate towards even loads after every step, also in bf16. */
static void test_biases_move_towards_even_loads(void **state)
{
    (void)state;
    for (int is_bf16 = 0; is_bf16 < 2; is_bf16++) {
        const struct layout layout = {
            .num_micro = 2, .is_bf16 = is_bf16, .moe = {.updates_bias = true, .bias_update_rate = RATE}};
        double expected[NUM_BIASES][NUM_EXPERTS], actual[NUM_BIASES][NUM_EXPERTS];
        struct rk_step_stats stats;
        struct rk_test_model test;

        assert_ok(open_training(&test, SIGMOID, &layout, NULL));
        read_biases(&test, expected);
        for (int step = 0; step < 3; step++) {
            assert_ok(run_step(&test, &layout, &stats));
            assert_true(stats.routers.max_load > 1.0);
            add_moves(&test.model->trainer->routers, expected);
            read_biases(&test, actual);
            assert_memory_equal(actual, expected, sizeof(expected));
        }
        rk_test_model_close(&test);
    }
}

/* Goal: with a number of experts that is no power of two, biases of experts with exactly the mean load stay;
 * the mean of ten times 31, added up as quotients, is not 31. */
static void test_biases_of_even_loads_stay(void **state)
{
    static const struct {
        double loads[10], moves[10];
    } cases[] = {
        {{31, 31, 31, 31, 31, 31, 31, 31, 31, 31}, {0}},
        {{32, 30, 31, 31, 31, 31, 31, 31, 31, 31}, {-RATE, RATE}},
        {{0, 0, 0, 0, 0, 0, 0, 0, 0, 0}, {0}},
    };
    const struct layout layout = {.moe = {.updates_bias = true, .bias_update_rate = RATE}};

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        double parts[RK_PARAM_WIDE_PARTS][10];
        struct rk_router_sums *sums;
        struct rk_test_model test;
        int64_t bias = 0;

        assert_ok(open_training(&test, TEN_EXPERTS, &layout, NULL));
        sums = &test.model->trainer->routers;
        memcpy(sums->host, cases[i].loads, sizeof(cases[i].loads));
        assert_ok(rk_trainer_update_biases(rk_model_trainer(test.model)));
        while (!strstr(rk_model_param_at(test.model, bias)->name, "e_score_correction_bias"))
            bias++;
        assert_ok(rk_model_gather_param(test.model, bias, parts[0]));
        assert_memory_equal(parts[0], cases[i].moves, sizeof(cases[i].moves));
        rk_test_model_close(&test);
    }
}

/* Goal: without the key, without a rate and with frozen routers biases stay. */
static void test_biases_stay_unless_they_are_to_move(void **state)
{
    static const struct layout layouts_[] = {
        {.moe = {.bias_update_rate = RATE}},
        {.moe = {.updates_bias = true}},
        {.moe = {.updates_bias = true, .bias_update_rate = NAN}},
        {.moe = {.updates_bias = true, .bias_update_rate = RATE, .freezes_router = true}},
    };

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(layouts_); i++) {
        double before[NUM_BIASES][NUM_EXPERTS], after[NUM_BIASES][NUM_EXPERTS];
        struct rk_step_stats stats;
        struct rk_test_model test;

        assert_ok(open_training(&test, SIGMOID, &layouts_[i], NULL));
        read_biases(&test, before);
        assert_ok(run_step(&test, &layouts_[i], &stats));
        read_biases(&test, after);
        assert_memory_equal(after, before, sizeof(before));
        rk_test_model_close(&test);
    }
}

/* Goal: a checkpoint has the biases, with the optimizer state from which bf16 weights are made. */
static void test_checkpoint_has_the_biases(void **state)
{
    const struct layout layout = {.is_bf16 = true, .moe = {.updates_bias = true, .bias_update_rate = RATE}};
    double saved[NUM_BIASES][NUM_EXPERTS], loaded[NUM_BIASES][NUM_EXPERTS];
    char *dir = rk_test_temp_path("biases"), *part = rk_format("%s/global_step_1/actor", dir);
    const struct rk_checkpoint_save save = {.part_dir = part,
                                            .role = "actor",
                                            .global_step = 1,
                                            .contents = RK_CHECKPOINT_MODEL | RK_CHECKPOINT_OPTIMIZER |
                                                        RK_CHECKPOINT_EXTRA};
    struct rk_checkpoint_report report;
    struct rk_checkpoint_loaded info;
    struct rk_step_stats stats;
    struct rk_test_model test, other;

    (void)state;
    assert_int_equal(mkdir(dir, 0777), 0);
    assert_ok(open_training(&test, SIGMOID, &layout, NULL));
    assert_ok(run_step(&test, &layout, &stats));
    read_biases(&test, saved);
    assert_ok(rk_test_save(test.model, &save, &report));
    assert_ok(open_training(&other, SIGMOID, &layout, NULL));
    read_biases(&other, loaded);
    assert_memory_not_equal(loaded, saved, sizeof(saved));
    assert_ok(rk_model_load_checkpoint(other.model, part, 0, NULL, &info));
    read_biases(&other, loaded);
    assert_memory_equal(loaded, saved, sizeof(saved));
    rk_test_model_close(&test);
    rk_test_model_close(&other);
    rk_free(part);
    rk_free(dir);
}

static void test_dense_model_has_no_routers(void **state)
{
    const struct layout layout = {0};
    struct rk_step_stats stats;
    struct rk_test_model test;

    (void)state;
    assert_ok(open_training(&test, DENSE, &layout, NULL));
    assert_null(test.model->trainer->routers.device);
    assert_ok(run_step(&test, &layout, &stats));
    assert_int_equal(stats.routers.num_layers, 0);
    rk_test_model_close(&test);
}

static const struct layout layouts[] = {
    {"m3_recompute1", .num_micro = 3, .recompute_num_layers = 1},
    {"t2", .tp = 2},
    {"t2s_m2", .tp = 2, .sequence_parallel = true, .num_micro = 2},
    {"t2s_etp1_e2", .tp = 2, .sequence_parallel = true, .etp = 1, .ep = 2},
    {"c2", .cp = 2},
    {"d2e2_m2", .dp = 2, .ep = 2, .num_micro = 2},
    {"p2_m2_recompute1", .pp = 2, .num_micro = 2, .recompute_num_layers = 1},
    {"t2sc2_etp1_e4", .tp = 2, .sequence_parallel = true, .cp = 2, .etp = 1, .ep = 4},
    {"t2sd2p2_m2", .tp = 2, .sequence_parallel = true, .dp = 2, .pp = 2, .num_micro = 2},
};

static int32_t num_ranks_of(const struct layout *layout)
{
    return RK_MAX(layout->tp, 1) * RK_MAX(layout->cp, 1) * RK_MAX(layout->dp, 1) * RK_MAX(layout->pp, 1);
}

static int compare(struct rk_comm_world *world, void *user)
{
    const struct layout *layout = user, one_rank = {0};
    const struct rk_router_sums *actual, *expected;
    struct rk_step_stats stats, golden;
    struct rk_test_model test, one;

    RK_RANK_OK(open_training(&one, SPARSE, &one_rank, NULL));
    RK_RANK_OK(run_step(&one, &one_rank, &golden));
    RK_RANK_OK(open_training(&test, SPARSE, layout, num_ranks_of(layout) > 1 ? world : NULL));
    RK_RANK_OK(run_step(&test, layout, &stats));
    actual = &test.model->trainer->routers;
    expected = &one.model->trainer->routers;
    for (int64_t i = 0; i < NUM_ROUTES * actual->columns; i++) {
        bool is_count = i % actual->columns <= NUM_EXPERTS + RK_ROUTER_TOKENS;
        double bound = is_count ? 0.0 : 1e-10 * (1.0 + fabs(expected->host[i]));

        RK_RANK_CHECK(fabs(actual->host[i] - expected->host[i]) <= bound, "sum %d: %.17g, expected %.17g",
                      (int)i, actual->host[i], expected->host[i]);
    }
    RK_RANK_CHECK(stats.routers.max_load == golden.routers.max_load && golden.routers.max_load > 1.0,
                  "max_load %.17g, expected %.17g", stats.routers.max_load, golden.routers.max_load);
    rk_test_model_close(&test);
    rk_test_model_close(&one);
    return 0;
}

/* Goal: the sums over a step do not depend on the layout. Method: each rank also runs the step alone. */
static void test_sums_equal_those_of_one_rank(void **state)
{
    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(layouts); i++)
        rk_test_run_case(layouts[i].name, num_ranks_of(&layouts[i]), compare, &layouts[i], RUN_TIMEOUT_S);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stats_equal_values_computed_by_hand),
        cmocka_unit_test(test_counts_are_those_of_given_experts),
        cmocka_unit_test(test_even_scores_have_the_largest_entropy_and_load),
        cmocka_unit_test(test_losses_of_even_scores_equal_values_computed_by_hand),
        cmocka_unit_test(test_gradients_of_losses_equal_differences),
        cmocka_unit_test(test_losses_that_do_not_fit_are_refused),
        cmocka_unit_test(test_biases_move_towards_even_loads),
        cmocka_unit_test(test_biases_of_even_loads_stay),
        cmocka_unit_test(test_biases_stay_unless_they_are_to_move),
        cmocka_unit_test(test_checkpoint_has_the_biases),
        cmocka_unit_test(test_dense_model_has_no_routers),
        cmocka_unit_test(test_sums_equal_those_of_one_rank),
    };

    return cmocka_run_group_tests_name("router", tests, NULL, NULL);
}
