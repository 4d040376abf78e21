/* Directories that ranks write to: each writer resolves the path below its own roots before any of them
 * creates a directory. */
#include "tests/support/test.h"

#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/rk_alloc.h"
#include "base/rk_str.h"
#include "tests/support/models.h"
#include "tests/support/ranks.h"
#include "worker/worker_internal.h"

#define CONFIG                                                                                              \
    "{\"model_type\": \"llama\", \"hidden_size\": 32, \"intermediate_size\": 48, \"num_hidden_layers\": 1," \
    " \"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"vocab_size\": 61}"
#define NUM_RANKS 2

struct output_case {
    const char *label;
    rk_output_t output;
    const char *roots[NUM_RANKS]; /* below the test's directory; "" for none */
    const char *path;
    uint64_t bytes;
    bool is_writer[NUM_RANKS];
    rk_code_t code;
    const char *reason;
};

static const struct output_case cases[] = {
    {"one writer, in its roots", RK_OUTPUT_HF, {"a", "b"}, "a/x/hf", 1, {true, false}, RK_OK, ""},
    {"one writer, which has no roots",
     RK_OUTPUT_HF,
     {"", "a"},
     "a/y/hf",
     1,
     {true, false},
     RK_PERMISSION_DENIED,
     "PATH_OUTSIDE_ROOTS"},
    {"all write, in their roots", RK_OUTPUT_CHECKPOINT, {"a", "a"}, "a/x/ckpt", 1, {true, true}, RK_OK, ""},
    {"all write, the second one elsewhere",
     RK_OUTPUT_CHECKPOINT,
     {"a", "b"},
     "a/y/ckpt",
     1,
     {true, true},
     RK_PERMISSION_DENIED,
     "PATH_OUTSIDE_ROOTS"},
    {"all write, the first one elsewhere",
     RK_OUTPUT_CHECKPOINT,
     {"b", "a"},
     "a/y/ckpt",
     1,
     {true, true},
     RK_PERMISSION_DENIED,
     "PATH_OUTSIDE_ROOTS"},
    {"dots behind a missing directory",
     RK_OUTPUT_CHECKPOINT,
     {"a", "a"},
     "a/y/../../b",
     1,
     {true, true},
     RK_PERMISSION_DENIED,
     "PATH_OUTSIDE_ROOTS"},
    {"through a link",
     RK_OUTPUT_HF,
     {"a", "a"},
     "a/link/y",
     1,
     {true, false},
     RK_PERMISSION_DENIED,
     "PATH_OUTSIDE_ROOTS"},
    {"no space",
     RK_OUTPUT_CHECKPOINT,
     {"a", "a"},
     "a/x/ckpt",
     UINT64_MAX,
     {true, true},
     RK_RESOURCE_EXHAUSTED,
     "DISK_FULL"},
};

struct run {
    const struct output_case *row;
    struct rk_test_rendezvous *rendezvous;
    const char *base;
};

static int open_output(struct rk_method_call *call, const struct run *run, int32_t rank, const char *path)
{
    struct rk_status *st;
    char *dir;

    st = rk_method_call_open_output(call, run->row->output, path, run->row->bytes, &dir);
    RK_RANK_CHECK(rk_status_code(st) == run->row->code, "%s", rk_status_message(st));
    RK_RANK_CHECK(strcmp(rk_status_reason(st), run->row->reason) == 0, "reason '%s'", rk_status_reason(st));
    RK_RANK_CHECK((dir != NULL) == (!st && run->row->is_writer[rank]), "dir '%s'", dir ? dir : "");
    RK_RANK_CHECK(!dir || access(dir, W_OK) == 0, "'%s' was not made", dir);
    rk_status_free(st);
    rk_free(dir);
    return 0;
}

static int output_rank(int32_t rank, int32_t num_ranks, void *user)
{
    const struct run *run = user;
    const char *root_name = run->row->roots[rank];
    char *root = rk_path_join(run->base, root_name), *path = rk_path_join(run->base, run->row->path);
    char *roots[] = {*root_name ? root : NULL, NULL};
    struct rk_worker worker = {.ckpt_roots = roots};
    struct rk_comm_world *world;
    struct rk_test_model test;
    struct rk_role role = {0};
    struct rk_method_call call = {.worker = &worker, .role = &role};
    int result;

    RK_RANK_OK(rk_test_world_create(&world, run->rendezvous, rank, num_ranks, "unix", NULL));
    RK_RANK_OK(rk_test_model_open(
        &test, &(struct rk_test_model_spec){
                   .config = CONFIG, .dtype = RK_DTYPE_F32, .dp = NUM_RANKS, .world = world}));
    RK_RANK_OK(rk_device_alloc(test.device, &worker.agree_scratch, RK_AGREE_BYTES, "verdicts"));
    worker.stream = test.stream;
    role.comms = test.comms;
    result = open_output(&call, run, rank, path);
    rk_device_free(test.device, worker.agree_scratch);
    rk_test_model_close(&test);
    rk_comm_world_destroy(world);
    rk_free(root);
    rk_free(path);
    return result;
}

static void make_tree(const char *base)
{
    static const char *const dirs[] = {"a", "b"};
    char *link = rk_path_join(base, "a/link"), *target = rk_path_join(base, "b");

    for (size_t i = 0; i < RK_ARRAY_LEN(dirs); i++) {
        char *path = rk_path_join(base, dirs[i]);

        assert_int_equal(mkdir(path, 0777), 0);
        rk_free(path);
    }
    assert_int_equal(symlink(target, link), 0);
    rk_free(link);
    rk_free(target);
}

/* Goal: if one rank is not permitted to write to a path, the call fails on all ranks and no directory is
 * created. */
static void test_open_output_makes_directories_when_all_writers_may(void **state)
{
    struct rk_test_rendezvous *rendezvous = rk_test_rendezvous_create();
    const char *base = rk_test_temp_dir();
    char *refused = rk_path_join(base, "a/y");

    (void)state;
    make_tree(base);
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        struct run run = {.row = &cases[i], .rendezvous = rendezvous, .base = base};

        print_message("  %s\n", cases[i].label);
        assert_int_equal(rk_test_run_ranks(NUM_RANKS, output_rank, &run, 60), 0);
        assert_int_not_equal(access(refused, F_OK), 0);
    }
    rk_free(refused);
    rk_test_rendezvous_destroy(rendezvous);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_open_output_makes_directories_when_all_writers_may),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
