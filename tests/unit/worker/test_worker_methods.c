/* The methods on one rank, through jobs: results and refusals. */
#include "tests/unit/worker/cluster.h"

#include <math.h>
#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_str.h"

#define PROMPT   5
#define RESPONSE 7
#define ROWS     6
#define WARM_UP  "\"optim.lr\": 0.01, \"optim.lr_warmup_init\": 0.002, \"optim.lr_warmup_steps\": 4"

static const struct test_mesh meshes[] = {{"actor", {0}}, {"rollout", {0}}, {"ref", {0}}, {"critic", {0}}};

static void open_cluster(struct test_cluster *cluster, const char *root)
{
    const char *const roots[] = {root, NULL};
    const struct rk_worker_config config = {.ckpt_roots = roots};

    test_cluster_open(cluster, 1, &config);
    test_cluster_configure(cluster, 1, meshes, RK_ARRAY_LEN(meshes));
}

static void init_rollout(struct test_cluster *cluster)
{
    rk_job_destroy(test_call_ok(cluster, "rollout", "init_model",
                                "{\"share_weights_of\": \"actor\", \"rollout.max_num_seqs\": 4,"
                                " \"rollout.max_num_batched_tokens\": 16, \"rollout.max_model_len\": 64}",
                                NULL));
}

static void init_actor_and_rollout(struct test_cluster *cluster)
{
    test_cluster_init_model(cluster, "actor", "\"optim.lr\": 0.01");
    init_rollout(cluster);
}

/* The result of one generation. */
static struct rk_batch *generate(struct test_cluster *cluster, const char *options)
{
    struct rk_job *job =
        test_call_ok(cluster, "rollout", "generate_sequences", options, test_prompts(ROWS, PROMPT, 0));
    struct rk_batch *output = job->call.output;

    job->call.output = NULL;
    rk_job_destroy(job);
    return output;
}

static const int64_t *ids(const struct rk_batch *batch, const char *name, int64_t num_columns)
{
    int64_t shape[2];
    const void *data;

    assert_ok(rk_batch_get_dense(batch, name, RK_DTYPE_I64, 2, shape, &data));
    assert_int_equal(shape[1], num_columns);
    return data;
}

static const float *reals(const struct rk_batch *batch, const char *name)
{
    int64_t shape[2];
    const void *data;

    assert_ok(rk_batch_get_dense(batch, name, RK_DTYPE_F32, 2, shape, &data));
    assert_int_equal(shape[1], RESPONSE);
    return data;
}

static struct rk_batch *select_columns(const struct rk_batch *batch, const char *const *names)
{
    struct rk_batch *selected;

    assert_ok(rk_batch_select(&selected, batch, names, NULL));
    return selected;
}

static const char *const token_columns[] = {"input_ids", "attention_mask", "position_ids", "responses", NULL};

/* compute_log_prob (or its reference form) of generated samples, in micro-batches of two rows. */
static struct rk_job *log_prob_job(const char *role, const char *method, const struct rk_batch *samples,
                                   const char *options)
{
    struct rk_batch *input = select_columns(samples, token_columns);
    struct rk_job *job = test_method_job(role, method, options, input);

    test_plan(job, &input, 1, NULL, 0, 2);
    return job;
}

/* The input of update_actor: samples with alternating advantages. */
static struct rk_batch *policy_batch(const struct rk_batch *samples)
{
    static const char *const columns[] = {"input_ids", "attention_mask", "position_ids",
                                          "responses", "response_mask",  "rollout_log_probs",
                                          NULL};
    const int64_t shape[] = {ROWS, RESPONSE};
    struct rk_batch *batch = select_columns(samples, columns);
    void *data;

    assert_ok(rk_batch_put(batch, "old_log_probs", rk_batch_find(batch, "rollout_log_probs")));
    rk_batch_remove(batch, "rollout_log_probs");
    assert_ok(rk_batch_add_dense(batch, "advantages", RK_DTYPE_F32, 2, shape, &data));
    for (int64_t i = 0; i < ROWS * RESPONSE; i++)
        ((float *)data)[i] = i / RESPONSE % 2 == 0 ? 1.0F : -0.5F;
    return batch;
}

static struct rk_job *update_job(struct rk_batch *input, const char *options, int64_t mini_batch_rows)
{
    struct rk_job *job = test_method_job("actor", "update_actor", options, input);

    test_plan(job, &input, 1, "response_mask", mini_batch_rows, 2);
    return job;
}

