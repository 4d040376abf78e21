/* Certificates for daemons and drivers, from a private authority in a directory. */
#include "cmd/cmd_internal.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/rk_alloc.h"
#include "base/net/rk_certs.h"
#include "base/rk_random.h"
#include "base/rk_file.h"
#include "base/rk_small_file.h"

#define DAY_S           (24 * 3600LL)
#define SKEW_S          3600 /* clocks differ */
#define AUTHORITY_DAYS  3650
#define DAYS_DEFAULT    365
#define PEM_BYTES_MAX   (64 << 10)
#define COMMON_NAME_MAX 64
#define AUTHORITY       "ca"
#define DEFAULT_CLIENT  "rankctl"

/* One certificate to be written. */
struct order {
    rk_cert_use_t use;
    char *file; /* FILE.crt and FILE.key */
    RK_ARRAY(char *) names;
    struct rk_cert cert;
};

struct certs {
    struct rk_cli *cli;
    const char *dir;
    int64_t days;
    char authority_name[48]; /* of init: distinguishes authorities in messages */
    struct rk_cert authority;
    RK_ARRAY(struct order) orders;
    RK_ARRAY(char *) written; /* paths, in order */
};

/* --- the requested certificates --- */

/* A name as a file name: "*.pods" and "fd00::1" have characters that are special in a shell. */
static char *file_of(const char *name)
{
    char *file = rk_strdup(name);

    for (char *c = file; *c; c++) {
        if (!isalnum((unsigned char)*c) && !strchr("-_.", *c))
            *c = '_';
    }
    return file;
}

static struct order *find_order(struct certs *certs, const char *file)
{
    for (int64_t i = 0; i < certs->orders.count; i++) {
        if (strcmp(certs->orders.items[i].file, file) == 0)
            return &certs->orders.items[i];
    }
    return NULL;
}

static void add_name(struct order *order, char *name)
{
    for (int64_t i = 0; i < order->names.count; i++) {
        if (strcmp(order->names.items[i], name) == 0) {
            rk_free(name);
            return;
        }
    }
    rk_array_append(&order->names, name);
}

/* The order of the host with this first name; NULL when its files would be the files of another host. */
static struct order *host_order(struct certs *certs, const char *name)
{
    char *file = file_of(name);
    struct order *order = find_order(certs, file);

    if (order) {
        rk_free(file);
        return order->use == RK_CERT_HOST ? order : NULL;
    }
    rk_array_append(&certs->orders, (struct order){.use = RK_CERT_HOST, .file = file});
    return &certs->orders.items[certs->orders.count - 1];
}

/* An address from a list of daemons; several daemons may be on one host. */
static struct rk_status *add_host(struct certs *certs, const char *address, struct order **out)
{
    const char *end = strrchr(address, ':');
    bool has_brackets = address[0] == '[';
    char *name;

    if (rk_str_has_prefix(address, "unix:") || rk_str_has_prefix(address, "unix-abstract:"))
        return RK_FAIL(RK_INVALID_ARGUMENT,
                       "'%s': expected a host, got a Unix socket, which needs no certificate", address);
    name = rk_strndup(address + has_brackets, (size_t)(end - address) - 2 * has_brackets);
    *out = host_order(certs, name);
    if (*out) {
        add_name(*out, name);
        return NULL;
    }
    rk_free(name);
    return RK_FAIL(RK_INVALID_ARGUMENT, "host '%.*s': its file names are those of another certificate",
                   (int)(end - address), address);
}

/* "TERM", or "HOST+NAME+NAME" of one host with several. */
static struct rk_status *add_term(struct certs *certs, const char *term)
{
    size_t bytes = term[0] == '@' ? strlen(term) : strcspn(term, "+");
    char *first = rk_strndup(term, bytes);
    struct order *order = NULL;
    struct rk_hosts hosts;
    struct rk_status *st = rk_hosts_parse(&hosts, first);

