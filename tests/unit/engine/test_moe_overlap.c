/* The shared expert beside the exchange of expert parallelism: the order in which a pass enqueues its
 * operators and collectives, as a trace has it, in passes with and without a backward pass; and that outputs
 * have the bits of a model that exchanges nothing. graphs_test_moe_overlap has asynchronous streams: there an
 * operator that does not wait for the rows fails, or gives other bits. */
#include "tests/support/test.h"

#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_json.h"
#include "base/rk_str.h"
#include "engine/model/model.h"
#include "engine/rk_train.h"
#include "kernels/rk_trace.h"
#include "tests/support/fake_nccl.h"
#include "tests/support/models.h"
#include "tests/support/ranks.h"

#define SIZES                                                                                       \
    "\"hidden_size\": 32, \"intermediate_size\": 24, \"num_hidden_layers\": 2, \"vocab_size\": 67," \
    " \"num_attention_heads\": 4, \"num_key_value_heads\": 4, \"num_experts_per_tok\": 2,"          \
    " \"moe_intermediate_size\": 24, \"max_position_embeddings\": 64, \"initializer_range\": 0.2"

/* With and without a gate of the shared expert. */
static const char gated[] = "{\"model_type\": \"qwen2_moe\", \"num_experts\": 8,"
                            " \"shared_expert_intermediate_size\": 16, " SIZES "}";
static const char plain[] =
    "{\"model_type\": \"deepseek_v3\", \"n_routed_experts\": 8, \"kv_lora_rank\": 21,"
    " \"q_lora_rank\": null, \"qk_nope_head_dim\": 6, \"qk_rope_head_dim\": 4,"
    " \"v_head_dim\": 5, \"first_k_dense_replace\": 0, \"n_shared_experts\": 1, " SIZES "}";

#define NUM_LAYERS    2
#define NUM_TOKENS    24
#define MAX_SPANS     10000
#define RUN_TIMEOUT_S 60

/* --- traces --- */

static const char *text_of(const struct rk_json *event, const char *key)
{
    return rk_json_as_string(rk_json_find(event, key), "");
}

/* The stream of an event: the name of its lane. */
static const char *stream_of(const struct rk_json *events, const struct rk_json *event)
{
    int64_t lane = rk_json_as_int(rk_json_find(event, "tid"), -1);

    for (int64_t i = 0; i < rk_json_count(events); i++) {
        const struct rk_json *other = rk_json_at(events, i);

        if (strcmp(text_of(other, "name"), "thread_name") == 0 &&
            rk_json_as_int(rk_json_find(other, "tid"), -2) == lane)
            return text_of(rk_json_find(other, "args"), "name");
    }
    return "";
}

/* Operators and collectives of a phase in the order in which they were enqueued, each with a space behind it;
 * in front of those of the side stream is "side:". */
static char *list_phase(const struct rk_json *events, const char *phase)
{
    struct rk_str out = {0};
    const char *current = "";

    for (int64_t i = 0; i < rk_json_count(events); i++) {
        const struct rk_json *event = rk_json_at(events, i);
        const char *name = text_of(event, "name"), *kind = text_of(event, "cat");
        bool is_operation = strcmp(kind, "operator") == 0 || strcmp(kind, "collective") == 0;

        if (strcmp(kind, "phase") == 0)
            current = name;
        else if (is_operation && strcmp(current, phase) == 0)
            rk_str_appendf(&out, "%s%s ", strcmp(stream_of(events, event), "stream side") == 0 ? "side:" : "",
                           name);
    }
    rk_str_append(&out, "");
    return rk_str_take(&out);
}

/* list_phase() of a trace that ends here. */
static struct rk_status *end_trace(struct rk_trace *trace, const char *phase, char **out)
{
    struct rk_str text = {0};
    struct rk_json *events;
    struct rk_status *st;

    rk_str_append(&text, "[");
    rk_trace_format_events(trace, &(struct rk_trace_format){0}, &text);
    rk_str_append(&text, "null]");
    st = rk_json_parse(&events, text.text, text.bytes, "trace", 0);
    rk_str_fini(&text);
    rk_trace_destroy(trace);
    if (st)
        return st;
    *out = list_phase(events, phase);
    rk_json_free(events);
    return NULL;
}

static int64_t count_of(const char *list, const char *part)
{
    int64_t count = 0;

    for (const char *at = strstr(list, part); at; at = strstr(at + 1, part))
        count++;
    return count;
}

/* --- passes --- */

/* One pass over a micro-batch: with a backward pass, or to log_probs [NUM_TOKENS]. */
static struct rk_status *run_pass(struct rk_model *model, bool trains, double *log_probs)
{
    int32_t tokens[NUM_TOKENS], positions[NUM_TOKENS], cu_seqlens[] = {0, NUM_TOKENS};
    struct rk_packed packed = {1, NUM_TOKENS, NUM_TOKENS, tokens, positions, cu_seqlens, tokens, NULL};
    const struct rk_head_arrays arrays = {.of = {[RK_HEAD_LOG_PROBS] = log_probs}};