/* Goal: the columns of a generation have the padded layout of the batch, end tokens included. */
static void test_generate_sequences_returns_padded_layout(void **state)
{
    struct test_cluster cluster;
    struct rk_batch *batch, *prompts = test_prompts(ROWS, PROMPT, 0);
    const int64_t *given, *given_mask, *input_ids, *mask, *positions, *responses, *response_mask,
        *out_prompts;
    const float *log_probs;
    int64_t num_stopped = 0;

    (void)state;
    open_cluster(&cluster, NULL);
    init_actor_and_rollout(&cluster);
    batch = generate(&cluster, "{\"response_length\": 7, \"pad_token_id\": 1,"
                               " \"eos_token_id\": [10, 20, 30, 40, 50, 60, 15, 25, 35, 45, 55]}");
    given = ids(prompts, "prompts", PROMPT);
    given_mask = ids(prompts, "attention_mask", PROMPT);
    out_prompts = ids(batch, "prompts", PROMPT);
    responses = ids(batch, "responses", RESPONSE);
    response_mask = ids(batch, "response_mask", RESPONSE);
    input_ids = ids(batch, "input_ids", PROMPT + RESPONSE);
    mask = ids(batch, "attention_mask", PROMPT + RESPONSE);
    positions = ids(batch, "position_ids", PROMPT + RESPONSE);
    log_probs = reals(batch, "rollout_log_probs");
    for (int64_t row = 0; row < ROWS; row++) {
        int64_t s = row * (PROMPT + RESPONSE), sum = 0, length = 0;

        for (int64_t c = 0; c < PROMPT; c++) {
            assert_int_equal(mask[s + c], given_mask[row * PROMPT + c]);
            assert_int_equal(input_ids[s + c], mask[s + c] ? given[row * PROMPT + c] : 1);
            assert_int_equal(out_prompts[row * PROMPT + c], input_ids[s + c]);
        }
        for (int64_t j = 0; j < RESPONSE; j++) {
            int64_t r = row * RESPONSE + j;

            assert_int_equal(responses[r], input_ids[s + PROMPT + j]);
            assert_int_equal(response_mask[r], mask[s + PROMPT + j]);
            assert_true(mask[s + PROMPT + j] ? log_probs[r] < 0.0F
                                             : log_probs[r] == 0.0F && responses[r] == 1);
            length += mask[s + PROMPT + j];
        }
        for (int64_t c = 0; c < PROMPT + RESPONSE; c++) {
            sum += mask[s + c];
            assert_int_equal(positions[s + c], RK_MAX(sum - 1, 0));
        }
        assert_true(length >= 1);
        if (length < RESPONSE) {
            assert_int_equal(responses[row * RESPONSE + length - 1] % 5, 0); /* the end token is part of it */
            num_stopped++;
        }
    }
    assert_true(num_stopped >= 1);
    assert_int_equal(rk_json_as_int(rk_json_find(rk_batch_meta(batch), "weight_version"), -1), 0);
    rk_batch_destroy(batch);
    rk_batch_destroy(prompts);
    test_cluster_close(&cluster);
}

/* Checks: at least the square of the token's probability and exp(-entropy), at most 1; 0 on padding. */
static void check_sum_pi_squared(const struct rk_batch *output, const struct rk_batch *samples,
                                 const float *entropys)
{
    const float *sums = reals(output, "sum_pi_squared"), *log_probs = reals(output, "old_log_probs");

    for (int64_t k = 0; k < ROWS * RESPONSE; k++) {
        double least = fmax(exp(2.0 * (double)log_probs[k]), exp(-(double)entropys[k]));

        if (ids(samples, "response_mask", RESPONSE)[k])
            assert_true((double)sums[k] >= least * (1.0 - RK_TOL_F32_SUM) && sums[k] <= 1.0F);
        else
            assert_true(sums[k] == 0.0F);
    }
}

/* Goal: compute_log_prob of samples gives the log-probs returned with them, at the temperature of the
 * rollout. */
static void test_compute_log_prob_equals_rollout(void **state)
{
    static const char *const temperatures[] = {"1.0", "0.7"};
    struct test_cluster cluster;

    (void)state;
    open_cluster(&cluster, NULL);
    init_actor_and_rollout(&cluster);
    for (size_t i = 0; i < RK_ARRAY_LEN(temperatures); i++) {
        char *sampling = rk_format("{\"response_length\": 7, \"temperature\": %s}", temperatures[i]);
        char *options = rk_format("{\"temperature\": %s}", temperatures[i]);
        struct rk_batch *samples = generate(&cluster, sampling);
        struct rk_job *job =
            test_cluster_run(&cluster, 0, log_prob_job("actor", "compute_log_prob", samples, options));
        struct rk_job *squares;
        const float *entropys;

        assert_ok(rk_status_clone(job->status));
        assert_below(temperatures[i],
                     rk_test_max_rel_error_f32(reals(job->call.output, "old_log_probs"),
                                               reals(samples, "rollout_log_probs"), ROWS * RESPONSE, 1.0),
                     RK_TOL_F32_SUM);
        assert_null(rk_batch_find(job->call.output, "sum_pi_squared"));
        entropys = reals(job->call.output, "entropys");
        for (int64_t k = 0; k < ROWS * RESPONSE; k++)
            assert_true(ids(samples, "response_mask", RESPONSE)[k] ? entropys[k] > 0.0F
                                                                   : entropys[k] == 0.0F);
        assert_true(test_metric(job, "perf/max_memory_allocated_gb") > 0.0);
        squares = log_prob_job("actor", "compute_log_prob", samples, options);
        rk_json_set(squares->call.options, "calculate_entropy", rk_json_new_bool(false));
        rk_json_set(squares->call.options, "calculate_sum_pi_squared", rk_json_new_bool(true));
        test_cluster_run(&cluster, 0, squares);
        assert_ok(rk_status_clone(squares->status));
        assert_non_null(rk_batch_find(squares->call.output, "old_log_probs"));
        assert_null(rk_batch_find(squares->call.output, "entropys"));
        check_sum_pi_squared(squares->call.output, samples, entropys);
        rk_job_destroy(squares);
        rk_job_destroy(job);
        rk_batch_destroy(samples);
        rk_free(sampling);
        rk_free(options);
    }
    test_cluster_close(&cluster);
}

