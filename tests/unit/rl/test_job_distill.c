/* Distillation in job files: keys that contradict each other or are out of range, and when there is a
 * teacher. */
#include <string.h>

#include "rl/rk_job.h"
#include "proto/rk_methods.h"
#include "tests/support/test.h"
#include "tests/unit/rl/minimal_job.h"

#define DISTILL "distillation.distillation_loss."
#define TEACHER "distillation.teacher.model.path=teacher"
#define ON      "distillation.enabled=true", TEACHER
#define MAX     6

static struct rk_config *load(const char *const changes[MAX])
{
    static const char *const base[] = {"data.train_files=[\"train.jsonl\"]"};

    return test_job(base, RK_ARRAY_LEN(base), changes, MAX);
}

/* Goal: settings without effect, or with an unintended effect, are named; others are accepted. */
static void test_distill_rule_names_contradictions(void **state)
{
    static const struct {
        const char *changes[MAX];
        const char *message; /* NULL: fine */
    } cases[] = {
        {{ON, DISTILL "loss_mode=jsd_topk", DISTILL "beta=0.1"}, NULL},
        {{ON, DISTILL "loss_mode=reverse_kl_topk", DISTILL "log_prob_min_clamp=-10"}, NULL},
        {{ON, DISTILL "loss_mode=forward_kl_topk", DISTILL "renormalize_topk=true"}, NULL},
        {{ON, DISTILL "loss_mode=forward_kl_topk", DISTILL "use_policy_gradient=true"}, NULL},
        {{"algorithm.use_opd=true", TEACHER}, NULL},
        {{"algorithm.use_opd=true"},
         "set distillation.teacher.model.path: algorithm.use_opd needs a teacher"},
        {{ON, "algorithm.use_opd=true"}, "algorithm.use_opd=true: distillation.enabled=true"},
        {{"algorithm=sft", "algorithm.use_opd=true"}, "algorithm.use_opd: algorithm.type=sft has no teacher"},
        {{ON, DISTILL "log_prob_min_clamp=-10"}, NULL}, /* as verl's scripts; a warning */
        {{ON, DISTILL "renormalize_topk=true"},
         "renormalize_topk=true: no meaning with distillation.distillation_loss.loss_mode=k3"},
        {{ON, DISTILL "loss_mode=jsd_topk", DISTILL "renormalize_topk=true"},
         "renormalize_topk=true: no meaning with distillation.distillation_loss.loss_mode=jsd_topk"},
    };

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        struct rk_config *job = load(cases[i].changes);
        struct rk_str problems = {0};

        print_message("%s\n", cases[i].message ? cases[i].message : "fine");
        rk_job_distill_check(job, 4, &problems);
        if (cases[i].message)
            assert_non_null(strstr(rk_str_text(&problems), cases[i].message));
        else
            assert_string_equal(rk_str_text(&problems), "");
        rk_str_fini(&problems);
        rk_config_destroy(job);
    }
}

/* Goal: values out of a key's range are refused with the key's name. */
static void test_distill_values_out_of_range_name_their_key(void **state)
{
    static const char *const values[] = {
        DISTILL "loss_mode=full_kl_topk",
        DISTILL "topk=0",
        DISTILL "topk=1025",
        DISTILL "beta=1.1",
        DISTILL "log_prob_min_clamp=1",
        DISTILL "renormalize_topk=maybe",
        "algorithm.opd_kl_coef=-1",
        "algorithm.use_opd=1.5",
    };

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(values); i++) {
        const char *overrides[] = {"data.train_files=[\"train.jsonl\"]", values[i]};
        char key[96] = {0};
        struct rk_config *job;

        memcpy(key, values[i], (size_t)(strchr(values[i], '=') - values[i]));
        assert_fails(rk_job_load(&job, NULL, overrides, 2), RK_INVALID_ARGUMENT, key);
    }
}

