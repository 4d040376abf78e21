/* The method, column, option and RPC tables, and the checks derived from them. */
#include "tests/support/test.h"

#include "base/config/rk_losses.h"
#include "base/rk_compiler.h"
#include "base/rk_json.h"
#include "base/rk_str.h"
#include "proto/columns.def"
#include "proto/options.def"
#include "proto/rk_messages.h"
#include "proto/rk_methods.h"
#include "proto/rk_rpcs.h"

#include <string.h>

/* --- losses --- */

/* Whether the method takes the column, required for a loss that requires it or else optional. */
static bool takes_column(const struct rk_method *method, const char *name)
{
    for (int64_t i = 0; i < method->num_in; i++) {
        if (strcmp(method->in[i].name, name) == 0)
            return true;
    }
    return false;
}

static void test_losses_read_columns_of_their_methods(void **state)
{
    enum { POLICY, VALUE, SFT, DPO, SUM };
    static const char *const methods[] = {"update_actor", "update_critic", "update_sft", "update_dpo",
                                          "forward_backward"};
    static const struct {
        const char *name;
        int kind;
        uint32_t columns;
    } rows[] = {
#define ROW(id, kind, unused, columns, optional) {#id, kind, (columns) | (optional)},
        RK_LOSS_TABLE(ROW) RK_POLICY_TERM_TABLE(ROW)
#undef ROW
    };

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(rows); i++) {
        const struct rk_method *method = rk_method_find(methods[rows[i].kind]);

        for (int c = 0; c < RK_LOSS_ALL_COLUMN_COUNT; c++) {
            const char *column = rk_loss_column_name((rk_loss_column_t)c);

            if ((rows[i].columns & RK_LOSS_BIT(c)) && !takes_column(method, column))
                fail_msg("loss %s reads %s, which %s does not take", rows[i].name, column, method->name);
        }
    }
}

/* The columns that a driver sends are those of the selected loss and of the terms that are switched on. */
static void test_columns_of_a_policy_loss(void **state)
{
    static const struct {
        const char *options;
        uint32_t columns;
    } cases[] = {
        {"{\"policy_loss.loss_mode\": \"vanilla\"}", RK_PG_COLUMNS | RK_IS_WEIGHTS},
        {"{\"policy_loss.loss_mode\": \"bypass_mode\"}", RK_PG_COLUMNS},
        {"{\"policy_loss.loss_mode\": \"gpg\", \"use_kl_loss\": false, \"distillation.enabled\": false}",
         RK_LOSS_BIT(RK_LOSS_ADVANTAGES) | RK_IS_WEIGHTS},
        {"{\"policy_loss.loss_mode\": \"vanilla\", \"use_kl_loss\": true}",
         RK_PG_COLUMNS | RK_IS_WEIGHTS | RK_LOSS_BIT(RK_LOSS_REF_LOG_PROB)},
        {"{\"policy_loss.loss_mode\": \"vanilla\", \"distillation.enabled\": true}",
         RK_PG_COLUMNS | RK_IS_WEIGHTS | RK_LOSS_BIT(RK_LOSS_TEACHER_LOG_PROBS) |
             RK_LOSS_BIT(RK_LOSS_TEACHER_TOPK_IDS) | RK_LOSS_BIT(RK_LOSS_TEACHER_TOPK_LOG_PROBS)},
    };

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        struct rk_json *options;

        print_message("%s\n", cases[i].options);
        assert_ok(rk_json_parse(&options, cases[i].options, strlen(cases[i].options), "options", 0));
        assert_int_equal(rk_policy_loss_columns(options), cases[i].columns);
        rk_json_free(options);
    }
}

/* --- the tables --- */

static void check_run_of_columns(const char *set, const struct rk_column_schema *run, int64_t count)
{
    static const struct {
        const char *set, *name;
    } rows[] = {
#define X(arg, set, name, dtype, dims, is_required, doc) {#set, name},
        RK_COLUMN_TABLE(X, unused)
#undef X
    };
    int64_t found = 0;

    for (size_t i = 0; i < RK_ARRAY_LEN(rows); i++) {
        if (strcmp(rows[i].set, set) != 0)
            continue;
        assert_true(found < count);
        assert_string_equal(run[found++].name, rows[i].name);
    }
    assert_int_equal(found, count);
}

