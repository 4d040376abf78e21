/* Examples as a batch. */
#include "base/rk_assert.h"
#include "rl/flows/steps_internal.h"

typedef enum column_id {
    IDS,
    ATTENTION,
    POSITIONS,
    LOSS_MASK,
    RESPONSES,
    RESPONSE_MASK,
    NUM_COLUMNS
} column_id_t;

static const char *const column_names[NUM_COLUMNS] = {"input_ids", "attention_mask", "position_ids",
                                                      "loss_mask", "responses",      "response_mask"};

/* R = S - 1 columns: all tokens but the first. */
static int64_t width_of(column_id_t id, int64_t width)
{
    return id >= RESPONSES ? width - 1 : width;
}

static void fill_row(int64_t *const *columns, int64_t row, int64_t width,
                     const struct rk_example_sequence *sequence, int64_t pad_id)
{
    int64_t *of[NUM_COLUMNS];

    RK_ASSERT(sequence->loss_mask[0] == 0);
    for (int id = 0; id < NUM_COLUMNS; id++)
        of[id] = columns[id] + row * width_of((column_id_t)id, width);
    for (int64_t i = 0; i < width; i++) {
        bool is_real = i < sequence->len;

        of[IDS][i] = is_real ? sequence->ids[i] : pad_id;
        of[ATTENTION][i] = is_real;
        of[POSITIONS][i] = RK_MIN(i, sequence->len - 1);
        of[LOSS_MASK][i] = is_real && sequence->loss_mask[i];
        if (i > 0) {
            of[RESPONSES][i - 1] = of[IDS][i];
            of[RESPONSE_MASK][i - 1] = of[LOSS_MASK][i];
        }
    }
}

struct rk_status *rk_flow_collate(struct rk_batch **out, const struct rk_example *const *examples,
                                  int64_t num_examples, int64_t pad_id)
{
    int64_t num_rows = 0, width = 2, row = 0;
    int64_t *columns[NUM_COLUMNS];

    for (int64_t i = 0; i < num_examples; i++) {
        num_rows += examples[i]->num_sequences;
        for (int64_t k = 0; k < examples[i]->num_sequences; k++)
            width = RK_MAX(width, examples[i]->sequences[k].len);
    }
    RK_TRY(rk_batch_create(out, num_rows));
    for (int id = 0; id < NUM_COLUMNS; id++) {
        int64_t shape[2] = {num_rows, width_of((column_id_t)id, width)};
        void *data;

        RK_TRY(rk_batch_add_dense(*out, column_names[id], RK_DTYPE_I64, 2, shape, &data));
        columns[id] = data;
    }
    for (int64_t i = 0; i < num_examples; i++) {
        for (int64_t k = 0; k < examples[i]->num_sequences; k++)
            fill_row(columns, row++, width, &examples[i]->sequences[k], pad_id);
    }
    return NULL;
}
