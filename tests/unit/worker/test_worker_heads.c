/* The methods of critics, reward models, teachers and supervised fine-tuning, the losses of update_actor and
 * the sums of forward_backward: results agree between layouts, and updates reduce the loss. */
#include "tests/unit/worker/cluster.h"

#include <math.h>
#include <string.h>

#include "base/rk_alloc.h"

#define ROWS     4
#define TOKENS   9
#define RESPONSE 2
#define TOPK     3
#define LIMIT    53 /* of 61 ids; the samples have only ids below it */

/* Results of the whole batch, rows in order. */
struct outcome {
    float values[2][ROWS * RESPONSE]; /* before and after the update */
    float scores[ROWS];
    double vf_loss, sft_loss[2], dpo_loss[2], margins[2];
};

static struct test_mesh mesh_of(int32_t i, const struct rk_mesh_spec *spec)
{
    static const char *const roles[] = {"actor", "critic", "reward", "teacher"};

    return (struct test_mesh){roles[i], *spec};
}

static void add_reals(struct rk_batch *batch, const char *name, float first, float step)
{
    const int64_t shape[] = {ROWS, RESPONSE};
    void *data;

    assert_ok(rk_batch_add_dense(batch, name, RK_DTYPE_F32, 2, shape, &data));
    for (int64_t i = 0; i < ROWS * RESPONSE; i++)
        ((float *)data)[i] = first + step * (float)i;
}

/* A teacher's most likely ids, and their log-probs: exp(-0.4), exp(-1.5), ... of each. */
static void add_ids(struct rk_batch *batch)
{
    const int64_t shape[] = {ROWS, RESPONSE, TOPK};
    void *ids, *log_probs;

    assert_ok(rk_batch_add_dense(batch, "teacher_topk_ids", RK_DTYPE_I32, 3, shape, &ids));
    assert_ok(rk_batch_add_dense(batch, "teacher_topk_log_probs", RK_DTYPE_F32, 3, shape, &log_probs));
    for (int i = 0; i < ROWS * RESPONSE * TOPK; i++) {
        ((int32_t *)ids)[i] = 5 * i % 61;
        ((float *)log_probs)[i] = -0.4F - 1.1F * (float)(i % TOPK);
    }
    ((int32_t *)ids)[TOPK] = -1;
}

/* All inputs of the methods below. The loss of fine-tuning covers the tokens from the third on. */
static struct rk_batch *make_batch(void)
{
    const int64_t shape[] = {ROWS, TOKENS};
    struct rk_batch *batch = test_samples(ROWS, TOKENS);
    void *data;

    add_reals(batch, "values", 0.0F, 0.0F);
    add_reals(batch, "ref_log_prob", -4.0F, 0.0F);
    add_reals(batch, "old_log_probs", -4.5F, 0.1F);
    add_reals(batch, "advantages", 1.5F, -0.3F);
    add_reals(batch, "teacher_log_probs", -3.0F, -0.2F);
    add_reals(batch, "returns", -1.0F, 0.25F);
    add_reals(batch, "weights", 1.0F, -0.4F);
    add_reals(batch, "sequence_ratio_mask", 0.0F, 1.0F);
    add_ids(batch);
    assert_ok(rk_batch_add_dense(batch, "loss_mask", RK_DTYPE_I64, 2, shape, &data));
    for (int64_t i = 0; i < ROWS * TOKENS; i++)
        ((int64_t *)data)[i] = i % TOKENS >= 2;
    return batch;
}

struct planned {
    const char *role, *method, *options, *mask;
    const char *const *columns;
    int64_t micro_rows; /* 0: 1 */
};

/* Response tokens at the begin of every row that response_mask leaves out. */
static int64_t num_hidden;

static void hide(struct rk_batch *batch)
{
    int64_t *mask = rk_column_data(rk_batch_find(batch, "response_mask"));

    for (int64_t i = 0; i < ROWS * RESPONSE; i++)
        mask[i] = mask[i] && i % RESPONSE >= num_hidden;
}

/* Gives every rank a reference to the chunk of its replica. */
static void run(struct test_cluster *cluster, const struct planned *call, int32_t dp, struct rk_job **jobs)
{
    struct rk_batch *batch = make_batch(), *selected, *chunks[TEST_MAX_WORKERS];
    int32_t tp = cluster->num_ranks / dp;

    hide(batch);
    assert_ok(rk_batch_select(&selected, batch, call->columns, NULL));
    assert_ok(rk_batch_chunk(chunks, selected, dp));
    for (int32_t rank = 0; rank < cluster->num_ranks; rank++) {
        struct rk_batch *input;

        assert_ok(rk_batch_clone(&input, chunks[rank / tp]));
        jobs[rank] = test_method_job(call->role, call->method, call->options, input);
        test_plan(jobs[rank], chunks, dp, call->mask, call->mask ? ROWS : 0, RK_MAX(call->micro_rows, 1));
    }
    for (int32_t rank = 0; rank < cluster->num_ranks; rank++)
        rk_worker_submit(cluster->workers[rank], jobs[rank]);
    for (int32_t rank = 0; rank < cluster->num_ranks; rank++) {
        test_cluster_wait(cluster, jobs[rank]);
        assert_ok(rk_status_clone(jobs[rank]->status));
    }
    for (int32_t d = 0; d < dp; d++)
        rk_batch_destroy(chunks[d]);
    rk_batch_destroy(selected);
    rk_batch_destroy(batch);
}

static void collect(const struct test_cluster *cluster, int32_t dp, struct rk_job **jobs, const char *name,
                    float *out, int64_t per_row)
{
    int64_t count = ROWS / dp * per_row;
    int32_t tp = cluster->num_ranks / dp;

    for (int32_t d = 0; d < dp; d++)
        memcpy(out + d * count, rk_column_values(rk_batch_find(jobs[d * tp]->call.output, name)),
               (size_t)count * sizeof(float));
}