    if (!st && term[bytes] && hosts.count != 1)
        st = RK_FAIL(RK_INVALID_ARGUMENT, "'%s': expected one host before '+', got %d", term, hosts.count);
    for (int32_t i = 0; i < hosts.count && !st; i++)
        st = add_host(certs, hosts.addresses[i], &order);
    for (term += bytes; *term && !st; term += bytes) {
        bytes = strcspn(++term, "+");
        add_name(order, rk_strndup(term, bytes));
    }
    rk_hosts_fini(&hosts);
    rk_free(first);
    return st;
}

static struct rk_status *usage_of(struct rk_status *st)
{
    return st ? rk_cli_usage(st) : NULL;
}

static struct rk_status *add_hosts(struct certs *certs, const char *list)
{
    struct rk_status *st =
        *list ? NULL : RK_FAIL(RK_INVALID_ARGUMENT, "expected a list of hosts, got an empty text");

    while (*list && !st) {
        size_t bytes = rk_hosts_term_bytes(list);
        char *term = rk_strndup(list, bytes);

        st = add_term(certs, term);
        rk_free(term);
        list += bytes + (list[bytes] == ',');
    }
    return st ? usage_of(RK_WRAP(st, "--hosts")) : NULL;
}

static struct rk_status *add_client(struct certs *certs, const char *name)
{
    char *file = file_of(name);

    if (find_order(certs, file) || strcmp(file, AUTHORITY) == 0) {
        rk_free(file);
        return rk_cli_usage(RK_FAIL(RK_INVALID_ARGUMENT,
                                    "--client=%s: its file names are those of another certificate", name));
    }
    rk_array_append(&certs->orders, (struct order){.use = RK_CERT_CLIENT, .file = file});
    rk_array_append(&certs->orders.items[certs->orders.count - 1].names, rk_strdup(name));
    return NULL;
}

static struct rk_status *read_options(struct certs *certs, bool needs_hosts)
{
    const char *hosts = rk_cli_find(certs->cli, "hosts"), *client = rk_cli_find(certs->cli, "client");
    const char *days = rk_cli_find(certs->cli, "days");

    certs->dir = rk_cli_find(certs->cli, "out");
    certs->days = DAYS_DEFAULT;
    if (!certs->dir || !*certs->dir)
        return rk_cli_usage(RK_FAIL(RK_INVALID_ARGUMENT, "--out: expected a directory"));
    if (days && (!rk_parse_i64(days, &certs->days) || certs->days < 1 || certs->days > AUTHORITY_DAYS))
        return rk_cli_usage(
            RK_FAIL(RK_INVALID_ARGUMENT, "--days=%s: expected 1 to %d", days, AUTHORITY_DAYS));
    if (!hosts && (needs_hosts || !client))
        return rk_cli_usage(RK_FAIL(RK_INVALID_ARGUMENT, needs_hosts ? "--hosts: expected a list of hosts"
                                                                     : "expected --hosts or --client"));
    rk_array_append(&certs->orders, (struct order){.use = RK_CERT_AUTHORITY, .file = rk_strdup(AUTHORITY)});
    if (hosts)
        RK_TRY(add_hosts(certs, hosts));
    return client || needs_hosts ? add_client(certs, client ? client : DEFAULT_CLIENT) : NULL;
}

/* --- making --- */

static struct rk_status *make_one(const struct certs *certs, struct order *order)
{
    bool is_authority = order->use == RK_CERT_AUTHORITY;
    int64_t now_s = time(NULL);
    struct rk_cert_spec spec = {.use = order->use,
                                .common_name = is_authority ? certs->authority_name : order->names.items[0],
                                .names = (const char *const *)order->names.items,
                                .num_names = (int32_t)order->names.count,
                                .from_s = now_s - SKEW_S,
                                .until_s = now_s + (is_authority ? AUTHORITY_DAYS : certs->days) * DAY_S};

    if (strlen(spec.common_name) >
        COMMON_NAME_MAX) /* informative; the alternative names have the full name */
        spec.common_name = "rankd";
    return usage_of(rk_cert_make(&order->cert, &spec, is_authority ? NULL : &certs->authority));
}

