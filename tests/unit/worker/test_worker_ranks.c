/* Several workers in one process: results agree between layouts, and a failure on one rank leaves no rank
 * waiting. */
#include "tests/unit/worker/cluster.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/rk_alloc.h"
#include "base/rk_time.h"

#define PROMPT   5
#define RESPONSE 7
#define ROWS     6 /* of all replicas */

static const struct test_mesh four_ranks[] = {
    {"actor", {.tp = 2, .dp = 2}},
    {"rollout", {.tp = 2, .dp = 2}},
};
static const struct test_mesh two_ranks[] = {{"actor", {.tp = 2}}, {"rollout", {.tp = 2}}};

/* The results of one iteration of generate, log-prob, update, log-prob, rows in order. */
struct iteration {
    int64_t responses[ROWS][RESPONSE];
    float rollout[ROWS][RESPONSE], before[ROWS][RESPONSE], after[ROWS][RESPONSE];
    double pg_loss, ppo_kl, grad_norm, entropy_loss;
    bool has_bypass; /* set by the caller: another update, in bypass mode */
    double bypass_kl, bypass_ppl_ratio;
};

static void call_all_ok(struct test_cluster *cluster, const char *role, const char *method,
                        const char *options, struct rk_batch *const *inputs, struct rk_job **jobs)
{
    test_cluster_call(cluster, role, method, options, inputs, jobs);
    for (int32_t rank = 0; rank < cluster->num_ranks; rank++)
        assert_ok(rk_status_clone(jobs[rank]->status));
}

static void destroy_all(const struct test_cluster *cluster, struct rk_job **jobs)
{
    for (int32_t rank = 0; rank < cluster->num_ranks; rank++)
        rk_job_destroy(jobs[rank]);
}

static void init_models(struct test_cluster *cluster)
{
    struct rk_job *jobs[TEST_MAX_WORKERS];

    test_cluster_init_model(cluster, "actor", "\"optim.lr\": 0.01, \"optim.eps\": 1e-5");
    call_all_ok(cluster, "rollout", "init_model",
                "{\"share_weights_of\": \"actor\", \"rollout.max_num_seqs\": 4}", NULL, jobs);
    destroy_all(cluster, jobs);
}

/* The replica of a rank in the layouts of this file: tp is the fastest axis. */
static int32_t replica_of(int32_t rank, int32_t tp)
{
    return rank / tp;
}

/* Copies the rows of every replica's first rank. */
static void collect(const struct test_cluster *cluster, struct rk_job **jobs, int32_t tp, const char *name,
                    void *out, size_t elem_bytes)
{
    int32_t num_replicas = cluster->num_ranks / tp;
    size_t bytes = (size_t)(ROWS / num_replicas) * RESPONSE * elem_bytes;

    for (int32_t d = 0; d < num_replicas; d++)
        memcpy((char *)out + (size_t)d * bytes,
               rk_column_values(rk_batch_find(jobs[d * tp]->call.output, name)), bytes);
}

/* Gives every rank a reference to the batch of its replica. */
static void share_chunks(struct rk_batch **inputs, const struct test_cluster *cluster, int32_t tp,
                         struct rk_batch *const *chunks)
{
    for (int32_t rank = 0; rank < cluster->num_ranks; rank++)
        assert_ok(rk_batch_clone(&inputs[rank], chunks[replica_of(rank, tp)]));
}

/* A planned call of the actor: method, options, and the mask column of the loss. */
struct planned_call {
    const char *method, *options, *loss_mask;
    int64_t mini_batch_rows;
};

static void run_with_plan(struct test_cluster *cluster, const struct planned_call *call, int32_t tp,
                          struct rk_batch *const *chunks, struct rk_job **jobs)
{
    struct rk_batch *inputs[TEST_MAX_WORKERS];
    int32_t num_replicas = cluster->num_ranks / tp;

    share_chunks(inputs, cluster, tp, chunks);
    for (int32_t rank = 0; rank < cluster->num_ranks; rank++) {
        jobs[rank] = test_method_job("actor", call->method, call->options, inputs[rank]);
        test_plan(jobs[rank], chunks, num_replicas, call->loss_mask, call->mini_batch_rows, 2);
    }
    for (int32_t rank = 0; rank < cluster->num_ranks; rank++)
        rk_worker_submit(cluster->workers[rank], jobs[rank]);
    for (int32_t rank = 0; rank < cluster->num_ranks; rank++)
        test_cluster_wait(cluster, jobs[rank]);
}

static const struct planned_call log_prob_call = {.method = "compute_log_prob", .options = "{}"};
static const struct planned_call update_call = {
    .method = "update_actor",
    .options = "{\"entropy_coeff\": 0.01, \"loss_agg_mode\": \"seq-mean-token-mean\"}",
    .loss_mask = "response_mask",
    .mini_batch_rows = ROWS,
};

/* Rejects the tokens whose probability has changed by more than the bound. */
#define KEPT_RATIO 5.0
static const struct planned_call bypass_call = {
    .method = "update_actor",
    .options =
        "{\"policy_loss.loss_mode\": \"bypass_mode\", \"rollout_correction.rollout_rs\": \"token_k1\", "
        "\"rollout_correction.rollout_rs_threshold\": \"5.0\", \"loss_agg_mode\": "
        "\"seq-mean-token-sum\"}",
    .loss_mask = "response_mask",
    .mini_batch_rows = ROWS,
};

