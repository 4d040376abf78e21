/* Workers of one or more ranks in this process, driven through jobs as the daemon drives them. */
#ifndef RK_TEST_CLUSTER_H
#define RK_TEST_CLUSTER_H

#include <pthread.h>

#include "tests/support/test.h"

#include "worker/rk_worker.h"

RK_BEGIN_DECLS

#define TEST_MAX_WORKERS  4
#define TEST_MAX_FINISHED 64

struct test_cluster {
    int32_t num_ranks;
    struct rk_worker *workers[TEST_MAX_WORKERS];
    pthread_mutex_t lock; /* guards the rest */
    pthread_cond_t job_done;
    struct rk_job *finished[TEST_MAX_FINISHED];
    int num_finished;
};

struct test_mesh {
    const char *role;
    struct rk_mesh_spec spec;
};

/* A tiny Llama with random weights, as options of init_model. */
extern const char test_hf_config[];

/* `base` may be NULL; the device (if unset), the host of collectives and on_done are filled in. */
void test_cluster_open(struct test_cluster *cluster, int32_t num_ranks, const struct rk_worker_config *base);
void test_cluster_close(struct test_cluster *cluster);
/* Waits until the job is returned; fails the test after a minute. The caller owns the job again. */
struct rk_job *test_cluster_wait(struct test_cluster *cluster, struct rk_job *job);
/* Submits to one rank and waits. */
struct rk_job *test_cluster_run(struct test_cluster *cluster, int32_t rank, struct rk_job *job);
/* Both rounds of the rendezvous on all ranks; asserts success. */
void test_cluster_configure(struct test_cluster *cluster, uint64_t generation, const struct test_mesh *meshes,
                            int64_t num_meshes);
/* A call with completed options; takes the input. */
struct rk_job *test_method_job(const char *role, const char *method, const char *options,
                               struct rk_batch *input);
/* One call on all ranks; jobs[rank] receives the finished jobs. Takes ownership of inputs[rank]; NULL:
 * none. */
void test_cluster_call(struct test_cluster *cluster, const char *role, const char *method,
                       const char *options, struct rk_batch *const *inputs, struct rk_job **jobs);
/* test_cluster_call on rank 0 of a cluster of one, asserting success. */
struct rk_job *test_call_ok(struct test_cluster *cluster, const char *role, const char *method,
                            const char *options, struct rk_batch *input);
/* Text "{"model.hf_config": <the tiny Llama>, <more>}"; rk_free it. With RK_TEST_OFFLOAD everything is
 * offloaded between calls. */
char *test_init_options(const char *more);
/* init_model on all ranks; asserts success. */
void test_cluster_init_model(struct test_cluster *cluster, const char *role, const char *more);

/* Rows of prompts for generate_sequences: row i has 1 + i % P tokens and stream first_stream + i. */
struct rk_batch *test_prompts(int64_t num_rows, int64_t prompt_columns, int64_t first_stream);
/* Rows of num_tokens tokens for log-probs and updates; the last two of each are the response. */
struct rk_batch *test_samples(int64_t num_rows, int64_t num_tokens);
/* A plan over the batch's rows on every replica: mini-batches of mini_batch_rows global rows (0: one),
 * micro-batches of micro_batch_rows. loss_mask names the mask column of the loss; NULL: none. */
void test_plan(struct rk_job *job, struct rk_batch *const *chunks, int32_t num_replicas,
               const char *loss_mask, int64_t mini_batch_rows, int64_t micro_batch_rows);
/* NAN if the job did not report it. */
double test_metric(const struct rk_job *job, const char *name);

RK_END_DECLS

#endif
