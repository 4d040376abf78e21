"""Columns of every kind sent to a daemon and back, and invalid data from a daemon."""

import unittest

import numpy as np

import rankd
from rankd.batch import ENCODED_DTYPES, NUMPY_DTYPES
from rankd.v1 import worker_pb2 as pb
from support import FakeTest, FakeWorker


def column_of(dtype, shape, seed):
    """Random bits, so that NaN, infinities and -0.0 are covered."""
    bits = np.random.default_rng(seed).integers(0, 256, (*shape, dtype.itemsize), dtype=np.uint8)
    if dtype == np.bool_:
        bits &= 1
    return bits.view(dtype)[..., 0]


class RoundTrip(FakeTest):
    def assert_same(self, actual, expected):
        self.assertEqual(type(actual), type(expected))
        if isinstance(expected, rankd.Encoded):
            self.assertEqual(actual.dtype, expected.dtype)
            actual, expected = actual.bits, expected.bits
        if isinstance(expected, rankd.Packed):
            np.testing.assert_array_equal(actual.cu_seqlens, expected.cu_seqlens)
            actual, expected = actual.values, expected.values
        if isinstance(expected, np.ndarray):
            self.assertEqual((actual.dtype, actual.shape), (expected.dtype, expected.shape))
            self.assertEqual(actual.tobytes(), expected.tobytes())
        else:
            self.assertEqual(actual, expected)

    def round_trip(self, batch):
        _, client = self.fake(FakeWorker(list(batch)))
        result = client.call("actor.echo", batch)
        self.assertEqual(set(result.batch), set(batch))
        for name, column in batch.items():
            self.assert_same(result.batch[name], column)
        return result

    def test_every_dtype(self):
        """Goal: arrays of all dtypes come back bit by bit, dense and packed, of several ranks and empty ones."""
        batch = rankd.Batch()
        for i, (name, dtype) in enumerate(NUMPY_DTYPES.items()):
            batch[f"{name}_1"] = column_of(dtype, (5,), i)
            batch[f"{name}_3"] = column_of(dtype, (5, 3, 2), i)
            batch[f"{name}_none"] = column_of(dtype, (5, 0), i)
            batch[f"{name}_packed"] = rankd.Packed(column_of(dtype, (9, 2), i), [0, 2, 2, 5, 9, 9])
        for i, (name, dtype) in enumerate(ENCODED_DTYPES.items()):
            batch[name] = rankd.Encoded(name, column_of(dtype, (5, 4), i))
        self.round_trip(batch)

    def test_strings_json_and_meta(self):
        """Goal: Unicode text, JSON and meta of every kind come back."""
        meta = {"i": -3, "f": 0.5, "b": True, "s": "", "list": [1, {"a": None}]}
        result = self.round_trip(rankd.Batch({"text": ["", "x\u00e9\U0001f600", "\n"],
                                              "json": rankd.Json([None, {"a": [1.5]}, "s"])}, meta))
        self.assertEqual(result.outputs[0].meta, meta)

    def test_many_chunks(self):
        """Goal: a column of several chunks, the last one shorter, arrives complete."""
        self.round_trip(rankd.Batch({"x": np.arange(3 * (2 << 20) // 8 + 5)}))

    def test_layouts_of_memory(self):
        """Goal: arrays that are not contiguous, or big-endian, arrive with the same values."""
        _, client = self.fake()
        x = np.arange(24.0).reshape(4, 6)
        result = client.call("actor.echo", {"t": x.T[:4], "step": x[:, ::2], "big": x[:, 0].astype(">f8")}).batch
        np.testing.assert_array_equal(result["t"], x.T[:4])
        np.testing.assert_array_equal(result["step"], x[:, ::2])
        np.testing.assert_array_equal(result["big"], x[:, 0])

    def test_refused_before_it_is_sent(self):
        """Goal: errors name invalid columns, and nothing reaches the daemon."""
        worker, client = self.fake()
        for batch, what in (({"x": np.zeros(2), "y": np.zeros(3)}, "y has 3 rows"),
                            ({"x": np.zeros(2, np.complex128)}, "x has dtype complex128"), (None, "needs a batch")):
            with self.assertRaisesRegex(ValueError, what):
                client.call("actor.echo", batch)
        self.assertEqual(worker.headers, [])


class Operations(unittest.TestCase):
    def test_rows_and_concat(self):
        """Goal: rows by slice and by index, parts and their concatenation are those of the arrays."""
        batch = rankd.Batch({"x": np.arange(12).reshape(6, 2), "p": rankd.Packed(np.arange(7), [0, 1, 1, 3, 4, 6, 7]),
                             "b": rankd.Encoded.bfloat16(np.arange(6)), "s": list("abcdef")}, {"k": 1})
        picked = batch.rows([4, 0, 0])
        np.testing.assert_array_equal(picked["x"], [[8, 9], [0, 1], [0, 1]])
        np.testing.assert_array_equal(picked["p"].values, [4, 5, 0, 0])
        np.testing.assert_array_equal(picked["p"].cu_seqlens, [0, 2, 3, 4])
        self.assertEqual(picked["s"], ["e", "a", "a"])
        whole = rankd.concat(batch.chunk(3))
        for name in ("x", "s"):
            np.testing.assert_array_equal(whole[name], batch[name])
        np.testing.assert_array_equal(whole["p"].cu_seqlens, batch["p"].cu_seqlens)
        np.testing.assert_array_equal(whole["b"].float32(), np.arange(6))
        with self.assertRaisesRegex(ValueError, "6 rows do not divide by 4"):
            batch.chunk(4)
        with self.assertRaisesRegex(ValueError, "column x differs"):
            batch.union({"x": np.zeros((6, 2))})

    def test_bfloat16(self):
        """Goal: rounding to nearest even, as computed by hand; infinities and NaN are preserved."""
        values = np.array([1.0, 1.00390625, 1.01171875, -2.5, np.inf, -np.inf, np.nan, 3.4e38], np.float32)
        back = rankd.Encoded.bfloat16(values).float32()
        np.testing.assert_array_equal(back[:6], [1.0, 1.0, 1.015625, -2.5, np.inf, -np.inf])
        self.assertTrue(np.isnan(back[6]))
        self.assertEqual(back[7], np.inf)


class Broken(FakeTest):
    """Daemons that break the protocol: the call ends with an error, at once."""

    def check(self, answer, code):
        class Worker(FakeWorker):
            def answer(self, header, chunks):
                yield from answer(header, chunks)

        _, client = self.fake(Worker())
        self.assert_refused(code, "", client.call, "actor.echo", {"x": np.zeros(4)})

    def test_missing_bytes(self):
        self.check(lambda header, chunks: [pb.ExecuteResponse(result=pb.ExecuteResult(output=header.input))], "DATA_LOSS")

    def test_no_result(self):
        self.check(lambda header, chunks: [], "INTERNAL")

    def test_chunk_first(self):
        self.check(lambda header, chunks: [pb.ExecuteResponse(chunk=chunks[0])], "INTERNAL")

    def test_chunk_too_long(self):
        def answer(header, chunks):
            chunks[0].data += b"12345678"
            return [pb.ExecuteResponse(result=pb.ExecuteResult(output=header.input)), pb.ExecuteResponse(chunk=chunks[0])]

        self.check(answer, "INTERNAL")

    def test_wrong_size(self):
        def answer(header, chunks):
            header.input.tensor[0].byte_size = 1 << 40
            return [pb.ExecuteResponse(result=pb.ExecuteResult(output=header.input))]

        self.check(answer, "INTERNAL")


if __name__ == "__main__":
    unittest.main()