/* Samples of every replica, as batches for update_actor. */
static void make_policy_chunks(struct rk_batch **chunks, int32_t num_replicas, int32_t tp,
                               struct rk_job **generated)
{
    static const char *const columns[] = {"input_ids", "attention_mask", "position_ids",
                                          "responses", "response_mask",  "rollout_log_probs",
                                          NULL};
    const int64_t shape[] = {ROWS / num_replicas, RESPONSE};

    for (int32_t d = 0; d < num_replicas; d++) {
        void *data;

        assert_ok(rk_batch_select(&chunks[d], generated[d * tp]->call.output, columns, NULL));
        assert_ok(rk_batch_put(chunks[d], "old_log_probs", rk_batch_find(chunks[d], "rollout_log_probs")));
        rk_batch_remove(chunks[d], "rollout_log_probs");
        assert_ok(rk_batch_add_dense(chunks[d], "advantages", RK_DTYPE_F32, 2, shape, &data));
        for (int64_t i = 0; i < shape[0] * RESPONSE; i++)
            ((float *)data)[i] = (d * shape[0] + i / RESPONSE) % 2 == 0 ? 1.0F : -0.5F;
    }
}

static void drop_columns(struct rk_batch **out, struct rk_batch *const *chunks, int32_t num_replicas)
{
    static const char *const columns[] = {"input_ids", "attention_mask", "position_ids", "responses", NULL};

    for (int32_t d = 0; d < num_replicas; d++)
        assert_ok(rk_batch_select(&out[d], chunks[d], columns, NULL));
}

static double sum_metric(const struct test_cluster *cluster, struct rk_job **jobs, const char *name)
{
    double sum = 0.0;

    for (int32_t rank = 0; rank < cluster->num_ranks; rank++)
        if (!isnan(test_metric(jobs[rank], name)))
            sum += test_metric(jobs[rank], name);
    return sum;
}

/* An update of the same samples in bypass mode; the last row has no token in the loss. */
static void run_bypass(struct test_cluster *cluster, int32_t tp, struct rk_batch *const *chunks,
                       struct iteration *out)
{
    int32_t num_replicas = cluster->num_ranks / tp;
    int64_t *mask = rk_column_data(rk_batch_find(chunks[num_replicas - 1], "response_mask"));
    struct rk_job *jobs[TEST_MAX_WORKERS];

    memset(mask + (ROWS / num_replicas - 1) * RESPONSE, 0, RESPONSE * sizeof(*mask));
    run_with_plan(cluster, &bypass_call, tp, chunks, jobs);
    for (int32_t rank = 0; rank < cluster->num_ranks; rank++)
        assert_ok(rk_status_clone(jobs[rank]->status));
    assert_int_equal(jobs[0]->call.plan.mini[0].num_sequences, ROWS);
    out->bypass_kl = sum_metric(cluster, jobs, "actor/ppo_kl");
    out->bypass_ppl_ratio = sum_metric(cluster, jobs, "rollout_corr/ppl_ratio");
    destroy_all(cluster, jobs);
}

static void run_iteration(struct test_cluster *cluster, int32_t tp, struct iteration *out)
{
    int32_t num_replicas = cluster->num_ranks / tp;
    struct rk_batch *prompts[TEST_MAX_WORKERS], *chunks[TEST_MAX_WORKERS], *tokens[TEST_MAX_WORKERS];
    struct rk_job *jobs[TEST_MAX_WORKERS];

    for (int32_t rank = 0; rank < cluster->num_ranks; rank++)
        prompts[rank] =
            test_prompts(ROWS / num_replicas, PROMPT, replica_of(rank, tp) * (ROWS / num_replicas));
    call_all_ok(cluster, "rollout", "generate_sequences", "{\"response_length\": 7, \"ignore_eos\": true}",
                prompts, jobs);
    collect(cluster, jobs, tp, "responses", out->responses, sizeof(int64_t));
    collect(cluster, jobs, tp, "rollout_log_probs", out->rollout, sizeof(float));
    make_policy_chunks(chunks, num_replicas, tp, jobs);
    drop_columns(tokens, chunks, num_replicas);
    destroy_all(cluster, jobs);

    run_with_plan(cluster, &log_prob_call, tp, tokens, jobs);
    collect(cluster, jobs, tp, "old_log_probs", out->before, sizeof(float));
    destroy_all(cluster, jobs);
    run_with_plan(cluster, &update_call, tp, chunks, jobs);
    out->pg_loss = sum_metric(cluster, jobs, "actor/pg_loss");
    out->ppo_kl = sum_metric(cluster, jobs, "actor/ppo_kl");
    out->entropy_loss = sum_metric(cluster, jobs, "actor/entropy_loss");
    out->grad_norm = test_metric(jobs[0], "actor/grad_norm");
    for (int32_t rank = 0; rank < cluster->num_ranks; rank++)
        assert_int_equal(isnan(test_metric(jobs[rank], "actor/pg_loss")), rank % tp != 0);
    destroy_all(cluster, jobs);
    run_with_plan(cluster, &log_prob_call, tp, tokens, jobs);
    collect(cluster, jobs, tp, "old_log_probs", out->after, sizeof(float));
    destroy_all(cluster, jobs);
    if (out->has_bypass)
        run_bypass(cluster, tp, chunks, out);
    for (int32_t d = 0; d < num_replicas; d++) {
        rk_batch_destroy(chunks[d]);
        rk_batch_destroy(tokens[d]);
    }
}

static void open_with_models(struct test_cluster *cluster, int32_t num_ranks, const struct test_mesh *meshes)
{
    test_cluster_open(cluster, num_ranks, NULL);
    test_cluster_configure(cluster, 1, meshes, 2);
    init_models(cluster);
}

