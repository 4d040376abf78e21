#include "tests/unit/worker/cluster.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/rk_alloc.h"
#include "base/rk_arena.h"
#include "base/config/rk_config.h"
#include "base/rk_env.h"
#include "base/rk_log.h"
#include "base/rk_str.h"
#include "dispatch/rk_plan.h"

#define WAIT_S 60

const char test_hf_config[] =
    "{\"model_type\": \"llama\", \"architectures\": [\"LlamaForCausalLM\"], \"hidden_size\": 32,"
    " \"intermediate_size\": 48, \"num_hidden_layers\": 2, \"num_attention_heads\": 4, "
    "\"num_key_value_heads\": 2,"
    " \"vocab_size\": 61, \"max_position_embeddings\": 4096, \"rms_norm_eps\": 1e-5, \"rope_theta\": 10000.0,"
    " \"hidden_act\": \"silu\", \"initializer_range\": 0.3, \"tie_word_embeddings\": false, "
    "\"eos_token_id\": 2}";

static void on_done(void *user, struct rk_job *job)
{
    struct test_cluster *cluster = user;

    pthread_mutex_lock(&cluster->lock);
    if (cluster->num_finished < TEST_MAX_FINISHED)
        cluster->finished[cluster->num_finished++] = job;
    pthread_cond_broadcast(&cluster->job_done);
    pthread_mutex_unlock(&cluster->lock);
}

void test_cluster_open(struct test_cluster *cluster, int32_t num_ranks, const struct rk_worker_config *base)
{
    struct rk_worker_config config = base ? *base : (struct rk_worker_config){0};

    rk_log_set_level(RK_LOG_ERROR); /* suppresses the expected warnings of these tests */
    *cluster = (struct test_cluster){.num_ranks = num_ranks};
    pthread_mutex_init(&cluster->lock, NULL);
    pthread_cond_init(&cluster->job_done, NULL);
    config.struct_size = sizeof(config);
    if (!config.device)
        config.device = "cpu";
    config.num_threads = 1;
    config.comm_listen_host = "unix";
    config.user = cluster;
    config.on_done = on_done;
    for (int32_t rank = 0; rank < num_ranks; rank++)
        assert_ok(rk_worker_create(&cluster->workers[rank], &config));
}

void test_cluster_close(struct test_cluster *cluster)
{
    for (int32_t rank = 0; rank < cluster->num_ranks; rank++)
        rk_worker_destroy(cluster->workers[rank]);
    assert_int_equal(cluster->num_finished, 0);
    pthread_cond_destroy(&cluster->job_done);
    pthread_mutex_destroy(&cluster->lock);
}

static bool take_finished(struct test_cluster *cluster, const struct rk_job *job)
{
    for (int i = 0; i < cluster->num_finished; i++) {
        if (cluster->finished[i] == job) {
            cluster->finished[i] = cluster->finished[--cluster->num_finished];
            return true;
        }
    }
    return false;
}

struct rk_job *test_cluster_wait(struct test_cluster *cluster, struct rk_job *job)
{
    struct timespec until;
    bool is_done;
    int rc = 0;

    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += WAIT_S;
    pthread_mutex_lock(&cluster->lock);
    while (!(is_done = take_finished(cluster, job)) && rc == 0)
        rc = pthread_cond_timedwait(&cluster->job_done, &cluster->lock, &until);
    pthread_mutex_unlock(&cluster->lock);
    assert_true(is_done);
    return job;
}

struct rk_job *test_cluster_run(struct test_cluster *cluster, int32_t rank, struct rk_job *job)
{
    rk_worker_submit(cluster->workers[rank], job);
    return test_cluster_wait(cluster, job);
}

static struct rk_job *make_configure_job(const struct test_cluster *cluster, int32_t rank,
                                         uint64_t generation, const struct test_mesh *meshes,
                                         int64_t num_meshes)
{
    struct rk_job *job = rk_job_create(RK_JOB_CONFIGURE);
    struct rk_job_configure *configure = &job->configure;

    configure->rank = rank;
    configure->world_size = cluster->num_ranks;
    configure->mesh_generation = generation;
    configure->num_meshes = num_meshes;
    for (int64_t i = 0; i < num_meshes; i++) {
        snprintf(configure->meshes[i].role, sizeof(configure->meshes[i].role), "%s", meshes[i].role);
        assert_ok(rk_mesh_create(&configure->meshes[i].mesh, &meshes[i].spec, cluster->num_ranks));
    }
    configure->comm_addresses = rk_calloc((size_t)cluster->num_ranks, sizeof(*configure->comm_addresses));
    return job;
}