static void collect_ids(const struct test_cluster *cluster, int32_t dp, struct rk_job **jobs, int32_t *out)
{
    int64_t count = ROWS / dp * RESPONSE * TOPK;
    int32_t tp = cluster->num_ranks / dp;

    for (int32_t d = 0; d < dp; d++)
        memcpy(out + d * count,
               rk_column_values(rk_batch_find(jobs[d * tp]->call.output, "teacher_topk_ids")),
               (size_t)count * sizeof(int32_t));
}

static double sum_metric(const struct test_cluster *cluster, struct rk_job **jobs, const char *name)
{
    double sum = 0.0;

    for (int32_t rank = 0; rank < cluster->num_ranks; rank++)
        sum += isnan(test_metric(jobs[rank], name)) ? 0.0 : test_metric(jobs[rank], name);
    return sum;
}

static void destroy_all(const struct test_cluster *cluster, struct rk_job **jobs)
{
    for (int32_t rank = 0; rank < cluster->num_ranks; rank++)
        rk_job_destroy(jobs[rank]);
}

static const char *const token_columns[] = {"input_ids", "attention_mask", "position_ids", "responses", NULL};
static const char *const text_columns[] = {"input_ids", "attention_mask", "position_ids", NULL};
static const char *const sft_columns[] = {"input_ids", "attention_mask", "position_ids", "loss_mask", NULL};
static const char *const critic_columns[] = {"input_ids",     "attention_mask", "position_ids", "responses",
                                             "response_mask", "values",         "returns",      NULL};

static const char *const dpo_columns[] = {
    "input_ids", "attention_mask", "position_ids", "responses", "response_mask", "ref_log_prob", NULL};

static void run_critic(struct test_cluster *cluster, int32_t dp, struct outcome *out)
{
    const struct planned values = {"critic", "compute_values", "{}", NULL, token_columns, 0};
    const struct planned update = {"critic",        "update_critic", "{\"cliprange_value\": 100.0}",
                                   "response_mask", critic_columns,  0};
    struct rk_job *jobs[TEST_MAX_WORKERS];

    for (int i = 0; i < 2; i++) {
        run(cluster, &values, dp, jobs);
        collect(cluster, dp, jobs, "values", out->values[i], RESPONSE);
        destroy_all(cluster, jobs);
        if (i > 0)
            break;
        run(cluster, &update, dp, jobs);
        out->vf_loss = sum_metric(cluster, jobs, "critic/vf_loss");
        assert_true(test_metric(jobs[0], "critic/grad_norm") > 0.0);
        destroy_all(cluster, jobs);
    }
}

static void run_all(int32_t tp, int32_t dp, struct outcome *out)
{
    const struct planned score = {"reward", "compute_rm_score", "{}", NULL, text_columns, 0};
    const struct planned sft = {"actor", "update_sft", "{}", "loss_mask", sft_columns, 0};
    const struct planned dpo = {"actor", "update_dpo", "{\"beta\": 0.5}", "response_mask", dpo_columns, 2};
    const struct rk_mesh_spec spec = {.tp = tp, .dp = dp};
    const struct test_mesh meshes[] = {mesh_of(0, &spec), mesh_of(1, &spec), mesh_of(2, &spec)};
    struct rk_job *jobs[TEST_MAX_WORKERS];
    struct test_cluster cluster;

    test_cluster_open(&cluster, tp * dp, NULL);
    test_cluster_configure(&cluster, 1, meshes, 3);
    for (size_t i = 0; i < RK_ARRAY_LEN(meshes); i++)
        if (strcmp(meshes[i].role, "reward") != 0)
            test_cluster_init_model(&cluster, meshes[i].role, "\"optim.lr\": 0.01, \"optim.eps\": 1e-5");
    test_cluster_call(&cluster, "reward", "init_model",
                      "{\"model.hf_config\": {\"model_type\": \"llama\", \"hidden_size\": 32, "
                      "\"intermediate_size\": 48, \"num_hidden_layers\": 1, \"num_attention_heads\": 2, "
                      "\"vocab_size\": 61, \"max_position_embeddings\": 32, \"num_labels\": 3}}",
                      NULL, jobs);
    assert_ok(rk_status_clone(jobs[0]->status));
    destroy_all(&cluster, jobs);
    run_critic(&cluster, dp, out);
    run(&cluster, &score, dp, jobs);
    collect(&cluster, dp, jobs, "rm_scores", out->scores, 1);
    destroy_all(&cluster, jobs);
    for (int i = 0; i < 2; i++) {
        run(&cluster, &sft, dp, jobs);
        out->sft_loss[i] = sum_metric(&cluster, jobs, "train/loss");
        destroy_all(&cluster, jobs);
    }
    for (int i = 0; i < 2; i++) {
        run(&cluster, &dpo, dp, jobs);
        out->dpo_loss[i] = sum_metric(&cluster, jobs, "train/loss");
        out->margins[i] = sum_metric(&cluster, jobs, "rewards/margins");
        destroy_all(&cluster, jobs);
    }
    test_cluster_close(&cluster);
}

static void assert_close(const char *label, const float *a, const float *b, int64_t count)
{
    assert_below(label, rk_test_max_rel_error_f32(a, b, count, 1.0), RK_TOL_F32_SUM);
}