static double error_of(const float *a, const float *b)
{
    return rk_test_max_rel_error_f32(a, b, ROWS * RESPONSE, 1.0);
}

/* The metrics of run_bypass by verl's definitions: the KL over the accepted tokens, the ratio of perplexities
 * over all rows, 1 where a row has no token. */
static void assert_bypass(const struct iteration *it, const char *label)
{
    double kl = 0.0, kept = 0.0, ratio = 1.0;

    for (int row = 0; row < ROWS - 1; row++) {
        double sum = 0.0;

        for (int t = 0; t < RESPONSE; t++) {
            double d = (double)it->rollout[row][t] - (double)it->after[row][t];

            sum += d;
            if (exp(fabs(d)) > KEPT_RATIO)
                continue;
            kl += d;
            kept += 1.0;
        }
        ratio += exp(sum / RESPONSE);
    }
    assert_true(kept > 3.0 && kept < 0.9 * (ROWS - 1) * RESPONSE);
    assert_below(label, fabs(it->bypass_kl - kl / kept), RK_TOL_F32_SUM);
    assert_below(label, fabs(it->bypass_ppl_ratio - ratio / ROWS), RK_TOL_F32_SUM);
}

/* Goal: samples, log-probs, loss, gradient norm and the updated policy on every layout equal those of one
 * rank. */
static void test_iteration_layouts_agree(void **state)
{
    static const struct {
        const char *label;
        int32_t tp, dp;
    } layouts[] = {{"tp=2", 2, 1}, {"dp=2", 1, 2}, {"tp=2 dp=2", 2, 2}};
    static const struct test_mesh single[] = {{"actor", {0}}, {"rollout", {0}}};
    struct test_cluster cluster;
    struct iteration expected = {.has_bypass = true};

    (void)state;
    open_with_models(&cluster, 1, single);
    run_iteration(&cluster, 1, &expected);
    test_cluster_close(&cluster);
    assert_true(error_of(expected.before[0], expected.rollout[0]) <= RK_TOL_F32_SUM);
    assert_true(error_of(expected.after[0], expected.before[0]) > 1e-3);
    assert_bypass(&expected, "one rank");
    for (size_t i = 0; i < RK_ARRAY_LEN(layouts); i++) {
        const struct rk_mesh_spec spec = {.tp = layouts[i].tp, .dp = layouts[i].dp};
        const struct test_mesh meshes[] = {{"actor", spec}, {"rollout", spec}};
        struct iteration actual = {.has_bypass = true};

        open_with_models(&cluster, layouts[i].tp * layouts[i].dp, meshes);
        run_iteration(&cluster, layouts[i].tp, &actual);
        test_cluster_close(&cluster);
        assert_memory_equal(actual.responses, expected.responses, sizeof(expected.responses));
        assert_below(layouts[i].label, error_of(actual.rollout[0], expected.rollout[0]), RK_TOL_F32_SUM);
        assert_below(layouts[i].label, error_of(actual.before[0], expected.before[0]), RK_TOL_F32_SUM);
        assert_below(layouts[i].label, error_of(actual.after[0], expected.after[0]), RK_TOL_F32_SUM);
        assert_below(layouts[i].label, fabs(actual.pg_loss - expected.pg_loss), RK_TOL_F32_SUM);
        assert_below(layouts[i].label, fabs(actual.ppo_kl - expected.ppo_kl), RK_TOL_F32_SUM);
        assert_below(layouts[i].label, fabs(actual.entropy_loss - expected.entropy_loss), RK_TOL_F32_SUM);
        assert_bypass(&actual, layouts[i].label);
        assert_below(layouts[i].label, fabs(actual.grad_norm / expected.grad_norm - 1.0), RK_TOL_F32_SUM);
    }
}

static void check_usable(struct test_cluster *cluster, int32_t tp)
{
    struct iteration iteration = {0};

    run_iteration(cluster, tp, &iteration);
}

/* Goal: an invalid row of one replica ends the call on all ranks at once, with the rank named, and the
 * communicators stay valid. */
static void test_bad_row_on_one_replica_fails_all_ranks(void **state)
{
    struct rk_batch *prompts[TEST_MAX_WORKERS];
    struct rk_job *jobs[TEST_MAX_WORKERS];
    struct test_cluster cluster;

    (void)state;
    open_with_models(&cluster, 4, four_ranks);
    for (int32_t rank = 0; rank < 4; rank++) {
        prompts[rank] = test_prompts(3, PROMPT, 3 * (rank / 2));
        if (rank >= 2)
            ((int64_t *)rk_column_data(rk_batch_find(prompts[rank], "prompts")))[PROMPT - 1] = 61;
    }
    test_cluster_call(&cluster, "rollout", "generate_sequences", "{\"response_length\": 7}", prompts, jobs);
    for (int32_t rank = 0; rank < 4; rank++)
        assert_fails(rk_status_clone(jobs[rank]->status), RK_INVALID_ARGUMENT,
                     "row 0: token 3 of the prompt is 61");
    assert_message_contains(rk_status_clone(jobs[0]->status), "rank 2");
    destroy_all(&cluster, jobs);
    check_usable(&cluster, 2);
    test_cluster_close(&cluster);
}

/* Goal: an option that is invalid only for the engine's precision is refused before any rank starts; the
 * communicators stay valid. */
