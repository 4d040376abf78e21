/* Command lines of verl, with any launcher before the module: python3, torchrun, uv run, ray job submit. */
#include "cmd/verl_command_internal.h"

#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_str.h"

/* --- modules --- */

enum kind { KIND_RL, KIND_SFT, KIND_OTHER };

struct module {
    const char *name; /* of a module; a file VERL/TRAINER/NAME.py as well */
    enum kind kind;
    const char *advice; /* KIND_OTHER: what rankd has instead */
};

static const struct module modules[] = {
    {"verl.trainer.main_ppo", KIND_RL, NULL},
    {"verl.trainer.main_ppo_sync", KIND_RL, NULL},
    {"recipe.dapo.main_dapo", KIND_RL, NULL},
    {"verl.trainer.sft_trainer", KIND_SFT, NULL},
    {"verl.trainer.sft_trainer_ray", KIND_SFT, NULL},
    {"verl.trainer.fsdp_sft_trainer", KIND_SFT, NULL},
    {"verl.experimental.fully_async_policy.fully_async_main", KIND_OTHER,
     "generation and training alternate: use verl.trainer.main_ppo"},
    {"verl.experimental.one_step_off_policy.main_ppo", KIND_OTHER,
     "generation and training alternate: use verl.trainer.main_ppo"},
    {"verl.trainer.main_generation", KIND_OTHER,
     "trainer.val_only=True of verl.trainer.main_ppo generates for data.val_files"},
    {"verl.trainer.main_generation_server", KIND_OTHER,
     "trainer.val_only=True of verl.trainer.main_ppo generates for data.val_files"},
    {"verl.trainer.main_eval", KIND_OTHER,
     "trainer.val_only=True of verl.trainer.main_ppo generates and scores data.val_files"},
    {"verl.model_merger", KIND_OTHER,
     "a run leaves a Hugging Face directory (hf/), and rankctl checkpoint export makes one of a checkpoint"},
};

/* The module itself, or its file: "verl/trainer/main_ppo.py" below any directory. */
static bool names_module(const char *word, const char *name)
{
    char *file = rk_format("%s.py", name);
    bool is_file;

    for (char *c = file; c < file + strlen(name); c++) {
        if (*c == '.')
            *c = '/';
    }
    is_file = rk_str_has_suffix(word, file);
    rk_free(file);
    return is_file || strcmp(word, name) == 0;
}

static const struct module *find_module(const char *const *words, int64_t count, int64_t *place)
{
    for (*place = 0; *place < count; ++*place) {
        for (size_t i = 0; i < RK_ARRAY_LEN(modules); i++) {
            if (names_module(words[*place], modules[i].name))
                return &modules[i];
        }
    }
    return NULL;
}

static struct rk_status *no_module(const char *const *words, int64_t count)
{
    const char *given = NULL;
    struct rk_str known = {0};
    struct rk_status *st;

    for (int64_t i = 0; i + 1 < count && !given; i++)
        given = strcmp(words[i], "-m") == 0 ? words[i + 1] : NULL;
    for (size_t i = 0; i < RK_ARRAY_LEN(modules); i++) {
        if (modules[i].kind != KIND_OTHER)
            rk_str_appendf(&known, "%s%s", known.bytes ? ", " : "", modules[i].name);
    }
    st = RK_FAIL(RK_INVALID_ARGUMENT, "%s%.*s: expected a command that runs one of %s",
                 given ? "module " : "the command ", (int)(given ? strlen(given) : strcspn(words[0], "=")),
                 given ? given : words[0], rk_str_text(&known));
    rk_str_fini(&known);
    return st;
}

/* --- options of torchrun, before the module --- */

