#include "tests/support/certs.h"

#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "base/rk_alloc.h"
#include "base/rk_str.h"
#include "tests/support/test.h"

#define PATHS_MAX 256
#define HOUR_S    3600

const char *rk_test_cert_path(const char *file, const char *suffix)
{
    static char *paths[PATHS_MAX];
    static int num_paths;
    char *name = rk_format("%s.%s", file, suffix), *path = rk_test_temp_path(name);

    rk_free(name);
    for (int i = 0; i < num_paths; i++) {
        if (strcmp(paths[i], path) == 0) {
            rk_free(path);
            return paths[i];
        }
    }
    assert_true(num_paths < PATHS_MAX);
    return paths[num_paths++] = path;
}

struct rk_cert rk_test_make_cert(const struct rk_test_cert_spec *spec, const struct rk_cert *authority)
{
    int64_t now_s = time(NULL);
    bool is_default = spec->from_s == 0 && spec->until_s == 0;
    struct rk_cert_spec full = {.use = spec->use,
                                .common_name = spec->file,
                                .names = spec->names,
                                .from_s = now_s + (is_default ? -HOUR_S : spec->from_s),
                                .until_s = now_s + (is_default ? HOUR_S : spec->until_s)};
    struct rk_cert cert;

    while (full.num_names < 4 && spec->names[full.num_names])
        full.num_names++;
    assert_ok(rk_cert_make(&cert, &full, authority));
    rk_test_write_file(rk_test_cert_path(spec->file, "crt"), cert.cert, strlen(cert.cert));
    rk_test_write_file(rk_test_cert_path(spec->file, "key"), cert.key, strlen(cert.key));
    assert_int_equal(chmod(rk_test_cert_path(spec->file, "key"), spec->key_mode ? spec->key_mode : 0600), 0);
    return cert;
}

struct rk_tls_files rk_test_tls_files(const char *file, const char *ca)
{
    return (struct rk_tls_files){.cert = file ? rk_test_cert_path(file, "crt") : NULL,
                                 .key = file ? rk_test_cert_path(file, "key") : NULL,
                                 .ca = ca ? rk_test_cert_path(ca, "crt") : NULL,
                                 .prefix = "tls_"};
}

void rk_test_make_certs(void)
{
    struct rk_cert ca = rk_test_make_cert(&(struct rk_test_cert_spec){.file = "ca"}, NULL);
    struct rk_cert others[] = {
        rk_test_make_cert(&(struct rk_test_cert_spec){.file = "host",
                                                      .use = RK_CERT_HOST,
                                                      .names = {"127.0.0.1", "localhost"}},
                          &ca),
        rk_test_make_cert(
            &(struct rk_test_cert_spec){.file = "client", .use = RK_CERT_CLIENT, .names = {"alice"}}, &ca),
        rk_test_make_cert(&(struct rk_test_cert_spec){.file = "other_ca"}, NULL)};

    for (size_t i = 0; i < RK_ARRAY_LEN(others); i++)
        rk_cert_fini(&others[i]);
    rk_cert_fini(&ca);
}

void rk_test_make_signed(const char *authority, const struct rk_test_cert_spec *specs, size_t count)
{
    struct rk_cert by = {.cert = rk_test_read_file(rk_test_cert_path(authority, "crt"), NULL),
                         .key = rk_test_read_file(rk_test_cert_path(authority, "key"), NULL)};

    for (size_t i = 0; i < count; i++) {
        struct rk_cert made = rk_test_make_cert(&specs[i], &by);

        rk_cert_fini(&made);
    }
    rk_cert_fini(&by);
}

static void copy_file(const char *from, const char *to, const char *suffix, size_t most)
{
    size_t bytes;
    char *text = rk_test_read_file(rk_test_cert_path(from, suffix), &bytes);

    rk_test_write_file(rk_test_cert_path(to, suffix), text, RK_MIN(bytes, most));
    assert_int_equal(chmod(rk_test_cert_path(to, suffix), 0600), 0);
    rk_free(text);
}

void rk_test_mix_certs(const char *file, const char *cert_of, const char *key_of, size_t most)
{
    copy_file(cert_of, file, "crt", most);
    copy_file(key_of, file, "key", most);
}

void rk_test_make_wrong_certs(rk_cert_use_t use)
{
    const char *name = use == RK_CERT_HOST ? "127.0.0.1" : "alice";
    const struct rk_test_cert_spec specs[] = {
        {.file = "expired", .use = use, .names = {name}, .from_s = -7200, .until_s = -3600},
        {.file = "open", .use = use, .names = {name}, .key_mode = 0640},
        {.file = "second", .use = RK_CERT_HOST, .names = {"second.example"}},
    };
    const struct rk_test_cert_spec stranger = {.file = "stranger", .use = RK_CERT_CLIENT, .names = {"alice"}};

    rk_test_make_signed("ca", specs, RK_ARRAY_LEN(specs));
    rk_test_make_signed("other_ca", &stranger, 1);
    rk_test_mix_certs("mixed", use == RK_CERT_HOST ? "host" : "client", "second", SIZE_MAX);
}