static void test_bad_options_keep_the_world(void **state)
{
    static const struct {
        const char *role, *method, *options, *text;
    } cases[] = {
        {"rollout", "generate_sequences", "{\"response_length\": 4, \"top_p\": 1e-46}",
         "top_p: expected 1e-06 to 1, got 1e-46"},
        {"rollout", "generate_sequences", "{\"response_length\": 4, \"temperature\": 1e-40}", "temperature="},
        {"actor", "compute_log_prob", "{\"temperature\": 1e-40}", "temperature=1e-40"},
        {"actor", "compute_log_prob", "{\"temperature\": 1e39}", "temperature=1e+39"},
        {"actor", "update_actor", "{\"temperature\": 1e-40}", "temperature=1e-40"},
    };
    struct rk_job *jobs[TEST_MAX_WORKERS];
    struct rk_worker_snapshot snapshot;
    struct test_cluster cluster;

    (void)state;
    open_with_models(&cluster, 2, two_ranks);
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        const struct planned_call call = {.method = cases[i].method, .options = cases[i].options};
        struct rk_batch *inputs[TEST_MAX_WORKERS];

        if (strcmp(cases[i].role, "rollout") == 0) {
            for (int32_t rank = 0; rank < 2; rank++)
                inputs[rank] = test_prompts(2, PROMPT, 0);
            test_cluster_call(&cluster, "rollout", call.method, call.options, inputs, jobs);
        } else {
            inputs[0] = test_samples(2, 4);
            run_with_plan(&cluster, &call, 2, inputs, jobs);
            rk_batch_destroy(inputs[0]);
        }
        for (int32_t rank = 0; rank < 2; rank++) {
            assert_fails(rk_status_clone(jobs[rank]->status), RK_INVALID_ARGUMENT, cases[i].text);
            rk_worker_get_snapshot(cluster.workers[rank], &snapshot);
            assert_true(snapshot.is_configured);
        }
        destroy_all(&cluster, jobs);
    }
    check_usable(&cluster, 2);
    test_cluster_close(&cluster);
}

/* Goal: a pipeline whose first stage the driver would take results from, which the last one has, is refused.
 */
static void test_init_model_refuses_pp_as_fastest_axis(void **state)
{
    const struct test_mesh meshes[] = {{"actor", {.pp = 2, .order = RK_MESH_ORDER_ROLLOUT}},
                                       {"ref", {.tp = 2, .order = RK_MESH_ORDER_ROLLOUT}}};
    struct test_cluster cluster;
    struct rk_job *jobs[2];
    char *options = test_init_options("");

    (void)state;
    test_cluster_open(&cluster, 2, NULL);
    test_cluster_configure(&cluster, 1, meshes, 2);
    for (int32_t rank = 0; rank < 2; rank++) {
        jobs[rank] = test_method_job("actor", "init_model", options, NULL);
        rk_worker_submit(cluster.workers[rank], jobs[rank]);
    }
    for (int32_t rank = 0; rank < 2; rank++) {
        test_cluster_wait(&cluster, jobs[rank]);
        assert_fails(rk_status_clone(jobs[rank]->status), RK_INVALID_ARGUMENT,
                     "mesh of role 'actor': order=pp-tp-dp with pp=2, expected an order");
        rk_job_destroy(jobs[rank]);
    }
    test_cluster_init_model(&cluster, "ref", "");
    rk_free(options);
    test_cluster_close(&cluster);
}

/* Goal: if one rank cannot build a model, no rank keeps one. */
static void test_init_model_failing_on_one_rank_leaves_none(void **state)
{
    struct rk_job *jobs[TEST_MAX_WORKERS];
    struct test_cluster cluster;
    struct rk_worker_snapshot snapshot;
    char *good = test_init_options(""), *bad = test_init_options("\"optim.lr\": -1.0");

    (void)state;
    test_cluster_open(&cluster, 4, NULL);
    test_cluster_configure(&cluster, 1, four_ranks, 2);
    for (int32_t rank = 0; rank < 4; rank++) {
        jobs[rank] = test_method_job("actor", "init_model", rank == 3 ? bad : good, NULL);
        rk_worker_submit(cluster.workers[rank], jobs[rank]);
    }
    for (int32_t rank = 0; rank < 4; rank++) {
        test_cluster_wait(&cluster, jobs[rank]);
        assert_fails(rk_status_clone(jobs[rank]->status), RK_INVALID_ARGUMENT, "optim.lr");
        rk_worker_get_snapshot(cluster.workers[rank], &snapshot);
        assert_int_equal(snapshot.roles[0].state, RK_ROLE_STATE_EMPTY);
        assert_true(snapshot.is_configured);
    }
    destroy_all(&cluster, jobs);
    init_models(&cluster);
    check_usable(&cluster, 2);
    rk_free(good);
    rk_free(bad);
    test_cluster_close(&cluster);
}

static void start_long_generation(struct test_cluster *cluster, struct rk_job **jobs)
{
    struct rk_worker_snapshot snapshot;

    for (int32_t rank = 0; rank < cluster->num_ranks; rank++) {
        jobs[rank] =
            test_method_job("rollout", "generate_sequences",
                            "{\"response_length\": 4000, \"ignore_eos\": true}", test_prompts(2, PROMPT, 0));
        rk_worker_submit(cluster->workers[rank], jobs[rank]);
    }
    for (int32_t rank = 0; rank < cluster->num_ranks; rank++) {
        do {
            rk_time_sleep_ms(1);
            rk_worker_get_snapshot(cluster->workers[rank], &snapshot);
        } while (strcmp(snapshot.phase, "generate") != 0);
    }
}