static void check_run_of_options(const char *set, const struct rk_option_schema *run, int64_t count)
{
    static const struct {
        const char *set, *key;
    } rows[] = {
#define X(arg, set, key, type, default_text, doc) {#set, key},
        RK_OPTION_TABLE(X, unused)
#undef X
    };
    int64_t found = 0;

    for (size_t i = 0; i < RK_ARRAY_LEN(rows); i++) {
        if (strcmp(rows[i].set, set) != 0)
            continue;
        assert_true(found < count);
        assert_string_equal(run[found++].key, rows[i].key);
    }
    assert_int_equal(found, count);
}

/* The product finds the runs by counting; this test looks up every row by the name of its set. */
static void test_methods_have_the_rows_of_their_sets(void **state)
{
    static const struct {
        const char *in, *out, *options;
    } sets[] = {
#define X(id, name, roles, mode, mesh, exec, flags, in, out, options, doc) {#in, #out, #options},
        RK_METHOD_TABLE(X)
#undef X
    };

    (void)state;
    for (int id = 0; id < RK_METHOD_COUNT; id++) {
        const struct rk_method *method = rk_method_get((rk_method_id_t)id);

        assert_int_equal(method->id, id);
        assert_ptr_equal(rk_method_find(method->name), method);
        check_run_of_columns(sets[id].in, method->in, method->num_in);
        check_run_of_columns(sets[id].out, method->out, method->num_out);
        check_run_of_options(sets[id].options, method->options, method->num_options);
    }
}

static void test_methods_go_over_meshes_of_roles(void **state)
{
    (void)state;
    for (int id = 0; id < RK_METHOD_COUNT; id++) {
        const struct rk_method *method = rk_method_get((rk_method_id_t)id);
        struct rk_method_meshes meshes = rk_method_get_meshes(method, "actor");

        print_message("%s\n", method->name);
        for (int32_t i = 0; i < meshes.count; i++)
            assert_int_not_equal(rk_role_parse(meshes.role[i]), 0);
        if (!method->dispatch_mesh[0]) {
            assert_int_equal(meshes.count, 1);
            assert_string_equal(meshes.role[0], "actor");
        }
        if (meshes.count > 1) { /* see methods.def */
            assert_string_equal(method->dispatch_mode, "ONE_TO_ALL");
            assert_true(method->flags & RK_MF_ANY_STATE);
        }
    }
}

static void test_methods_that_run_alone_have_no_columns_and_change_nothing(void **state)
{
    int num_alone = 0;

    (void)state;
    for (int id = 0; id < RK_METHOD_COUNT; id++) {
        const struct rk_method *method = rk_method_get((rk_method_id_t)id);

        if (!(method->flags & RK_MF_ALONE))
            continue;
        print_message("%s\n", method->name);
        num_alone++;
        assert_true(method->flags & RK_MF_PURE);
        assert_true(method->flags & RK_MF_ANY_STATE);
        assert_false(method->flags & (RK_MF_MUTATES | RK_MF_PLAN));
        assert_int_equal(method->num_in, 0);
        assert_int_equal(method->num_out, 0);
    }
    assert_int_equal(num_alone, 2); /* those that docs/rpc.md names */
}

static void test_method_meshes_are_the_roles_between_the_signs(void **state)
{
    struct rk_method method = {.name = "m", .dispatch_mesh = "actor+rollout+ref"};
    struct rk_method_meshes meshes = rk_method_get_meshes(&method, "critic");

    (void)state;
    assert_int_equal(meshes.count, 3);
    assert_string_equal(meshes.role[0], "actor");
    assert_string_equal(meshes.role[1], "rollout");
    assert_string_equal(meshes.role[2], "ref");
    method.dispatch_mesh = "rollout";
    meshes = rk_method_get_meshes(&method, "critic");
    assert_int_equal(meshes.count, 1);
    assert_string_equal(meshes.role[0], "rollout");
}

