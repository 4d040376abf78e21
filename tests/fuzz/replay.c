/* Runs a fuzz target without libFuzzer: every file of the corpus unchanged, then mutations of it derived from
 * RK_TEST_SEED. Usage: fuzz_NAME CORPUS_FOLDER... */
#include "tests/fuzz/fuzz.h"

#include <dirent.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_assert.h"
#include "base/config/rk_config.h"
#include "base/rk_env.h"
#include "base/rk_rng.h"
#include "base/rk_str.h"

#define DEFAULT_SEED       20240229
#define MUTATIONS_PER_FILE 300
#define MAX_EDITS          6

/* An exact-size copy, so that AddressSanitizer detects reads beyond the end. */
static void run_once(const char *data, size_t bytes)
{
    uint8_t *copy = rk_malloc(bytes);

    if (bytes > 0)
        memcpy(copy, data, bytes);
    LLVMFuzzerTestOneInput(copy, bytes);
    rk_free(copy);
}

static void read_file(struct rk_str *out, const char *path)
{
    FILE *file = fopen(path, "rb");
    char buf[4096];
    size_t got;

    RK_ASSERT(file != NULL);
    while ((got = fread(buf, 1, sizeof(buf), file)) > 0)
        rk_str_append_bytes(out, buf, got);
    fclose(file);
}

/* One edit: change, insert or repeat a byte, truncate, or copy a range to another place. */
static void edit(struct rk_str *text, struct rk_rng *rng)
{
    static const char telling[] = "{}[]:,\"\\0e-.\xff\x80 \n";
    size_t at = (size_t)rk_rng_next_below(rng, (int64_t)text->bytes);
    size_t other = (size_t)rk_rng_next_below(rng, (int64_t)text->bytes);
    char byte = telling[rk_rng_next_below(rng, sizeof(telling))];

    switch (rk_rng_next_below(rng, 5)) {
    case 0:
        text->text[at] = byte;
        break;
    case 1:
        text->text[at] ^= (char)(1 << rk_rng_next_below(rng, 8));
        break;
    case 2:
        rk_str_append_bytes(text, &byte, 1);
        memmove(text->text + at + 1, text->text + at, text->bytes - at - 1);
        text->text[at] = byte;
        break;
    case 3:
        text->bytes = at + 1;
        break;
    default:
        memmove(text->text + at, text->text + other, RK_MIN(text->bytes - RK_MAX(at, other), (size_t)16));
        break;
    }
}

static void run_file(const char *path, struct rk_rng *rng)
{
    struct rk_str original = {0};

    read_file(&original, path);
    run_once(rk_str_text(&original), original.bytes);
    for (int i = 0; i < MUTATIONS_PER_FILE && original.bytes > 0; i++) {
        struct rk_str mutated = {0};
        int64_t num_edits = rk_rng_next_below(rng, MAX_EDITS) + 1;

        rk_str_append_bytes(&mutated, original.text, original.bytes);
        while (num_edits-- > 0)
            edit(&mutated, rng);
        run_once(mutated.text, mutated.bytes);
        rk_str_fini(&mutated);
    }
    rk_str_fini(&original);
}

/* Sorted, so that a seed gives the same mutations on every machine. */
static int run_folder(const char *folder, struct rk_rng *rng)
{
    struct dirent **entries;
    int num_entries = scandir(folder, &entries, NULL, alphasort);
    int num_files = 0;

    RK_ASSERT(num_entries >= 0);
    for (int i = 0; i < num_entries; i++) {
        char *path = rk_path_join(folder, entries[i]->d_name);

        if (entries[i]->d_name[0] != '.') {
            run_file(path, rng);
            num_files++;
        }
        rk_free(path);
        rk_free(entries[i]);
    }
    rk_free(entries);
    return num_files;
}

int main(int argc, char **argv)
{
    const char *text = rk_env("RK_TEST_SEED");
    int64_t seed = DEFAULT_SEED;
    struct rk_rng rng;
    int num_files = 0;

    if (text)
        RK_ASSERT(rk_parse_i64(text, &seed));
    rk_rng_init(&rng, (uint64_t)seed, 0);
    for (int i = 1; i < argc; i++)
        num_files += run_folder(argv[i], &rng);
    printf("%d files, %d mutations of each, seed %" PRId64 "\n", num_files, MUTATIONS_PER_FILE, seed);
    return num_files > 0 ? 0 : 1;
}