/* Goal: values, scores and updates on every layout equal those of one rank, and an update lowers its loss. */
static void test_heads_layouts_agree(void **state)
{
    static const struct {
        const char *label;
        int32_t tp, dp;
    } layouts[] = {{"tp=2", 2, 1}, {"dp=2", 1, 2}, {"tp=2 dp=2", 2, 2}};
    double error[2] = {0};
    struct outcome expected;

    (void)state;
    run_all(1, 1, &expected);
    for (int i = 0; i < 2; i++)
        for (int t = 0; t < ROWS * RESPONSE; t++)
            error[i] += pow((double)expected.values[i][t] - (-1.0 + 0.25 * t), 2.0) / 2.0 / (ROWS * RESPONSE);
    assert_below("vf_loss", fabs(error[0] - expected.vf_loss), RK_TOL_F32_SUM);
    assert_true(error[1] < error[0]);
    assert_true(expected.sft_loss[1] < expected.sft_loss[0]);
    assert_true(expected.dpo_loss[1] < expected.dpo_loss[0] && expected.margins[1] > expected.margins[0]);
    assert_true(expected.scores[0] != expected.scores[1]);
    for (size_t i = 0; i < RK_ARRAY_LEN(layouts); i++) {
        const char *label = layouts[i].label;
        struct outcome actual;

        run_all(layouts[i].tp, layouts[i].dp, &actual);
        for (int k = 0; k < 2; k++) {
            assert_close(label, actual.values[k], expected.values[k], ROWS * RESPONSE);
            assert_below(label, fabs(actual.sft_loss[k] - expected.sft_loss[k]), RK_TOL_F32_SUM);
            assert_below(label, fabs(actual.dpo_loss[k] - expected.dpo_loss[k]), RK_TOL_F32_SUM);
            assert_below(label, fabs(actual.margins[k] - expected.margins[k]), RK_TOL_F32_SUM);
        }
        assert_close(label, actual.scores, expected.scores, ROWS);
        assert_below(label, fabs(actual.vf_loss - expected.vf_loss), RK_TOL_F32_SUM);
    }
}

/* --- update_actor with every loss --- */

#define DISTILL "distillation.distillation_loss."
#define DISTILL_TOPK(mode, use_task_rewards)                                              \
    "{\"distillation.enabled\": true, \"" DISTILL "loss_mode\": \"" mode "\", \"" DISTILL \
    "use_task_rewards\": " use_task_rewards ", \"" DISTILL "topk\": 3}"

static const struct {
    const char *name, *options, *metric;
} policies[] = {
    {"vanilla", "{}", "actor/pg_loss"},
    {"gspo", "{\"policy_loss.loss_mode\": \"gspo\"}", "actor/pg_loss"},
    {"sapo", "{\"policy_loss.loss_mode\": \"sapo\"}", "actor/pg_loss"},
    {"gpg", "{\"policy_loss.loss_mode\": \"gpg\"}", "actor/pg_loss"},
    {"cispo", "{\"policy_loss.loss_mode\": \"cispo\"}", "actor/pg_loss"},
    {"dppo_tv", "{\"policy_loss.loss_mode\": \"dppo_tv\"}", "actor/pg_loss"},
    {"dppo_kl", "{\"policy_loss.loss_mode\": \"dppo_kl\"}", "actor/pg_loss"},
    {"dro", "{\"policy_loss.loss_mode\": \"dro\", \"policy_loss.dro_beta\": 0.3}", "actor/pg_loss"},
    {"clip_cov", "{\"policy_loss.loss_mode\": \"clip_cov\", \"policy_loss.clip_cov_lb\": -1e9}",
     "actor/pg_loss"},
    {"kl_cov", "{\"policy_loss.loss_mode\": \"kl_cov\"}", "actor/pg_loss"},
    {"geo_mean", "{\"policy_loss.loss_mode\": \"geo_mean\"}", "actor/pg_loss"},
    {"distillation", "{\"distillation.enabled\": true}", "distillation/loss"},
    {"distillation alone",
     "{\"distillation.enabled\": true, \"distillation.distillation_loss.use_task_rewards\": false}",
     "distillation/loss"},
    {"forward KL over the top-k", DISTILL_TOPK("forward_kl_topk", "true"), "distillation/loss"},
    {"forward KL over the top-k, alone", DISTILL_TOPK("forward_kl_topk", "false"), "distillation/loss"},
    {"reverse KL over the top-k, alone", DISTILL_TOPK("reverse_kl_topk", "false"), "distillation/loss"},
    {"JSD over the top-k, alone", DISTILL_TOPK("jsd_topk", "false"), "distillation/overlap_token_advantage"},
    {"JSD over the top-k", DISTILL_TOPK("jsd_topk", "true"), "distillation/student_mass"},
};

struct policy_outcome {
    double loss[RK_ARRAY_LEN(policies)], grad_norm[RK_ARRAY_LEN(policies)];
};

/* The learning rate is too small to change the model, so that every loss is computed on the same model. */
static void run_policies(int32_t tp, int32_t dp, struct policy_outcome *out)
{
    static const char *const columns[] = {"input_ids",
                                          "attention_mask",
                                          "position_ids",
                                          "responses",
                                          "response_mask",
                                          "old_log_probs",
                                          "advantages",
                                          "teacher_log_probs",
                                          "teacher_topk_ids",
                                          "teacher_topk_log_probs",
                                          NULL};
    const struct rk_mesh_spec spec = {.tp = tp, .dp = dp};
    const struct test_mesh mesh = mesh_of(0, &spec);
    struct rk_job *jobs[TEST_MAX_WORKERS];
    struct test_cluster cluster;

    test_cluster_open(&cluster, tp * dp, NULL);
    test_cluster_configure(&cluster, 1, &mesh, 1);
    test_cluster_init_model(&cluster, "actor", "\"optim.lr\": 1e-12");
    for (size_t i = 0; i < RK_ARRAY_LEN(policies); i++) {
        const struct planned update = {"actor",         "update_actor", policies[i].options,
                                       "response_mask", columns,        0};

        run(&cluster, &update, dp, jobs);
        out->loss[i] = sum_metric(&cluster, jobs, policies[i].metric);
        out->grad_norm[i] = test_metric(jobs[0], "actor/grad_norm");
        assert_true(out->grad_norm[i] > 0.0);
        assert_true(isnan(test_metric(jobs[0], "actor/pg_loss")) ==
                    (strstr(policies[i].name, "alone") != NULL));
        destroy_all(&cluster, jobs);
    }
    test_cluster_close(&cluster);
}

