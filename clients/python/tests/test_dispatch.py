"""Meshes, dispatch modes and plans against tables computed by hand."""

import unittest

import numpy as np

import rankd
from rankd import dispatch
from rankd._call import merge_metrics
from rankd.v1 import common_pb2, worker_pb2


class Dispatch(unittest.TestCase):
    def grid(self, world_size=8, **mesh):
        return rankd.Grid(rankd.Mesh(**mesh), world_size)

    def test_tables_of_the_page(self):
        """Goal: the example of docs/dispatch.md, 8 ranks, tp=2 dp=2 pp=2."""
        grids = {"actor": self.grid(tp=2, pp=2)}
        compute = dispatch.create("MEGATRON_COMPUTE_PROTO", "actor", grids)
        self.assertEqual([compute.chunk_of_rank[r] for r in range(8)], [0, 0, 1, 1, 0, 0, 1, 1])
        self.assertEqual(compute.collected, [4, 6])
        as_dp = dispatch.create("MEGATRON_PP_AS_DP_PROTO", "actor", grids)
        self.assertEqual([as_dp.chunk_of_rank[r] for r in range(8)], [0, 0, 2, 2, 1, 1, 3, 3])
        self.assertEqual(as_dp.collected, [0, 4, 2, 6])
        self.assertEqual(dispatch.create("MEGATRON_PP_ONLY", "actor", grids).collected, [0, 4])

    def test_context_parallel(self):
        """Goal: cp ranks of a replica get the same chunk; cp 0 returns it."""
        compute = dispatch.create("MEGATRON_COMPUTE_PROTO", "actor", {"actor": self.grid(cp=2, tp=2)})
        self.assertEqual([compute.chunk_of_rank[r] for r in range(8)], [0, 0, 0, 0, 1, 1, 1, 1])
        self.assertEqual(compute.collected, [0, 4])

    def test_order_and_ranks(self):
        """Goal: a mesh on some ranks, in another order, as in verl's rollout."""
        grid = self.grid(pp=2, tp=2, order="pp-tp-dp", ranks=(7, 5, 3, 1))
        self.assertEqual(grid.coords[5], {"tp": 0, "cp": 0, "dp": 0, "pp": 1})
        self.assertEqual(grid.coords[3], {"tp": 1, "cp": 0, "dp": 0, "pp": 0})
        nd = dispatch.create("ND_COMPUTE(rollout)", "actor", {"rollout": grid})
        self.assertEqual(nd.chunk_of_rank, {7: 0, 5: 0, 3: 0, 1: 0})
        self.assertEqual(nd.collected, [7])

    def test_every_mode(self):
        """Goal: every mode's table as in tests/unit/dispatch/test_modes.c, 8 ranks, tp=2 dp=2 pp=2."""
        grids = {"actor": self.grid(tp=2, pp=2)}
        replicas, items, each = [0, 0, 1, 1, 0, 0, 1, 1], [0, 0, 2, 2, 1, 1, 3, 3], list(range(8))
        tables = {
            "RANK_ZERO": ("value", [0], [0]),
            "ONE_TO_ALL": ("value", [0] * 8, each),
            "ALL_TO_ALL": ("value", each, each),
            "MEGATRON_COMPUTE": ("items", replicas, [4, 6]),
            "MEGATRON_COMPUTE_PROTO": ("proto", replicas, [4, 6]),
            "MEGATRON_PP_AS_DP": ("items", items, [0, 4, 2, 6]),
            "MEGATRON_PP_AS_DP_PROTO": ("proto", items, [0, 4, 2, 6]),
            "MEGATRON_PP_ONLY": ("value", [0] * 8, [0, 4]),
            "DP_COMPUTE": ("items", each, each),
            "DP_COMPUTE_PROTO": ("proto", each, each),
            "DP_COMPUTE_METRIC": ("metric", each, each),
            "ND_COMPUTE": ("proto", replicas, [4, 6]),
        }
        self.assertEqual(sorted(tables), sorted(dispatch.MODES))
        for name, (payload, chunks, collected) in tables.items():
            with self.subTest(name):
                mode = dispatch.create(name, "actor", grids)
                self.assertEqual(mode.mode.payload, payload)
                self.assertEqual(mode.mode.pads, name in ("DP_COMPUTE_PROTO", "DP_COMPUTE_METRIC"))
                self.assertEqual(mode.chunk_of_rank, dict(enumerate(chunks)))
                self.assertEqual(mode.collected, collected)
                self.assertEqual(mode.num_chunks, max(chunks) + 1)

    def test_collector_of_a_rollout(self):
        """Goal: with pp fastest stage 0 returns the results, as in the C driver; else the last stage does."""
        grids = {"rollout": self.grid(tp=2, pp=2, order="pp-tp-dp")}
        nd = dispatch.create("ND_COMPUTE(rollout)", "rollout", grids)
        self.assertEqual([nd.chunk_of_rank[r] for r in range(8)], [0, 0, 0, 0, 1, 1, 1, 1])
        self.assertEqual(nd.collected, [0, 4])

    def test_union(self):
        """Goal: ONE_TO_ALL(actor+rollout) reaches every rank of either mesh once, in rank order."""
        grids = {"actor": self.grid(ranks=(4, 5)), "rollout": self.grid(ranks=(5, 1))}
        union = dispatch.create("ONE_TO_ALL(actor+rollout)", "rollout", grids)
        self.assertEqual(union.collected, [1, 4, 5])
        with self.assertRaisesRegex(ValueError, "'critic' has no mesh"):
            dispatch.create("ND_COMPUTE(critic)", "actor", grids)

    def test_meshes_that_do_not_fit(self):
        for mesh, what in (({"tp": 3}, "not divisible"), ({"tp": 2, "dp": 3}, "dp=3 was asked for"),
                           ({"ranks": (0, 0)}, "at most once"), ({"ranks": (8,)}, "at most once")):
            with self.assertRaisesRegex(ValueError, what):
                self.grid(**mesh)

    def test_split_pads(self):
        """Goal: the DP modes pad with the last row and return the number of added rows."""
        mode = dispatch.create("DP_COMPUTE_PROTO", "actor", {"actor": self.grid(world_size=4)})
        parts, padded = mode.split(rankd.Batch({"x": np.arange(6)}))
        self.assertEqual(padded, 2)
        self.assertEqual([list(part["x"]) for part in parts], [[0, 1], [2, 3], [4, 5], [5, 5]])