/* Goal: an update changes the weights that the rollout shares, reports its metrics, and starts at ratio 1. */
static void test_update_actor_steps_and_reports(void **state)
{
    struct test_cluster cluster;
    struct rk_batch *samples, *again;
    struct rk_job *job;

    (void)state;
    open_cluster(&cluster, NULL);
    test_cluster_init_model(&cluster, "actor", WARM_UP);
    init_rollout(&cluster);
    samples = generate(&cluster, "{\"response_length\": 7}");
    job = test_cluster_run(&cluster, 0, update_job(policy_batch(samples), "{\"entropy_coeff\": 0.01}", ROWS));
    assert_ok(rk_status_clone(job->status));
    assert_true(isfinite(test_metric(job, "actor/pg_loss")));
    assert_below("ppo_kl", fabs(test_metric(job, "actor/ppo_kl")), RK_TOL_F32_SUM);
    assert_true(test_metric(job, "actor/pg_clipfrac") == 0.0);
    assert_true(test_metric(job, "actor/pg_clipfrac_lower") == 0.0);
    assert_true(test_metric(job, "actor/grad_norm") > 0.0);
    assert_true(test_metric(job, "actor/entropy_loss") > 0.0);
    assert_below("lr of the next update", fabs(test_metric(job, "actor/lr") - 0.004), RK_TOL_F64);
    assert_true(test_metric(job, "actor/skipped_steps") == 0.0);
    assert_true(isnan(test_metric(job, "actor/kl_loss")));
    assert_null(job->call.output);
    rk_job_destroy(job);

    again = generate(&cluster, "{\"response_length\": 7}");
    assert_int_equal(rk_json_as_int(rk_json_find(rk_batch_meta(again), "weight_version"), -1), 1);
    assert_memory_not_equal(reals(again, "rollout_log_probs"), reals(samples, "rollout_log_probs"),
                            ROWS * RESPONSE * sizeof(float));
    rk_batch_destroy(again);

    /* Three mini-batches are three steps, and from the second on the policy has changed. */
    job = test_cluster_run(&cluster, 0, update_job(policy_batch(samples), "{}", 2));
    assert_ok(rk_status_clone(job->status));
    assert_true(fabs(test_metric(job, "actor/ppo_kl")) > 1e-4);
    rk_job_destroy(job);
    job = test_call_ok(&cluster, "actor", "get_mesh_info", "{}", NULL);
    assert_int_equal(rk_json_as_int(rk_json_find(rk_batch_meta(job->call.output), "weight_version"), -1), 4);
    rk_job_destroy(job);
    rk_batch_destroy(samples);
    test_cluster_close(&cluster);
}

/* Goal: repeated updates on the same samples raise the probability of tokens with positive advantages. */
static void test_update_actor_learns(void **state)
{
    struct test_cluster cluster;
    struct rk_batch *samples;
    double first = 0.0, last = 0.0;

    (void)state;
    open_cluster(&cluster, NULL);
    init_actor_and_rollout(&cluster);
    samples = generate(&cluster, "{\"response_length\": 7}");
    for (int step = 0; step < 5; step++) {
        struct rk_job *job = test_cluster_run(&cluster, 0, update_job(policy_batch(samples), "{}", 0));

        assert_ok(rk_status_clone(job->status));
        last = test_metric(job, "actor/pg_loss");
        if (step == 0)
            first = last;
        rk_job_destroy(job);
    }
    assert_true(last < first - 0.05);
    rk_batch_destroy(samples);
    test_cluster_close(&cluster);
}

/* Meta of a memory_report. The caller owns it. */
static struct rk_json *memory_report(struct test_cluster *cluster, const char *role)
{
    struct rk_job *job = test_call_ok(cluster, role, "memory_report", "{}", NULL);
    struct rk_json *meta = rk_json_clone(rk_batch_meta(job->call.output));

    rk_job_destroy(job);
    return meta;
}

static int64_t report_int(const struct rk_json *report, const char *path)
{
    return rk_json_as_int(rk_json_find_path(report, path), -1);
}

/* Goal: cycles within the limits allocate nothing beyond init_model, and after the first one (in which the
 * kernels' workspace grows) nothing at all. */
static void test_cycles_stay_within_the_plan(void **state)
{
    struct rk_worker_snapshot snapshot;
    struct test_cluster cluster;
    uint64_t planned = 0;
    int64_t allocations = 0;

    (void)state;
    open_cluster(&cluster, NULL);
    test_cluster_init_model(&cluster, "actor",
                            "\"ppo_max_token_len_per_gpu\": 24, \"log_prob_max_token_len_per_gpu\": 24");
    init_rollout(&cluster);
    rk_worker_get_snapshot(cluster.workers[0], &snapshot);
    planned = snapshot.device_allocated_bytes;
    for (int cycle = 0; cycle < 20; cycle++) {
        struct rk_batch *samples = generate(&cluster, "{\"response_length\": 7, \"ignore_eos\": true}");
        struct rk_job *before =
            test_cluster_run(&cluster, 0, log_prob_job("actor", "compute_log_prob", samples, "{}"));
        struct rk_job *job = test_cluster_run(&cluster, 0, update_job(policy_batch(samples), "{}", 0));
        struct rk_json *report = memory_report(&cluster, "actor");

        assert_ok(rk_status_clone(before->status));
        assert_ok(rk_status_clone(job->status));
        assert_int_equal(report_int(report, "device.allocated"), planned);
        assert_int_equal(report_int(report, "overflows"), 0);
        assert_int_equal(report_int(report, "held.total"), report_int(report, "planned.total"));
        assert_true(report_int(report, "peak.activations") <= report_int(report, "planned.activations"));
        if (cycle == 0)
            allocations = report_int(report, "device.num_allocations");
        assert_int_equal(report_int(report, "device.num_allocations"), allocations);
        rk_json_free(report);
        rk_job_destroy(before);
        rk_job_destroy(job);
        rk_batch_destroy(samples);
    }
    test_cluster_close(&cluster);
}