/* "--NAME=VALUE" or "--NAME VALUE", where NAME has underscores or hyphens. */
static bool read_option(int64_t *out, const char *const *words, int64_t count, int64_t i, const char *name)
{
    const char *word = words[i], *value;
    size_t bytes = strlen(name);

    if (!rk_str_has_prefix(word, "--"))
        return false;
    word += 2;
    for (size_t c = 0; c < bytes; c++) {
        if (word[c] != name[c] && !(name[c] == '_' && word[c] == '-'))
            return false;
    }
    value = word[bytes] == '=' ? word + bytes + 1 : word[bytes] == '\0' && i + 1 < count ? words[i + 1] : "";
    return rk_parse_i64(value, out);
}

/* The program, names of the assignments before it, and names of options. The rest is not printed: tokens are
 * given in assignments and in values of options. */
static char *launcher_text(const char *const *words, int64_t count)
{
    struct rk_str text = {0};
    bool is_before_program = true;

    for (int64_t i = 0; i < count; i++) {
        size_t bytes = strcspn(words[i], "=");
        bool is_option = words[i][0] == '-';

        if (!is_option && !is_before_program)
            continue;
        if (is_option && words[i][1] != '-')
            bytes = RK_MIN(bytes, (size_t)2); /* "-eVALUE" */
        rk_str_append(&text, text.bytes ? " " : "");
        rk_str_append_bytes(&text, words[i], bytes);
        rk_str_append(&text, words[i][bytes] == '=' ? "=..." : words[i][bytes] ? "..." : "");
        if (is_option || (!words[i][bytes] && strcmp(words[i], "env") != 0))
            is_before_program = false;
    }
    return rk_str_take(&text);
}

static void read_launcher(struct rk_verl_command *out, const char *const *words, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        (void)read_option(&out->nodes, words, count, i, "nnodes");
        (void)read_option(&out->gpus_per_node, words, count, i, "nproc_per_node");
        (void)read_option(&out->node_rank, words, count, i, "node_rank");
    }
    out->launcher = launcher_text(words, count);
}

/* --- Hydra's arguments, after it --- */

/* Options that name configuration files: verl's are part of rankd. */
static bool is_config_option(const char *word, bool *has_value)
{
    static const char *const names[] = {"--config-name", "--config-path", "--config-dir",
                                        "-cn",           "-cp",           "-cd"};

    for (size_t i = 0; i < RK_ARRAY_LEN(names); i++) {
        size_t bytes = strlen(names[i]);

        if (strncmp(word, names[i], bytes) == 0 && (word[bytes] == '=' || !word[bytes])) {
            *has_value = word[bytes] == '=';
            return true;
        }
    }
    return false;
}

static struct rk_status *read_arguments(struct rk_verl_command *out, const char *const *words, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        bool has_value;

        if (is_config_option(words[i], &has_value)) {
            i += !has_value;
            rk_array_append(&out->ignored, words[RK_MIN(i, count - 1)]);
        } else if (words[i][0] == '-' || (!strchr(words[i], '=') && words[i][0] != '~')) {
            return RK_FAIL(RK_INVALID_ARGUMENT, "'%s' after %s: expected KEY=VALUE", words[i], out->module);
        } else {
            rk_array_append(&out->overrides, words[i]);
        }
    }
    return NULL;
}

struct rk_status *rk_verl_command_read(struct rk_verl_command *out, const char *const *words, int64_t count)
{
    const struct module *module;
    int64_t place;

    *out = (struct rk_verl_command){0};
    module = find_module(words, count, &place);
    if (!module)
        return no_module(words, count);
    if (module->kind == KIND_OTHER)
        return RK_FAIL(RK_UNIMPLEMENTED, "rankd does not run %s; %s", module->name, module->advice);
    out->module = module->name;
    out->is_sft = module->kind == KIND_SFT;
    read_launcher(out, words, place);
    return read_arguments(out, words + place + 1, count - place - 1);
}

void rk_verl_command_fini(struct rk_verl_command *command)
{
    rk_free(command->launcher);
    rk_array_fini(&command->overrides);
    rk_array_fini(&command->ignored);
}