/* Goal: loss and gradient of every policy loss on every layout equal those of one rank. */
static void test_policy_losses_layouts_agree(void **state)
{
    static const int32_t layouts[][2] = {{2, 1}, {1, 2}, {2, 2}};
    struct policy_outcome expected, actual;

    (void)state;
    run_policies(1, 1, &expected);
    for (size_t k = 0; k < RK_ARRAY_LEN(layouts); k++) {
        run_policies(layouts[k][0], layouts[k][1], &actual);
        for (size_t i = 0; i < RK_ARRAY_LEN(policies); i++) {
            double scale = fmax(1.0, fabs(expected.loss[i]));

            assert_below(policies[i].name, fabs(actual.loss[i] - expected.loss[i]) / scale, RK_TOL_F32_SUM);
            assert_below(policies[i].name, fabs(actual.grad_norm[i] / expected.grad_norm[i] - 1.0),
                         RK_TOL_F32_SUM);
        }
    }
}

/* --- a teacher --- */

#define TOPK_OPTIONS "{\"topk\": 3, \"temperature\": 0.7}"

struct top {
    int32_t ids[ROWS * RESPONSE * TOPK];
    float log_probs[ROWS * RESPONSE * TOPK];
    float sampled[ROWS * RESPONSE]; /* of the response tokens */
};

static void run_teacher(int32_t tp, int32_t dp, const char *more, struct top *out)
{
    const struct planned top = {"teacher", "compute_teacher_log_prob", TOPK_OPTIONS, NULL, token_columns, 0};
    const struct planned sampled = {"teacher", "compute_ref_log_prob", "{\"temperature\": 0.7}",
                                    NULL,      token_columns,          0};
    const struct rk_mesh_spec spec = {.tp = tp, .dp = dp};
    const struct test_mesh mesh = mesh_of(3, &spec);
    struct rk_job *jobs[TEST_MAX_WORKERS];
    struct test_cluster cluster;

    test_cluster_open(&cluster, tp * dp, NULL);
    test_cluster_configure(&cluster, 1, &mesh, 1);
    test_cluster_init_model(&cluster, "teacher", more);
    run(&cluster, &top, dp, jobs);
    collect_ids(&cluster, dp, jobs, out->ids);
    collect(&cluster, dp, jobs, "teacher_topk_log_probs", out->log_probs, RESPONSE * TOPK);
    destroy_all(&cluster, jobs);
    run(&cluster, &sampled, dp, jobs);
    collect(&cluster, dp, jobs, "ref_log_prob", out->sampled, RESPONSE);
    destroy_all(&cluster, jobs);
    test_cluster_close(&cluster);
}

/* Goal: a teacher's most likely ids are sorted, no token is more likely than the first, and they are the same
 * on all layouts. */
static void test_teacher_layouts_agree(void **state)
{
    static const int32_t layouts[][2] = {{2, 1}, {1, 2}, {2, 2}};
    struct top expected, actual;

    (void)state;
    run_teacher(1, 1, "\"megatron.forward_only\": true", &expected);
    for (int i = 0; i < ROWS * RESPONSE * TOPK; i++) {
        assert_in_range(expected.ids[i], 0, 60);
        assert_true(expected.log_probs[i] < 0.0F);
        assert_true(i % TOPK == 0 || expected.log_probs[i] <= expected.log_probs[i - 1]);
        assert_true(expected.sampled[i / TOPK] <= expected.log_probs[i / TOPK * TOPK]);
    }
    for (size_t k = 0; k < RK_ARRAY_LEN(layouts); k++) {
        run_teacher(layouts[k][0], layouts[k][1], "\"megatron.forward_only\": true", &actual);
        assert_memory_equal(actual.ids, expected.ids, sizeof(expected.ids));
        assert_close("log-probs", actual.log_probs, expected.log_probs, ROWS * RESPONSE * TOPK);
    }
}

/* Goal: ids beyond model.vocab_size have no probability: none of them is returned, and the others'
 * probabilities are larger. Method: with tp=2 the limit is inside the part of the second rank. */
static void test_teacher_has_no_ids_beyond_the_limit(void **state)
{
    struct top whole, limited[2];
    int num_beyond = 0;

    (void)state;
    run_teacher(1, 1, "\"megatron.forward_only\": true", &whole);
    for (int i = 0; i < 2; i++) {
        run_teacher(1 + i, 1, "\"megatron.forward_only\": true, \"model.vocab_size\": 53", &limited[i]);
        for (int k = 0; k < ROWS * RESPONSE * TOPK; k++)
            assert_in_range(limited[i].ids[k], 0, LIMIT - 1);
        for (int k = 0; k < ROWS * RESPONSE; k++)
            assert_true(limited[i].sampled[k] > whole.sampled[k]);
    }
    for (int k = 0; k < ROWS * RESPONSE * TOPK; k++)
        num_beyond += whole.ids[k] >= LIMIT;
    assert_true(num_beyond > 0); /* otherwise the test is not meaningful */
    assert_memory_equal(limited[0].ids, limited[1].ids, sizeof(limited[0].ids));
    assert_close("log-probs", limited[1].log_probs, limited[0].log_probs, ROWS * RESPONSE * TOPK);
}

static void expect_refused(struct test_cluster *cluster, const char *role, const char *method,
                           const char *options, struct rk_batch *input, const char *text)
{
    struct rk_job *job = test_method_job(role, method, options, input);

    test_plan(job, &input, 1, strcmp(role, "actor") == 0 ? "response_mask" : NULL,
              strcmp(role, "actor") == 0 ? ROWS : 0, 1);
    test_cluster_run(cluster, 0, job);
    assert_fails(rk_status_clone(job->status), RK_INVALID_ARGUMENT, text);
    rk_job_destroy(job);
}