void test_cluster_configure(struct test_cluster *cluster, uint64_t generation, const struct test_mesh *meshes,
                            int64_t num_meshes)
{
    struct rk_job *endpoints[TEST_MAX_WORKERS], *jobs[TEST_MAX_WORKERS];

    for (int32_t rank = 0; rank < cluster->num_ranks; rank++) {
        endpoints[rank] = rk_job_create(RK_JOB_OPEN_ENDPOINT);
        endpoints[rank]->endpoint.make_comm_id = rank == 0;
        test_cluster_run(cluster, rank, endpoints[rank]);
        assert_ok(rk_status_clone(endpoints[rank]->status));
    }
    for (int32_t rank = 0; rank < cluster->num_ranks; rank++) {
        struct rk_job_configure *configure;

        jobs[rank] = make_configure_job(cluster, rank, generation, meshes, num_meshes);
        configure = &jobs[rank]->configure;
        memcpy(configure->comm_id, endpoints[0]->endpoint.comm_id, sizeof(configure->comm_id));
        for (int32_t peer = 0; peer < cluster->num_ranks; peer++)
            configure->comm_addresses[peer] = rk_strdup(endpoints[peer]->endpoint.comm_address);
        rk_worker_submit(cluster->workers[rank], jobs[rank]);
    }
    for (int32_t rank = 0; rank < cluster->num_ranks; rank++) {
        test_cluster_wait(cluster, jobs[rank]);
        assert_ok(rk_status_clone(jobs[rank]->status));
        rk_job_destroy(jobs[rank]);
        rk_job_destroy(endpoints[rank]);
    }
}

struct rk_job *test_method_job(const char *role, const char *method, const char *options,
                               struct rk_batch *input)
{
    struct rk_job *job = rk_job_create(RK_JOB_METHOD);
    struct rk_json *given;

    job->call.method = rk_method_find(method);
    assert_non_null(job->call.method);
    snprintf(job->call.role, sizeof(job->call.role), "%s", role);
    assert_ok(rk_json_parse(&given, options, strlen(options), "options", 0));
    assert_ok(rk_method_complete_options(&job->call.options, job->call.method, given));
    rk_json_free(given);
    job->call.input = input;
    job->call.collect = true;
    return job;
}

void test_cluster_call(struct test_cluster *cluster, const char *role, const char *method,
                       const char *options, struct rk_batch *const *inputs, struct rk_job **jobs)
{
    for (int32_t rank = 0; rank < cluster->num_ranks; rank++) {
        jobs[rank] = test_method_job(role, method, options, inputs ? inputs[rank] : NULL);
        rk_worker_submit(cluster->workers[rank], jobs[rank]);
    }
    for (int32_t rank = 0; rank < cluster->num_ranks; rank++)
        test_cluster_wait(cluster, jobs[rank]);
}

struct rk_job *test_call_ok(struct test_cluster *cluster, const char *role, const char *method,
                            const char *options, struct rk_batch *input)
{
    struct rk_job *job = test_cluster_run(cluster, 0, test_method_job(role, method, options, input));

    assert_ok(rk_status_clone(job->status));
    return job;
}

char *test_init_options(const char *more)
{
    const char *offload = rk_env("RK_TEST_OFFLOAD") ? ", \"megatron.param_offload\": true,"
                                                      " \"megatron.grad_offload\": true,"
                                                      " \"megatron.optimizer_offload\": true"
                                                    : "";

    return rk_format("{\"model.hf_config\": %s%s%s%s}", test_hf_config, offload, *more ? ", " : "", more);
}

void test_cluster_init_model(struct test_cluster *cluster, const char *role, const char *more)
{
    struct rk_job *jobs[TEST_MAX_WORKERS];
    char *options = test_init_options(more);

    test_cluster_call(cluster, role, "init_model", options, NULL, jobs);
    rk_free(options);
    for (int32_t rank = 0; rank < cluster->num_ranks; rank++) {
        assert_ok(rk_status_clone(jobs[rank]->status));
        rk_job_destroy(jobs[rank]);
    }
}

struct rk_batch *test_prompts(int64_t num_rows, int64_t prompt_columns, int64_t first_stream)
{
    const int64_t shape[] = {num_rows, prompt_columns};
    struct rk_batch *batch;
    void *prompts, *mask, *stream;

