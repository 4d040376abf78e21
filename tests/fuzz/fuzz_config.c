/* Goal: any text either loads, and then every key can be read, or gives INVALID_ARGUMENT with a message. The
 * last line of the input, if it begins with '!', is passed as a flag. */
#include "tests/fuzz/fuzz.h"

#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_assert.h"
#include "base/config/rk_config.h"

static const struct rk_config_key keys[] = {
    {"device", RK_CONFIG_STRING, "\"cpu\"", 0, 0, NULL, 0, "device"},
    {"name", RK_CONFIG_STRING, "null", 0, 0, "a|b", RK_CONFIG_NULLABLE, "name"},
    {"rpc.chunk", RK_CONFIG_BYTES, "\"2MiB\"", 1, 4194304, NULL, 0, "bytes"},
    {"rpc.insecure", RK_CONFIG_BOOL, "false", 0, 0, NULL, 0, "flag"},
    {"lease.ttl", RK_CONFIG_DURATION, "\"30s\"", 0, 0, NULL, 0, "time"},
    {"actor.optim.lr", RK_CONFIG_REAL, "1e-6", 0, 1, NULL, 0, "rate"},
    {"actor.tp", RK_CONFIG_INT, "1", 1, 64, NULL, 0, "size"},
    {"ref.tp", RK_CONFIG_INT, "\"${actor.tp}\"", 1, 64, NULL, 0, "size"},
    {"roots", RK_CONFIG_LIST, "[]", 0, 0, NULL, 0, "list"},
    {"kwargs", RK_CONFIG_OPEN, "{}", 0, 0, NULL, 0, "open"},
};

static const struct rk_config_foreign foreign[] = {
    {"other.pad", RK_CONFIG_FOREIGN_SAME, "true|1.0|[]", NULL, "always"},
    {"other.rate", RK_CONFIG_FOREIGN_SAME, "*", "actor.optim.lr", "the rate"},
    {"device", RK_CONFIG_FOREIGN_SAME, "gpu", "device=\"cuda:0\"", "the first one"},
    {"other.*.enable", RK_CONFIG_FOREIGN_REFUSED, "*", NULL, "off"},
};

static void read_all(const struct rk_config *config)
{
    struct rk_str text = {0};

    rk_config_format(config, &text);
    RK_ASSERT(text.bytes > 0);
    RK_ASSERT(rk_config_string(config, "device") != NULL);
    RK_ASSERT(rk_config_int(config, "rpc.chunk") >= 1);
    RK_ASSERT(rk_config_int(config, "lease.ttl") >= 0);
    RK_ASSERT(rk_config_int(config, "ref.tp") >= 1);
    RK_ASSERT(rk_config_real(config, "actor.optim.lr") <= 1.0);
    RK_ASSERT(rk_json_type(rk_config_json(config, "roots")) == RK_JSON_ARRAY);
    RK_ASSERT(rk_json_type(rk_config_json(config, "kwargs")) == RK_JSON_OBJECT);
    rk_str_fini(&text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    char *text = rk_strndup((const char *)data, bytes);
    char *bang = strrchr(text, '!');
    const char *flags[1] = {NULL};
    struct rk_config_source source = {
        .keys = keys,
        .num_keys = RK_ARRAY_LEN(keys),
        .foreign = foreign,
        .num_foreign = RK_ARRAY_LEN(foreign),
        .text = text,
        .overrides = flags,
    };
    struct rk_config *config;
    struct rk_status *st;

    /* __nest__ would make the loader read files of the machine. */
    if (strstr(text, "__nest__")) {
        rk_free(text);
        return 0;
    }
    if (bang && bang > text && bang[-1] == '\n') {
        *bang = '\0';
        flags[source.num_overrides++] = bang + 1;
    }
    st = rk_config_load(&config, &source);
    if (st) {
        RK_ASSERT(rk_status_code(st) == RK_INVALID_ARGUMENT);
        RK_ASSERT(*rk_status_message(st) != '\0');
        RK_ASSERT(config == NULL);
    } else {
        read_all(config);
    }
    rk_status_free(st);
    rk_config_destroy(config);
    rk_free(text);
    return 0;
}
