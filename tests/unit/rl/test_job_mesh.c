/* The meshes of a job's roles: meshes from keys, refused values, and the options sent to the daemons. */
#include "rl/rk_flows.h"

#include <stdio.h>
#include <string.h>

#include "base/rk_alloc.h"
#include "rl/rk_job.h"
#include "proto/rk_methods.h"
#include "tests/support/test.h"
#include "tests/unit/rl/minimal_job.h"

#define ACTOR   "actor_rollout_ref.actor."
#define ROLLOUT "actor_rollout_ref.rollout."
#define REF     "actor_rollout_ref.ref."
#define CRITIC  "critic."
#define TEACHER "distillation.teacher."
#define REWARD  "reward.reward_model."
#define TP      "megatron.tensor_model_parallel_size="
#define CP      "megatron.context_parallel_size="
#define PP      "megatron.pipeline_model_parallel_size="
#define EP      "megatron.expert_model_parallel_size="
#define ETP     "megatron.expert_tensor_parallel_size="
#define RTP     ROLLOUT "tensor_model_parallel_size="
#define REP     ROLLOUT "expert_parallel_size="
#define VPP     "megatron.virtual_pipeline_model_parallel_size="
#define RANKS   "megatron.ranks="
#define BUFFER  "megatron.override_transformer_config.moe_dispatch_tokens="
#define FIRST   "megatron.override_transformer_config.num_layers_in_first_pipeline_stage="
#define LAST    "megatron.override_transformer_config.num_layers_in_last_pipeline_stage="

#define QWEN3   "{\"num_hidden_layers\": 8, \"model_type\": \"qwen3\"}"
#define MIXTRAL "{\"num_hidden_layers\": 8, \"model_type\": \"mixtral\", \"num_local_experts\": 8}"

enum { MAX_CHANGES = 8 };

/* With an actor, a rollout, a ref and a critic. */
static struct rk_config *load(const char *const *changes)
{
    static const char *const base[] = {"data.train_files=[\"a\"]", ACTOR "use_kl_loss=true",
                                       "algorithm.adv_estimator=gae", "reward.name=digits"};

    return test_job(base, RK_ARRAY_LEN(base), changes, MAX_CHANGES);
}

/* "tp=2 dp=2 @ 0,1,2,3 ORDER" */
static char *describe(const struct rk_config *job, uint32_t role, int32_t world_size)
{
    struct rk_str text = {0};
    struct rk_mesh_spec spec;
    struct rk_mesh *mesh;

    assert_ok(rk_job_mesh_create(&mesh, job, role, world_size));
    spec = rk_mesh_get_spec(mesh);
    rk_str_appendf(&text, "%s @ ", rk_mesh_text(mesh));
    for (int32_t i = 0; i < spec.num_ranks; i++)
        rk_str_appendf(&text, "%s%d", i ? "," : "", spec.ranks[i]);
    rk_str_appendf(&text, " %s", spec.order);
    assert_int_equal(rk_job_num_replicas(job, role, world_size), spec.dp);
    rk_mesh_destroy(mesh);
    return rk_str_take(&text);
}

#define TRAIN      " tp-cp-ep-dp-pp"
#define SERVING    " pp-tp-dp"
#define SERVING_EP " pp-tp-ep-dp"

/* Goal: a role's keys define its mesh, and unset ones take the actor's values; the rollout has the actor's
 * mesh or one of tp and dp. */
