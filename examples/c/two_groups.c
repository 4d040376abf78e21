/* Two groups of daemons generate at the same time. Compiled against an installed rankd:
 *
 *   cc -std=c11 two_groups.c $(pkg-config --cflags --libs rankd_driver) -o two_groups
 *   ./two_groups HOSTS HOSTS
 *
 * HOSTS is ADDRESS,ADDRESS,...: the daemons of one group. Each group gets a small Llama with random
 * weights. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "driver/rk_driver.h"

#define NUM_GROUPS    2
#define NUM_ROWS      4
#define PROMPT_LENGTH 3
#define RESPONSE      8

static const char model_options[] =
    "{\"model.hf_config\": {\"architectures\": [\"LlamaForCausalLM\"], \"model_type\": \"llama\","
    " \"hidden_size\": 32, \"intermediate_size\": 64, \"num_hidden_layers\": 2, \"num_attention_heads\": 4,"
    " \"num_key_value_heads\": 2, \"vocab_size\": 64, \"max_position_embeddings\": 64, \"rms_norm_eps\": "
    "1e-5,"
    " \"rope_theta\": 10000.0, \"hidden_act\": \"silu\", \"tie_word_embeddings\": false}}";

struct group {
    struct rk_hosts hosts;
    struct rk_driver *driver;
    struct rk_batch *prompts;
    struct rk_json *options; /* of generate_sequences */
};

/* Every fallible function of the library returns NULL or an error status. */
static void check(struct rk_status *st)
{
    if (!st)
        return;
    fprintf(stderr, "%s %s: %s\n", rk_code_name(rk_status_code(st)), rk_status_reason(st),
            rk_status_message(st));
    exit(1);
}

static struct rk_json *parse(const char *text)
{
    struct rk_json *json;

    check(rk_json_parse(&json, text, strlen(text), "options", 0));
    return json;
}

static struct rk_batch *make_prompts(void)
{
    const int64_t shape[2] = {NUM_ROWS, PROMPT_LENGTH};
    struct rk_batch *batch;
    void *ids, *mask, *stream;

    check(rk_batch_create(&batch, NUM_ROWS));
    check(rk_batch_add_dense(batch, "prompts", RK_DTYPE_I64, 2, shape, &ids));
    check(rk_batch_add_dense(batch, "attention_mask", RK_DTYPE_I64, 2, shape, &mask));
    check(rk_batch_add_dense(batch, "stream", RK_DTYPE_I64, 1, shape, &stream));
    for (int64_t i = 0; i < NUM_ROWS * PROMPT_LENGTH; i++) {
        ((int64_t *)ids)[i] = 2 + i;
        ((int64_t *)mask)[i] = 1;
    }
    for (int64_t i = 0; i < NUM_ROWS; i++)
        ((int64_t *)stream)[i] = i;
    return batch;
}

/* Creates the actor on all daemons of the group, one replica each, and a rollout that shares its weights. */
static void open_group(struct group *group, const char *hosts)
{
    struct rk_driver_config config = {.struct_size = sizeof(config)};
    struct rk_json *options = parse(model_options);
    struct rk_json *shared = parse("{\"share_weights_of\": \"actor\", \"rollout.max_num_seqs\": 4}");
    struct rk_driver_call_args init = {.role = "actor", .method = "init_model", .options = options};
    struct rk_driver_call_args share = {.role = "rollout", .method = "init_model", .options = shared};
    struct rk_driver_result result;

    check(rk_hosts_parse(&group->hosts, hosts));
    config.addresses = (const char *const *)group->hosts.addresses;
    config.num_addresses = group->hosts.count;
    check(rk_driver_open(&group->driver, &config));
    check(rk_driver_claim(group->driver));
    struct rk_mesh_spec mesh = {.tp = 1, .dp = group->hosts.count};
    check(rk_driver_configure(group->driver, (struct rk_role_mesh[]){{"actor", mesh}, {"rollout", mesh}}, 2));
    check(rk_driver_call(group->driver, &init, &result));
    rk_driver_result_fini(&result);
    check(rk_driver_call(group->driver, &share, &result));
    rk_driver_result_fini(&result);
    rk_json_free(options);
    rk_json_free(shared);
    group->prompts = make_prompts();
    group->options = parse("{\"response_length\": 8, \"ignore_eos\": true}");
}

static void close_group(struct group *group)
{
    rk_json_free(group->options);
    rk_batch_destroy(group->prompts);
    rk_driver_close(group->driver);
    rk_hosts_fini(&group->hosts);
}

static struct rk_future *start(struct group *group)
{
    struct rk_driver_call_args call = {.role = "rollout",
                                       .method = "generate_sequences",
                                       .batch = group->prompts,
                                       .options = group->options};
    struct rk_future *future;

    check(rk_driver_start(&future, group->driver, &call));
    return future;
}

static void print_responses(int group, const struct rk_batch *batch)
{
    const void *ids;

    check(rk_batch_get_dense(batch, "responses", RK_DTYPE_I64, 2, NULL, &ids));
    for (int64_t row = 0; row < rk_batch_num_rows(batch); row++) {
        printf("group %d row %lld:", group, (long long)row);
        for (int64_t i = 0; i < RESPONSE; i++)
            printf(" %lld", (long long)((const int64_t *)ids)[row * RESPONSE + i]);
        putchar('\n');
    }
}

int main(int argc, char **argv)
{
    struct group groups[NUM_GROUPS] = {0};
    struct rk_future *futures[NUM_GROUPS];

    if (argc != 1 + NUM_GROUPS) {
        fprintf(stderr, "usage: %s HOSTS HOSTS\n", argv[0]);
        return 2;
    }
    if (rk_driver_abi() != RK_DRIVER_ABI) {
        fprintf(stderr, "compiled for ABI %d, the library has %u\n", RK_DRIVER_ABI, rk_driver_abi());
        return 1;
    }
    for (int i = 0; i < NUM_GROUPS; i++)
        open_group(&groups[i], argv[1 + i]);
    for (int i = 0; i < NUM_GROUPS; i++)
        futures[i] = start(&groups[i]);
    for (int i; (i = rk_future_wait_any(futures, NUM_GROUPS, -1)) >= 0;) {
        struct rk_driver_result result;

        check(rk_future_take(futures[i], &result));
        futures[i] = NULL;
        print_responses(i, result.batch);
        rk_driver_result_fini(&result);
    }
    for (int i = 0; i < NUM_GROUPS; i++)
        close_group(&groups[i]);
    return 0;
}
