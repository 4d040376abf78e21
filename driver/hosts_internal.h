/* Expansion of one term of a host list: ranges in brackets, node lists of Slurm, names in DNS. */
#ifndef RK_HOSTS_INTERNAL_H
#define RK_HOSTS_INTERNAL_H

#include <stddef.h>
#include <stdint.h>

#include "base/rk_compiler.h"
#include "base/rk_status.h"

struct addrinfo;

/* Takes one name or address, which it copies; its error ends the expansion. */
typedef struct rk_status *(*rk_host_fn)(void *user, const char *name);

/* "rack[1-2]n[01-04,7]" in the order of `scontrol show hostnames`: the last bracket changes fastest, then the
 * first, the second and so on. The numbers of a range are as wide as its first one. Text after the last
 * bracket is allowed, unlike with scontrol. INVALID_ARGUMENT names the character, from 1; RESOURCE_EXHAUSTED
 * when there are more than max names. */
struct rk_status *rk_host_ranges_expand(const char *term, int64_t max, rk_host_fn each,
                                        void *user) RK_NODISCARD;

/* "PORT[:N]", "" for the default port: N daemons on each node of the job in the environment, the i-th of a
 * node on PORT + i. Without N as many as the node has tasks (SLURM_TASKS_PER_NODE, SLURM_NTASKS_PER_NODE),
 * or one. INVALID_ARGUMENT outside a job, and names the variable that does not parse. */
struct rk_status *rk_hosts_slurm(const char *ports, rk_host_fn each, void *user) RK_NODISCARD;

/* "NAME[:PORT]": every current address of NAME, IPv4 before IPv6, in numerical order. UNAVAILABLE if the
 * name has none, or no server answers. */
struct rk_status *rk_hosts_dns(const char *name_and_port, rk_host_fn each, void *user) RK_NODISCARD;
/* The second half of the look-up: one address for each entry of the list, without repetitions. */
struct rk_status *rk_hosts_of_addrinfo(const struct addrinfo *list, int64_t port, rk_host_fn each,
                                       void *user) RK_NODISCARD;

/* A port from 1 to 65535; INVALID_ARGUMENT quotes the address it is part of. */
struct rk_status *rk_hosts_port(int64_t *out, const char *text, const char *address) RK_NODISCARD;

#endif