/* Goal: with a KL loss the reference log-probs are needed; against an equal policy the loss is 0. */
static void test_update_actor_with_kl_loss(void **state)
{
    struct test_cluster cluster;
    struct rk_batch *samples, *policy;
    struct rk_job *reference, *job;

    (void)state;
    open_cluster(&cluster, NULL);
    init_actor_and_rollout(&cluster);
    test_cluster_init_model(&cluster, "ref", "");
    samples = generate(&cluster, "{\"response_length\": 7}");
    job = test_cluster_run(&cluster, 0, update_job(policy_batch(samples), "{\"use_kl_loss\": true}", 0));
    assert_fails(rk_status_clone(job->status), RK_INVALID_ARGUMENT, "ref_log_prob");
    rk_job_destroy(job);

    reference = test_cluster_run(&cluster, 0, log_prob_job("ref", "compute_ref_log_prob", samples, "{}"));
    assert_ok(rk_status_clone(reference->status));
    assert_int_equal(rk_batch_num_columns(reference->call.output), 1);
    policy = policy_batch(samples);
    assert_ok(rk_batch_union(policy, reference->call.output));
    job = test_cluster_run(&cluster, 0,
                           update_job(policy, "{\"use_kl_loss\": true, \"kl_loss_coef\": 0.5}", 0));
    assert_ok(rk_status_clone(job->status));
    assert_below("kl_loss", fabs(test_metric(job, "actor/kl_loss")), RK_TOL_F32_SUM);
    assert_true(test_metric(job, "actor/kl_coef") == 0.5);
    rk_job_destroy(job);
    rk_job_destroy(reference);
    rk_batch_destroy(samples);
    test_cluster_close(&cluster);
}

/* Goal: an exported model that is loaded again, here as the reference, is the same policy. */
static void test_export_hf_round_trip(void **state)
{
    struct test_cluster cluster;
    struct rk_batch *samples;
    struct rk_job *job;
    char *options;

    (void)state;
    open_cluster(&cluster, rk_test_temp_dir());
    init_actor_and_rollout(&cluster);
    samples = generate(&cluster, "{\"response_length\": 7}");
    options = rk_format("{\"path\": \"%s/step_1/hf\"}", rk_test_temp_dir());
    rk_job_destroy(test_call_ok(&cluster, "actor", "export_hf", options, NULL));
    job = test_cluster_run(&cluster, 0, test_method_job("actor", "export_hf", options, NULL));
    rk_free(options);
    assert_string_equal(rk_status_reason(job->status), "TARGET_EXISTS");
    rk_job_destroy(job);
    job =
        test_cluster_run(&cluster, 0, test_method_job("actor", "export_hf", "{\"path\": \"/etc/hf\"}", NULL));
    assert_string_equal(rk_status_reason(job->status), "PATH_OUTSIDE_ROOTS");
    rk_job_destroy(job);

    options = rk_format("{\"model.path\": \"%s/step_1/hf\"}", rk_test_temp_dir());
    rk_job_destroy(test_call_ok(&cluster, "ref", "init_model", options, NULL));
    job = test_cluster_run(&cluster, 0, log_prob_job("ref", "compute_ref_log_prob", samples, "{}"));
    assert_ok(rk_status_clone(job->status));
    assert_below("log-probs",
                 rk_test_max_rel_error_f32(reals(job->call.output, "ref_log_prob"),
                                           reals(samples, "rollout_log_probs"), ROWS * RESPONSE, 1.0),
                 RK_TOL_F32_SUM);
    rk_job_destroy(job);
    rk_free(options);
    rk_batch_destroy(samples);
    test_cluster_close(&cluster);
}

static void test_get_mesh_info_reports_place_and_state(void **state)
{
    static const struct {
        const char *key;
        int64_t value;
    } expected[] = {{"rank", 0},    {"world_size", 1}, {"tp_rank", 0}, {"tp_size", 1}, {"dp_rank", 0},
                    {"dp_size", 1}, {"pp_rank", 0},    {"cp_rank", 0}, {"ep_size", 1}, {"weight_version", 0}};
    struct test_cluster cluster;
    struct rk_job *job;
    const struct rk_json *meta;

    (void)state;
    open_cluster(&cluster, NULL);
    job = test_call_ok(&cluster, "ref", "get_mesh_info", "{}", NULL); /* also without a model */
    meta = rk_batch_meta(job->call.output);
    for (size_t i = 0; i < RK_ARRAY_LEN(expected); i++)
        assert_int_equal(rk_json_as_int(rk_json_find(meta, expected[i].key), -99), expected[i].value);
    assert_true(rk_json_as_bool(rk_json_find(meta, "is_collect"), false));
    assert_string_equal(rk_json_as_string(rk_json_find(meta, "state"), ""), "EMPTY");
    rk_job_destroy(job);
    test_cluster_close(&cluster);
}