static void test_defaults_are_json_of_the_type_of_their_option(void **state)
{
    (void)state;
    for (int id = 0; id < RK_METHOD_COUNT; id++) {
        const struct rk_method *method = rk_method_get((rk_method_id_t)id);
        struct rk_json *defaults = rk_json_new_object(), *completed;

        /* Given as options, the defaults must pass the type check. */
        for (int64_t i = 0; i < method->num_options; i++) {
            const char *text = method->options[i].default_text;
            struct rk_json *value;

            if (!text)
                text = method->options[i].type == RK_OPTION_INT ? "1" : "\"x\"";
            assert_ok(rk_json_parse(&value, text, strlen(text), method->options[i].key, 0));
            rk_json_set(defaults, method->options[i].key, value);
        }
        assert_ok(rk_method_complete_options(&completed, method, defaults));
        assert_true(rk_json_equal(completed, defaults));
        rk_json_free(completed);
        rk_json_free(defaults);
    }
}

static void test_rpcs_are_paths_of_known_services(void **state)
{
    (void)state;
    for (int id = 0; id < RK_RPC_COUNT; id++) {
        const struct rk_rpc *rpc = rk_rpc_get((rk_rpc_id_t)id);

        assert_int_equal(rpc->id, id);
        assert_true(rk_str_has_prefix(rpc->path, "/rankd.v1.Worker/") ||
                    rk_str_has_prefix(rpc->path, "/rankd.v1.Admin/") ||
                    rk_str_has_prefix(rpc->path, "/grpc.health.v1.Health/") ||
                    rk_str_has_prefix(rpc->path, "/grpc.reflection.v1.ServerReflection/") ||
                    rk_str_has_prefix(rpc->path, "/grpc.reflection.v1alpha.ServerReflection/"));
    }
    assert_int_equal(rk_rpc_get(RK_RPC_ID_EXECUTE)->kind, RK_RPC_BIDI);
    assert_int_equal(rk_rpc_get(RK_RPC_ID_EXECUTE)->rights, RK_RIGHTS_DRIVER);
    assert_int_equal(rk_rpc_get(RK_RPC_ID_SHUTDOWN)->rights, RK_RIGHTS_ADMIN);
    assert_int_equal(rk_rpc_get(RK_RPC_ID_HEALTH_CHECK)->rights, RK_RIGHTS_NONE);
}

/* --- roles --- */

static void test_role_parse_and_name_are_inverse(void **state)
{
    static const char *const names[] = {"actor",   "rollout",   "ref",       "critic",   "reward",
                                        "teacher", "teacher_2", "teacher_3", "teacher_4"};
    uint32_t all = 0;

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(names); i++) {
        assert_string_equal(rk_role_name(rk_role_parse(names[i])), names[i]);
        all |= rk_role_parse(names[i]);
    }
    assert_int_equal(all, RK_ROLE_ANY);
    assert_int_equal(rk_role_parse("Actor"), 0);
    assert_int_equal(rk_role_parse(""), 0);
}