/* The actor's input with one number changed, or without a column. */
static struct rk_batch *make_actor_batch(int32_t first_id, float first_log_prob, const char *without)
{
    static const char *const columns[] = {"input_ids",  "attention_mask",   "position_ids",
                                          "responses",  "response_mask",    "old_log_probs",
                                          "advantages", "teacher_topk_ids", "teacher_topk_log_probs"};
    const char *selected[RK_ARRAY_LEN(columns) + 1] = {NULL};
    struct rk_batch *batch = make_batch(), *out;
    size_t count = 0;

    ((int32_t *)rk_column_data((struct rk_column *)rk_batch_find(batch, "teacher_topk_ids")))[0] = first_id;
    ((float *)rk_column_data((struct rk_column *)rk_batch_find(batch, "teacher_topk_log_probs")))[0] =
        first_log_prob;
    for (size_t i = 0; i < RK_ARRAY_LEN(columns); i++)
        if (!without || strcmp(columns[i], without) != 0)
            selected[count++] = columns[i];
    assert_ok(rk_batch_select(&out, batch, selected, NULL));
    rk_batch_destroy(batch);
    return out;
}

/* Goal: more ids than the vocabulary or the memory plan has, ids that do not exist, and columns that are
 * missing, too narrow or not finite are named. */
static void test_topk_bad_input_is_refused(void **state)
{
    static const struct test_mesh meshes[] = {{"actor", {0}}, {"teacher", {0}}};
    static const char options[] = DISTILL_TOPK("forward_kl_topk", "true");
    static const struct {
        const char *options, *text;
    } bad[] = {
        {"{\"topk\": 0}", "topk=0: expected 1 to 61"},
        {"{\"topk\": 62}", "topk=62: expected 1 to 61, the model's vocabulary has 61 ids"},
        {"{\"topk\": 9}", "topk=9: more than topk=3 of init_model"},
    };
    static const char wide[] =
        "{\"distillation.enabled\": true, \"" DISTILL "loss_mode\": \"jsd_topk\", \"" DISTILL "topk\": 4}";
    struct test_cluster cluster;

    (void)state;
    test_cluster_open(&cluster, 1, NULL);
    test_cluster_configure(&cluster, 1, meshes, 2);
    test_cluster_init_model(&cluster, "teacher", "\"log_prob_max_token_len_per_gpu\": 64, \"topk\": 3");
    test_cluster_init_model(&cluster, "actor", "");
    for (size_t i = 0; i < RK_ARRAY_LEN(bad); i++) {
        struct rk_batch *batch = make_batch(), *input;

        assert_ok(rk_batch_select(&input, batch, token_columns, NULL));
        expect_refused(&cluster, "teacher", "compute_teacher_log_prob", bad[i].options, input, bad[i].text);
        rk_batch_destroy(batch);
    }
    expect_refused(&cluster, "actor", "update_actor", options, make_actor_batch(61, -1, NULL),
                   "teacher_topk_ids[0, 0, 0]=61: expected -1 to 60");
    expect_refused(&cluster, "actor", "update_actor", options, make_actor_batch(-2, -1, NULL),
                   "teacher_topk_ids[0, 0, 0]=-2: expected -1 to 60");
    expect_refused(&cluster, "actor", "update_actor", options, make_actor_batch(1, INFINITY, NULL),
                   "teacher_topk_log_probs[0, 0]=inf");
    expect_refused(&cluster, "actor", "update_actor", options, make_actor_batch(1, -1, "teacher_topk_ids"),
                   "teacher_topk_ids");
    expect_refused(&cluster, "actor", "update_actor", options,
                   make_actor_batch(1, -1, "teacher_topk_log_probs"), "teacher_topk_log_probs");
    expect_refused(&cluster, "actor", "update_actor", wide, make_actor_batch(1, -1, NULL),
                   "'teacher_topk_ids' has [2, 3] numbers per row, expected [2, 4]");
    test_cluster_init_model(&cluster, "actor", "\"ppo_max_token_len_per_gpu\": 64");
    expect_refused(&cluster, "actor", "update_actor", options, make_actor_batch(1, -1, NULL),
                   "topk=3: more than topk=0 of init_model");
    test_cluster_close(&cluster);
}

/* Goal: a plan that separates the rows of a pair is refused. */
static void test_update_dpo_separated_pair_is_refused(void **state)
{
    static const uint32_t orders[][4] = {{1, 0, 2, 3}, {0, 2, 1, 3}, {1, 2, 3, 0}};
    const struct rk_mesh_spec spec = {.tp = 1, .dp = 1};
    const struct test_mesh mesh = mesh_of(0, &spec);
    struct test_cluster cluster;

    (void)state;
    test_cluster_open(&cluster, 1, NULL);
    test_cluster_configure(&cluster, 1, &mesh, 1);
    test_cluster_init_model(&cluster, "actor", "\"optim.lr\": 0.01");
    for (size_t i = 0; i < RK_ARRAY_LEN(orders); i++) {
        struct rk_batch *batch = make_batch(), *input;
        struct rk_job *job;

        assert_ok(rk_batch_select(&input, batch, dpo_columns, NULL));
        job = test_method_job("actor", "update_dpo", "{}", input);
        test_plan(job, &input, 1, "response_mask", ROWS, ROWS);
        memcpy((uint32_t *)job->call.plan.mini[0].micro[0].rows, orders[i], sizeof(orders[i]));
        rk_worker_submit(cluster.workers[0], job);
        test_cluster_wait(&cluster, job);
        assert_code(rk_status_clone(job->status), RK_INVALID_ARGUMENT);
        rk_job_destroy(job);
        rk_batch_destroy(batch);
    }
    test_cluster_close(&cluster);
}