/* Calls that cannot build a model. Afterwards actor and rollout have this state, others no model. */
static void refuse_bad_init_models(struct test_cluster *cluster, rk_role_state_t state)
{
    char *missing = rk_format("{\"model.path\": \"%s/missing\"}", rk_test_temp_dir());
    char *parent = rk_format("{\"model.path\": \"%s/../x\"}", rk_test_temp_dir());
    char *empty = rk_format("{\"model.path\": \"%s\"}", rk_test_temp_dir());
    const struct {
        const char *role, *options; /* options in addition to model.hf_config unless they begin with '{' */
        rk_code_t code;
        const char *text;
    } cases[] = {
        {"actor", "{}", RK_INVALID_ARGUMENT, "expected one of model.path"},
        {"actor", "\"model.path\": \"x\"", RK_INVALID_ARGUMENT, "expected one of model.path"},
        {"actor", "\"share_weights_of\": \"ref\"", RK_INVALID_ARGUMENT, "expected one of model.path"},
        {"actor", missing, RK_NOT_FOUND, "missing"},
        {"actor", parent, RK_PERMISSION_DENIED, ".."},
        {"actor", empty, RK_NOT_FOUND, "config.json"},
        {"actor", "{\"model.path\": \"x\"}", RK_INVALID_ARGUMENT, "expected an absolute path"},
        {"actor", "{\"model.hf_config\": {\"model_type\": \"mamba\"}}", RK_UNIMPLEMENTED, "mamba"},
        {"actor", "\"numerics\": \"loose\"", RK_INVALID_ARGUMENT, "loose"},
        {"actor", "\"megatron.dtype\": \"float31\"", RK_INVALID_ARGUMENT, "megatron.dtype"},
        {"actor", "\"megatron.dtype\": \"float16\"", RK_UNIMPLEMENTED, "parameter dtype f16"},
        {"actor", "\"megatron.override_transformer_config.recompute_granularity\": \"selective\"",
         RK_INVALID_ARGUMENT, "recompute_granularity: expected one of full, got \"selective\""},
        {"actor",
         "\"megatron.override_transformer_config.recompute_granularity\": \"full\","
         " \"megatron.override_transformer_config.recompute_method\": \"block\"",
         RK_INVALID_ARGUMENT, "recompute_method: expected one of uniform, got \"block\""},
        {"actor", "\"megatron.override_transformer_config.recompute_num_layers\": 0", RK_INVALID_ARGUMENT,
         "recompute_num_layers"},
        {"actor", "\"optim.lr\": -1.0", RK_INVALID_ARGUMENT, "optim.lr"},
        {"actor", "\"optim.betas\": [1]", RK_INVALID_ARGUMENT, "optim.betas"},
        {"rollout", "\"rollout.max_num_seqs\": 0", RK_INVALID_ARGUMENT, "rollout.max_num_seqs"},
        {"rollout", "\"rollout.max_model_len\": 5000", RK_INVALID_ARGUMENT, "rollout.max_model_len"},
        {"rollout", "{\"share_weights_of\": \"ref\"}", RK_FAILED_PRECONDITION, "ref"},
        {"rollout", "{\"share_weights_of\": \"rollout\"}", RK_FAILED_PRECONDITION, "rollout"},
        {"rollout", "{\"share_weights_of\": \"nobody\"}", RK_FAILED_PRECONDITION, "nobody"},
        {"critic",
         "{\"model.hf_config\": {\"model_type\": \"llama\", \"architectures\": "
         "[\"LlamaForQuestionAnswering\"]}}",
         RK_UNIMPLEMENTED, "LlamaForQuestionAnswering"},
        {"reward", "", RK_FAILED_PRECONDITION, "configured roles: actor, rollout, ref, critic"},
    };

    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        char *options =
            cases[i].options[0] == '{' ? rk_strdup(cases[i].options) : test_init_options(cases[i].options);
        struct rk_job *job =
            test_cluster_run(cluster, 0, test_method_job(cases[i].role, "init_model", options, NULL));
        struct rk_worker_snapshot snapshot;

        assert_fails(rk_status_clone(job->status), cases[i].code, cases[i].text);
        rk_worker_get_snapshot(cluster->workers[0], &snapshot);
        for (int32_t r = 0; r < snapshot.num_roles; r++)
            assert_int_equal(snapshot.roles[r].state, r < 2 ? state : RK_ROLE_STATE_EMPTY);
        rk_job_destroy(job);
        rk_free(options);
    }
    rk_free(missing);
    rk_free(parent);
    rk_free(empty);
}

/* Goal: init_model refuses invalid options by name; a role without a model stays without one, and a role with
 * a model keeps it with its trained weights, as does the role that shares them. */
static void test_init_model_bad_options_are_refused(void **state)
{
    struct rk_batch *before, *after;
    struct test_cluster cluster;

    (void)state;
    open_cluster(&cluster, rk_test_temp_dir());
    refuse_bad_init_models(&cluster, RK_ROLE_STATE_EMPTY);
    init_actor_and_rollout(&cluster);
    before = generate(&cluster, "{\"response_length\": 7}");
    refuse_bad_init_models(&cluster, RK_ROLE_STATE_AWAKE);
    after = generate(&cluster, "{\"response_length\": 7}");
    assert_memory_equal(ids(after, "responses", RESPONSE), ids(before, "responses", RESPONSE),
                        ROWS * RESPONSE * sizeof(int64_t));
    rk_batch_destroy(before);
    rk_batch_destroy(after);
    test_cluster_close(&cluster);
}

/* Goal: a new init_model of the owner also drops the models that share its weights. */
static void test_init_model_again_drops_sharing_roles(void **state)
{
    struct test_cluster cluster;
    struct rk_job *job;

    (void)state;
    open_cluster(&cluster, NULL);
    init_actor_and_rollout(&cluster);
    test_cluster_init_model(&cluster, "actor", "\"megatron.seed\": 7");
    job = test_cluster_run(&cluster, 0,
                           test_method_job("rollout", "generate_sequences", "{\"response_length\": 2}",
                                           test_prompts(2, PROMPT, 0)));
    assert_string_equal(rk_status_reason(job->status), "NO_MODEL");
    rk_job_destroy(job);
    init_actor_and_rollout(&cluster);
    rk_batch_destroy(generate(&cluster, "{\"response_length\": 7}"));
    test_cluster_close(&cluster);
}