/* Goal: a cancel request on one rank ends the call on all ranks with CANCELLED, and they stay configured. */
static void test_cancel_one_rank_cancels_all(void **state)
{
    struct rk_job *jobs[TEST_MAX_WORKERS];
    struct test_cluster cluster;

    (void)state;
    open_with_models(&cluster, 2, two_ranks);
    start_long_generation(&cluster, jobs);
    assert_string_equal(rk_worker_cancel(cluster.workers[1], jobs[1], false, "enough"), "flagged");
    for (int32_t rank = 0; rank < 2; rank++) {
        test_cluster_wait(&cluster, jobs[rank]);
        assert_code(rk_status_clone(jobs[rank]->status), RK_CANCELLED);
    }
    destroy_all(&cluster, jobs);
    check_usable(&cluster, 2);
    test_cluster_close(&cluster);
}

/* Goal: a cancellation while one rank's job is queued and the other's may have started leaves no rank
 * waiting: both end with CANCELLED and stay configured. */
static void test_cancel_before_one_rank_begins_cancels_all(void **state)
{
    struct rk_job *running[TEST_MAX_WORKERS], *queued[TEST_MAX_WORKERS];
    struct test_cluster cluster;

    (void)state;
    open_with_models(&cluster, 2, two_ranks);
    start_long_generation(&cluster, running);
    for (int32_t rank = 0; rank < 2; rank++) {
        queued[rank] = test_method_job("rollout", "generate_sequences", "{\"response_length\": 7}",
                                       test_prompts(2, PROMPT, 0));
        rk_worker_submit(cluster.workers[rank], queued[rank]);
    }
    assert_string_equal(rk_worker_cancel(cluster.workers[1], queued[1], false, "too late"), "flagged");
    assert_string_equal(rk_worker_cancel(cluster.workers[0], running[0], false, "enough"), "flagged");
    for (int32_t rank = 0; rank < 2; rank++) {
        test_cluster_wait(&cluster, running[rank]);
        test_cluster_wait(&cluster, queued[rank]);
        assert_fails(rk_status_clone(queued[rank]->status), RK_CANCELLED, "cancelled before it began");
    }
    destroy_all(&cluster, running);
    destroy_all(&cluster, queued);
    check_usable(&cluster, 2);
    test_cluster_close(&cluster);
}

/* Goal: a rank that does not arrive at a collective is named by the waiting rank, and the wait ends. */
static void test_missing_rank_is_named(void **state)
{
    const struct rk_worker_config config = {.collective_timeout_ms = 300};
    struct rk_worker_snapshot snapshot;
    struct test_cluster cluster;
    struct rk_job *job;

    (void)state;
    test_cluster_open(&cluster, 2, &config);
    test_cluster_configure(&cluster, 1, two_ranks, 2);
    init_models(&cluster);
    job = test_cluster_run(&cluster, 0,
                           test_method_job("rollout", "generate_sequences", "{\"response_length\": 7}",
                                           test_prompts(2, PROMPT, 0)));
    assert_string_equal(rk_status_reason(job->status), "WATCHDOG");
    assert_fails(rk_status_clone(job->status), RK_DEADLINE_EXCEEDED, "rank 1");
    rk_job_destroy(job);
    rk_worker_get_snapshot(cluster.workers[0], &snapshot);
    assert_false(snapshot.is_configured);
    test_cluster_configure(&cluster, 2, two_ranks, 2);
    check_usable(&cluster, 2);
    test_cluster_close(&cluster);
}

/* Goal: when one rank aborts, all ranks end soon, lose their configuration, and keep their models for the
 * next one. */
static void test_abort_on_one_rank_ends_all_and_keeps_models(void **state)
{
    struct rk_worker_snapshot snapshot;
    struct rk_job *jobs[TEST_MAX_WORKERS];
    struct test_cluster cluster;
    int64_t begin;

    (void)state;
    open_with_models(&cluster, 2, two_ranks);
    start_long_generation(&cluster, jobs);
    begin = rk_time_now_ns();
    rk_worker_abort_comm(cluster.workers[0], "the lease of rank 0 lapsed");
    for (int32_t rank = 0; rank < 2; rank++) {
        test_cluster_wait(&cluster, jobs[rank]);
        rk_worker_get_snapshot(cluster.workers[rank], &snapshot);
        assert_false(snapshot.is_configured);
        assert_int_equal(snapshot.roles[0].state, RK_ROLE_STATE_AWAKE);
    }
    assert_true(rk_time_now_ns() - begin < 5000000000LL);
    assert_fails(rk_status_clone(jobs[1]->status), RK_ABORTED, "rank 0");
    destroy_all(&cluster, jobs);
    test_cluster_configure(&cluster, 2, two_ranks, 2);
    check_usable(&cluster, 2);
    test_cluster_close(&cluster);
}

#ifdef RK_FAULTS
/* Goal: a rank that fails alone in the middle of an update ends its peers' wait with its reason; the
 * partially updated weights are not used until the next init_model. */
