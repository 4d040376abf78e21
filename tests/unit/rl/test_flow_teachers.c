/* Several teachers of a job, with real daemons: what a row gets from its teacher, against jobs in which that
 * is the only one. */
#include "rl/flows/steps_internal.h"

#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_str.h"
#include "rl/rk_job.h"
#include "proto/rk_methods.h"
#include "tests/proc/cli_fixture.h"

#define NUM_DAEMONS  2
#define ACTOR        "actor_rollout_ref.actor."
#define OVERRIDES    16
#define NUM_TEACHERS 2

struct fixture {
    char *data, *models[NUM_TEACHERS];
    struct rk_local *local;
    struct rk_driver *driver;
};

/* A job on the daemons, with its step. */
struct side {
    struct rk_config *job;
    struct rk_flow_inputs inputs;
    struct rk_flow_context flow;
};

/* Path of a model with random weights of that seed; rk_free it. */
static char *make_model(const char *seed)
{
    const char *const keys[] = {ACTOR RK_JOB_TP "=1", "trainer.total_training_steps=1", seed, NULL};
    char *dir = run_new_tiny_job("1", keys, (const char *const[]){NULL}), *model = rk_path_join(dir, "hf");

    rk_free(dir);
    return model;
}

/* Three rows of one teacher and one of the other: both need further rows for two replicas. */
static char *make_data(void)
{
    static const char *const sources[] = {"a", "b", "a", "a"};
    char *path = rk_test_temp_path("data.jsonl");
    struct rk_str text = {0};

    for (size_t i = 0; i < RK_ARRAY_LEN(sources); i++)
        rk_str_appendf(&text,
                       "{\"data_source\": \"%s\", \"prompt\": \"%zu,1:9,1\", "
                       "\"reward_model\": {\"ground_truth\": \"2\"}}\n",
                       sources[i], i);
    rk_test_write_file(path, rk_str_text(&text), text.bytes);
    rk_str_fini(&text);
    return path;
}

static int setup(void **state)
{
    char *program = rk_proc_program("rankd");
    const char *roots[] = {rk_test_temp_dir(), NULL};
    struct fixture *f = rk_calloc(1, sizeof(*f));

    *state = f;
    if (!has_devices(NUM_DAEMONS)) {
        rk_free(program);
        return 0;
    }
    f->data = make_data();
    f->models[0] = make_model(ACTOR "megatron.seed=7");
    f->models[1] = make_model(ACTOR "megatron.seed=8");
    assert_ok(rk_local_start(&f->local, &(struct rk_local_config){
                                            .struct_size = sizeof(struct rk_local_config),
                                            .num_daemons = NUM_DAEMONS,
                                            .program = program,
                                            .device = is_on_gpus() ? "cuda" : "cpu",
                                            .log_dir = rk_test_temp_dir(),
                                            .ckpt_roots = roots,
                                        }));
    assert_ok(rk_driver_open(&f->driver, &(struct rk_driver_config){
                                             .struct_size = sizeof(struct rk_driver_config),
                                             .addresses = rk_local_addresses(f->local),
                                             .num_addresses = NUM_DAEMONS,
                                         }));
    assert_ok(rk_driver_claim(f->driver));
    rk_free(program);
    return 0;
}

static int teardown(void **state)
{
    struct fixture *f = *state;

    rk_driver_close(f->driver);
    rk_local_stop(f->local);
    for (int i = 0; i < NUM_TEACHERS; i++)
        rk_free(f->models[i]);
    rk_free(f->data);
    rk_free(f);
    return 0;
}

/* only: the only teacher; -1: both, by data_source. */
static void side_init(struct side *side, struct fixture *f, const char *mode, int only)
{
    char *files = rk_format("data.train_files=[\"%s\"]", f->data);
    char *first = rk_format(RK_JOB_TEACHER "model.path=%s", f->models[only < 0 ? 0 : only]);
    char *second = rk_format(RK_JOB_TEACHER_2 "model.path=%s", f->models[1]);
    const char *overrides[OVERRIDES] = {files,
                                        first,
                                        mode,
                                        cli_device(),
                                        "data.train_batch_size=4",
                                        "actor_rollout_ref.rollout.n=1",
                                        ACTOR "ppo_mini_batch_size=2",
                                        ACTOR RK_JOB_TP "=1",
                                        "distillation.enabled=true",
                                        "numerics=strict",
                                        "distillation.distillation_loss.topk=5"};
    int64_t count = 11;
    const struct rk_flow_sink sink = {0};

    if (only < 0) {
        overrides[count++] = second;
        overrides[count++] = RK_JOB_TEACHER "key=a";
        overrides[count++] = RK_JOB_TEACHER_2 "key=b";
        overrides[count++] = RK_JOB_TEACHER_2 RK_JOB_TP "=1";
    }
    *side = (struct side){0};
    assert_ok(rk_job_load(&side->job, TINY_JOB, overrides, count));
    assert_ok(rk_job_check(side->job, NUM_DAEMONS));
    assert_ok(rk_flow_inputs_load(&side->inputs, side->job, RK_TEST_SOURCE_DIR "/examples/digits"));
    assert_ok(rk_flow_context_init(&side->flow, side->job, &side->inputs, f->driver, &sink));
    assert_ok(rk_flow_verify_setup(&side->flow));
    rk_free(second);
    rk_free(first);
    rk_free(files);
}