static void test_call_wrong_role_or_state_is_refused(void **state)
{
    struct test_cluster cluster;
    struct rk_batch *samples;
    struct rk_job *job;

    (void)state;
    open_cluster(&cluster, NULL);
    init_actor_and_rollout(&cluster);
    samples = generate(&cluster, "{\"response_length\": 7}");

    job = test_cluster_run(&cluster, 0, log_prob_job("ref", "compute_ref_log_prob", samples, "{}"));
    assert_string_equal(rk_status_reason(job->status), "NO_MODEL");
    assert_fails(rk_status_clone(job->status), RK_FAILED_PRECONDITION, "'ref' is EMPTY");
    rk_job_destroy(job);
    job = test_cluster_run(&cluster, 0, log_prob_job("ref", "compute_log_prob", samples, "{}"));
    assert_fails(rk_status_clone(job->status), RK_INVALID_ARGUMENT,
                 "role 'ref' has no method compute_log_prob");
    rk_job_destroy(job);

    test_cluster_init_model(&cluster, "actor", "\"megatron.forward_only\": true");
    job = test_cluster_run(&cluster, 0, update_job(policy_batch(samples), "{}", 0));
    assert_fails(rk_status_clone(job->status), RK_FAILED_PRECONDITION, "megatron.forward_only");
    rk_job_destroy(job);
    rk_batch_destroy(samples);
    test_cluster_close(&cluster);
}

static void test_generate_sequences_bad_options_are_refused(void **state)
{
    static const struct {
        const char *options, *text;
    } cases[] = {
        {"\"temperature\": -1.0", "temperature"},
        {"\"temperature\": 9e-6",
         "row 0: temperature=9e-06: expected 0, which is greedy, or a number from 1e-05"},
        {"\"temperature\": 1e39", "temperature"},
        {"\"top_p\": 0.0", "top_p"},
        {"\"top_p\": 1e-46", "top_p"},
        {"\"top_p\": 1.5", "top_p"},
        {"\"top_k\": -2", "top_k"},
        {"\"eos_token_id\": 61", "eos_token_id"},
        {"\"eos_token_id\": [3, \"x\"]", "eos_token_id"},
        {"\"pad_token_id\": -1", "pad_token_id"},
        {"\"response_length\": 0", "response_length"},
    };
    struct test_cluster cluster;

    (void)state;
    open_cluster(&cluster, NULL);
    init_actor_and_rollout(&cluster);
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        bool has_length = strstr(cases[i].options, "response_length") != NULL;
        char *options = rk_format("{%s%s}", has_length ? "" : "\"response_length\": 7, ", cases[i].options);
        struct rk_job *job = test_cluster_run(
            &cluster, 0,
            test_method_job("rollout", "generate_sequences", options, test_prompts(2, PROMPT, 0)));

        assert_fails(rk_status_clone(job->status), RK_INVALID_ARGUMENT, cases[i].text);
        rk_job_destroy(job);
        rk_free(options);
    }
    rk_batch_destroy(generate(&cluster, "{\"response_length\": 7}"));
    test_cluster_close(&cluster);
}

/* Goal: rows of the prompts are checked: right padding, foreign ids, empty and over-long rows. */
static void test_generate_sequences_bad_prompts_are_refused(void **state)
{
    static const struct {
        const char *text;
        int64_t prompts[3], mask[3];
    } cases[] = {
        {"attention_mask[0, 2]=0", {5, 6, 0}, {1, 1, 0}},
        {"attention_mask[0, 1]=2", {0, 6, 7}, {0, 2, 1}},
        {"row 0: token 1 of the prompt is 61", {5, 61, 7}, {1, 1, 1}},
        {"row 0: token 1 of the prompt is -3", {5, 6, -3}, {0, 1, 1}},
        {"prompts[0, 1]=4294967298", {5, 4294967298, 7}, {1, 1, 1}},
        {"row 0: the prompt is empty", {5, 6, 7}, {0, 0, 0}},
    };
    struct test_cluster cluster;
    struct rk_job *job;

    (void)state;
    open_cluster(&cluster, NULL);
    init_actor_and_rollout(&cluster);
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        struct rk_batch *batch = test_prompts(1, 3, 0);

        memcpy(rk_column_data(rk_batch_find(batch, "prompts")), cases[i].prompts, sizeof(cases[i].prompts));
        memcpy(rk_column_data(rk_batch_find(batch, "attention_mask")), cases[i].mask, sizeof(cases[i].mask));
        job = test_cluster_run(
            &cluster, 0, test_method_job("rollout", "generate_sequences", "{\"response_length\": 7}", batch));
        assert_fails(rk_status_clone(job->status), RK_INVALID_ARGUMENT, cases[i].text);
        rk_job_destroy(job);
    }
    job = test_cluster_run(&cluster, 0,
                           test_method_job("rollout", "generate_sequences", "{\"response_length\": 7}",
                                           test_prompts(1, 70, 69)));
    assert_fails(rk_status_clone(job->status), RK_INVALID_ARGUMENT,
                 "row 0: a prompt of 70 tokens leaves no room for a response in rollout.max_model_len=64");
    rk_job_destroy(job);
    job = test_cluster_run(&cluster, 0,
                           test_method_job("rollout", "generate_sequences", "{\"response_length\": 7}",
                                           test_prompts(1, 4097, 4090)));
    assert_fails(rk_status_clone(job->status), RK_INVALID_ARGUMENT,
                 "'prompts' has 4097 columns, max_position_embeddings of the model is 4096");
    rk_job_destroy(job);
    test_cluster_close(&cluster);
}

/* Goal: options have their effect on the samples: greedy, the option seed against the column, the length of
 * the model. */