static void test_update_failing_on_one_rank_releases_peers(void **state)
{
    /* Several steps, so that no rank completes before it receives the failure of the first one. */
    const struct planned_call call = {
        .method = "update_actor",
        .options = "{}",
        .loss_mask = "response_mask",
        .mini_batch_rows = 2,
    };
    struct rk_batch *prompts[TEST_MAX_WORKERS], *chunks[TEST_MAX_WORKERS];
    struct rk_job *jobs[TEST_MAX_WORKERS];
    struct test_cluster cluster;
    int num_internal = 0, num_aborted = 0;

    (void)state;
    open_with_models(&cluster, 4, four_ranks);
    for (int32_t rank = 0; rank < 4; rank++)
        prompts[rank] = test_prompts(3, PROMPT, 3 * (rank / 2));
    call_all_ok(&cluster, "rollout", "generate_sequences", "{\"response_length\": 7}", prompts, jobs);
    make_policy_chunks(chunks, 2, 2, jobs);
    destroy_all(&cluster, jobs);
    setenv("RANKD_FAULTS", "optim.step=fail", 1); /* fires once in this process: on one rank */
    run_with_plan(&cluster, &call, 2, chunks, jobs);
    unsetenv("RANKD_FAULTS");
    for (int32_t rank = 0; rank < 4; rank++) {
        num_internal += rk_status_code(jobs[rank]->status) == RK_INTERNAL;
        num_aborted += rk_status_code(jobs[rank]->status) == RK_ABORTED &&
                       strstr(rk_status_message(jobs[rank]->status), "fault point optim.step") != NULL;
    }
    assert_int_equal(num_internal, 1);
    assert_int_equal(num_aborted, 3);
    destroy_all(&cluster, jobs);

    test_cluster_configure(&cluster, 2, four_ranks, 2);
    run_with_plan(&cluster, &call, 2, chunks, jobs);
    for (int32_t rank = 0; rank < 4; rank++)
        assert_fails(rk_status_clone(jobs[rank]->status), RK_FAILED_PRECONDITION, "interrupted");
    destroy_all(&cluster, jobs);
    for (int32_t rank = 0; rank < 4; rank++)
        prompts[rank] = test_prompts(3, PROMPT, 3 * (rank / 2));
    test_cluster_call(&cluster, "rollout", "generate_sequences", "{\"response_length\": 7}", prompts, jobs);
    for (int32_t rank = 0; rank < 4; rank++) /* also not by the role that shares them */
        assert_fails(rk_status_clone(jobs[rank]->status), RK_FAILED_PRECONDITION, "role 'actor'");
    destroy_all(&cluster, jobs);
    init_models(&cluster);
    check_usable(&cluster, 2);
    for (int32_t d = 0; d < 2; d++)
        rk_batch_destroy(chunks[d]);
    test_cluster_close(&cluster);
}
#endif

/* Goal: a new configuration keeps the models of roles whose mesh is unchanged and drops the others. */
static void test_configure_keeps_unchanged_roles(void **state)
{
    static const struct test_mesh changed_rollout[] = {{"actor", {.tp = 2, .dp = 2}},
                                                       {"rollout", {.tp = 1, .dp = 4}}};
    static const struct test_mesh changed_actor[] = {{"rollout", {.tp = 2, .dp = 2}}, {"actor", {.tp = 4}}};
    struct rk_worker_snapshot snapshot;
    struct rk_job *jobs[TEST_MAX_WORKERS];
    struct test_cluster cluster;

    (void)state;
    open_with_models(&cluster, 4, four_ranks);
    test_cluster_configure(&cluster, 2, four_ranks, 2);
    check_usable(&cluster, 2);

    test_cluster_configure(&cluster, 3, changed_rollout, 2);
    rk_worker_get_snapshot(cluster.workers[2], &snapshot);
    assert_int_equal(snapshot.roles[0].state, RK_ROLE_STATE_AWAKE);
    assert_int_equal(snapshot.roles[0].weight_version, 1);
    assert_int_equal(snapshot.roles[1].state, RK_ROLE_STATE_EMPTY);
    test_cluster_call(&cluster, "rollout", "init_model", "{\"share_weights_of\": \"actor\"}", NULL, jobs);
    for (int32_t rank = 0; rank < 4; rank++)
        assert_fails(rk_status_clone(jobs[rank]->status), RK_INVALID_ARGUMENT, "update_weights");
    destroy_all(&cluster, jobs);

    /* The rollout's mesh is unchanged now, but the weights it shares were dropped with the actor's. */
    test_cluster_configure(&cluster, 4, four_ranks, 2);
    init_models(&cluster);
    test_cluster_configure(&cluster, 5, changed_actor, 2);
    rk_worker_get_snapshot(cluster.workers[0], &snapshot);
    assert_int_equal(snapshot.roles[0].state, RK_ROLE_STATE_EMPTY);
    assert_int_equal(snapshot.roles[1].state, RK_ROLE_STATE_EMPTY);
    test_cluster_close(&cluster);
}

/* The workers in another order, the first `count` of which are the ranks of the next world. */
static void arrange(struct test_cluster *cluster, struct rk_worker *const *workers, const int32_t *order,
                    int32_t count)
{
    cluster->num_ranks = count;
    for (int32_t rank = 0; rank < count; rank++)
        cluster->workers[rank] = workers[order[rank]];
}

/* The model as a file; rk_free it. */
static char *export_model(struct test_cluster *cluster, const char *name, size_t *bytes)
{
    char *options = rk_format("{\"path\": \"%s/%s\"}", rk_test_temp_dir(), name);
    char *file = rk_format("%s/%s/model.safetensors", rk_test_temp_dir(), name), *text;
    struct rk_job *jobs[TEST_MAX_WORKERS];

    call_all_ok(cluster, "actor", "export_hf", options, NULL, jobs);
    destroy_all(cluster, jobs);
    text = rk_test_read_file(file, bytes);
    rk_free(file);
    rk_free(options);
    return text;
}