static void side_fini(struct side *side)
{
    rk_flow_context_fini(&side->flow);
    rk_flow_inputs_fini(&side->inputs);
    rk_config_destroy(side->job);
}

/* Whether the values at the tokens of the response are equal; those after its end are undefined. */
static bool is_equal_row(const struct rk_flow_context *flow, const struct rk_column *left,
                         const struct rk_column *right, int64_t row)
{
    size_t bytes = rk_column_bytes(left) / (size_t)(flow->num_rows * flow->response_length);
    bool is_equal = true;
    const void *mask;

    assert_ok(rk_flow_column(flow, "response_mask", RK_DTYPE_I64, flow->response_length, &mask));
    for (int64_t i = row * flow->response_length; i < (row + 1) * flow->response_length; i++) {
        if (((const int64_t *)mask)[i])
            is_equal &= memcmp((const char *)rk_column_values(left) + (size_t)i * bytes,
                               (const char *)rk_column_values(right) + (size_t)i * bytes, bytes) == 0;
    }
    return is_equal;
}

/* Number of the rows of the teacher in which the columns are equal; *count: of its rows. */
static int64_t count_equal(const struct side *both, const struct side *one, const char *name, int64_t teacher,
                           int64_t *count)
{
    struct rk_column *left = rk_batch_find(both->flow.batch, name);
    struct rk_column *right = rk_batch_find(one->flow.batch, name);
    int64_t num_equal = 0;
    const void *chosen;

    *count = 0;
    assert_int_equal(rk_column_bytes(left), rk_column_bytes(right));
    assert_ok(rk_batch_get_dense(both->flow.batch, RK_FLOW_TEACHER, RK_DTYPE_I64, 1, NULL, &chosen));
    for (int64_t row = 0; row < both->flow.num_rows; row++) {
        if (((const int64_t *)chosen)[row] != teacher)
            continue;
        num_equal += is_equal_row(&both->flow, left, right, row);
        ++*count;
    }
    return num_equal;
}

/* Goal: with two teachers each row has the values that the run with only its teacher gives it, bit for bit,
 * and not those of the other one. */
static void check_rows(struct fixture *f, const char *mode, const char *const *columns)
{
    static const int64_t num_rows[NUM_TEACHERS] = {3, 1};
    struct side both, one;

    side_init(&both, f, mode, -1);
    assert_ok(rk_flow_verify_rows(&both.flow));
    assert_ok(rk_flow_verify_passes(&both.flow));
    for (int i = 0; i < NUM_TEACHERS; i++) {
        side_init(&one, f, mode, i);
        assert_ok(rk_flow_verify_take(&one.flow, &both.flow));
        assert_ok(rk_flow_verify_passes(&one.flow));
        for (const char *const *name = columns; *name; name++) {
            int64_t count;

            print_message("%s of teacher %d\n", *name, i);
            assert_int_equal(count_equal(&both, &one, *name, i, &count), num_rows[i]);
            assert_int_equal(count, num_rows[i]);
            assert_int_equal(count_equal(&both, &one, *name, 1 - i, &count), 0);
        }
        side_fini(&one);
    }
    side_fini(&both);
}

static void test_rows_have_the_log_probs_of_their_teacher(void **state)
{
    struct fixture *f = *state;

    if (!f->driver)
        rk_test_skip("needs %d GPUs", NUM_DAEMONS);
    check_rows(f, "distillation.distillation_loss.loss_mode=k2",
               (const char *const[]){"teacher_log_probs", NULL});
}

static void test_rows_have_the_top_ids_of_their_teacher(void **state)
{
    struct fixture *f = *state;

    if (!f->driver)
        rk_test_skip("needs %d GPUs", NUM_DAEMONS);
    check_rows(f, "distillation.distillation_loss.loss_mode=forward_kl_topk",
               (const char *const[]){"teacher_topk_ids", "teacher_topk_log_probs", NULL});
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows_have_the_log_probs_of_their_teacher),
        cmocka_unit_test(test_rows_have_the_top_ids_of_their_teacher),
    };

    skip_without_devices(1);
    return cmocka_run_group_tests(tests, setup, teardown);
}
