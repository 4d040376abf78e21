"""Computations of a loop between the calls: padding, advantages, plans of a batch."""

import unittest

import numpy as np
import rankd
from support import FakeTest, FakeWorker


class Algo(unittest.TestCase):
    def test_prompts_are_padded_on_the_left(self):
        batch = rankd.pad_prompts([[5, 6, 7], [0]], 4, pad_token_id=9)
        self.assertEqual(batch.array("prompts").tolist(), [[9, 5, 6, 7], [9, 9, 9, 0]])
        self.assertEqual(batch.array("attention_mask").tolist(), [[0, 1, 1, 1], [0, 0, 0, 1]])
        self.assertEqual(batch.array("prompts").dtype, np.int64)
        for prompts, what in (([[1, 2], [1, 2, 3]], "prompt 1 has 3 tokens"), ([[]], "prompt 0 has 0 tokens")):
            with self.assertRaisesRegex(ValueError, what):
                rankd.pad_prompts(prompts, 2)

    def test_advantages_by_hand(self):
        """Goal: groups of two and three computed by hand; a row without tokens is in no group, a single
        remaining row keeps its score."""
        mask = np.array([[1, 1, 0], [1, 0, 0], [1, 1, 1], [0, 0, 0]])
        half = 0.5 / (np.sqrt(0.5) + 1e-6)  # scores 0 and 1: mean 1/2, deviation sqrt(1/2)
        got = rankd.grpo_advantages([0.0, 1.0, 0.25, 7.0], mask, 2)
        alone = 0.25 / (1 + 1e-6)
        np.testing.assert_allclose(got, [[-half, -half, 0], [half, 0, 0], [alone] * 3, [0] * 3], rtol=1e-6)
        self.assertEqual(got.dtype, np.float32)
        np.testing.assert_allclose(rankd.grpo_advantages([1, 2, 6], np.ones((3, 1)), 3, norm_by_std=False),
                                   [[-2], [-1], [3]])
        np.testing.assert_allclose(rankd.grpo_advantages([3.0], np.ones((1, 2)), 1, norm_by_std=False), [[3, 3]])

    def test_advantages_refuse_other_shapes(self):
        for scores, group in (([1.0], 1), ([1.0, 2.0, 3.0], 2), ([1.0, 2.0, 3.0], 0)):
            with self.assertRaisesRegex(ValueError, "group_size"):
                rankd.grpo_advantages(scores, np.ones((len(scores) + (len(scores) == 1), 2)), group)


class OfABatch(FakeTest):
    def test_balance_and_plan_read_the_masks(self):
        """Goal: the client's methods equal layout() and make_plan() with the row sums of the masks."""
        _, client = self.fake()
        lengths = np.array([3, 1, 2, 4])
        columns = {"attention_mask": (np.arange(4) < lengths[:, None]).astype(np.int64), "x": lengths}
        balanced = client.balance("actor", rankd.Batch(columns), 2)
        np.testing.assert_array_equal(balanced["x"], lengths[rankd.layout(lengths, 1, 2)])
        plan = client.plan("actor", balanced, max_token_len=5, mini_batch_rows=2)
        self.assertEqual(plan, rankd.make_plan(balanced.array("x"), 1, max_token_len=5, mini_batch_rows=2))
        balanced["response_mask"] = np.ones((4, 2), np.int64)
        plan = client.plan("actor", balanced, epochs=2)
        self.assertEqual(plan, rankd.make_plan(balanced.array("x"), 1, max_token_len=16384, loss_tokens=[2] * 4, epochs=2))

    def test_plain_dicts_are_batches(self):
        """Goal: a dict of columns is taken wherever a Batch is."""
        _, client = self.fake()
        columns = {"attention_mask": np.tril(np.ones((4, 4), np.int64)), "x": np.arange(4)}
        batch = rankd.Batch(columns)
        np.testing.assert_array_equal(client.balance("actor", columns, 2)["x"], client.balance("actor", batch, 2)["x"])
        self.assertEqual(client.plan("actor", columns), client.plan("actor", batch))
        np.testing.assert_array_equal(rankd.concat([columns, batch])["x"], [0, 1, 2, 3, 0, 1, 2, 3])
        np.testing.assert_array_equal(batch.select("x").union(columns)["attention_mask"], columns["attention_mask"])

    def test_columns_that_a_method_does_not_take(self):
        """Goal: a Batch, which may come from other calls, sends what the method takes; a dict is sent as it is."""
        worker, client = self.fake(FakeWorker(["x", "y"]))
        columns = {"x": np.zeros(2), "z": np.ones(2)}
        client.call("actor.echo", rankd.Batch(columns))
        client.call("actor.echo", columns)
        sent = [[tensor.name for tensor in header.input.tensor] for header in worker.headers]
        self.assertEqual(sent, [["x"], ["x", "z"]])


if __name__ == "__main__":
    unittest.main()