/* Goal: a job has a teacher for both forms of distillation, and a top-k only if the loss uses it. */
static void test_distill_teacher_and_topk_follow_the_keys(void **state)
{
    static const struct {
        const char *changes[MAX];
        bool has_teacher, is_topk;
    } cases[] = {
        {{TEACHER}, false, false},
        {{TEACHER, DISTILL "loss_mode=jsd_topk"}, false, false},
        {{ON}, true, false},
        {{ON, DISTILL "loss_mode=jsd_topk"}, true, true},
        {{TEACHER, "algorithm.use_opd=true", DISTILL "loss_mode=jsd_topk"}, true, false},
    };

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        struct rk_config *job = load(cases[i].changes);

        assert_int_equal(rk_job_role_needed(job, RK_ROLE_TEACHER), cases[i].has_teacher);
        assert_int_equal(rk_job_distills_topk(job), cases[i].is_topk);
        rk_config_destroy(job);
    }
}

#define SECOND "distillation.teacher_2."
#define TWO    ON, SECOND "model.path=other"
#define KEY    "distillation.teacher.key="

/* Goal: several teachers have a key each, no two the same; one teacher needs none. A teacher without a model
 * is an error, not a smaller number of teachers. */
static void test_distill_several_teachers_have_a_key_each(void **state)
{
    static const struct {
        const char *changes[MAX];
        const char *message; /* NULL: fine */
    } cases[] = {
        {{TWO, KEY "a", SECOND "key=b"}, NULL},
        {{"algorithm.use_opd=true", TEACHER, SECOND "model.path=other", KEY "a", SECOND "key=b"}, NULL},
        {{ON, KEY "a"}, NULL},
        {{"distillation.enabled=true", SECOND "model.path=other"}, NULL},
        {{TWO}, "set distillation.teacher.key: of several teachers a row takes the one whose key"},
        {{TWO, KEY "a"}, "set distillation.teacher_2.key"},
        {{TWO, KEY "a", SECOND "key=a"},
         "distillation.teacher_2.key=a: distillation.teacher.key has the same value"},
        {{ON, KEY "a", SECOND "key=b"},
         "distillation.teacher_2.key has no effect: set distillation.teacher_2.model.path"},
        {{ON, SECOND "megatron.tensor_model_parallel_size=2"},
         "distillation.teacher_2.megatron.tensor_model_parallel_size has no effect: set "
         "distillation.teacher_2"},
        {{SECOND "model.path=other"}, "model.path has no effect, since the job has no teacher"},
    };

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        struct rk_config *job = load(cases[i].changes);
        struct rk_str problems = {0};

        print_message("%s\n", cases[i].message ? cases[i].message : "fine");
        rk_job_distill_check(job, 4, &problems);
        rk_job_role_keys_check(job, 4, &problems);
        if (cases[i].message)
            assert_non_null(strstr(rk_str_text(&problems), cases[i].message));
        else
            assert_string_equal(rk_str_text(&problems), "");
        rk_str_fini(&problems);
        rk_config_destroy(job);
    }
}

/* Goal: the roles of the teachers that have a model, in order, with their own sizes. */
static void test_distill_a_role_for_each_teacher(void **state)
{
    struct rk_config *job = load((const char *const[MAX]){TWO, SECOND "megatron.tensor_model_parallel_size=2",
                                                          "distillation.teacher_4.model.path=last"});
    struct rk_job_teachers teachers = rk_job_teachers(job);

    (void)state;
    assert_int_equal(teachers.count, 3);
    assert_string_equal(teachers.items[0]->name, "teacher");
    assert_string_equal(teachers.items[1]->name, "teacher_2");
    assert_string_equal(teachers.items[2]->name, "teacher_4");
    assert_false(rk_job_role_needed(job, RK_ROLE_TEACHER_3));
    assert_int_equal(rk_job_role_size(job, RK_ROLE_TEACHER, RK_AXIS_TP), 1);
    assert_int_equal(rk_job_role_size(job, RK_ROLE_TEACHER_2, RK_AXIS_TP), 2);
    rk_config_destroy(job);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_distill_rule_names_contradictions),
        cmocka_unit_test(test_distill_values_out_of_range_name_their_key),
        cmocka_unit_test(test_distill_teacher_and_topk_follow_the_keys),
        cmocka_unit_test(test_distill_several_teachers_have_a_key_each),
        cmocka_unit_test(test_distill_a_role_for_each_teacher),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