static void test_mesh_create_follows_the_keys(void **state)
{
    static const struct {
        const char *changes[MAX_CHANGES];
        int32_t world_size;
        const char *actor, *rollout, *ref, *critic;
    } cases[] = {
        {{0}, 2, "dp=2 @ 0,1" TRAIN, "dp=2 @ 0,1" TRAIN, "dp=2 @ 0,1" TRAIN, "dp=2 @ 0,1" TRAIN},
        {{ACTOR TP "2", REF TP "4", CRITIC TP "1"},
         4,
         "tp=2 dp=2 @ 0,1,2,3" TRAIN,
         "tp=2 dp=2 @ 0,1,2,3" TRAIN,
         "tp=4 @ 0,1,2,3" TRAIN,
         "dp=4 @ 0,1,2,3" TRAIN},
        {{ACTOR TP "2", ACTOR CP "2", ACTOR PP "2", REF PP "1", CRITIC CP "1"},
         8,
         "tp=2 cp=2 pp=2 @ 0,1,2,3,4,5,6,7" TRAIN,
         "tp=2 dp=4 @ 0,1,2,3,4,5,6,7" SERVING,
         "tp=2 cp=2 dp=2 @ 0,1,2,3,4,5,6,7" TRAIN,
         "tp=2 dp=2 pp=2 @ 0,1,2,3,4,5,6,7" TRAIN},
        {{ACTOR RANKS "0-1", REF RANKS "2", CRITIC RANKS "3, 2"},
         4,
         "dp=2 @ 0,1" TRAIN,
         "dp=2 @ 0,1" TRAIN,
         "single @ 2" TRAIN,
         "dp=2 @ 3,2" TRAIN},
        {{ACTOR RANKS "0-1,4", REF RANKS "3", ROLLOUT "ranks=5,2-3"},
         6,
         "dp=3 @ 0,1,4" TRAIN,
         "dp=3 @ 5,2,3" SERVING,
         "single @ 3" TRAIN,
         "dp=3 @ 0,1,4" TRAIN},
        {{ACTOR EP "2", ACTOR TP "2", CRITIC EP "1", REF ETP "1"},
         4,
         "tp=2 ep=2 dp=2 @ 0,1,2,3" TRAIN,
         "tp=2 dp=2 @ 0,1,2,3" SERVING,
         "tp=2 ep=2 etp=1 dp=2 @ 0,1,2,3" TRAIN,
         "tp=2 dp=2 @ 0,1,2,3" TRAIN},
        {{ACTOR EP "2", RTP "2", REP "2"},
         4,
         "ep=2 dp=4 @ 0,1,2,3" TRAIN,
         "tp=2 ep=2 etp=1 dp=2 @ 0,1,2,3" SERVING_EP,
         "ep=2 dp=4 @ 0,1,2,3" TRAIN,
         "ep=2 dp=4 @ 0,1,2,3" TRAIN},
        {{ACTOR EP "2", ACTOR ETP "1", ACTOR TP "2", REP "2"},
         4,
         "tp=2 ep=2 etp=1 dp=2 @ 0,1,2,3" TRAIN,
         "tp=2 ep=2 etp=1 dp=2 @ 0,1,2,3" TRAIN,
         "tp=2 ep=2 etp=1 dp=2 @ 0,1,2,3" TRAIN,
         "tp=2 ep=2 etp=1 dp=2 @ 0,1,2,3" TRAIN},
        {{ACTOR TP "1", ROLLOUT "tensor_model_parallel_size=2"},
         4,
         "dp=4 @ 0,1,2,3" TRAIN,
         "tp=2 dp=2 @ 0,1,2,3" SERVING,
         "dp=4 @ 0,1,2,3" TRAIN,
         "dp=4 @ 0,1,2,3" TRAIN},
    };

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        const struct {
            uint32_t role;
            const char *expected;
        } roles[] = {{RK_ROLE_ACTOR, cases[i].actor},
                     {RK_ROLE_ROLLOUT, cases[i].rollout},
                     {RK_ROLE_REF, cases[i].ref},
                     {RK_ROLE_CRITIC, cases[i].critic}};
        struct rk_config *job = load(cases[i].changes);

        for (size_t k = 0; k < RK_ARRAY_LEN(roles); k++) {
            char *text = describe(job, roles[k].role, cases[i].world_size);

            assert_string_equal(text, roles[k].expected);
            rk_free(text);
        }
        rk_config_destroy(job);
    }
}

/* Goal: the meshes of all roles that the job needs, found by role. */
static void test_meshes_create_has_the_roles_of_the_job(void **state)
{
    static const char *const changes[MAX_CHANGES] = {ACTOR TP "2", REF TP "1"};
    static const char *const bad[MAX_CHANGES] = {ACTOR TP "2", REF TP "3"};
    struct rk_config *job = load(changes);
    struct rk_job_meshes meshes;

    (void)state;
    assert_ok(rk_job_meshes_create(&meshes, job, 4));
    assert_int_equal(meshes.count, 4);
    assert_int_equal(rk_mesh_axis_size(rk_job_meshes_find(&meshes, RK_ROLE_ACTOR), RK_AXIS_DP), 2);
    assert_int_equal(rk_mesh_axis_size(rk_job_meshes_find(&meshes, RK_ROLE_REF), RK_AXIS_DP), 4);
    assert_null(rk_job_meshes_find(&meshes, RK_ROLE_TEACHER));
    rk_job_meshes_fini(&meshes);
    rk_config_destroy(job);
    job = load(bad);
    assert_fails(rk_job_meshes_create(&meshes, job, 4), RK_INVALID_ARGUMENT, "mesh of role 'ref'");
    assert_int_equal(meshes.count, 0);
    rk_job_meshes_fini(&meshes);
    rk_config_destroy(job);
}

/* --- refusals --- */