static const struct {
    const char *role, *method;
    rk_code_t code;
    const char *reason, *error;
} role_cases[] = {
    {"actor", "update_actor", RK_OK, "", NULL},
    {"rollout", "generate_sequences", RK_OK, "", NULL},
    {"critic", "init_model", RK_OK, "", NULL},
    {"ref", "compute_ref_log_prob", RK_OK, "", NULL},
    {"teacher", "compute_ref_log_prob", RK_OK, "", NULL},
    {"reward", "train_batch", RK_INVALID_ARGUMENT, "",
     "role 'reward' has no method 'train_batch', expected one of actor, critic"},
    {"rollout", "infer_batch", RK_INVALID_ARGUMENT, "",
     "expected one of actor, ref, critic, reward, teacher"},
    {"actr", "infer_batch", RK_NOT_FOUND, "UNKNOWN_ROLE", "unknown role 'actr'"},
    {"teacher", "compute_teacher_log_prob", RK_OK, "", NULL},
    {"teacher_4", "compute_teacher_log_prob", RK_OK, "", NULL},
    {"teacher_2", "compute_ref_log_prob", RK_OK, "", NULL},
    {"teacher_5", "compute_ref_log_prob", RK_NOT_FOUND, "UNKNOWN_ROLE", "unknown role 'teacher_5'"},
    {"ref", "compute_teacher_log_prob", RK_INVALID_ARGUMENT, "", "expected one of teacher"},
    {"actor", "update_actr", RK_NOT_FOUND, "UNKNOWN_METHOD",
     "unknown method 'update_actr', expected one of init_model"},
    {"actor", "", RK_NOT_FOUND, "UNKNOWN_METHOD", "unknown method ''"},
    {"actr", "update_actor", RK_NOT_FOUND, "UNKNOWN_ROLE",
     "unknown role 'actr', expected one of actor, rollout, ref, critic, reward, teacher"},
    {"", "init_model", RK_NOT_FOUND, "UNKNOWN_ROLE", "unknown role ''"},
    {"ref", "update_actor", RK_INVALID_ARGUMENT, "",
     "role 'ref' has no method 'update_actor', expected one of actor"},
    {"teacher", "update_actor", RK_INVALID_ARGUMENT, "",
     "role 'teacher' has no method 'update_actor', expected one of actor"},
    {"actor", "compute_ref_log_prob", RK_INVALID_ARGUMENT, "", "expected one of ref, teacher"},
    {"actor", "generate_sequences", RK_INVALID_ARGUMENT, "", "expected one of rollout"},
};

static void test_check_role(void **state)
{
    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(role_cases); i++) {
        const struct rk_method *method;
        struct rk_status *st = rk_method_check_role(&method, role_cases[i].role, role_cases[i].method);

        print_message("%s.%s\n", role_cases[i].role, role_cases[i].method);
        assert_int_equal(rk_status_code(st), role_cases[i].code);
        assert_string_equal(rk_status_reason(st), role_cases[i].reason);
        if (role_cases[i].error) {
            assert_null(method);
            assert_message_contains(st, role_cases[i].error);
        } else {
            assert_string_equal(method->name, role_cases[i].method);
        }
    }
}

static void test_check_role_of_an_alias(void **state)
{
    static const char *const cases[][3] = {
        {"actor", "train_batch", "update_actor"},           {"critic", "train_batch", "update_critic"},
        {"actor", "train_mini_batch", "update_actor"},      {"critic", "train_mini_batch", "update_critic"},
        {"actor", "infer_batch", "compute_log_prob"},       {"ref", "infer_batch", "compute_ref_log_prob"},
        {"teacher", "infer_batch", "compute_ref_log_prob"}, {"critic", "infer_batch", "compute_values"},
        {"reward", "infer_batch", "compute_rm_score"},
    };

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        const struct rk_method *method;

        assert_ok(rk_method_check_role(&method, cases[i][0], cases[i][1]));
        assert_string_equal(method->name, cases[i][2]);
    }
}

/* Goal: within a role each name or alias identifies one method. */
static void test_aliases_mean_one_method_a_role(void **state)
{
    (void)state;
    for (int id = 0; id < RK_METHOD_COUNT; id++) {
        const struct rk_method *method = rk_method_get((rk_method_id_t)id), *found;
        const char *aliases[RK_METHOD_ALIASES_MAX];
        int64_t count = rk_method_aliases(aliases, method);

        for (int64_t i = 0; i < count; i++) {
            assert_null(rk_method_find(aliases[i]));
            for (uint32_t bit = 1; bit & RK_ROLE_ANY; bit <<= 1) {
                if (!(method->roles & bit))
                    continue;
                assert_ok(rk_method_check_role(&found, rk_role_name(bit), aliases[i]));
                assert_ptr_equal(found, method);
            }
        }
    }
}

/* --- options --- */