static struct rk_status *write_new(struct certs *certs, const char *file, const char *suffix,
                                   const char *text, mode_t mode)
{
    char *name = rk_format("%s.%s", file, suffix), *path = rk_path_join(certs->dir, name);
    size_t bytes = strlen(text);
    struct rk_status *st = NULL;
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode);

    if (fd < 0)
        st = rk_file_errno("cannot create", path);
    else
        rk_array_append(&certs->written, rk_strdup(path));
    if (!st && (write(fd, text, bytes) != (ssize_t)bytes || fsync(fd) != 0))
        st = rk_file_errno("cannot write", path);
    if (fd >= 0)
        close(fd);
    rk_free(name);
    rk_free(path);
    return st;
}

static struct rk_status *refuse_existing(const struct certs *certs, const struct order *order)
{
    static const char *const suffixes[] = {"crt", "key"};
    struct rk_status *st = NULL;

    for (size_t i = 0; i < RK_ARRAY_LEN(suffixes) && !st; i++) {
        char *path = rk_format("%s/%s.%s", certs->dir, order->file, suffixes[i]);

        if (access(path, F_OK) == 0)
            st = RK_FAIL(RK_ALREADY_EXISTS, "'%s' exists and is not overwritten; nothing was written", path);
        rk_free(path);
    }
    return st;
}

/* Writes all of them or none. */
static struct rk_status *write_all(struct certs *certs, int64_t first)
{
    struct rk_status *st = NULL;

    for (int64_t i = first; i < certs->orders.count && !st; i++)
        st = refuse_existing(certs, &certs->orders.items[i]);
    if (!st)
        st = rk_make_dirs(certs->dir);
    for (int64_t i = first; i < certs->orders.count && !st; i++) {
        const struct order *order = &certs->orders.items[i];

        st = write_new(certs, order->file, "key", order->cert.key, 0600);
        if (!st)
            st = write_new(certs, order->file, "crt", order->cert.cert, 0644);
    }
    for (int64_t i = 0; st && i < certs->written.count; i++)
        unlink(certs->written.items[i]);
    return st;
}

/* --- the commands --- */

static const char *use_name(rk_cert_use_t use)
{
    return use == RK_CERT_AUTHORITY ? "authority" : use == RK_CERT_HOST ? "host" : "client";
}

static void print_written(const struct certs *certs, int64_t first)
{
    static const char *const titles[] = {"FILES", "FOR", "NAMES"};
    struct rk_json *body = rk_json_new_object(), *list = rk_json_new_array();
    struct rk_table table;

    rk_table_init(&table, (int)RK_ARRAY_LEN(titles), titles);
    for (int64_t i = first; i < certs->orders.count; i++) {
        const struct order *order = &certs->orders.items[i];
        struct rk_json *row = rk_json_new_object(), *names = rk_json_new_array();
        struct rk_str text = {0};

        for (int64_t n = 0; n < order->names.count; n++) {
            rk_str_appendf(&text, "%s%s", n > 0 ? ", " : "", order->names.items[n]);
            rk_json_append(names, rk_json_new_string(order->names.items[n]));
        }
        rk_table_addf(&table, "%s/%s.{crt,key}", certs->dir, order->file);
        rk_table_add(&table, use_name(order->use));
        rk_table_add(&table, rk_str_text(&text));
        rk_json_set(row, "file", rk_json_new_string(order->file));
        rk_json_set(row, "use", rk_json_new_string(use_name(order->use)));
        rk_json_set(row, "names", names);
        rk_json_append(list, row);
        rk_str_fini(&text);
    }
    rk_table_print(&table, rk_cli_is_json(certs->cli) ? NULL : stdout);
    rk_json_set(body, "directory", rk_json_new_string(certs->dir));
    rk_json_set(body, "certificates", list);
    if (rk_cli_is_json(certs->cli))
        rk_cli_print_json("Certificates", body);
    else
        rk_json_free(body);
}

static void fini(struct certs *certs)
{
    for (int64_t i = 0; i < certs->orders.count; i++) {
        struct order *order = &certs->orders.items[i];

        for (int64_t n = 0; n < order->names.count; n++)
            rk_free(order->names.items[n]);
        rk_array_fini(&order->names);
        rk_cert_fini(&order->cert);
        rk_free(order->file);
    }
    for (int64_t i = 0; i < certs->written.count; i++)
        rk_free(certs->written.items[i]);
    rk_array_fini(&certs->written);
    rk_array_fini(&certs->orders);
}