static const struct world_case {
    const char *changes[MAX_CHANGES];
    int32_t world_size;
    const char *problems; /* all of them */
} world_cases[] = {
    {{0}, 4, ""},
    {{ACTOR TP "2", ACTOR PP "2"}, 8, ""},
    {{ACTOR TP "3", REF TP "1", CRITIC TP "1"},
     8,
     ACTOR TP "3 does not divide the 8 daemons of the group; the nearest that does: "
              "tensor_model_parallel_size=2\n"},
    {{ACTOR TP "2", ACTOR PP "3", REF PP "1", CRITIC PP "1"},
     8,
     ACTOR TP "2 x pipeline_model_parallel_size=3 does not divide the 8 daemons of the group; the nearest "
              "that does: tensor_model_parallel_size=2 x pipeline_model_parallel_size=2\n"},
    {{CRITIC CP "3", CRITIC TP "2"},
     4,
     CRITIC TP "2 x context_parallel_size=3 does not divide the 4 daemons of the group; the nearest that "
               "does: tensor_model_parallel_size=2 x context_parallel_size=2\n"},
    {{REF TP "16"},
     4,
     REF TP "16 does not divide the 4 daemons of the group; the nearest that does: "
            "tensor_model_parallel_size=4\n"},
    {{ROLLOUT "tensor_model_parallel_size=8"},
     4,
     ROLLOUT "tensor_model_parallel_size=8 does not divide the 4 daemons of the group; the nearest that "
             "does: tensor_model_parallel_size=4\n"},
    {{ROLLOUT "tensor_model_parallel_size=4", ROLLOUT "ranks=0-1"},
     4,
     ROLLOUT "tensor_model_parallel_size=4 does not divide the 2 ranks of " ROLLOUT
             "ranks; the nearest that does: tensor_model_parallel_size=2\n"},
    {{REF TP "2", REF RANKS "0-2"},
     4,
     REF TP "2 does not divide the 3 ranks of " REF "megatron.ranks; the nearest that does: "
            "tensor_model_parallel_size=1\n"},
    {{ACTOR EP "3", REF EP "1", CRITIC EP "1"},
     4,
     ACTOR EP "3: mesh of 4 ranks (world size 4) is not divisible by "
              "etp=1 x ep=3 x pp=1\n"},
    {{REF ETP "3"},
     4,
     REF ETP "3: expected a divisor of " REF "megatron.tensor_model_parallel_size, which is 1\n"},
    {{ACTOR TP "4", ACTOR ETP "3", REF ETP "1", CRITIC ETP "1"},
     4,
     ACTOR ETP "3: expected a divisor of " ACTOR "megatron.tensor_model_parallel_size, which is 4\n"},
    {{ACTOR TP "2", ACTOR ETP "1", ACTOR EP "8", REF EP "1", CRITIC EP "1"},
     4,
     ACTOR EP "8, " ACTOR ETP "1: mesh of 4 ranks (world size 4) is not divisible by "
              "etp=1 x ep=8 x pp=1\n"},
    {{REF RANKS "2-5"},
     4,
     REF RANKS "2-5: rank 4 has no daemon; expected each rank from 0 to 3 at most once\n"},
    {{REF RANKS "0-2,1"},
     4,
     REF RANKS "0-2,1: rank 1 comes twice; expected each rank from 0 to 3 at most once\n"},
    {{REF RANKS "3-1"},
     4,
     REF RANKS "3-1: expected ranks of daemons from 0, for example \"0-3\" or \"0,2,4-7\"\n"},
    {{REF RANKS "0-"}, 4, REF RANKS "0-: expected ranks"},
    {{REF RANKS "0;1"}, 4, REF RANKS "0;1: expected ranks"},
    {{REF RANKS "-1"}, 4, REF RANKS "-1: expected ranks"},
    {{REF RANKS "a"}, 4, REF RANKS "a: expected ranks"},
    {{REF RANKS "0-999999999999"}, 4, REF RANKS "0-999999999999: expected ranks"},
    {{ACTOR RANKS "0-1"},
     4,
     "no role uses rank 2, 3 of the 4 daemons; add the ranks to the key ranks of a role, or run on "
     "2 daemons\n"},
    {{ACTOR RANKS "0,2"},
     4,
     "no role uses rank 1, 3 of the 4 daemons; add the ranks to the key ranks of a role, or run on "
     "2 daemons with the ranks counted from 0\n"},
    {{ACTOR RANKS "0-1", CRITIC RANKS "2-3"}, 4, ""},
};

