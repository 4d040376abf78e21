"""Computations of a training loop between the calls, as in rankctl (docs/algorithms.md)."""

from __future__ import annotations

from typing import Any, Iterable, Sequence, Union

import numpy as np

from rankd.batch import Batch

_Floats = Union[Sequence[float], "np.ndarray[Any, np.dtype[Any]]"]


def pad_prompts(prompts: Iterable[Sequence[int]], length: int, pad_token_id: int = 0) -> Batch:
    """Token ids of prompts, padded on the left to `length`: the columns prompts and attention_mask, i64 [B, P], of
    generate_sequences. ValueError names a prompt that is longer or empty."""
    rows = [list(ids) for ids in prompts]
    ids = np.full((len(rows), length), pad_token_id, np.int64)
    mask = np.zeros_like(ids)
    for i, row in enumerate(rows):
        if not 1 <= len(row) <= length:
            raise ValueError(f"prompt {i} has {len(row)} tokens, expected 1 to length={length}")
        ids[i, length - len(row):] = row
        mask[i, length - len(row):] = 1
    return Batch({"prompts": ids, "attention_mask": mask})


def grpo_advantages(scores: _Floats, response_mask: "np.ndarray[Any, np.dtype[Any]]", group_size: int, *,
                    norm_by_std: bool = True) -> "np.ndarray[Any, np.dtype[np.float32]]":
    """The score of a response relative to the others of its prompt, on every token of the response: f32 [B, R].

    scores         [B]; each group_size consecutive rows are responses to one prompt
    response_mask  [B, R], 1 on the tokens of the response
    norm_by_std    divide by the group's standard deviation (n - 1) + 1e-6; False is Dr.GRPO

    A row without response tokens is ignored. A group of one has mean 0 and deviation 1. Source: Shao et al.,
    arXiv:2402.03300.
    """
    values = np.asarray(scores, dtype=np.float64)
    if values.shape != response_mask.shape[:1] or group_size < 1 or len(values) % group_size:
        raise ValueError(f"scores of shape {list(values.shape)} and response_mask of shape {list(response_mask.shape)}: "
                         f"expected one score a row, and rows that divide by group_size={group_size}")
    groups = values.reshape(-1, group_size)
    counts = response_mask.any(axis=1).reshape(groups.shape)
    n = counts.sum(axis=1, keepdims=True)
    mean = np.where(n > 1, (groups * counts).sum(axis=1, keepdims=True) / np.maximum(n, 1), 0.0)
    if norm_by_std:
        squares = (((groups - mean) * counts) ** 2).sum(axis=1, keepdims=True)
        divisor = np.where(n > 1, np.sqrt(squares / np.maximum(n - 1, 1)), 1.0) + 1e-6
    else:
        divisor = np.ones_like(mean)
    advantages: "np.ndarray[Any, np.dtype[np.float32]]" = \
        (((groups - mean) / divisor).reshape(-1, 1) * response_mask).astype(np.float32)
    return advantages