static void test_generate_sequences_options_take_effect(void **state)
{
    struct test_cluster cluster;
    struct rk_batch *greedy, *no_sample, *seeded, *unseeded, *prompts = test_prompts(ROWS, PROMPT, 0);
    const int64_t shape[] = {ROWS};
    struct rk_job *job;
    void *seeds;

    (void)state;
    open_cluster(&cluster, NULL);
    init_actor_and_rollout(&cluster);
    greedy = generate(&cluster, "{\"response_length\": 7, \"temperature\": 0.0, \"ignore_eos\": true}");
    no_sample = generate(&cluster, "{\"response_length\": 7, \"do_sample\": false, \"seed\": 9,"
                                   " \"ignore_eos\": true}");
    assert_memory_equal(ids(greedy, "responses", RESPONSE), ids(no_sample, "responses", RESPONSE),
                        ROWS * RESPONSE * sizeof(int64_t));
    seeded = generate(&cluster, "{\"response_length\": 7, \"seed\": 5, \"ignore_eos\": true}");
    unseeded = generate(&cluster, "{\"response_length\": 7, \"ignore_eos\": true}");
    assert_memory_not_equal(ids(seeded, "responses", RESPONSE), ids(unseeded, "responses", RESPONSE),
                            ROWS * RESPONSE * sizeof(int64_t));
    assert_ok(rk_batch_add_dense(prompts, "seed", RK_DTYPE_I64, 1, shape, &seeds));
    for (int64_t row = 0; row < ROWS; row++)
        ((int64_t *)seeds)[row] = 5;
    job = test_call_ok(&cluster, "rollout", "generate_sequences",
                       "{\"response_length\": 7, \"ignore_eos\": true}", prompts);
    assert_memory_equal(ids(seeded, "responses", RESPONSE), ids(job->call.output, "responses", RESPONSE),
                        ROWS * RESPONSE * sizeof(int64_t));
    rk_job_destroy(job);

    /* rollout.max_model_len is 64: a response ends there, the column has the requested width */
    job = test_call_ok(&cluster, "rollout", "generate_sequences",
                       "{\"response_length\": 64, \"ignore_eos\": true}", test_prompts(1, PROMPT, 4));
    assert_int_equal(ids(job->call.output, "response_mask", 64)[64 - PROMPT - 1], 1);
    assert_int_equal(ids(job->call.output, "response_mask", 64)[64 - PROMPT], 0);
    rk_job_destroy(job);
    rk_batch_destroy(greedy);
    rk_batch_destroy(no_sample);
    rk_batch_destroy(seeded);
    rk_batch_destroy(unseeded);
    test_cluster_close(&cluster);
}

/* Goal: bad columns, plans and options of the forward and update calls are refused before anything runs. */
static void test_update_actor_bad_input_is_refused(void **state)
{
    static const struct {
        const char *options, *text;
    } cases[] = {
        {"{\"clip_ratio_c\": 0.5}", "clip_ratio_c"},
        {"{\"temperature\": 0.0}", "temperature=0: expected a number from 1e-05 to 1e+06"},
        {"{\"temperature\": 9e-6}", "temperature"},
        {"{\"temperature\": 1e39}", "temperature"},
        {"{\"policy_loss.loss_mode\": \"reinforce\"}", "policy_loss.loss_mode"},
    };
    struct test_cluster cluster;
    struct rk_batch *samples, *policy;
    struct rk_job *job;

    (void)state;
    open_cluster(&cluster, NULL);
    init_actor_and_rollout(&cluster);
    samples = generate(&cluster, "{\"response_length\": 7}");
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        job = test_cluster_run(&cluster, 0, update_job(policy_batch(samples), cases[i].options, 0));
        assert_fails(rk_status_clone(job->status), RK_INVALID_ARGUMENT, cases[i].text);
        rk_job_destroy(job);
    }
    policy = policy_batch(samples);
    rk_batch_remove(policy, "advantages");
    job = test_cluster_run(&cluster, 0, update_job(policy, "{}", 0));
    assert_fails(rk_status_clone(job->status), RK_INVALID_ARGUMENT, "advantages");
    rk_job_destroy(job);

    job = update_job(policy_batch(samples), "{}", 0);
    job->call.plan.num_mini = 0;
    test_cluster_run(&cluster, 0, job);
    assert_fails(rk_status_clone(job->status), RK_INVALID_ARGUMENT, "plan");
    rk_job_destroy(job);

    job = test_call_ok(&cluster, "actor", "get_mesh_info", "{}", NULL);
    assert_int_equal(rk_json_as_int(rk_json_find(rk_batch_meta(job->call.output), "weight_version"), -1), 0);
    rk_job_destroy(job);
    rk_batch_destroy(samples);
    test_cluster_close(&cluster);
}

/* Goal: non-finite numbers under the loss mask, and denominators that differ from the data, are refused (the
 * latter with both values); outside the mask non-finite numbers are harmless. */
