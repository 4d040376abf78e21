/* Two ranks of the CPU peer network over TLS, with valid certificates or one defect. */
#include <stdio.h>
#include <string.h>

#include "base/rk_alloc.h"
#include "engine/rk_comm.h"
#include "tests/support/certs.h"
#include "tests/support/ranks.h"
#include "tests/support/test.h"

#define RUN_S      60
#define CONNECT_MS 3000

struct side {
    const char *file, *ca; /* NULL: plain */
};

struct tls_case {
    const char *label;
    struct side listener, connector;
    rk_code_t code; /* of the connector; RK_OK: the world is created */
    const char *text;
};

static const struct tls_case cases[] = {
    {"both right", {"host", "ca"}, {"host", "ca"}, RK_OK, ""},
    {"another host's certificate of ours", {"host", "ca"}, {"one_name", "ca"}, RK_OK, ""},
    {"wrong name",
     {"one_name", "ca"},
     {"host", "ca"},
     RK_UNAUTHENTICATED,
     "its certificate is for one.example, not for 127.0.0.1"},
    {"authority that is not trusted",
     {"host", "ca"},
     {"host", "other_ca"},
     RK_UNAUTHENTICATED,
     "its certificate is signed by 'ca'"},
    {"stranger", {"host", "ca"}, {"stranger", "ca"}, RK_UNAUTHENTICATED, "it refuses this side: unknown CA"},
    {"no certificate",
     {"host", "ca"},
     {NULL, "ca"},
     RK_UNAUTHENTICATED,
     "it refuses this side: certificate required"},
    {"not for servers",
     {"client", "ca"},
     {"host", "ca"},
     RK_UNAUTHENTICATED,
     "its certificate is not for a server"},
    {"plain listener", {NULL, NULL}, {"host", "ca"}, RK_UNAUTHENTICATED, "it does not speak TLS"},
    {"plain connector", {"host", "ca"}, {NULL, NULL}, RK_DEADLINE_EXCEEDED, "connecting to rank 0"},
};

struct run {
    char address[2][256];
    uint8_t id[RK_COMM_ID_BYTES];
    struct rk_test_rendezvous *rendezvous;
    const struct tls_case *tls_case;
};

static struct rk_tls *tls_of[2]; /* made before the ranks */

static int check_sum(struct rk_comm_world *world)
{
    static const int32_t ranks[] = {0, 1};
    float *data = rk_calloc(300000, sizeof(*data));
    struct rk_comm_group *group;

    RK_RANK_OK(rk_comm_group_create(&group, world, "dp", ranks, 2));
    for (int64_t bytes = 1; bytes <= 300000; bytes *= 7) { /* small sizes, and sizes of several parts */
        for (int64_t i = 0; i < bytes; i++)
            data[i] = (float)(i % 100) + (float)rk_comm_group_rank(group);
        RK_RANK_OK(rk_comm_all_reduce(group, NULL, rk_tensor_1d(data, RK_DTYPE_F32, bytes), RK_REDUCE_SUM));
        for (int64_t i = 0; i < bytes; i++)
            RK_RANK_CHECK(data[i] == (float)(2 * (i % 100) + 1), "element %lld", (long long)i);
    }
    rk_comm_group_destroy(group);
    rk_free(data);
    return 0;
}