static const struct {
    const char *label;
    const char *method, *given;
    const char *key, *value; /* expected in the result */
    const char *error;
} option_cases[] = {
    {"default filled in", "generate_sequences", "{\"response_length\": 4}", "temperature", "1.0", NULL},
    {"given value kept", "generate_sequences", "{\"response_length\": 4}", "response_length", "4", NULL},
    {"unset stays null", "init_model", "{}", "model.path", "null", NULL},
    {"null where null is the default", "init_model", "{\"model.path\": null}", "model.path", "null", NULL},
    {"an integer for a real", "generate_sequences", "{\"response_length\": 4, \"temperature\": 2}",
     "temperature", "2.0", NULL},
    {"an integral real for an integer", "generate_sequences", "{\"response_length\": 4.0}", "response_length",
     "4", NULL},
    {"list", "init_model", "{\"optim.betas\": [0.8, 0.9]}", "optim.betas", "[0.8, 0.9]", NULL},
    {"number for JSON", "generate_sequences", "{\"response_length\": 4, \"eos_token_id\": 2}", "eos_token_id",
     "2", NULL},
    {"object", "init_model", "{\"model.hf_config\": {\"a\": 1}}", "model.hf_config", "{\"a\": 1}", NULL},
    {"required is missing", "generate_sequences", "{}", NULL, NULL,
     "generate_sequences needs the option 'response_length'"},
    {"no options at all, one is required", "export_hf", NULL, NULL, NULL,
     "export_hf needs the option 'path'"},
    {"misspelt", "generate_sequences", "{\"response_length\": 4, \"temprature\": 1.0}", NULL, NULL,
     "generate_sequences has no option 'temprature'; did you mean 'temperature'?"},
    {"unlike any", "generate_sequences", "{\"response_length\": 4, \"frobnicate\": 1}", NULL, NULL,
     "generate_sequences has no option 'frobnicate'"},
    {"option of a sister method", "compute_ref_log_prob", "{\"calculate_entropy\": true}", NULL, NULL,
     "compute_ref_log_prob has no option 'calculate_entropy'"},
    {"method without options", "get_mesh_info", "{\"x\": 1}", NULL, NULL, "get_mesh_info has no option 'x'"},
    {"fraction for an integer", "generate_sequences", "{\"response_length\": 4.5}", NULL, NULL,
     "option 'response_length': expected an integer, got"},
    {"huge real for an integer", "generate_sequences", "{\"response_length\": 1e300}", NULL, NULL,
     "option 'response_length': expected an integer, got"},
    {"string for an integer", "generate_sequences", "{\"response_length\": \"4\"}", NULL, NULL,
     "option 'response_length': expected an integer, got a string"},
    {"null where a value is needed", "generate_sequences", "{\"response_length\": null}", NULL, NULL,
     "option 'response_length': expected an integer, got null"},
    {"no object", "generate_sequences", "[1]", NULL, NULL,
     "generate_sequences: expected an object of options, got an array"},
    {"number for a boolean", "generate_sequences", "{\"response_length\": 4, \"do_sample\": 1}", NULL, NULL,
     "option 'do_sample': expected true or false, got an integer"},
    {"boolean for a number", "init_model", "{\"optim.lr\": true}", NULL, NULL,
     "option 'optim.lr': expected a number, got true or false"},
    {"list for a string", "init_model", "{\"numerics\": []}", NULL, NULL,
     "option 'numerics': expected a string, got an array"},
    {"string for JSON", "init_model", "{\"optim.betas\": \"0.9\"}", NULL, NULL,
     "option 'optim.betas': expected a list, an object or a number, got a string"},
};

static struct rk_json *parse(const char *text)
{
    struct rk_json *json = NULL;

    if (text)
        assert_ok(rk_json_parse(&json, text, strlen(text), "test", 0));
    return json;
}

static void run_option_case(size_t i)
{
    const struct rk_method *method = rk_method_find(option_cases[i].method);
    struct rk_json *given = parse(option_cases[i].given), *expected = parse(option_cases[i].value),
                   *completed;

    print_message("%s\n", option_cases[i].label);
    if (option_cases[i].error) {
        assert_fails(rk_method_complete_options(&completed, method, given), RK_INVALID_ARGUMENT,
                     option_cases[i].error);
        assert_null(completed);
    } else {
        assert_ok(rk_method_complete_options(&completed, method, given));
        assert_int_equal(rk_json_count(completed), method->num_options);
        assert_true(rk_json_equal(rk_json_find(completed, option_cases[i].key), expected));
        rk_json_free(completed);
    }
    rk_json_free(given);
    rk_json_free(expected);
}

