/* The groups in which --help and the manual show the keys of a job. */
#include "rl/rk_job.h"

#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_array.h"
#include "tests/support/test.h"

struct shown {
    RK_ARRAY(const struct rk_config_key *) keys;
};

static void add(void *user, const struct rk_config_key *key)
{
    rk_array_append(&((struct shown *)user)->keys, key);
}

/* Goal: every key, whatever its prefix, is shown exactly once. */
static void test_every_key_is_in_one_group(void **state)
{
    struct shown shown = {0};
    int64_t num_groups, num_keys;
    const struct rk_config_key *keys = rk_job_keys(&num_keys);

    (void)state;
    rk_job_groups(&num_groups);
    for (int64_t i = 0; i < num_groups; i++) {
        int64_t before = shown.keys.count;

        rk_job_group_keys(i, add, &shown);
        assert_true(shown.keys.count > before);
    }
    for (int64_t i = 0; i < num_keys; i++) {
        int times = 0;

        for (int64_t j = 0; j < shown.keys.count; j++)
            times += shown.keys.items[j] == &keys[i];
        if (times != 1)
            print_message("%s is shown %d times\n", keys[i].path, times);
        assert_int_equal(times, 1);
    }
    assert_int_equal(shown.keys.count, num_keys);
    rk_array_fini(&shown.keys);
}

/* Goal: the ten keys that people set first come first, in the order of the table of groups. */
static void test_first_group_has_ten_keys_in_its_order(void **state)
{
    int64_t num_groups;
    const struct rk_job_group *groups = rk_job_groups(&num_groups);
    struct shown shown = {0};

    (void)state;
    rk_job_group_keys(0, add, &shown);
    assert_int_equal(shown.keys.count, 10);
    for (int64_t i = 0; i < shown.keys.count; i++)
        assert_string_equal(shown.keys.items[i]->path, groups[0].prefixes[i]);
    assert_string_equal(shown.keys.items[0]->path, "data.train_files");
    rk_array_fini(&shown.keys);
}

struct placed {
    const char *path, *title;
};

/* The longest prefix decides: a reward model does not belong to the rewards, a clip ratio not to the
 * batches. */
static const struct placed placed[] = {
    {"data.shuffle", "data"},
    {"algorithm.gamma", "advantages, filters, KL in the reward"},
    {"algorithm.dpo.beta", "preference optimization"},
    {"algorithm.rollout_correction.rollout_is", "rollout correction"},
    {"reward.reward_model.enable", "reward model"},
    {"reward.reward_kwargs.max_resp_len", "rewards"},
    {"actor_rollout_ref.actor.ppo_epochs", "actor: batches"},
    {"actor_rollout_ref.actor.clip_ratio_low", "actor: loss"},
    {"trainer.save_freq", "checkpoints"},
    {"trainer.test_freq", "steps, validation, logs"},
};

static void test_keys_are_where_people_look_for_them(void **state)
{
    int64_t num_groups;
    const struct rk_job_group *groups = rk_job_groups(&num_groups);

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(placed); i++) {
        const char *title = NULL;

        for (int64_t g = 0; g < num_groups; g++) {
            struct shown shown = {0};

            rk_job_group_keys(g, add, &shown);
            for (int64_t j = 0; j < shown.keys.count; j++) {
                if (strcmp(shown.keys.items[j]->path, placed[i].path) == 0)
                    title = groups[g].title;
            }
            rk_array_fini(&shown.keys);
        }
        print_message("%s\n", placed[i].path);
        assert_non_null(title);
        assert_string_equal(title, placed[i].title);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_key_is_in_one_group),
        cmocka_unit_test(test_first_group_has_ten_keys_in_its_order),
        cmocka_unit_test(test_keys_are_where_people_look_for_them),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