    assert_ok(rk_batch_create(&batch, num_rows));
    assert_ok(rk_batch_add_dense(batch, "prompts", RK_DTYPE_I64, 2, shape, &prompts));
    assert_ok(rk_batch_add_dense(batch, "attention_mask", RK_DTYPE_I64, 2, shape, &mask));
    assert_ok(rk_batch_add_dense(batch, "stream", RK_DTYPE_I64, 1, shape, &stream));
    for (int64_t row = 0; row < num_rows; row++) {
        int64_t length = 1 + (first_stream + row) % prompt_columns;

        for (int64_t c = prompt_columns - length; c < prompt_columns; c++) {
            ((int64_t *)prompts)[row * prompt_columns + c] = 3 + (7 * (first_stream + row) + 5 * c) % 50;
            ((int64_t *)mask)[row * prompt_columns + c] = 1;
        }
        ((int64_t *)stream)[row] = first_stream + row;
    }
    return batch;
}

struct rk_batch *test_samples(int64_t num_rows, int64_t num_tokens)
{
    enum { NUM_RESPONSES = 2 };
    static const char *const names[] = {"input_ids", "attention_mask", "position_ids", "responses",
                                        "response_mask"};
    static const char *const reals[] = {"old_log_probs", "advantages"};
    const int64_t shape[] = {num_rows, num_tokens}, response_shape[] = {num_rows, NUM_RESPONSES};
    struct rk_batch *batch;
    int64_t *columns[RK_ARRAY_LEN(names)];
    void *data;

    assert_ok(rk_batch_create(&batch, num_rows));
    for (size_t i = 0; i < RK_ARRAY_LEN(names); i++) {
        assert_ok(
            rk_batch_add_dense(batch, names[i], RK_DTYPE_I64, 2, i < 3 ? shape : response_shape, &data));
        columns[i] = data;
    }
    for (int64_t i = 0; i < num_rows * num_tokens; i++) {
        columns[0][i] = 3 + 7 * i % 50;
        columns[1][i] = 1;
        columns[2][i] = i % num_tokens;
    }
    for (int64_t i = 0; i < num_rows * NUM_RESPONSES; i++) {
        int64_t row = i / NUM_RESPONSES, t = num_tokens - NUM_RESPONSES + i % NUM_RESPONSES;

        columns[3][i] = columns[0][row * num_tokens + t];
        columns[4][i] = 1;
    }
    for (size_t i = 0; i < RK_ARRAY_LEN(reals); i++)
        assert_ok(rk_batch_add_dense(batch, reals[i], RK_DTYPE_F32, 2, response_shape, &data));
    return batch;
}

void test_plan(struct rk_job *job, struct rk_batch *const *chunks, int32_t num_replicas,
               const char *loss_mask, int64_t mini_batch_rows, int64_t micro_batch_rows)
{
    int64_t rows_per_replica = rk_batch_num_rows(chunks[0]), num_rows = rows_per_replica * num_replicas;
    int64_t *seqlens = rk_calloc((size_t)num_rows, sizeof(*seqlens));
    int64_t *loss_tokens = rk_calloc((size_t)num_rows, sizeof(*loss_tokens));
    struct rk_plan_request request = {
        .num_rows = num_rows,
        .num_replicas = num_replicas,
        .seqlens = seqlens,
        .loss_tokens = loss_mask ? loss_tokens : NULL,
        .mini_batch_rows = mini_batch_rows,
        .micro_batch_rows = micro_batch_rows,
    };

    for (int64_t i = 0; i < num_rows; i++) {
        const struct rk_batch *chunk = chunks[i / rows_per_replica];
        int64_t row = i % rows_per_replica, shape[2];
        const void *data;

        assert_ok(rk_batch_get_dense(chunk, "attention_mask", RK_DTYPE_I64, 2, shape, &data));
        for (int64_t c = 0; c < shape[1]; c++)
            seqlens[i] += ((const int64_t *)data)[row * shape[1] + c];
        if (!loss_mask)
            continue;
        assert_ok(rk_batch_get_dense(chunk, loss_mask, RK_DTYPE_I64, 2, shape, &data));
        for (int64_t c = 0; c < shape[1]; c++)
            loss_tokens[i] += ((const int64_t *)data)[row * shape[1] + c];
    }
    job->call.plan_arena = rk_arena_create(4096, 0);
    assert_ok(rk_plan_build(&job->call.plan, job->call.plan_arena, &request));
    rk_free(seqlens);
    rk_free(loss_tokens);
}

double test_metric(const struct rk_job *job, const char *name)
{
    for (int64_t i = 0; i < job->call.num_metrics; i++)
        if (strcmp(job->call.metrics[i].name, name) == 0)
            return job->call.metrics[i].value;
    return NAN;
}