static void test_complete_options(void **state)
{
    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(option_cases); i++)
        run_option_case(i);
}

/* --- the table as a message --- */

static void test_methods_describe_holds_every_row(void **state)
{
    struct rk_arena *arena = rk_arena_create(4096, 0);
    struct rk_list_methods_response list;

    (void)state;
    rk_methods_describe(&list, arena);
    assert_int_equal(list.num_methods, RK_METHOD_COUNT);
    for (int id = 0; id < RK_METHOD_COUNT; id++) {
        const struct rk_method *row = rk_method_get((rk_method_id_t)id);
        const struct rk_method_info *info = &list.methods[id];
        uint32_t roles = 0;

        print_message("%s\n", row->name);
        assert_string_equal(info->name, row->name);
        for (int64_t i = 0; i < info->num_roles; i++)
            roles |= rk_role_parse(info->roles[i]);
        assert_int_equal(roles, row->roles);
        assert_int_equal(info->is_mutating, (row->flags & RK_MF_MUTATES) != 0);
        assert_int_equal(info->needs_plan, (row->flags & RK_MF_PLAN) != 0);
        assert_int_equal(info->num_input, row->num_in);
        assert_int_equal(info->num_output, row->num_out);
        assert_int_equal(info->num_options, row->num_options);
    }
    assert_int_equal(list.methods[RK_METHOD_UPDATE_CRITIC].num_aliases, 2);
    assert_string_equal(list.methods[RK_METHOD_UPDATE_CRITIC].aliases[0], "train_batch");
    assert_string_equal(list.methods[RK_METHOD_UPDATE_CRITIC].aliases[1], "train_mini_batch");
    assert_int_equal(list.methods[RK_METHOD_INIT_MODEL].num_aliases, 0);
    rk_arena_destroy(arena);
}

static void test_methods_describe_writes_dispatch_and_defaults(void **state)
{
    struct rk_arena *arena = rk_arena_create(4096, 0);
    struct rk_list_methods_response list;
    const struct rk_method_info *generate;

    (void)state;
    rk_methods_describe(&list, arena);
    generate = &list.methods[RK_METHOD_GENERATE_SEQUENCES];
    assert_string_equal(generate->dispatch, "ND_COMPUTE(rollout)");
    assert_string_equal(list.methods[RK_METHOD_INIT_MODEL].dispatch, "ONE_TO_ALL");
    assert_string_equal(generate->options[0].name, "temperature");
    assert_string_equal(generate->options[0].dims, "REAL = 1.0");
    assert_false(generate->options[0].is_required);
    for (int64_t i = 0; i < generate->num_options; i++) {
        if (strcmp(generate->options[i].name, "response_length") != 0)
            continue;
        assert_string_equal(generate->options[i].dims, "INT");
        assert_true(generate->options[i].is_required);
    }
    rk_arena_destroy(arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_losses_read_columns_of_their_methods),
        cmocka_unit_test(test_columns_of_a_policy_loss),
        cmocka_unit_test(test_methods_have_the_rows_of_their_sets),
        cmocka_unit_test(test_methods_go_over_meshes_of_roles),
        cmocka_unit_test(test_methods_that_run_alone_have_no_columns_and_change_nothing),
        cmocka_unit_test(test_method_meshes_are_the_roles_between_the_signs),
        cmocka_unit_test(test_defaults_are_json_of_the_type_of_their_option),
        cmocka_unit_test(test_rpcs_are_paths_of_known_services),
        cmocka_unit_test(test_role_parse_and_name_are_inverse),
        cmocka_unit_test(test_check_role),
        cmocka_unit_test(test_check_role_of_an_alias),
        cmocka_unit_test(test_aliases_mean_one_method_a_role),
        cmocka_unit_test(test_complete_options),
        cmocka_unit_test(test_methods_describe_holds_every_row),
        cmocka_unit_test(test_methods_describe_writes_dispatch_and_defaults),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