/* --- forward_backward and optim_step --- */

static const char *const sum_columns[] = {
    "input_ids",     "attention_mask", "position_ids", "responses",           "response_mask",
    "old_log_probs", "advantages",     "weights",      "sequence_ratio_mask", NULL};
static const struct planned infer = {"actor", "compute_log_prob", "{\"calculate_entropy\": false}",
                                     NULL,    token_columns,      0};

static void open_actor(struct test_cluster *cluster, int32_t tp, int32_t dp, const char *more)
{
    const struct rk_mesh_spec spec = {.tp = tp, .dp = dp};
    const struct test_mesh mesh = mesh_of(0, &spec);

    test_cluster_open(cluster, tp * dp, NULL);
    test_cluster_configure(cluster, 1, &mesh, 1);
    test_cluster_init_model(cluster, "actor", more);
}

/* One call of forward_backward on the whole batch; returns loss_sum. */
static double accumulate(struct test_cluster *cluster, int32_t dp, const char *options, float *log_probs)
{
    const struct planned call = {"actor", "forward_backward", options, "response_mask", sum_columns, 0};
    struct rk_job *jobs[TEST_MAX_WORKERS];
    double loss;

    run(cluster, &call, dp, jobs);
    loss = sum_metric(cluster, jobs, "actor/loss_sum");
    if (log_probs)
        collect(cluster, dp, jobs, "log_probs", log_probs, RESPONSE);
    assert_true(isnan(test_metric(jobs[0], "actor/grad_norm")));
    destroy_all(cluster, jobs);
    return loss;
}

/* One optim_step; returns the norm, NAN where there were no gradients. */
static double take_step(struct test_cluster *cluster, const char *options)
{
    struct rk_job *jobs[TEST_MAX_WORKERS];
    double norm;

    test_cluster_call(cluster, "actor", "optim_step", options, NULL, jobs);
    assert_ok(rk_status_clone(jobs[0]->status));
    norm = test_metric(jobs[0], "actor/grad_norm");
    destroy_all(cluster, jobs);
    return norm;
}

static void read_log_probs(struct test_cluster *cluster, int32_t dp, float *out)
{
    struct rk_job *jobs[TEST_MAX_WORKERS];

    run(cluster, &infer, dp, jobs);
    collect(cluster, dp, jobs, "old_log_probs", out, RESPONSE);
    destroy_all(cluster, jobs);
}

static const char *const sums[] = {
    "{}",
    "{\"loss_fn\": \"importance_sampling\"}",
    "{\"loss_fn\": \"ppo\"}",
    "{\"loss_fn\": \"cispo\", \"clip_high_threshold\": 3.0}",
    "{\"loss_fn\": \"dro\", \"beta\": 0.05}",
    "{\"loss_fn\": \"gspo\"}",
};

struct sum_outcome {
    double loss[RK_ARRAY_LEN(sums)], grad_norm[RK_ARRAY_LEN(sums)];
    float log_probs[3][ROWS * RESPONSE]; /* of forward_backward, before and after the last step */
};

/* The learning rate is too small to change the model, until the last step. */
static void run_sums(int32_t tp, int32_t dp, struct sum_outcome *out)
{
    struct test_cluster cluster;

    open_actor(&cluster, tp, dp, "\"optim.lr\": 1e-12, \"optim.eps\": 1e-5");
    for (size_t i = 0; i < RK_ARRAY_LEN(sums); i++) {
        out->loss[i] = accumulate(&cluster, dp, sums[i], out->log_probs[0]);
        out->grad_norm[i] = take_step(&cluster, "{}");
    }
    read_log_probs(&cluster, dp, out->log_probs[1]);
    accumulate(&cluster, dp, "{}", NULL);
    take_step(&cluster, "{\"optim.lr\": 0.01, \"optim.clip_grad\": 0.5}");
    read_log_probs(&cluster, dp, out->log_probs[2]);
    test_cluster_close(&cluster);
}

/* Goal: every sum, its gradient, its log-probs and the following step on every layout equal those of one
 * rank; the log-probs equal those of compute_log_prob. */
static void test_sums_layouts_agree(void **state)
{
    static const int32_t layouts[][2] = {{2, 1}, {1, 2}, {2, 2}};
    struct sum_outcome expected, actual;

    (void)state;
    run_sums(1, 1, &expected);
    assert_close("log_probs", expected.log_probs[0], expected.log_probs[1], ROWS * RESPONSE);
    assert_true(expected.log_probs[1][0] != expected.log_probs[2][0]);
    for (size_t k = 0; k < RK_ARRAY_LEN(layouts); k++) {
        run_sums(layouts[k][0], layouts[k][1], &actual);
        for (size_t i = 0; i < RK_ARRAY_LEN(sums); i++) {
            double scale = fmax(1.0, fabs(expected.loss[i]));

            assert_true(expected.grad_norm[i] > 0.0);
            assert_below(sums[i], fabs(actual.loss[i] - expected.loss[i]) / scale, RK_TOL_F32_SUM);
            assert_below(sums[i], fabs(actual.grad_norm[i] / expected.grad_norm[i] - 1.0), RK_TOL_F32_SUM);
        }
        for (int i = 0; i < 3; i++)
            assert_close("log_probs", actual.log_probs[i], expected.log_probs[i], ROWS * RESPONSE);
    }
}