static int run_rank(int32_t rank, int32_t num_ranks, void *user)
{
    struct run *run = user;
    struct rk_comm_endpoint_config endpoint_config = {.struct_size = sizeof(endpoint_config),
                                                      .backend = "cpu",
                                                      .listen_host = "127.0.0.1",
                                                      .make_id = rank == 0,
                                                      .tls = tls_of[rank]};
    const char *addresses[] = {run->address[0], run->address[1]};
    struct rk_comm_world_config config = {.struct_size = sizeof(config),
                                          .rank = rank,
                                          .world_size = num_ranks,
                                          .addresses = addresses,
                                          .id = run->id,
                                          .connect_timeout_ms = CONNECT_MS};
    struct rk_comm_endpoint *endpoint;
    struct rk_comm_world *world;
    struct rk_status *st;
    int failed = 0;

    RK_RANK_OK(rk_comm_endpoint_open(&endpoint, &endpoint_config));
    snprintf(run->address[rank], sizeof(run->address[rank]), "%s", rk_comm_endpoint_address(endpoint));
    if (rank == 0)
        memcpy(run->id, rk_comm_endpoint_id(endpoint), sizeof(run->id));
    rk_test_meet(run->rendezvous, num_ranks);
    st = rk_comm_world_create(&world, endpoint, &config);
    if (run->tls_case->code == RK_OK) {
        RK_RANK_OK(st);
        failed = check_sum(world);
        rk_comm_world_destroy(world);
        return failed;
    }
    RK_RANK_CHECK(!world, "admitted");
    if (rank == 1)
        RK_RANK_CHECK(rk_status_code(st) == run->tls_case->code &&
                          strstr(rk_status_message(st), run->tls_case->text),
                      "%s %s", rk_code_name(rk_status_code(st)), rk_status_message(st));
    rk_status_free(st);
    return 0;
}

static struct rk_tls *load(const struct side *side)
{
    struct rk_tls_files files = rk_test_tls_files(side->file, side->ca);
    struct rk_tls *tls = NULL;

    if (side->file || side->ca)
        assert_ok(rk_tls_create(&tls, &files));
    return tls;
}

/* Goal: ranks connect only if each trusts the other's certificate and the listener's is for its host; the
 * connector reports the defect. */
static void test_comm_tls_cases(void **state)
{
    (void)state;
    for (size_t c = 0; c < RK_ARRAY_LEN(cases); c++) {
        struct run *run = rk_test_shared_alloc(sizeof(*run));

        print_message("%s\n", cases[c].label);
        run->rendezvous = rk_test_rendezvous_create();
        run->tls_case = &cases[c];
        tls_of[0] = load(&cases[c].listener);
        tls_of[1] = load(&cases[c].connector);
        assert_int_equal(rk_test_run_ranks(2, run_rank, run, RUN_S), 0);
        rk_tls_destroy(tls_of[0]);
        rk_tls_destroy(tls_of[1]);
        rk_test_rendezvous_destroy(run->rendezvous);
        rk_test_shared_free(run, sizeof(*run));
    }
}

/* Goal: with TLS the peers get the name in the certificate, without TLS the address. */
static void test_comm_tls_announces_the_name(void **state)
{
    struct rk_comm_endpoint_config config = {.struct_size = sizeof(config),
                                             .backend = "cpu",
                                             .listen_host = "localhost",
                                             .tls = load(&cases[0].listener)};
    struct rk_comm_endpoint *endpoint;

    (void)state;
    assert_ok(rk_comm_endpoint_open(&endpoint, &config));
    assert_true(strncmp(rk_comm_endpoint_address(endpoint), "localhost:", strlen("localhost:")) == 0);
    rk_comm_endpoint_close(endpoint);
    rk_tls_destroy(config.tls);
    config.tls = NULL;
    assert_ok(rk_comm_endpoint_open(&endpoint, &config));
    assert_null(strstr(rk_comm_endpoint_address(endpoint), "localhost"));
    rk_comm_endpoint_close(endpoint);
}

static int make_all(void **state)
{
    static const struct rk_test_cert_spec one_name = {
        .file = "one_name", .use = RK_CERT_HOST, .names = {"one.example"}};
    static const struct rk_test_cert_spec stranger = {
        .file = "stranger", .use = RK_CERT_HOST, .names = {"127.0.0.1"}};

    (void)state;
    rk_test_make_certs();
    rk_test_make_signed("ca", &one_name, 1);
    rk_test_make_signed("other_ca", &stranger, 1);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_comm_tls_cases),
        cmocka_unit_test(test_comm_tls_announces_the_name),
    };

    return cmocka_run_group_tests(tests, make_all, NULL);
}