    for (int32_t t = 0; t < NUM_TOKENS; t++) {
        tokens[t] = (t * 29 + 7) % 67;
        positions[t] = t;
    }
    return trains ? rk_test_train_pass(model, &packed) : rk_model_forward(model, &packed, 1, NULL, &arrays);
}

struct layout_case {
    const char *label, *config;
    int32_t tp, dp, etp;
    bool sequence_parallel;
    /* What every layer enqueues from the exchange's first operation on: in a forward pass alone, in one that
     * a backward pass follows, and in the latter. */
    const char *forward_only, *forward, *backward;
};

static int checks_phase(const struct layout_case *row, struct rk_test_model *test, bool trains,
                        const char *phase, const char *expected)
{
    double log_probs[NUM_TOKENS];
    struct rk_trace *trace;
    char *list = NULL;

    RK_RANK_OK(rk_trace_create(&trace, test->device, MAX_SPANS));
    RK_RANK_OK(run_pass(test->model, trains, log_probs));
    RK_RANK_OK(end_trace(trace, phase, &list));
    RK_RANK_CHECK(count_of(list, expected) == NUM_LAYERS, "%s: '%s' %lld times in %s%s: %s", row->label,
                  expected, (long long)count_of(list, expected), phase, trains ? "" : " alone", list);
    RK_RANK_CHECK(count_of(list, "side:batch ") == NUM_LAYERS, "%s: other exchanges on the side stream in %s",
                  row->label, list);
    rk_free(list);
    return 0;
}

static struct rk_status *open_model(struct rk_test_model *out, const struct layout_case *row, int32_t ep,
                                    struct rk_comm_world *world)
{
    return rk_test_model_open(
        out, &(struct rk_test_model_spec){.config = row->config,
                                          .seed = 5,
                                          .dtype = RK_DTYPE_F32,
                                          .numerics = RK_NUMERICS_STRICT,
                                          .tp = row->tp,
                                          .dp = row->dp,
                                          .ep = ep,
                                          .etp = row->etp,
                                          .sequence_parallel = row->sequence_parallel,
                                          .stream = rk_test_rank_stream(rk_comm_world_rank(world)),
                                          .world = world});
}

static int checks_order(struct rk_comm_world *world, void *user)
{
    const struct layout_case *row = user;
    const struct rk_optim_config optim = rk_test_adamw(1e-2, 0, 0);
    struct rk_test_model test;
    int failed = 0;

    RK_RANK_OK(open_model(&test, row, 2, world));
    failed += checks_phase(row, &test, false, "forward", row->forward_only);
    RK_RANK_OK(rk_test_enable_training(test.model, &optim));
    failed += checks_phase(row, &test, false, "forward", row->forward_only);
    failed += checks_phase(row, &test, true, "forward", row->forward);
    failed += checks_phase(row, &test, true, "backward", row->backward);
    rk_test_model_close(&test);
    return failed;
}

#define FORWARD  "side:all_gather gemm swiglu_fwd gemm side:batch moe_sort "
#define FUSED    "side:all_gather gemm gemm side:batch moe_sort "
#define BACKWARD "gemm swiglu_bwd gemm gemm gemm side:batch moe_sort "

static const struct layout_case rows[] = {
    {"gate", gated, 1, 2, 0, false, FORWARD, FORWARD, BACKWARD},
    {"no gate", plain, 1, 2, 0, false, FUSED, FORWARD, BACKWARD},
    {"gate, rows of tp ranks", gated, 2, 1, 1, true, FORWARD, FORWARD, BACKWARD},
    {"no gate, rows of tp ranks", plain, 2, 1, 1, true, FUSED, FORWARD, BACKWARD},
};

/* Goal: in all passes the numbers of rows and the first rows travel on the side stream, with the shared
 * expert between them on the pass's stream, and the received rows are sorted after both; also if the model
 * does not train. */
static void test_shared_expert_is_beside_the_exchange(void **state)
{
    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(rows); i++)
        rk_test_run_case(rows[i].label, 2, checks_order, &rows[i], RUN_TIMEOUT_S);
}

static int compares_bits(struct rk_comm_world *world, void *user)
{
    double log_probs[3][NUM_TOKENS];

    for (int i = 0; i < 3; i++) {
        struct rk_test_model test;

        RK_RANK_OK(open_model(&test, user, i == 0 ? 1 : 2, world));
        RK_RANK_OK(run_pass(test.model, false, log_probs[i]));
        rk_test_model_close(&test);
        RK_RANK_CHECK(memcmp(log_probs[i], log_probs[0], sizeof(log_probs[0])) == 0,
                      "other log-probs with ep=2, pass %d", i);
    }
    return 0;
}

/* Goal: the outputs of passes without a backward pass have the bits of a model that exchanges nothing. */
static void test_forward_passes_have_the_bits_of_one_rank_of_ep(void **state)
{
    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(rows); i++)
        rk_test_run_case(rows[i].label, 2, compares_bits, &rows[i], RUN_TIMEOUT_S);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shared_expert_is_beside_the_exchange),
        cmocka_unit_test(test_forward_passes_have_the_bits_of_one_rank_of_ep),
    };

    rk_fake_nccl_setup();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