/* Goal: what cannot stand on the daemons is refused with key, value, expectation and what would work. */
static void test_world_check_names_key_value_and_the_nearest_layout(void **state)
{
    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(world_cases); i++) {
        struct rk_config *job = load(world_cases[i].changes);
        struct rk_str problems = {0};

        rk_job_world_check(job, world_cases[i].world_size, &problems);
        print_message("%s\n", rk_str_text(&problems));
        if (world_cases[i].problems[0])
            assert_ptr_equal(strstr(rk_str_text(&problems), world_cases[i].problems), rk_str_text(&problems));
        else
            assert_string_equal(rk_str_text(&problems), "");
        rk_str_fini(&problems);
        rk_config_destroy(job);
    }
}

/* Goal: the rollout's experts are divided by width or as whole ones, over all of its tp ranks; verl's sizes
 * over several replicas are taken as its tp. */
static void test_rollout_experts_are_divided_over_its_tp(void **state)
{
    static const struct {
        const char *changes[MAX_CHANGES];
        int32_t ep, etp;
    } cases[] = {
        {{0}, 1, 1},
        {{RTP "4", REP "4"}, 4, 1},
        {{ACTOR TP "2", ACTOR EP "2", REP "2"}, 2, 1},
        {{RTP "4", REP "2"}, 4, 1},
        {{RTP "4", REP "1"}, 1, 4},
        {{RTP "2", REP "64"}, 2, 1},
        {{REP "8"}, 1, 1},
    };

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        struct rk_config *job = load(cases[i].changes);

        assert_int_equal(rk_job_role_size(job, RK_ROLE_ROLLOUT, RK_AXIS_EP), cases[i].ep);
        assert_int_equal(rk_job_role_size(job, RK_ROLE_ROLLOUT, RK_AXIS_ETP), cases[i].etp);
        assert_ok(rk_job_check_rollout_experts(job, 64));
        rk_config_destroy(job);
    }
}

static void test_pipeline_check_needs_stages(void **state)
{
    static const struct {
        const char *changes[MAX_CHANGES];
        const char *problems;
    } cases[] = {
        {{ACTOR VPP "1"}, ""},
        {{ACTOR VPP "2", ACTOR PP "2"}, ""},
        {{ACTOR VPP "2"},
         ACTOR VPP "2: expected null, or " ACTOR "megatron.pipeline_model_parallel_size above 1, got 1\n"},
        {{ACTOR PP "2", ACTOR VPP "2", REF PP "1"}, ""},
        {{ACTOR PP "2", REF PP "1", REF VPP "2"},
         REF VPP "2: expected null, or " REF "megatron.pipeline_model_parallel_size above 1, got 1\n"},
        {{ACTOR PP "2", CRITIC PP "1", CRITIC FIRST "3"},
         CRITIC FIRST "3: expected null, or " CRITIC
                      "megatron.pipeline_model_parallel_size above 1, got 1\n"},
        {{CRITIC LAST "3"},
         CRITIC LAST "3: expected null, or " CRITIC "megatron.pipeline_model_parallel_size above 1, got 1\n"},
    };

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        struct rk_config *job = load(cases[i].changes);
        struct rk_str problems = {0};

        rk_job_pipeline_check(job, 4, &problems);
        print_message("%s\n", rk_str_text(&problems));
        assert_string_equal(rk_str_text(&problems), cases[i].problems);
        rk_str_fini(&problems);
        rk_config_destroy(job);
    }
}

/* A text without model_type is one of a family with experts. */
static void check_layers_of(const char *const *changes, uint32_t role, const char *text, const char *message)
{
    struct rk_config *job = load(changes);
    struct rk_json *config;

    assert_ok(rk_json_parse(&config, text, strlen(text), "config.json", 0));
    if (!rk_json_find(config, "model_type"))
        rk_json_set(config, "model_type", rk_json_new_string("qwen3_moe"));
    if (message)
        assert_fails(rk_flow_check_model(job, role, config), RK_INVALID_ARGUMENT, message);
    else
        assert_ok(rk_flow_check_model(job, role, config));
    rk_json_free(config);
    rk_config_destroy(job);
}

/* Goal: a pipeline that does not fit the layers of config.json is refused with the key and a valid split.
 */
