/* verl's keys: the table as rows of a configuration, and as a page. */
#include "base/rk_alloc.h"
#include "base/config/rk_knobs.h"
#include "rl/rk_job.h"
#include "rl/job/verl_defaults.def"
#include "rl/job/verl_keys.def"
#include "rl/job/verl_sft_keys.def"

#include <string.h>

static const struct rk_config_foreign rows[] = {
#define ROW(kind, path, values, to, text) {path, RK_CONFIG_FOREIGN_##kind, values, to, text},
#define HEADING(text)
    RK_VERL_KEY_TABLE(ROW, HEADING) RK_VERL_SFT_KEY_TABLE(ROW, HEADING)
#undef HEADING
#undef ROW
};

/* The defaults of the SFT trainer, for a job with its sections, or for any (given: always). */
#define PRESET(when, unless, text) {when, unless, text, "verl's default"},
static const struct rk_config_preset of_sft_sections[] = {
    RK_VERL_SFT_PRESETS(PRESET, "model|optim|engine|checkpoint", "actor_rollout_ref")};
static const struct rk_config_preset of_sft[] = {RK_VERL_SFT_PRESETS(PRESET, NULL, NULL)};
#undef PRESET

const struct rk_config_preset *rk_job_verl_presets(bool is_sft, int64_t *count)
{
    _Static_assert(RK_ARRAY_LEN(of_sft_sections) == RK_ARRAY_LEN(of_sft), "the same rows");

    *count = RK_ARRAY_LEN(of_sft);
    return is_sft ? of_sft : of_sft_sections;
}

const struct rk_config_foreign *rk_job_verl_keys(int64_t *count)
{
    *count = RK_ARRAY_LEN(rows);
    return rows;
}

static const struct rk_verl_default defaults[] = {
#define DEFAULT(path, value, why) {path, value, why},
    RK_VERL_DEFAULT_TABLE(DEFAULT)
#undef DEFAULT
};

const struct rk_verl_default *rk_job_verl_defaults(int64_t *count)
{
    *count = RK_ARRAY_LEN(defaults);
    return defaults;
}

/* Values as they stand on a command line, in a cell of a Markdown table. */
static void format_values(struct rk_str *out, const char *values)
{
    if (strcmp(values, "*") == 0)
        rk_str_append(out, "any");
    for (const char *p = strcmp(values, "*") ? values : NULL; p;
         p = strchr(p, '|') ? strchr(p, '|') + 1 : NULL)
        rk_str_appendf(out, "%s`%.*s`", p == values ? "" : ", ", (int)strcspn(p, "|"), p);
}

static void format_row(struct rk_str *out, const struct rk_config_foreign *row)
{
    static const char *const kinds[] = {
        [RK_CONFIG_FOREIGN_SAME] = "taken",
        [RK_CONFIG_FOREIGN_IGNORED] = "no effect, with a warning",
        [RK_CONFIG_FOREIGN_REFUSED] = "refused",
    };

    rk_str_appendf(out, "| `%s` | ", row->path);
    format_values(out, row->values);
    rk_str_appendf(out, " | %s | %s", kinds[row->kind], row->text);
    if (row->to)
        rk_str_appendf(out, ": `%s`", row->to);
    rk_str_append(out, " |\n");
}

static const char intro[] =
    "# verl's keys\n"
    "\n"
    "Made by `rankctl config verl` from `rl/job/verl_keys.def` and `verl_sft_keys.def`; do not "
    "edit.\n"
    "\n"
    "`rankctl verl -- COMMAND` runs a command line of verl, and `rankctl verl-env` verl's scripts: "
    "[verl-commands.md](verl-commands.md).\n"
    "\n"
    "A job takes verl's keys, in its file and on the command line of `rankctl run JOB.json KEY=VALUE...`, "
    "where\n"
    "values are written as for Hydra: `True`, `None`, `'a text'`, `[a,b]`, `{a: 1}`, `+key=` and `++key=`. "
    "What\n"
    "`rankctl run --help` lists has verl's name, meaning and, unless that help states otherwise, default. "
    "The "
    "tables\n"
    "below have verl's other keys, and values that only verl has; `*` stands for anything. The first row "
    "that\n"
    "matches key and value is used, `a.*` in place of `b.*` renames a key, and `#` "
    "is\n"
    "nothing for the first name of its section and `_2`, `_3`, ... for the next ones. Other keys are "
    "refused, with "
    "the name of a similar one.\n";

static const char about_defaults[] = "\n## Defaults\n"
                                     "\n"
                                     "Every other key of verl has verl's default, or one with the same "
                                     "effect. Of these, an empty job has another "
                                     "value\n"
                                     "than verl 0.9.1's whole configuration, which is taken as well; "
                                     "`data.seed=null` means 1, so that a run can be\n"
                                     "repeated.\n"
                                     "\n| key | verl | rankd | |\n|---|---|---|---|\n";

static const char *own_default(const char *path)
{
    int64_t count;
    const struct rk_config_key *keys = rk_job_keys(&count);

    for (int64_t i = 0; i < count; i++) {
        if (strcmp(keys[i].path, path) == 0)
            return keys[i].default_text ? keys[i].default_text : "required";
    }
    return "";
}

static void format_defaults(struct rk_str *out)
{
    rk_str_append(out, about_defaults);
    for (size_t i = 0; i < RK_ARRAY_LEN(defaults); i++)
        rk_str_appendf(out, "| `%s` | `%s` | `%s` | %s |\n", defaults[i].path, defaults[i].value,
                       own_default(defaults[i].path), defaults[i].why);
}

void rk_job_format_verl_keys(struct rk_str *out)
{
    rk_str_append(out, intro);
#define ROW(kind, path, values, to, text) \
    format_row(out, &(const struct rk_config_foreign){path, RK_CONFIG_FOREIGN_##kind, values, to, text});
#define HEADING(text) \
    rk_str_append(out, "\n## " text "\n\n| key | value | | in rankd |\n|---|---|---|---|\n");
    RK_VERL_KEY_TABLE(ROW, HEADING)
    RK_VERL_SFT_KEY_TABLE(ROW, HEADING)
#undef HEADING
#undef ROW
    format_defaults(out);
}