static void open_with_roots(struct test_cluster *cluster)
{
    const char *const roots[] = {rk_test_temp_dir(), NULL};

    test_cluster_open(
        cluster, 4,
        &(struct rk_worker_config){.struct_size = sizeof(struct rk_worker_config), .ckpt_roots = roots});
}

/* Goal: each remaining replica of a lost world still has the whole model, bit for bit, and cannot train any
 * more.
 */
static void test_configure_keeps_the_weights_of_the_only_replica_left(void **state)
{
    static const struct test_mesh actor[] = {{"actor", {.tp = 2}}};
    static const int32_t replicas[2][2] = {{0, 1}, {2, 3}};
    struct rk_worker *workers[TEST_MAX_WORKERS];
    struct rk_job *jobs[TEST_MAX_WORKERS];
    struct rk_batch *samples[2];
    struct test_cluster cluster;
    size_t bytes, more_bytes;
    char *expected;

    (void)state;
    open_with_roots(&cluster);
    test_cluster_configure(&cluster, 1, four_ranks, 2);
    init_models(&cluster);
    check_usable(&cluster, 2);
    expected = export_model(&cluster, "all", &bytes);
    memcpy(workers, cluster.workers, sizeof(workers));
    for (int i = 0; i < 2; i++) {
        char *name = rk_format("replica-%d", i), *text;

        arrange(&cluster, workers, replicas[i], 2);
        test_cluster_configure(&cluster, 2, actor, 1);
        text = export_model(&cluster, name, &more_bytes);
        assert_int_equal(more_bytes, bytes);
        assert_memory_equal(text, expected, bytes);
        for (int d = 0; d < 2; d++)
            samples[d] = test_samples(2, 8);
        test_cluster_call(&cluster, "actor", "update_actor", "{}", samples, jobs);
        for (int32_t rank = 0; rank < 2; rank++)
            assert_code(rk_status_clone(jobs[rank]->status), RK_FAILED_PRECONDITION);
        destroy_all(&cluster, jobs);
        rk_free(text);
        rk_free(name);
    }
    memcpy(cluster.workers, workers, sizeof(workers));
    cluster.num_ranks = 4;
    rk_free(expected);
    test_cluster_close(&cluster);
}

/* Goal: a save that a world has not completed before it was lost is dropped, not published without the shards
 * of the lost ranks. */
static void test_configure_drops_the_save_of_a_lost_world(void **state)
{
    static const struct test_mesh actor[] = {{"actor", {.tp = 2}}};
    static const int32_t replicas[2][2] = {{0, 1}, {2, 3}};
    struct rk_worker *workers[TEST_MAX_WORKERS];
    struct rk_job *jobs[TEST_MAX_WORKERS];
    struct test_cluster cluster;
    char *part = rk_format("%s/global_step_1/actor", rk_test_temp_dir());
    char *options = rk_format("{\"path\": \"%s\", \"global_step\": 1, \"async\": true}", part);

    (void)state;
    open_with_roots(&cluster);
    test_cluster_configure(&cluster, 1, four_ranks, 2);
    init_models(&cluster);
    call_all_ok(&cluster, "actor", "save_checkpoint", options, NULL, jobs);
    destroy_all(&cluster, jobs);
    memcpy(workers, cluster.workers, sizeof(workers));
    for (int i = 0; i < 2; i++) {
        const struct rk_json *meta;

        arrange(&cluster, workers, replicas[i], 2);
        test_cluster_configure(&cluster, 2, actor, 1);
        call_all_ok(&cluster, "actor", "wait_checkpoint", "{}", NULL, jobs);
        meta = rk_batch_meta(jobs[0]->call.output);
        assert_string_equal(rk_json_as_string(rk_json_find(meta, "state"), ""), "none");
        assert_int_not_equal(access(part, F_OK), 0);
        destroy_all(&cluster, jobs);
    }
    memcpy(cluster.workers, workers, sizeof(workers));
    cluster.num_ranks = 4;
    rk_free(options);
    rk_free(part);
    test_cluster_close(&cluster);
}

/* Goal: parts of different versions are not exported as one model. Method: two worlds, one of which has
 * trained; then one rank of each. */
static void test_export_ranks_of_different_versions_are_refused(void **state)
{
    static const int32_t orders[3][2] = {{0, 1}, {2, 3}, {0, 3}};
    struct rk_worker *workers[TEST_MAX_WORKERS];
    struct rk_job *jobs[TEST_MAX_WORKERS];
    struct test_cluster cluster;
    char *options = rk_format("{\"path\": \"%s/mixed\"}", rk_test_temp_dir());

    (void)state;
    open_with_roots(&cluster);
    memcpy(workers, cluster.workers, sizeof(workers));
    for (int i = 0; i < 2; i++) {
        arrange(&cluster, workers, orders[i], 2);
        test_cluster_configure(&cluster, 1, two_ranks, 2);
        init_models(&cluster);
        if (i == 0)
            check_usable(&cluster, 2);
    }
    arrange(&cluster, workers, orders[2], 2);
    test_cluster_configure(&cluster, 2, two_ranks, 2);
    test_cluster_call(&cluster, "actor", "export_hf", options, NULL, jobs);
    for (int32_t rank = 0; rank < 2; rank++)
        assert_string_equal(rk_status_reason(jobs[rank]->status), "WEIGHT_VERSIONS");
    assert_non_null(strstr(rk_status_message(jobs[1]->status), "rank 1 has weight version 0"));
    destroy_all(&cluster, jobs);
    memcpy(cluster.workers, workers, sizeof(workers));
    cluster.num_ranks = 4;
    rk_free(options);
    test_cluster_close(&cluster);
}