static void test_check_layers_names_the_nearest_cut(void **state)
{
    static const struct {
        const char *changes[MAX_CHANGES];
        const char *config;
        uint32_t role;
        const char *message; /* NULL: fine */
    } cases[] = {
        {{0}, "{\"num_hidden_layers\": 7}", RK_ROLE_ACTOR, NULL},
        {{ACTOR PP "2"}, "{\"num_hidden_layers\": 8}", RK_ROLE_ACTOR, NULL},
        {{ACTOR PP "2", ACTOR FIRST "3"}, "{\"num_hidden_layers\": 7}", RK_ROLE_ACTOR, NULL},
        {{ACTOR PP "2", ACTOR VPP "2"}, "{\"num_hidden_layers\": 8}", RK_ROLE_REF, NULL},
        {{ACTOR PP "3"},
         "{\"num_hidden_layers\": 8}",
         RK_ROLE_ACTOR,
         ACTOR PP
         "3 of role actor: 8 layers do not fit a pipeline of pp=3: the layers must be divisible by pp "
         "times vpp; nearest layout: pp=3 num_layers_in_last_pipeline_stage=2"},
        {{ACTOR PP "3"}, "{\"num_hidden_layers\": 8}", RK_ROLE_REF, ACTOR PP "3 of role ref: 8 layers"},
        {{ACTOR PP "3", CRITIC PP "4"},
         "{\"num_hidden_layers\": 6}",
         RK_ROLE_CRITIC,
         CRITIC PP "4 of role critic: 6 layers do not fit a pipeline of pp=4"},
        {{ACTOR PP "2", ACTOR VPP "3"}, "{\"num_hidden_layers\": 8}", RK_ROLE_ACTOR, "pp=2 vpp=3"},
        {{ACTOR PP "16"}, "{\"num_hidden_layers\": 8}", RK_ROLE_ACTOR, "nearest layout: pp=8"},
        {{RTP "4", REP "4"}, "{\"num_hidden_layers\": 8, \"num_experts\": 12}", RK_ROLE_ROLLOUT, NULL},
        {{RTP "4", REP "4"}, "{\"num_hidden_layers\": 8, \"num_experts\": 10}", RK_ROLE_ACTOR, NULL},
        {{RTP "4", REP "4"},
         "{\"num_hidden_layers\": 8, \"n_routed_experts\": 10}",
         RK_ROLE_ROLLOUT,
         REP "4: expected a divisor of the 10 experts of the model"},
        {{RTP "2", REP "2"},
         "{\"num_hidden_layers\": 8}",
         RK_ROLE_ROLLOUT,
         REP "2: expected 1 for a model without layers of experts"},
        {{RTP "2", REP "2"}, "{}", RK_ROLE_ROLLOUT, NULL}, /* reported by the daemons */
        {{ACTOR EP "2"}, MIXTRAL, RK_ROLE_ACTOR, NULL},
        {{ACTOR EP "2"},
         QWEN3,
         RK_ROLE_ACTOR,
         ACTOR EP "2 of role actor: expected 1 for a model without layers of experts (model_type qwen3)"},
        {{ACTOR BUFFER "64"},
         QWEN3,
         RK_ROLE_ACTOR,
         ACTOR BUFFER
         "64 of role actor: expected null for a model without layers of experts (model_type qwen3)"},
        {{ACTOR EP "1"}, QWEN3, RK_ROLE_ACTOR, NULL},
        {{ACTOR EP "2", ACTOR BUFFER "64"}, QWEN3, RK_ROLE_CRITIC, NULL}, /* the actor's */
        {{ACTOR EP "2", ACTOR BUFFER "64"}, QWEN3, RK_ROLE_REF, NULL},
        {{ACTOR EP "2", ACTOR BUFFER "64"}, QWEN3, RK_ROLE_ROLLOUT, NULL},
        {{ACTOR EP "2", CRITIC EP "1"}, QWEN3, RK_ROLE_CRITIC, NULL},
        {{CRITIC EP "4"},
         QWEN3,
         RK_ROLE_CRITIC,
         CRITIC EP "4 of role critic: expected 1 for a model without layers of experts (model_type qwen3)"},
        {{REF BUFFER "8"}, QWEN3, RK_ROLE_REF, REF BUFFER "8 of role ref: expected null"},
        {{CRITIC EP "4"}, MIXTRAL, RK_ROLE_CRITIC, NULL},
        {{ACTOR EP "2"}, "{}", RK_ROLE_ACTOR, NULL},                           /* a model elsewhere */
        {{ACTOR PP "3"}, "{}", RK_ROLE_ACTOR, NULL},                           /* reported by the daemons */
        {{ACTOR PP "3"}, "{\"num_hidden_layers\": 8}", RK_ROLE_TEACHER, NULL}, /* not needed */
    };

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++)
        check_layers_of(cases[i].changes, cases[i].role, cases[i].config, cases[i].message);
}

/* Goal: ranks that share an expert are no key of a model without experts, whatever their number, where tp
 * splits its other matrices. */