/* Goal: log-probs of response tokens outside of response_mask are 0, the others those of compute_log_prob. */
static void test_sums_return_log_probs_of_the_mask(void **state)
{
    const struct planned call = {"actor", "forward_backward", "{}", "response_mask", sum_columns, 0};
    float all[ROWS * RESPONSE], masked[ROWS * RESPONSE];
    struct rk_job *jobs[TEST_MAX_WORKERS];
    struct test_cluster cluster;

    (void)state;
    open_actor(&cluster, 1, 1, "");
    read_log_probs(&cluster, 1, all);
    num_hidden = 2;
    run(&cluster, &call, 1, jobs);
    num_hidden = 0;
    collect(&cluster, 1, jobs, "log_probs", masked, RESPONSE);
    destroy_all(&cluster, jobs);
    for (int64_t i = 0; i < ROWS * RESPONSE; i++) {
        assert_true(all[i] < 0.0F);
        all[i] = i % RESPONSE < 2 ? 0.0F : all[i];
    }
    assert_close("log_probs", masked, all, ROWS * RESPONSE);
    assert_true(masked[0] == 0.0F);
    test_cluster_close(&cluster);
}

/* Goal: gradients of several calls accumulate until a step uses them; a step with its own learning rate
 * changes the weights, while a step without gradients or with the schedule's rate of 0 does not. */
static void test_gradients_add_up_until_a_step(void **state)
{
    float first[ROWS * RESPONSE], second[ROWS * RESPONSE];
    struct test_cluster cluster;
    double once, losses[2];

    (void)state;
    open_actor(&cluster, 1, 1, "\"optim.lr\": 0.0, \"optim.clip_grad\": 0");
    read_log_probs(&cluster, 1, first);
    assert_true(isnan(take_step(&cluster, "{\"optim.lr\": 0.01}")));
    losses[0] = accumulate(&cluster, 1, "{}", NULL);
    once = take_step(&cluster, "{}");
    for (int i = 0; i < 3; i++)
        losses[1] = accumulate(&cluster, 1, "{}", NULL);
    assert_true(losses[0] == losses[1]); /* neither the empty step nor a rate of 0 has changed a weight */
    assert_below("norm", fabs(take_step(&cluster, "{}") / (3.0 * once) - 1.0), RK_TOL_F32_SUM);
    read_log_probs(&cluster, 1, second);
    assert_memory_equal(first, second, sizeof(first));
    accumulate(&cluster, 1, "{}", NULL);
    take_step(&cluster, "{\"optim.lr\": 0.01, \"optim.betas\": [0.5, 0.9], \"optim.eps\": 1e-5}");
    read_log_probs(&cluster, 1, second);
    assert_memory_not_equal(first, second, sizeof(first));
    test_cluster_close(&cluster);
}

/* Steps with one method or two and returns the log-probs afterwards. Takes ownership of the input. */
static void step_by(const char *method, const char *mask, struct rk_batch *input, float *log_probs)
{
    struct test_cluster cluster;
    struct rk_job *job = test_method_job("actor", method, "{}", input);

    open_actor(&cluster, 1, 1, "\"optim.lr\": 0.01, \"optim.eps\": 1e-5");
    test_plan(job, &input, 1, mask, ROWS, 1);
    job = test_cluster_run(&cluster, 0, job);
    assert_ok(rk_status_clone(job->status));
    rk_job_destroy(job);
    if (strcmp(method, "forward_backward") == 0)
        take_step(&cluster, "{}");
    read_log_probs(&cluster, 1, log_probs);
    test_cluster_close(&cluster);
}

/* Goal: with weights that include the division by the token count, the two calls equal one update_sft: the
 * same step, bit for bit. */
static void test_weighted_sum_and_step_are_an_sft_update(void **state)
{
    const int64_t shape[] = {ROWS, TOKENS};
    struct rk_batch *batch = make_batch(), *input;
    float log_probs[2][ROWS * RESPONSE];
    void *mask;

    (void)state;
    add_reals(batch, "weights", 1.0F / (ROWS * RESPONSE), 0.0F);
    assert_ok(rk_batch_select(&input, batch, sum_columns, NULL));
    step_by("forward_backward", "response_mask", input, log_probs[0]);
    assert_ok(rk_batch_add_dense(batch, "loss_mask", RK_DTYPE_I64, 2, shape, &mask));
    for (int64_t t = 0; t < ROWS * TOKENS; t++)
        ((int64_t *)mask)[t] = t % TOKENS >= TOKENS - RESPONSE;
    assert_ok(rk_batch_select(&input, batch, sft_columns, NULL));
    step_by("update_sft", "loss_mask", input, log_probs[1]);
    assert_memory_equal(log_probs[0], log_probs[1], sizeof(log_probs[0]));
    rk_batch_destroy(batch);
}

static const struct {
    const char *label, *options;
    const char *without; /* column to leave out */
    int64_t mini_rows;
    bool is_nan;
    const char *message;
} bad_sums[] = {
    {"unknown loss_fn", "{\"loss_fn\": \"grpo\"}", NULL, ROWS, false, "loss_fn: expected one of"},
    {"dro without beta", "{\"loss_fn\": \"dro\"}", NULL, ROWS, false, "beta: dro needs a number above 0"},
    {"crossed thresholds", "{\"loss_fn\": \"ppo\", \"clip_low_threshold\": 2.0}", NULL, ROWS, false,
     "clip_low_threshold: expected at most clip_high_threshold"},
    {"no advantages", "{\"loss_fn\": \"ppo\"}", "advantages", ROWS, false, "advantages"},
    {"no log-probs of the sampler", "{\"loss_fn\": \"cispo\"}", "old_log_probs", ROWS, false,
     "old_log_probs"},
    {"two mini-batches", "{}", NULL, ROWS / 2, false, "plan: expected one mini-batch for forward_backward"},
    {"a weight that is no number", "{}", NULL, ROWS, true, "weights"},
};