static void test_update_actor_bad_numbers_and_counts_are_refused(void **state)
{
    static const char *const columns[] = {"old_log_probs", "advantages"};
    struct test_cluster cluster;
    struct rk_batch *samples, *policy;
    struct rk_job *job;
    char *text;

    (void)state;
    open_cluster(&cluster, NULL);
    init_actor_and_rollout(&cluster);
    samples = generate(&cluster, "{\"response_length\": 7}");
    for (size_t i = 0; i < RK_ARRAY_LEN(columns); i++) {
        float *value, before;

        policy = policy_batch(samples); /* shares the columns of the samples */
        value = (float *)(uintptr_t)&reals(policy, columns[i])[RESPONSE];
        before = *value;
        *value = i ? INFINITY : NAN;
        job = test_cluster_run(&cluster, 0, update_job(policy, "{}", 0));
        *value = before;
        text = rk_format("%s[1, 0]=%s", columns[i], i ? "inf" : "nan");
        assert_fails(rk_status_clone(job->status), RK_INVALID_ARGUMENT, text);
        assert_string_equal(rk_status_reason(job->status), "NON_FINITE");
        rk_free(text);
        rk_job_destroy(job);
    }
    policy = policy_batch(samples);
    ((float *)(uintptr_t)reals(policy, "advantages"))[RESPONSE] = NAN;
    ((int64_t *)(uintptr_t)ids(policy, "response_mask", RESPONSE))[RESPONSE] = 0;
    job = test_cluster_run(&cluster, 0, update_job(policy, "{}", 0));
    assert_ok(rk_status_clone(job->status));
    assert_true(isfinite(test_metric(job, "actor/pg_loss")));
    rk_job_destroy(job);
    rk_batch_destroy(samples);
    samples = generate(&cluster, "{\"response_length\": 7}");

    job = update_job(policy_batch(samples), "{}", 0);
    job->call.plan.mini[0].num_tokens += 3;
    text = rk_format("num_tokens=%llu, the masks of its rows mark %llu",
                     (unsigned long long)job->call.plan.mini[0].num_tokens,
                     (unsigned long long)job->call.plan.mini[0].num_tokens - 3);
    test_cluster_run(&cluster, 0, job);
    assert_fails(rk_status_clone(job->status), RK_INVALID_ARGUMENT, text);
    rk_free(text);
    rk_job_destroy(job);
    job = update_job(policy_batch(samples), "{}", 0);
    job->call.plan.mini[0].num_sequences = ROWS + 1;
    text = rk_format("num_sequences=%d, expected %d (the rows that have a marked token) to %d", ROWS + 1,
                     ROWS, ROWS);
    test_cluster_run(&cluster, 0, job);
    assert_fails(rk_status_clone(job->status), RK_INVALID_ARGUMENT, text);
    rk_free(text);
    rk_job_destroy(job);
    rk_batch_destroy(samples);
    test_cluster_close(&cluster);
}

static int64_t weight_version(struct test_cluster *cluster)
{
    struct rk_job *job = test_call_ok(cluster, "actor", "get_mesh_info", "{}", NULL);
    int64_t version = rk_json_as_int(rk_json_find(rk_batch_meta(job->call.output), "weight_version"), -1);

    rk_job_destroy(job);
    return version;
}

/* Goal: a mini-batch without tokens under the mask takes no step (it would decay the weights and change the
 * momentum); the others of the call do. */
static void test_update_actor_skips_mini_batches_without_tokens(void **state)
{
    struct test_cluster cluster;
    struct rk_batch *samples, *again, *policy;
    struct rk_job *job;
    int64_t *mask;

    (void)state;
    open_cluster(&cluster, NULL);
    init_actor_and_rollout(&cluster);
    samples = generate(&cluster, "{\"response_length\": 7}");
    job = test_cluster_run(&cluster, 0, update_job(policy_batch(samples), "{}", 0)); /* makes a momentum */
    assert_ok(rk_status_clone(job->status));
    rk_job_destroy(job);
    rk_batch_destroy(samples);
    samples = generate(&cluster, "{\"response_length\": 7}");
    assert_int_equal(weight_version(&cluster), 1);

    policy = policy_batch(samples);
    mask = (int64_t *)(uintptr_t)ids(policy, "response_mask", RESPONSE);
    memset(mask, 0, ROWS * RESPONSE * sizeof(*mask));
    job = test_cluster_run(&cluster, 0, update_job(policy, "{\"entropy_coeff\": 0.01}", 0));
    assert_ok(rk_status_clone(job->status));
    assert_true(test_metric(job, "actor/empty_steps") == 1.0);
    assert_true(test_metric(job, "actor/skipped_steps") == 0.0);
    assert_true(test_metric(job, "actor/pg_loss") == 0.0);
    assert_true(isnan(test_metric(job, "actor/grad_norm")));
    rk_job_destroy(job);
    assert_int_equal(weight_version(&cluster), 1);
    again = generate(&cluster, "{\"response_length\": 7}");
    assert_memory_equal(reals(again, "rollout_log_probs"), reals(samples, "rollout_log_probs"),
                        ROWS * RESPONSE * sizeof(float));

    policy = policy_batch(again);
    mask = (int64_t *)(uintptr_t)ids(policy, "response_mask", RESPONSE);
    memset(mask, 0, 2 * RESPONSE * sizeof(*mask));
    job = test_cluster_run(&cluster, 0, update_job(policy, "{}", 2));
    assert_ok(rk_status_clone(job->status));
    assert_true(test_metric(job, "actor/empty_steps") == 1.0);
    assert_true(test_metric(job, "actor/grad_norm") > 0.0);
    rk_job_destroy(job);
    assert_int_equal(weight_version(&cluster), 1 + ROWS / 2 - 1);
    rk_batch_destroy(again);
    rk_batch_destroy(samples);
    test_cluster_close(&cluster);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_generate_sequences_returns_padded_layout),
        cmocka_unit_test(test_compute_log_prob_equals_rollout),
        cmocka_unit_test(test_update_actor_steps_and_reports),
        cmocka_unit_test(test_update_actor_learns),
        cmocka_unit_test(test_cycles_stay_within_the_plan),
        cmocka_unit_test(test_update_actor_with_kl_loss),
        cmocka_unit_test(test_export_hf_round_trip),
        cmocka_unit_test(test_get_mesh_info_reports_place_and_state),
        cmocka_unit_test(test_init_model_bad_options_are_refused),
        cmocka_unit_test(test_init_model_again_drops_sharing_roles),
        cmocka_unit_test(test_call_wrong_role_or_state_is_refused),
        cmocka_unit_test(test_generate_sequences_bad_options_are_refused),
        cmocka_unit_test(test_generate_sequences_bad_prompts_are_refused),
        cmocka_unit_test(test_generate_sequences_options_take_effect),
        cmocka_unit_test(test_update_actor_bad_input_is_refused),
        cmocka_unit_test(test_update_actor_bad_numbers_and_counts_are_refused),
        cmocka_unit_test(test_update_actor_skips_mini_batches_without_tokens),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