static void test_ranks_of_an_expert_are_refused_without_experts(void **state)
{
    static const struct {
        const char *changes[MAX_CHANGES];
        uint32_t role;
        const char *message; /* for a model without experts; NULL: taken */
    } cases[] = {
        {{ACTOR TP "2", ACTOR ETP "1"}, RK_ROLE_ACTOR, ACTOR ETP "1 of role actor: expected null"},
        {{ACTOR TP "2", ACTOR ETP "2"}, RK_ROLE_ACTOR, ACTOR ETP "2 of role actor: expected null"},
        {{ACTOR TP "2", REF ETP "1"}, RK_ROLE_REF, REF ETP "1 of role ref: expected null"},
        {{ACTOR TP "2", CRITIC TP "1", CRITIC ETP "1"}, RK_ROLE_CRITIC, NULL},
        {{ACTOR TP "1", ACTOR ETP "1"}, RK_ROLE_ACTOR, NULL},
        {{ACTOR TP "2", ACTOR ETP "1"}, RK_ROLE_CRITIC, NULL}, /* the actor's */
    };

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        check_layers_of(cases[i].changes, cases[i].role, QWEN3, cases[i].message);
        check_layers_of(cases[i].changes, cases[i].role, MIXTRAL, NULL);
        check_layers_of(cases[i].changes, cases[i].role, "{}", NULL); /* a model elsewhere */
    }
}

#define KEEP   "megatron.override_transformer_config.moe_keep_dispatched="
#define AUX    "megatron.override_transformer_config.moe_aux_loss_coeff="
#define Z      "megatron.override_transformer_config.moe_z_loss_coeff="
#define BIAS   "megatron.override_transformer_config.moe_router_enable_expert_bias="
#define FREEZE "model.override_config.moe_config.freeze_moe_router="
#define REPLAY "megatron.router_replay.mode="
#define ROUTES ROLLOUT "enable_rollout_routing_replay="

/* Families with experts, whose layers are all dense, and one whose last layer is not. */
#define MOE_CONFIG   "{\"num_hidden_layers\": 8, \"model_type\": \"qwen3_moe\", \"num_experts\": 8, "
#define STEP_DENSE   MOE_CONFIG "\"decoder_sparse_step\": 9}"
#define STEP_SPARSE  MOE_CONFIG "\"decoder_sparse_step\": 8}"
#define LISTED_DENSE MOE_CONFIG "\"mlp_only_layers\": [0, 1, 2, 3, 4, 5, 6, 7]}"
#define FIRST_DENSE                                                                         \
    "{\"num_hidden_layers\": 8, \"model_type\": \"deepseek_v3\", \"n_routed_experts\": 8, " \
    "\"first_k_dense_replace\": 8}"

/* A key of layers of experts, and the role that has it. */
struct expert_case {
    uint32_t role;
    const char *change, *off; /* with a value that has an effect, and with one that has none */
    const char *message;
};

static void check_expert_case(const struct expert_case *c, const char *change, const char *text,
                              const char *message)
{
    check_layers_of((const char *const[MAX_CHANGES]){change}, c->role, text, message);
}

/* Goal: a role whose model has no experts is refused with every key of them of its own, and not with the
 * values that switch them off; a role whose model has experts takes them. */
