"""The plan of a call: the rows of its mini-batches and micro-batches, and the denominators of the loss
(docs/rpc.md, "The header of Execute")."""

from __future__ import annotations

from dataclasses import dataclass
from typing import List, Optional, Sequence, Union

import numpy as np

from rankd.v1 import common_pb2 as pb

Counts = Union[Sequence[int], "np.ndarray[int, np.dtype[np.int64]]"]


@dataclass
class MiniBatch:
    """One optimizer step. micro[replica][i] are the rows of a micro-batch, as indices into the replica's part of
    the batch; every replica has the same number of micro-batches, empty ones included."""

    micro: List[List[List[int]]]
    num_tokens: int
    num_sequences: int


@dataclass
class Plan:
    minis: List[MiniBatch]
    seqlens: List[List[int]]  # of every replica's rows

    def message(self) -> "pb.Plan":
        plan = pb.Plan()
        for mini in self.minis:
            message = plan.mini.add(num_micro=len(mini.micro[0]), num_tokens=mini.num_tokens,
                                    num_sequences=mini.num_sequences)
            for replica, parts in enumerate(mini.micro):
                for rows in parts:
                    message.micro.add(row=rows, num_tokens=sum(self.seqlens[replica][row] for row in rows))
        return plan


def layout(seqlens: Counts, num_replicas: int, mini_batch_rows: int = 0) -> List[int]:
    """An order of the rows in which every replica's equal part of the batch holds its rows of the first
    mini-batch, then of the second, and so on. Mini-batches are consecutive rows; within one, long and short rows
    are distributed evenly. Use it before computing old log-probs: batch.rows(layout(...))."""
    lengths = np.asarray(seqlens, dtype=np.int64)
    size = mini_batch_rows or len(lengths)
    _check_divides("rows", len(lengths), "mini_batch_rows", size)
    _check_divides("mini_batch_rows", size, "replicas", num_replicas)
    parts: List[List[int]] = [[] for _ in range(num_replicas)]
    for begin in range(0, len(lengths), size):
        by_length = begin + np.argsort(-lengths[begin:begin + size], kind="stable")
        for i, row in enumerate(by_length):
            turn, place = divmod(i, num_replicas)
            parts[place if turn % 2 == 0 else num_replicas - 1 - place].append(int(row))
    return [row for part in parts for row in part]


def _check_divides(name: str, value: int, by: str, divisor: int) -> None:
    if divisor < 1 or value % divisor:
        raise ValueError(f"{name}={value} does not divide by {by}={divisor}")


def _cut(rows: List[int], lengths: List[int], limit: int) -> List[List[int]]:
    """The fewest parts within the limit that a greedy pass in the order of the rows finds."""
    parts: List[List[int]] = []
    used = limit
    for row in rows:
        if lengths[row] > limit:
            raise ValueError(f"row {row} has {lengths[row]} tokens, max_token_len={limit}")
        if used + lengths[row] > limit:
            parts.append([])
            used = 0
        parts[-1].append(row)
        used += lengths[row]
    return parts


def make_plan(seqlens: Counts, num_replicas: int, *, max_token_len: int, loss_tokens: Optional[Counts] = None,
              mini_batch_rows: int = 0, epochs: int = 1) -> Plan:
    """The plan of a batch whose rows are in the order of layout().

    seqlens          real tokens of every row
    num_replicas     dp of the role's mesh
    max_token_len    maximum tokens of a micro-batch on one replica
    loss_tokens      tokens of every row in the loss mask; None for methods without a loss
    mini_batch_rows  rows of one optimizer step over all replicas; 0 for all
    """
    _check_divides("rows", len(seqlens), "replicas", num_replicas)
    size = mini_batch_rows or len(seqlens)
    _check_divides("rows", len(seqlens), "mini_batch_rows", size)
    _check_divides("mini_batch_rows", size, "replicas", num_replicas)
    lengths = np.asarray(seqlens, dtype=np.int64).reshape(num_replicas, -1)
    counted = None if loss_tokens is None else np.asarray(loss_tokens, dtype=np.int64).reshape(num_replicas, -1)
    per_replica = [[int(n) for n in part] for part in lengths]
    minis = []
    for begin in range(0, lengths.shape[1], size // num_replicas):
        rows = list(range(begin, begin + size // num_replicas))
        micro = [_cut(rows, per_replica[replica], max_token_len) for replica in range(num_replicas)]
        most = max(len(parts) for parts in micro)
        for parts in micro:
            parts.extend([] for _ in range(most - len(parts)))
        of_loss = lengths[:, rows] if counted is None else counted[:, rows]
        minis.append(MiniBatch(micro, max(int(of_loss.sum()), 1), of_loss.size))
    return Plan(minis * epochs, per_replica)
