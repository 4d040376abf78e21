#include "base/net/rk_net.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <string.h>

#include "tests/support/test.h"

static bool is_asked;

/* Replaces the C library's function: only numbers have addresses, as without /etc/hosts and name server. */
int getaddrinfo(const char *restrict node, const char *restrict service,
                const struct addrinfo *restrict hints, struct addrinfo **restrict result)
{
    static struct sockaddr_in address;
    static struct addrinfo found;

    (void)service;
    address = (struct sockaddr_in){.sin_family = AF_INET};
    if (inet_pton(AF_INET, node, &address.sin_addr) != 1) {
        is_asked = true;
        return EAI_AGAIN;
    }
    found = (struct addrinfo){.ai_socktype = hints->ai_socktype,
                              .ai_flags = hints->ai_flags,
                              .ai_addr = (struct sockaddr *)&address,
                              .ai_addrlen = sizeof(address)};
    *result = &found;
    return 0;
}

/* Goal: localhost is the loopback address, however it is written, and no resolver is asked. */
static void test_rk_net_localhost_needs_no_resolver(void **state)
{
    static const char *const names[] = {"localhost", "LocalHost", "localhost.", "127.0.0.1"};
    struct addrinfo *found;

    (void)state;
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        assert_int_equal(rk_net_resolve(&found, names[i], NULL, AI_PASSIVE), 0);
        assert_int_equal(((const struct sockaddr_in *)(const void *)found->ai_addr)->sin_addr.s_addr,
                         htonl(INADDR_LOOPBACK));
        assert_int_equal(found->ai_socktype, SOCK_STREAM);
        assert_int_equal(found->ai_flags, AI_PASSIVE);
    }
    assert_false(is_asked);
}

/* Goal: names that only look like it are names like any other. */
static void test_rk_net_other_names_are_resolved(void **state)
{
    static const char *const names[] = {"localhost1", "localhost.example", "local", ""};
    struct addrinfo *found;

    (void)state;
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        is_asked = false;
        assert_ptr_equal(rk_net_host(names[i]), names[i]);
        assert_int_equal(rk_net_resolve(&found, names[i], NULL, 0), EAI_AGAIN);
        assert_true(is_asked);
        assert_null(found);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rk_net_localhost_needs_no_resolver),
        cmocka_unit_test(test_rk_net_other_names_are_resolved),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