static struct rk_status *name_authority(struct certs *certs)
{
    uint8_t id[4];
    char hex[2 * sizeof(id) + 1];

    RK_TRY(rk_random_bytes(id, sizeof(id)));
    snprintf(certs->authority_name, sizeof(certs->authority_name), "rankd authority %s",
             rk_hex(id, sizeof(id), hex));
    return NULL;
}

static struct rk_status *run_init(struct rk_cli *cli)
{
    struct certs certs = {.cli = cli};
    struct rk_status *st = read_options(&certs, true);

    if (!st)
        st = name_authority(&certs);
    for (int64_t i = 0; i < certs.orders.count && !st; i++) {
        st = make_one(&certs, &certs.orders.items[i]);
        certs.authority = certs.orders.items[0].cert;
    }
    if (!st)
        st = write_all(&certs, 0);
    if (!st)
        print_written(&certs, 0);
    fini(&certs);
    return st;
}

static struct rk_status *load_authority(struct rk_cert *out, const char *dir)
{
    char *cert = rk_path_join(dir, AUTHORITY ".crt"), *key = rk_path_join(dir, AUTHORITY ".key");
    struct rk_status *st = rk_load_file(&out->cert, NULL, cert, PEM_BYTES_MAX);

    if (!st)
        st = rk_load_file(&out->key, NULL, key, PEM_BYTES_MAX);
    rk_free(cert);
    rk_free(key);
    return st ? RK_WRAP(st, "--ca") : NULL;
}

static struct rk_status *run_issue(struct rk_cli *cli)
{
    struct certs certs = {.cli = cli};
    const char *ca = rk_cli_find(cli, "ca");
    struct rk_status *st = read_options(&certs, false);

    if (!st && !ca)
        st = rk_cli_usage(
            RK_FAIL(RK_INVALID_ARGUMENT, "--ca: expected a directory written by 'rankctl certs init'"));
    if (!st)
        st = load_authority(&certs.authority, ca);
    for (int64_t i = 1; i < certs.orders.count && !st; i++)
        st = make_one(&certs, &certs.orders.items[i]);
    if (!st)
        st = write_all(&certs, 1);
    if (!st)
        print_written(&certs, 1);
    rk_cert_fini(&certs.authority);
    fini(&certs);
    return st;
}

#define HOSTS_HELP "hosts as in other commands, ports are ignored; HOST+NAME is a host with two names"
#define DAYS_HELP  "validity of certificates in days (default: 365; the authority: 3650)"

static const struct rk_option init_options[] = {
    {"hosts", "LIST", HOSTS_HELP},
    {"out", "DIR", "output directory; existing files are never overwritten"},
    {"client", "NAME", "name of the client in its certificate and file names (default: rankctl)"},
    {"days", "N", DAYS_HELP},
    {NULL, NULL, NULL},
};

const struct rk_command rk_cmd_certs_init = {
    .name = "certs init",
    .args = "",
    .summary = "make a private authority and certificates for hosts and a client",
    .details = "Writes ca.crt and ca.key, for each host HOST.crt and HOST.key, and those of the client. Keys "
               "are readable only by\ntheir owner. Copy HOST.crt, HOST.key and ca.crt to the host. Keep "
               "ca.key secret: "
               "anyone who can\nread it can make certificates for any host and any client. See docs/tls.md.",
    .options = init_options,
    .run = run_init,
};

static const struct rk_option issue_options[] = {
    {"ca", "DIR", "directory with the ca.crt and ca.key of 'certs init'"},
    {"hosts", "LIST", HOSTS_HELP},
    {"client", "NAME", "name of a client in its certificate and file names"},
    {"out", "DIR", "output directory; existing files are never overwritten"},
    {"days", "N", DAYS_HELP},
    {NULL, NULL, NULL},
};

const struct rk_command rk_cmd_certs_issue = {
    .name = "certs issue",
    .args = "",
    .summary = "issue further certificates of an authority, or renew them",
    .details = "Like 'certs init', with an existing authority. Needs --hosts, --client or both.",
    .options = issue_options,
    .run = run_issue,
};
