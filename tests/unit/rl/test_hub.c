/* Models by name in Hugging Face's local cache. */
#include "rl/rk_hub.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_str.h"
#include "base/rk_small_file.h"
#include "tests/support/test.h"

#define COMMIT "0123456789abcdef0123456789abcdef01234567"

static const char *const variables[] = {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME"};

static int clear_environment(void **state)
{
    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(variables); i++)
        unsetenv(variables[i]);
    setenv("HOME", rk_test_temp_dir(), 1);
    return 0;
}

/* CACHE/models--Org--Name with a snapshot; refs/main holds `ref`. Returns the snapshot's path. */
static char *make_snapshot(const char *cache, const char *ref)
{
    char *repository = rk_format("%s/models--Org--Tiny-1.5B", cache),
         *refs = rk_path_join(repository, "refs");
    char *snapshot = rk_path_join(repository, "snapshots/" COMMIT), *file = rk_path_join(refs, "main");

    assert_ok(rk_make_dirs(refs));
    assert_ok(rk_make_dirs(snapshot));
    rk_test_write_file(file, ref, strlen(ref));
    rk_free(file);
    rk_free(refs);
    rk_free(repository);
    return snapshot;
}

static void expect(const char *path, const char *expected)
{
    char *full = rk_hub_resolve("/jobs", path);

    assert_string_equal(full, expected);
    rk_free(full);
}

static const struct {
    const char *variable, *value, *cache;
} places[] = {{NULL, NULL, ".cache/huggingface/hub"},
              {"XDG_CACHE_HOME", "xdg", "xdg/huggingface/hub"},
              {"HF_HOME", "home", "home/hub"},
              {"HF_HUB_CACHE", "cache", "cache"}};

/* Goal: each setting takes precedence over those before it in this test, as in huggingface_hub. */
static void test_resolve_finds_the_snapshot_of_main_in_the_cache(void **state)
{
    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(places); i++) {
        char *cache = rk_test_temp_path(places[i].cache), *snapshot;

        if (places[i].variable) {
            char *value = rk_test_temp_path(places[i].value);

            setenv(places[i].variable, value, 1);
            rk_free(value);
        }
        expect("Org/Tiny-1.5B", "/jobs/Org/Tiny-1.5B");
        snapshot = make_snapshot(cache, COMMIT "\n");
        expect("Org/Tiny-1.5B", snapshot);
        expect("Org/Other", "/jobs/Org/Other");
        rk_free(snapshot);
        rk_free(cache);
    }
    clear_environment(NULL);
}

static void test_resolve_directory_wins_over_the_cache(void **state)
{
    char *cache = rk_test_temp_path("won"), *snapshot = make_snapshot(cache, COMMIT);
    char *jobs = rk_test_temp_path("jobs"), *own = rk_path_join(jobs, "Org/Tiny-1.5B"), *full;

    (void)state;
    setenv("HF_HUB_CACHE", cache, 1);
    assert_ok(rk_make_dirs(own));
    full = rk_hub_resolve(jobs, "Org/Tiny-1.5B");
    assert_string_equal(full, own);
    rk_free(full);
    rk_free(own);
    rk_free(jobs);
    rk_free(snapshot);
    rk_free(cache);
    clear_environment(NULL);
}

/* Goal: the content of refs/main cannot lead out of the cache, and an incomplete download is not accepted. */
static void test_resolve_bad_reference_is_not_followed(void **state)
{
    static const char *const refs[] = {"", "../../../etc", "main", "fedcba9876543210", COMMIT "/..", "\n"};

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(refs); i++) {
        char *cache = rk_test_temp_path("bad"), *snapshot = make_snapshot(cache, refs[i]);

        setenv("HF_HUB_CACHE", cache, 1);
        expect("Org/Tiny-1.5B", "/jobs/Org/Tiny-1.5B");
        rk_free(snapshot);
        rk_free(cache);
    }
    clear_environment(NULL);
}

static void test_not_found_name_has_the_download_command(void **state)
{
    static const char *const paths[] = {"../Org/Name", "a/b/c", "name",      "/abs/name",
                                        "Org/.hidden", "Org/",  "Org/na me", "~/x"};

    (void)state;
    assert_fails(rk_hub_not_found("Org/Name", "/jobs/Org/Name"), RK_NOT_FOUND, "hf download Org/Name");
    assert_fails(rk_hub_not_found("Org/Name", "/jobs/Org/Name"), RK_NOT_FOUND, ".cache/huggingface/hub");
    for (size_t i = 0; i < RK_ARRAY_LEN(paths); i++) {
        struct rk_status *st;

        errno = ENOENT;
        st = rk_hub_not_found(paths[i], "/jobs/x");
        assert_null(strstr(rk_status_message(st), "download"));
        assert_fails(st, RK_NOT_FOUND, "cannot open '/jobs/x'");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_resolve_finds_the_snapshot_of_main_in_the_cache),
        cmocka_unit_test(test_resolve_directory_wins_over_the_cache),
        cmocka_unit_test(test_resolve_bad_reference_is_not_followed),
        cmocka_unit_test(test_not_found_name_has_the_download_command),
    };

    return cmocka_run_group_tests(tests, clear_environment, NULL);
}