/* Goal: invalid input is refused before any gradient is computed, and pending gradients are kept. */
static void test_bad_sums_are_refused(void **state)
{
    struct test_cluster cluster;
    double norm;

    (void)state;
    open_actor(&cluster, 1, 1, "\"optim.lr\": 0.0, \"optim.clip_grad\": 0");
    accumulate(&cluster, 1, "{}", NULL);
    norm = take_step(&cluster, "{}");
    accumulate(&cluster, 1, "{}", NULL);
    for (size_t i = 0; i < RK_ARRAY_LEN(bad_sums); i++) {
        struct rk_batch *batch = make_batch(), *input;
        struct rk_job *job;

        print_message("%s\n", bad_sums[i].label);
        assert_ok(rk_batch_select(&input, batch, sum_columns, NULL));
        if (bad_sums[i].without)
            rk_batch_remove(input, bad_sums[i].without);
        if (bad_sums[i].is_nan)
            add_reals(input, "weights", NAN, 0.0F);
        job = test_method_job("actor", "forward_backward", bad_sums[i].options, input);
        test_plan(job, &input, 1, "response_mask", bad_sums[i].mini_rows, 1);
        rk_worker_submit(cluster.workers[0], job);
        test_cluster_wait(&cluster, job);
        assert_fails(rk_status_clone(job->status), RK_INVALID_ARGUMENT, bad_sums[i].message);
        rk_job_destroy(job);
        rk_batch_destroy(batch);
    }
    assert_true(take_step(&cluster, "{}") == norm);
    test_cluster_close(&cluster);
}

/* Goal: operations that would lose pending gradients or make them stale are refused; so are invalid options
 * of a step.
 */
static void test_waiting_gradients_and_bad_steps_are_refused(void **state)
{
    static const struct {
        const char *method, *options;
        rk_code_t code;
        const char *message;
    } cases[] = {
        {"optim_step", "{\"optim.betas\": [0.9, 1.0]}", RK_INVALID_ARGUMENT,
         "optim.betas: expected two numbers"},
        {"optim_step", "{\"optim.lr\": -1.0}", RK_INVALID_ARGUMENT, "optim.lr: expected"},
        {"save_checkpoint", "{\"path\": \"/nowhere/actor\", \"global_step\": 1}", RK_FAILED_PRECONDITION,
         "call optim_step before a checkpoint"},
    };
    const struct planned update = {"actor", "update_sft", "{}", "loss_mask", sft_columns, 0};
    struct rk_job *jobs[TEST_MAX_WORKERS];
    struct test_cluster cluster;
    struct rk_batch *batch = make_batch(), *input;
    struct rk_job *job;

    (void)state;
    open_actor(&cluster, 1, 1, "\"optim.lr\": 0.01");
    accumulate(&cluster, 1, "{}", NULL);
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        job =
            test_cluster_run(&cluster, 0, test_method_job("actor", cases[i].method, cases[i].options, NULL));
        assert_fails(rk_status_clone(job->status), cases[i].code, cases[i].message);
        rk_job_destroy(job);
    }
    assert_ok(rk_batch_select(&input, batch, sft_columns, NULL));
    job = test_method_job("actor", "update_sft", "{}", input);
    test_plan(job, &input, 1, "loss_mask", ROWS, 1);
    job = test_cluster_run(&cluster, 0, job);
    assert_fails(rk_status_clone(job->status), RK_FAILED_PRECONDITION, "call optim_step before update_sft");
    rk_job_destroy(job);
    assert_true(take_step(&cluster, "{}") > 0.0);
    run(&cluster, &update, 1, jobs);
    destroy_all(&cluster, jobs);
    rk_batch_destroy(batch);
    test_cluster_close(&cluster);
}

/* Goal: non-finite gradients change no weights and are discarded, and the call reports it. */
static void test_step_with_infinite_gradients_fails(void **state)
{
    float before[ROWS * RESPONSE], after[ROWS * RESPONSE];
    struct rk_batch *batch = make_batch(), *input;
    struct test_cluster cluster;
    struct rk_job *job;

    (void)state;
    open_actor(&cluster, 1, 1, "\"optim.lr\": 0.01");
    read_log_probs(&cluster, 1, before);
    add_reals(batch, "weights", 3e38F, 0.0F);
    assert_ok(rk_batch_select(&input, batch, sum_columns, NULL));
    job = test_method_job("actor", "forward_backward", "{}", input);
    test_plan(job, &input, 1, "response_mask", ROWS, 1);
    job = test_cluster_run(&cluster, 0, job);
    assert_ok(rk_status_clone(job->status));
    rk_job_destroy(job);
    job = test_cluster_run(&cluster, 0, test_method_job("actor", "optim_step", "{}", NULL));
    assert_fails(rk_status_clone(job->status), RK_ABORTED, "gradients were inf or NaN");
    rk_job_destroy(job);
    assert_true(isnan(take_step(&cluster, "{}")));
    read_log_probs(&cluster, 1, after);
    assert_memory_equal(before, after, sizeof(before));
    rk_batch_destroy(batch);
    test_cluster_close(&cluster);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_policy_losses_layouts_agree),
        cmocka_unit_test(test_teacher_layouts_agree),
        cmocka_unit_test(test_teacher_has_no_ids_beyond_the_limit),
        cmocka_unit_test(test_topk_bad_input_is_refused),
        cmocka_unit_test(test_update_dpo_separated_pair_is_refused),
        cmocka_unit_test(test_heads_layouts_agree),
        cmocka_unit_test(test_sums_layouts_agree),
        cmocka_unit_test(test_sums_return_log_probs_of_the_mask),
        cmocka_unit_test(test_gradients_add_up_until_a_step),
        cmocka_unit_test(test_weighted_sum_and_step_are_an_sft_update),
        cmocka_unit_test(test_bad_sums_are_refused),
        cmocka_unit_test(test_step_with_infinite_gradients_fails),
        cmocka_unit_test(test_waiting_gradients_and_bad_steps_are_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