static void test_keys_of_experts_are_refused_without_experts(void **state)
{
    static const struct expert_case cases[] = {
        {RK_ROLE_ACTOR, ACTOR ETP "2", ACTOR ETP "1", ACTOR ETP "2 of role actor: expected null or 1"},
        {RK_ROLE_REF, REF ETP "2", REF ETP "null", REF ETP "2 of role ref: expected null or 1"},
        {RK_ROLE_ACTOR, ACTOR KEEP "true", ACTOR KEEP "false",
         ACTOR KEEP "true of role actor: expected false"},
        {RK_ROLE_CRITIC, CRITIC KEEP "true", CRITIC KEEP "false",
         CRITIC KEEP "true of role critic: expected false"},
        {RK_ROLE_CRITIC, ACTOR KEEP "true", ACTOR KEEP "true", NULL}, /* the actor's */
        {RK_ROLE_ACTOR, ACTOR AUX "0.25", ACTOR AUX "0", ACTOR AUX "0.25 of role actor: expected 0"},
        {RK_ROLE_CRITIC, CRITIC AUX "1", CRITIC AUX "null", CRITIC AUX "1 of role critic: expected 0"},
        {RK_ROLE_ACTOR, ACTOR Z "0.5", ACTOR Z "0.0", ACTOR Z "0.5 of role actor: expected 0"},
        {RK_ROLE_CRITIC, CRITIC Z "0.5", CRITIC Z "null", CRITIC Z "0.5 of role critic: expected 0"},
        {RK_ROLE_ACTOR, ACTOR BIAS "true", ACTOR BIAS "false",
         ACTOR BIAS "true of role actor: expected false"},
        {RK_ROLE_CRITIC, CRITIC BIAS "true", CRITIC BIAS "false",
         CRITIC BIAS "true of role critic: expected false"},
        {RK_ROLE_ACTOR, "actor_rollout_ref." FREEZE "true", "actor_rollout_ref." FREEZE "false",
         "actor_rollout_ref." FREEZE "true of role actor: expected false"},
        {RK_ROLE_CRITIC, CRITIC FREEZE "true", CRITIC FREEZE "false",
         CRITIC FREEZE "true of role critic: expected false"},
        {RK_ROLE_ACTOR, ACTOR REPLAY "R2", ACTOR REPLAY "disabled",
         ACTOR REPLAY "R2 of role actor: expected disabled"},
        {RK_ROLE_REF, REF REPLAY "R3", REF REPLAY "disabled", REF REPLAY "R3 of role ref: expected disabled"},
        {RK_ROLE_ROLLOUT, ROUTES "true", ROUTES "false", ROUTES "true of role rollout: expected false"},
        {RK_ROLE_ROLLOUT, ACTOR KEEP "true", ACTOR KEEP "true", NULL},
    };

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        check_expert_case(&cases[i], cases[i].change, QWEN3, cases[i].message);
        check_expert_case(&cases[i], cases[i].off, QWEN3, NULL);
        check_expert_case(&cases[i], cases[i].change, STEP_DENSE, cases[i].message);
        check_expert_case(&cases[i], cases[i].change, LISTED_DENSE, cases[i].message);
        check_expert_case(&cases[i], cases[i].change, FIRST_DENSE, cases[i].message);
        check_expert_case(&cases[i], cases[i].change, STEP_SPARSE, NULL);
        check_expert_case(&cases[i], cases[i].change, MIXTRAL, NULL);
        check_expert_case(&cases[i], cases[i].change, "{}", NULL); /* a model elsewhere */
    }
}

/* Goal: a rollout has its own weights exactly if its mesh differs from the actor's. */
static void test_rollout_shares_weights_where_its_mesh_is_the_actors(void **state)
{
    static const struct {
        const char *changes[MAX_CHANGES];
        bool moves;
    } cases[] = {
        {{0}, false},
        {{ACTOR TP "2", ROLLOUT "tensor_model_parallel_size=2"}, false},
        {{ACTOR TP "2", ROLLOUT "tensor_model_parallel_size=1"}, true},
        {{ACTOR TP "1", ROLLOUT "tensor_model_parallel_size=2"}, true},
        {{ACTOR RANKS "0-1", ROLLOUT "ranks=2-3"}, true},
        {{ACTOR TP "2", ACTOR CP "2"}, false},
        {{ACTOR CP "2", ROLLOUT "tensor_model_parallel_size=2"}, true},
        {{ACTOR PP "2", CRITIC PP "1", REF PP "1"}, true},
        {{ACTOR TP "2", ACTOR ETP "2"}, false},
        {{ACTOR TP "2", ACTOR ETP "1"}, true},
        {{ACTOR TP "4", ACTOR ETP "2"}, true},
        {{ACTOR TP "2", REP "2"}, true},
        {{ACTOR EP "2", RTP "2", REP "2"}, true},
        {{ACTOR TP "2", ACTOR EP "2", ACTOR ETP "1"}, true},
        {{ACTOR TP "2", ACTOR EP "2", ACTOR ETP "1", REP "2"}, false},
        {{ACTOR TP "2", ACTOR EP "2", ACTOR ETP "1", ACTOR CP "2", REP "2"}, false},
        {{ACTOR TP "2", ACTOR EP "4", ACTOR ETP "1", REP "2"}, true},
    };

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        struct rk_config *job = load(cases[i].changes);

        assert_int_equal(rk_job_moves_weights(job), cases[i].moves);
        assert_int_equal(rk_job_role_shares(job, RK_ROLE_ROLLOUT), cases[i].moves ? 0 : RK_ROLE_ACTOR);
        assert_int_equal(rk_job_role_shares(job, RK_ROLE_REF), 0);
        rk_config_destroy(job);
    }
}

/* --- options of init_model --- */

/* Goal: init_model receives a role's own layer split, or the actor's if the role uses the actor's
 * pipeline. */
