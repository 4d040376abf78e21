/* What the routers choose, on layouts: the merged choices of all ranks equal those of one rank, with the
 * routers' own choice and with given experts. Sequences have odd lengths, so that layouts pad them. */
#include "tests/support/test.h"

#include <string.h>

#include "base/rk_alloc.h"
#include "tests/support/device.h"
#include "tests/support/models.h"
#include "tests/support/ranks.h"

#define NUM_SEQS   3
#define NUM_TOKENS 41
#define NUM_ROUTES 4
#define TOP_K      2
#define COUNT      (NUM_TOKENS * NUM_ROUTES * TOP_K)
#define NUM_MICRO  2
#define TIMEOUT_S  60

static const char config[] =
    "{\"model_type\": \"qwen3_moe\", \"hidden_size\": 32, \"num_hidden_layers\": 6, \"num_attention_heads\": "
    "4,"
    " \"num_key_value_heads\": 2, \"intermediate_size\": 24, \"vocab_size\": 67,"
    " \"max_position_embeddings\": 64, \"initializer_range\": 0.4, \"moe_intermediate_size\": 24,"
    " \"num_experts\": 8, \"num_experts_per_tok\": 2, \"mlp_only_layers\": [1, 4]}";

static const struct layout {
    const char *label;
    int32_t num_ranks, tp, cp, pp, etp, ep, vpp;
    bool sequence_parallel;
} layouts[] = {
    {"tp=2", 2, 2, 1, 1, 2, 1, 1, false},       {"tp=2 sp etp=1", 2, 2, 1, 1, 1, 1, 1, true},
    {"cp=2", 2, 1, 2, 1, 1, 1, 1, false},       {"pp=2", 2, 1, 1, 2, 1, 1, 1, false},
    {"pp=3 vpp=2", 3, 1, 1, 3, 1, 1, 2, false}, {"tp=2 sp etp=1 cp=2", 4, 2, 2, 1, 1, 1, 1, true},
    {"cp=2 pp=2", 4, 1, 2, 2, 1, 1, 1, false},  {"tp=2 sp etp=1 ep=2", 2, 2, 1, 1, 1, 2, 1, true},
};

/* The arrays of two micro-batches with different tokens. */
struct micro {
    int32_t tokens[NUM_TOKENS], positions[NUM_TOKENS];
    uint16_t given[COUNT];
    double log_probs[NUM_TOKENS];
    struct rk_packed packed;
    struct rk_head_arrays arrays;
};

struct work {
    struct micro micro[NUM_MICRO];
    uint16_t *chosen; /* [NUM_MICRO * COUNT] */
};

static void micro_init(struct micro *micro, int m, bool gives)
{
    static const int32_t cu_seqlens[NUM_SEQS + 1] = {0, 17, 18, NUM_TOKENS};

    for (int32_t s = 0; s < NUM_SEQS; s++) {
        for (int32_t t = cu_seqlens[s]; t < cu_seqlens[s + 1]; t++) {
            micro->tokens[t] = (t * 29 + 7 + 11 * m) % 67;
            micro->positions[t] = t - cu_seqlens[s];
        }
    }
    for (int i = 0; i < COUNT; i++)
        micro->given[i] = (uint16_t)((i / TOP_K + m) % 7 + i % TOP_K);
    micro->packed = (struct rk_packed){.num_seqs = NUM_SEQS,
                                       .num_tokens = NUM_TOKENS,
                                       .max_seqlen = NUM_TOKENS - 18,
                                       .tokens = micro->tokens,
                                       .positions = micro->positions,
                                       .cu_seqlens = cu_seqlens,
                                       .labels = micro->tokens,
                                       .routed_experts = gives ? micro->given : NULL};
    micro->arrays.of[RK_HEAD_LOG_PROBS] = micro->log_probs;
}

static struct rk_status *bind(void *user, int64_t i, struct rk_forward_micro *micro)
{
    struct work *work = user;

    *micro = (struct rk_forward_micro){.packed = &work->micro[i].packed,
                                       .temperature = 1,
                                       .out = &work->micro[i].arrays,
                                       .chosen_experts = work->chosen + i * COUNT};
    return NULL;
}

static struct rk_status *choose(struct rk_model *model, bool gives, uint16_t *chosen)
{
    struct work *work = rk_calloc(1, sizeof(*work));
    struct rk_status *st;

    work->chosen = chosen;
    memset(chosen, 0, NUM_MICRO * COUNT * sizeof(*chosen));
    for (int m = 0; m < NUM_MICRO; m++)
        micro_init(&work->micro[m], m, gives);
    st = rk_model_forward_all(model,
                              &(struct rk_forward_work){.count = NUM_MICRO, .bind = bind, .user = work});
    if (!st)
        st = rk_model_merge_routes(model, chosen, NUM_MICRO * NUM_TOKENS);
    rk_free(work);
    return st;
}

/* With and without given experts. */
static struct rk_status *choose_both(const struct rk_test_model_spec *spec, uint16_t *chosen)
{
    struct rk_test_model test;
    struct rk_status *st = rk_test_model_open(&test, spec);

    if (!st)
        st = choose(test.model, false, chosen);
    if (!st)
        st = choose(test.model, true, chosen + NUM_MICRO * COUNT);
    rk_test_model_close(&test);
    return st;
}

static int run_rank(struct rk_comm_world *world, void *user)
{
    const struct layout *layout = user;
    static uint16_t expected[2 * NUM_MICRO * COUNT], actual[2 * NUM_MICRO * COUNT];
    struct rk_test_model_spec spec = {.config = config,
                                      .seed = 3,
                                      .dtype = rk_test_device_dtype(),
                                      .stream = rk_test_rank_stream(rk_comm_world_rank(world))};

    RK_RANK_OK(choose_both(&spec, expected));
    spec.world = world;
    spec.tp = layout->tp;
    spec.cp = layout->cp;
    spec.pp = layout->pp;
    spec.etp = layout->etp;
    spec.ep = layout->ep;
    spec.vpp = layout->vpp;
    spec.sequence_parallel = layout->sequence_parallel;
    RK_RANK_OK(choose_both(&spec, actual));
    RK_RANK_CHECK(memcmp(expected, expected + NUM_MICRO * COUNT, NUM_MICRO * COUNT * sizeof(*expected)) != 0,
                  "given experts change later choices");
    RK_RANK_CHECK(memcmp(actual, expected, sizeof(actual)) == 0, "other experts than on one rank");
    return 0;
}

static void test_choices_equal_those_of_one_rank(void **state)
{
    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(layouts); i++)
        rk_test_run_case(layouts[i].label, layouts[i].num_ranks, run_rank, &layouts[i], TIMEOUT_S);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_choices_equal_those_of_one_rank),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