/* Goal: with a role on some of the ranks, the other ranks take part only in calls addressed to all. */
static void test_role_on_disjoint_ranks(void **state)
{
    static const int32_t first[] = {0, 1}, second[] = {2, 3};
    const struct test_mesh meshes[] = {
        {"actor", {.tp = 2, .num_ranks = 2, .ranks = first}},
        {"ref", {.dp = 2, .num_ranks = 2, .ranks = second}},
    };
    struct rk_job *jobs[TEST_MAX_WORKERS];
    struct rk_worker_snapshot snapshot;
    struct test_cluster cluster;

    (void)state;
    test_cluster_open(&cluster, 4, NULL);
    test_cluster_configure(&cluster, 1, meshes, 2);
    test_cluster_init_model(&cluster, "actor", "");
    test_cluster_init_model(&cluster, "ref", "");
    for (int32_t rank = 0; rank < 4; rank++) {
        rk_worker_get_snapshot(cluster.workers[rank], &snapshot);
        assert_int_equal(snapshot.roles[0].state, rank < 2 ? RK_ROLE_STATE_AWAKE : RK_ROLE_STATE_EMPTY);
        assert_int_equal(snapshot.roles[1].state, rank < 2 ? RK_ROLE_STATE_EMPTY : RK_ROLE_STATE_AWAKE);
    }
    call_all_ok(&cluster, "actor", "get_mesh_info", "{}", NULL, jobs);
    for (int32_t rank = 0; rank < 4; rank++) {
        const struct rk_json *meta = rk_batch_meta(jobs[rank]->call.output);

        assert_int_equal(rk_json_as_int(rk_json_find(meta, "rank"), -9), rank);
        assert_int_equal(rk_json_as_int(rk_json_find(meta, "tp_rank"), -9), rank < 2 ? rank : -1);
        assert_int_equal(rk_json_as_bool(rk_json_find(meta, "is_collect"), false), rank == 0);
    }
    destroy_all(&cluster, jobs);
    test_cluster_close(&cluster);
}

#ifdef RK_FAULTS
/* Goal: a call that fails in the middle on the only rank of a role does not affect other ranks. */
static void test_failure_of_a_lone_role_leaves_the_world(void **state)
{
    static const int32_t first[] = {0, 1}, second[] = {2};
    const struct test_mesh meshes[] = {
        {"actor", {.tp = 2, .num_ranks = 2, .ranks = first}},
        {"ref", {.num_ranks = 1, .ranks = second}},
    };
    struct rk_batch *input = test_samples(2, 4);
    struct rk_worker_snapshot snapshot;
    struct rk_job *lone, *jobs[2];
    struct test_cluster cluster;

    (void)state;
    test_cluster_open(&cluster, 3, NULL);
    test_cluster_configure(&cluster, 1, meshes, 2);
    test_cluster_init_model(&cluster, "actor", "");
    test_cluster_init_model(&cluster, "ref", "");
    lone = test_method_job("ref", "compute_ref_log_prob", "{}", input);
    test_plan(lone, &input, 1, NULL, 0, 2);
    setenv("RANKD_FAULTS", "worker.before_method=fail", 1);
    test_cluster_run(&cluster, 2, lone);
    unsetenv("RANKD_FAULTS");
    assert_fails(rk_status_clone(lone->status), RK_INTERNAL, "fault point worker.before_method");
    for (int32_t rank = 0; rank < 2; rank++) {
        struct rk_batch *mine;

        assert_ok(rk_batch_clone(&mine, input));
        jobs[rank] = test_method_job("actor", "compute_log_prob", "{}", mine);
        test_plan(jobs[rank], &input, 1, NULL, 0, 2);
        rk_worker_submit(cluster.workers[rank], jobs[rank]);
    }
    for (int32_t rank = 0; rank < 2; rank++) {
        test_cluster_wait(&cluster, jobs[rank]);
        assert_ok(rk_status_clone(jobs[rank]->status));
        rk_job_destroy(jobs[rank]);
    }
    rk_worker_get_snapshot(cluster.workers[2], &snapshot);
    assert_true(snapshot.is_configured);
    rk_job_destroy(lone);
    test_cluster_close(&cluster);
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_iteration_layouts_agree),
        cmocka_unit_test(test_bad_row_on_one_replica_fails_all_ranks),
        cmocka_unit_test(test_bad_options_keep_the_world),
        cmocka_unit_test(test_init_model_refuses_pp_as_fastest_axis),
        cmocka_unit_test(test_init_model_failing_on_one_rank_leaves_none),
        cmocka_unit_test(test_cancel_one_rank_cancels_all),
        cmocka_unit_test(test_cancel_before_one_rank_begins_cancels_all),
        cmocka_unit_test(test_missing_rank_is_named),
        cmocka_unit_test(test_abort_on_one_rank_ends_all_and_keeps_models),
#ifdef RK_FAULTS
        cmocka_unit_test(test_update_failing_on_one_rank_releases_peers),
#endif
        cmocka_unit_test(test_configure_keeps_unchanged_roles),
        cmocka_unit_test(test_configure_keeps_the_weights_of_the_only_replica_left),
        cmocka_unit_test(test_configure_drops_the_save_of_a_lost_world),
        cmocka_unit_test(test_export_ranks_of_different_versions_are_refused),
        cmocka_unit_test(test_role_on_disjoint_ranks),
#ifdef RK_FAULTS
        cmocka_unit_test(test_failure_of_a_lone_role_leaves_the_world),
#endif
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