static void test_set_layout_writes_the_options_of_init_model(void **state)
{
#define SP_ON  "{\"megatron.sequence_parallel\":true}"
#define SP_OFF "{\"megatron.sequence_parallel\":false}"
#define SP_VPP(n) \
    "{\"megatron.sequence_parallel\":true,\"megatron.virtual_pipeline_model_parallel_size\":" #n "}"
    static const struct {
        const char *changes[MAX_CHANGES];
        const char *actor, *ref;
        int32_t actor_multiple, ref_multiple;
    } cases[] = {
        {{0}, SP_ON, SP_ON, 1, 1},
        {{ACTOR "megatron.sequence_parallel=false"}, SP_OFF, SP_OFF, 1, 1},
        {{REF "megatron.sequence_parallel=false"}, SP_ON, SP_OFF, 1, 1},
        {{ACTOR PP "4", ACTOR VPP "2"}, SP_VPP(2), SP_VPP(2), 4, 4},
        {{ACTOR PP "4", ACTOR VPP "2", REF PP "2"}, SP_VPP(2), SP_ON, 4, 1},
        {{ACTOR PP "4", ACTOR VPP "2", REF VPP "3"}, SP_VPP(2), SP_VPP(3), 4, 4},
        {{ACTOR PP "4", REF PP "2", REF VPP "3"}, SP_ON, SP_VPP(3), 1, 2},
        {{ACTOR PP "2", ACTOR FIRST "1", ACTOR LAST "3", REF PP "1"},
         "{\"megatron.sequence_parallel\":true,"
         "\"megatron.override_transformer_config.num_layers_in_first_pipeline_stage\":1,"
         "\"megatron.override_transformer_config.num_layers_in_last_pipeline_stage\":3}",
         SP_ON,
         1,
         1},
    };

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        struct rk_config *job = load(cases[i].changes);
        struct rk_json *actor = rk_json_new_object(), *ref = rk_json_new_object(), *completed;
        const struct rk_method *init = rk_method_get(RK_METHOD_INIT_MODEL);
        char *actor_text, *ref_text;

        rk_job_set_layout(actor, job, RK_ROLE_ACTOR);
        rk_job_set_layout(ref, job, RK_ROLE_REF);
        actor_text = rk_json_dump(actor, 0, false);
        ref_text = rk_json_dump(ref, 0, false);
        assert_string_equal(actor_text, cases[i].actor);
        assert_string_equal(ref_text, cases[i].ref);
        assert_ok(rk_method_complete_options(&completed, init, actor));
        assert_int_equal(rk_job_micro_multiple(job, RK_ROLE_ACTOR), cases[i].actor_multiple);
        assert_int_equal(rk_job_micro_multiple(job, RK_ROLE_REF), cases[i].ref_multiple);
        assert_int_equal(rk_job_micro_multiple(job, RK_ROLE_ROLLOUT), 1);
        rk_free(actor_text);
        rk_free(ref_text);
        rk_json_free(completed);
        rk_json_free(actor);
        rk_json_free(ref);
        rk_config_destroy(job);
    }
}

/* Goal: all roles with a model have the mesh keys, below verl's names. */
static void test_roles_have_the_keys_of_a_mesh(void **state)
{
    static const char *const changes[MAX_CHANGES] = {
        TEACHER TP "2", TEACHER CP "2", TEACHER PP "2", TEACHER RANKS "0-7", REWARD TP "4", REWARD PP "2",
    };
    struct rk_config *job = load(changes);
    char *teacher = describe(job, RK_ROLE_TEACHER, 9), *reward = describe(job, RK_ROLE_REWARD, 8);

    (void)state;
    assert_string_equal(teacher, "tp=2 cp=2 pp=2 @ 0,1,2,3,4,5,6,7" TRAIN);
    assert_string_equal(reward, "tp=4 pp=2 @ 0,1,2,3,4,5,6,7" TRAIN);
    rk_free(teacher);
    rk_free(reward);
    rk_config_destroy(job);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_mesh_create_follows_the_keys),
        cmocka_unit_test(test_meshes_create_has_the_roles_of_the_job),
        cmocka_unit_test(test_world_check_names_key_value_and_the_nearest_layout),
        cmocka_unit_test(test_rollout_experts_are_divided_over_its_tp),
        cmocka_unit_test(test_pipeline_check_needs_stages),
        cmocka_unit_test(test_check_layers_names_the_nearest_cut),
        cmocka_unit_test(test_ranks_of_an_expert_are_refused_without_experts),
        cmocka_unit_test(test_keys_of_experts_are_refused_without_experts),
        cmocka_unit_test(test_rollout_shares_weights_where_its_mesh_is_the_actors),
        cmocka_unit_test(test_set_layout_writes_the_options_of_init_model),
        cmocka_unit_test(test_roles_have_the_keys_of_a_mesh),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