class Plans(unittest.TestCase):
    def test_by_hand(self):
        """Goal: two replicas, two mini-batches: rows, empty micro-batches and denominators."""
        plan = rankd.make_plan([4, 4, 2, 2, 9, 1, 1, 1], 2, max_token_len=9, loss_tokens=[1, 0, 2, 2, 3, 0, 1, 1],
                               mini_batch_rows=4, epochs=2)
        self.assertEqual([mini.micro for mini in plan.minis],
                         2 * [[[[0, 1], []], [[0], [1]]], [[[2, 3]], [[2, 3]]]])
        self.assertEqual([(mini.num_tokens, mini.num_sequences) for mini in plan.minis], 2 * [(4, 4), (6, 4)])
        message = plan.message()
        self.assertEqual([micro.num_tokens for micro in message.mini[0].micro], [8, 0, 9, 1])
        self.assertEqual(message.mini[0].num_micro, 2)

    def test_refusals(self):
        for arguments, what in ((([1, 2, 3], 2), "rows=3"), (([1, 20], 1), "row 1 has 20 tokens"),
                                (([1, 2, 3, 4], 2, 3), "mini_batch_rows=3")):
            with self.assertRaisesRegex(ValueError, what):
                rankd.make_plan(arguments[0], arguments[1], max_token_len=10,
                                mini_batch_rows=arguments[2] if len(arguments) > 2 else 0)

    def test_layout(self):
        """Goal: a permutation that keeps the rows of each mini-batch and gives replicas equal work."""
        lengths = np.random.default_rng(1).integers(1, 100, 64)
        order = rankd.layout(lengths, 4, 16)
        self.assertEqual(sorted(order), list(range(64)))
        for mini in range(4):
            rows = [row for d in range(4) for row in order[d * 16 + mini * 4:d * 16 + mini * 4 + 4]]
            self.assertEqual(sorted(rows), list(range(mini * 16, mini * 16 + 16)))
        sums = [lengths[order[d * 16:d * 16 + 16]].sum() for d in range(4)]
        self.assertLess(max(sums) - min(sums), 100)


class Metrics(unittest.TestCase):
    def test_merged(self):
        """Goal: max and min over all ranks, others over those that collect; non-finite values are None."""
        def result(*values):
            return worker_pb2.ExecuteResult(metric=[common_pb2.Metric(name=name, value=value, reduce=name)
                                                    for name, value in values])

        merged = merge_metrics({0: result(("sum", 1.0), ("mean", 2.0), ("max", 1.0), ("min", 5.0), ("last", 1.0)),
                                1: result(("sum", 10.0), ("mean", 20.0), ("max", 9.0), ("min", -5.0), ("last", 7.0)),
                                2: result(("sum", 2.0), ("mean", 4.0), ("max", float("nan")), ("last", 3.0))}, [0, 2])
        self.assertEqual(merged, {"sum": 3.0, "mean": 3.0, "max": None, "min": -5.0, "last": 3.0})


if __name__ == "__main__":
    unittest.main()
