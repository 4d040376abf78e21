#!/usr/bin/env python3
"""Makes tests/golden/advantages: random batches and what verl's own advantage estimators give for them in float64. The
functions are taken out of a verl checkout without importing the rest of it. Needs torch, numpy and safetensors.

    python make_advantages.py VERL_DIRECTORY VERL_COMMIT DIRECTORY

inputs.safetensors: NUM_CASES batches one after the other: rows and columns of each, then one value a row (group, reward
baseline, rewards by key) or a cell [rows, columns]. All floats are exact in float32. A row whose mask is empty is one
that was dropped: estimators that compare rows are run without it, and its expected advantages are 0.

rows.safetensors: "NAME" [rows], the advantage of each token of the row, of the estimators with one value a row, whose
returns are their advantages. cells.safetensors: "NAME" [cells] of the others, whose returns are in returns.safetensors;
those of remax are those of the two token baselines too. "NAME.refused" [cases] is 1 where verl raises ValueError: a
group of one in grpo_passk, one token to whiten. Where no token counts verl raises, too; rankd's answer, 0, stands
here. proxies.safetensors: the metrics variance_proxy/ [cases], with the values as advantages and a gradient norm of
GRAD_NORM; 0 where no row takes part."""
import ast
import dataclasses
import hashlib
import json
import pathlib
import random
import sys
import types
from collections import defaultdict

import numpy as np
import torch
from safetensors.numpy import save

SEED = 20260823
NUM_CASES = 240
KEYS = ["k1", "k2"]
OUTCOME = ["grpo", "grpo_vectorized", "gdpo", "grpo_passk", "rloo", "rloo_vectorized", "opo", "gpg",
           "reinforce_plus_plus_baseline"]
TOKEN = {"gae": "compute_gae_advantage_return", "remax": "compute_remax_outcome_advantage",
         "reinforce_plus_plus": "compute_reinforce_plus_plus_outcome_advantage",
         "optimal_token_baseline": "compute_optimal_token_baseline_advantage",
         "tir_optimal_token_baseline": "compute_multi_turn_optimal_token_baseline_advantage"}
WHITENED = {"gdpo", "reinforce_plus_plus", "reinforce_plus_plus_baseline", "gae"}
ALONE = {"gae", "remax", "reinforce_plus_plus"}  # estimators that do not compare rows
PROXIES = ["proxy1_signal_strength", "proxy2_total_power", "proxy3_pure_noise", "expected_a_squared", "expected_w"]
GRAD_NORM = 0.5
TO_GO = {"optimal_token_baseline", "tir_optimal_token_baseline"}


class Double:
    """A module in which float32 is float64."""

    def __init__(self, module):
        self.module = module

    def __getattr__(self, name):
        return getattr(self.module, "float64" if name == "float32" else name)


def take(path, names, space):
    """The functions of these names of a file, without decorators and annotations, run in `space`."""
    found = [node for node in ast.parse(path.read_text()).body
             if isinstance(node, ast.FunctionDef) and node.name in names]
    if {node.name for node in found} != set(names):
        sys.exit(f"{path}: lacks some of {sorted(names)}")
    for node in found:
        node.decorator_list, node.returns = [], None
        for arg in node.args.args:
            arg.annotation = None
    exec(compile(ast.Module(body=found, type_ignores=[]), str(path), "exec"), space)
    return types.SimpleNamespace(**{name: space[name] for name in names})


def load_verl(root):
    helpers = take(root / "verl/utils/torch_functional.py", {"masked_sum", "masked_mean", "masked_var", "masked_whiten"},
                   {"torch": torch})
    groups = take(root / "verl/utils/groupwise.py", {"group_mean_std"},
                  {"torch": Double(torch), "_resolve_device": lambda device: device})
    space = {"torch": Double(torch), "np": Double(np), "defaultdict": defaultdict, "verl_F": helpers,
             "as_torch_index": lambda index, device: torch.tensor(np.unique(index, return_inverse=True)[1]),
             "group_mean_std": groups.group_mean_std}
    names = {f"compute_{name}_outcome_advantage" for name in OUTCOME} | set(TOKEN.values())
    verl = take(root / "verl/trainer/ppo/core_algos.py", names, space)
    verl.variance_proxy = take(root / "verl/trainer/ppo/metric_utils.py", {"compute_variance_proxy_metrics"},
                               {"torch": torch, "verl_F": helpers}).compute_variance_proxy_metrics
    return verl


# --- cases ---
@dataclasses.dataclass
class Case:
    mask: np.ndarray  # [B, R]
    group: np.ndarray  # [B]
    pair_group: np.ndarray  # [B]: the same without groups of one, for grpo_passk
    cells: dict  # name: [B, R]
    rows: dict  # name: [B]
    by_std: bool
    has_is_weights: bool
    gamma: float
    lam: float
    weights: list  # of KEYS


class Config(dict):
    def __getattr__(self, name):
        return self[name]


def make_mask(rng, num_rows, width):
    mask = np.zeros((num_rows, width), dtype=np.int64)
    for i in range(num_rows):
        kind = rng.random()
        mask[i, :rng.randint(1, width)] = kind >= 0.12
        if kind > 0.6:
            mask[i] *= np.array([rng.random() < 0.7 for _ in range(width)])
    return mask


def make_cells(rng, mask):
    def fill(make):
        return np.array([[make() for _ in row] for row in mask])

    rewards = np.zeros(mask.shape)
    for i, row in enumerate(mask):
        marks = np.flatnonzero(row)
        kind = rng.random()
        if kind < 0.6:  # an outcome reward, at any token; often a tie
            rewards[i, marks[-1] if len(marks) else rng.randrange(len(row))] = rng.choice([0, 0, 1, 1, -0.5, 2.125])
        elif kind < 0.9:
            rewards[i] = [rng.randint(-16, 16) / 16 for _ in row]
    return {"token_level_rewards": rewards, "values": fill(lambda: rng.randint(-48, 48) / 32),
            "old_log_probs": fill(lambda: -rng.choice([0.01, 0.3, 4.0]) * rng.randint(0, 64) / 64),
            "sum_pi_squared": fill(lambda: rng.randint(1, 128) / 128),
            "rollout_is_weights": fill(lambda: rng.randint(0, 32) / 16)}


def join_single(group, taking_part):
    """Rows that are alone in their group join that of another row, where there is one."""
    group = group.copy()
    for i in np.flatnonzero(taking_part):
        others = [j for j in np.flatnonzero(taking_part) if j != i]
        if others and not any(group[j] == group[i] for j in others):
            group[i] = group[others[0]]
    return group


def make_case(rng):
    num_rows = rng.choice([1, 2, 3, 4, 4, 5, 6, 8, 8])
    width = rng.choice([1, 2, 3, 3, 4, 5])
    mask = make_mask(rng, num_rows, width)
    rows = {"reward_baselines": [rng.randint(-8, 16) / 8 for _ in mask]}
    for key in KEYS:
        rows[key] = [rng.choice([0, 1, 1, rng.randint(-12, 12) / 4]) for _ in mask]
    exact = lambda values: np.asarray(values, dtype=np.float64).astype(np.float32).astype(np.float64)
    group = np.array([rng.randrange(max(1, num_rows // rng.choice([1, 2, 3, 4]))) for _ in mask])
    return Case(mask, group, join_single(group, mask.any(axis=1)),
                {name: exact(column) for name, column in make_cells(rng, mask).items()},
                {name: exact(column) for name, column in rows.items()}, rng.random() < 0.7, rng.random() < 0.4,
                rng.choice([1.0, 1.0, 0.99, 0.9, 0.5]), rng.choice([1.0, 0.95, 0.7, 0.0]),
                rng.choice([[1.0, 1.0], [1.0, 0.5], [0.25, -1.5]]))


# --- reference ---
def arguments(name, case, rows):
    """What verl's trainer would give the function, of some rows."""
    group = case.pair_group if name == "grpo_passk" else case.group
    tensor = lambda column: torch.tensor(column[rows])
    mask = tensor(case.mask)
    config = Config(norm_adv_by_std_in_grpo=case.by_std, gamma=case.gamma, gdpo_reward_keys=KEYS,
                    gdpo_reward_weights=case.weights)
    marks = torch.ones((len(mask), mask.shape[1] + 1), dtype=torch.long)
    return {"token_level_rewards": tensor(case.cells["token_level_rewards"]), "response_mask": mask.double(),
            "index": np.array([f"g{g}" for g in group[rows]], dtype=object), "config": config,
            "norm_adv_by_std_in_grpo": case.by_std, "gamma": case.gamma, "lam": case.lam,
            "values": tensor(case.cells["values"]), "old_log_probs": tensor(case.cells["old_log_probs"]),
            "sum_pi_squared": tensor(case.cells["sum_pi_squared"]),
            "rollout_is_weights": tensor(case.cells["rollout_is_weights"]) if case.has_is_weights else None,
            "reward_baselines": tensor(case.rows["reward_baselines"]), "handle_zero_tail": True,
            "non_tensor_batch": {key: case.rows[key][rows] for key in KEYS},
            "batch": {"prompts": marks[:, :1], "attention_mask": marks}}


def call(function, given):
    code = function.__code__
    names = code.co_varnames[:code.co_argcount]
    return function(**{name: value.clone() if isinstance(value, torch.Tensor) else value
                       for name, value in given.items() if name in names})


def estimate(function, name, case):
    """Advantages and returns [B, R], and whether verl refuses the batch."""
    taking_part = case.mask.any(axis=1)
    rows = np.full_like(taking_part, True) if name in ALONE else taking_part
    zero = np.zeros(case.mask.shape)
    if not rows.any() or (name in WHITENED and not taking_part.any()):
        return zero, zero, False
    try:
        advantages, returns = call(function, arguments(name, case, rows))
    except ValueError:
        return zero, zero, True
    out = zero.copy(), zero.copy()
    for full, part in zip(out, (advantages, returns)):
        if part.dtype != torch.float64:
            sys.exit(f"{name}: computed in {part.dtype}")
        full[rows] = part.numpy()
    return *out, False


def row_values(case, advantages, returns, name):
    """The one value of each row, whose tokens all have it."""
    values = (advantages * case.mask).sum(axis=1) / np.maximum(case.mask.sum(axis=1), 1)
    if not np.allclose(advantages, values[:, None] * case.mask, atol=1e-14) or not (advantages == returns).all():
        sys.exit(f"{name}: advantages differ within a row")
    return values


def measure_variance(verl, case):
    """The metrics variance_proxy/ of the rows that take part, with the values as advantages."""
    rows = case.mask.any(axis=1)
    if not rows.any():
        return [0.0] * len(PROXIES)
    given = arguments("", case, rows)
    batch = {"response_mask": given["response_mask"], "advantages": given["values"],
             "old_log_probs": given["old_log_probs"], "sum_pi_squared": given["sum_pi_squared"]}
    if case.has_is_weights:
        batch["rollout_is_weights"] = given["rollout_is_weights"]
    metrics = verl.variance_proxy(types.SimpleNamespace(batch=batch), GRAD_NORM)
    return [metrics[f"variance_proxy/{name}"] for name in PROXIES]


def pack_inputs(cases):
    join = lambda columns, dtype: np.concatenate([np.asarray(column, dtype=dtype).ravel() for column in columns])
    out = {"num_rows": np.array([len(case.mask) for case in cases], dtype=np.int32),
           "width": np.array([case.mask.shape[1] for case in cases], dtype=np.int32),
           "group": join([case.group for case in cases], np.int32),
           "pair_group": join([case.pair_group for case in cases], np.int32),
           "response_mask": join([case.mask for case in cases], np.uint8),
           "key_weights": join([case.weights for case in cases], np.float64)}
    for name, dtype in (("by_std", np.uint8), ("has_is_weights", np.uint8), ("gamma", np.float64), ("lam", np.float64)):
        out[name] = np.array([getattr(case, name) for case in cases], dtype=dtype)
    for name in cases[0].cells:
        out[name] = join([case.cells[name] for case in cases], np.float32)
    for name in cases[0].rows:
        out[name] = join([case.rows[name] for case in cases], np.float32)
    return out


def main(verl_dir, commit, directory):
    torch.set_default_dtype(torch.float64)
    verl = load_verl(pathlib.Path(verl_dir))
    rng = random.Random(SEED)
    cases = [make_case(rng) for _ in range(NUM_CASES)]
    rows, cells, returns = {}, {}, {}
    for name in [*OUTCOME, *TOKEN]:
        function = getattr(verl, TOKEN.get(name, f"compute_{name}_outcome_advantage"))
        results = [estimate(function, name, case) for case in cases]
        refused = np.array([result[2] for result in results], dtype=np.uint8)
        if name in OUTCOME:
            rows[name] = np.concatenate([row_values(case, result[0], result[1], name)
                                         for case, result in zip(cases, results)])
            rows[f"{name}.refused"] = refused
            continue
        cells[name] = np.concatenate([result[0].ravel() for result in results])
        cells[f"{name}.refused"] = refused
        if name not in TO_GO:
            returns[name] = np.concatenate([result[1].ravel() for result in results])
    files = {"inputs": pack_inputs(cases), "rows": rows, "cells": cells, "returns": returns}
    proxies = np.array([measure_variance(verl, case) for case in cases])
    files["proxies"] = {name: proxies[:, i].copy() for i, name in enumerate(PROXIES)}
    out = pathlib.Path(directory)
    out.mkdir(parents=True, exist_ok=True)
    manifest = {"seed": SEED, "cases": NUM_CASES, "verl": commit, "torch": torch.__version__, "numpy": np.__version__,
                "files": {}}
    for name, tensors in files.items():
        data = save(tensors)
        (out / f"{name}.safetensors").write_bytes(data)
        manifest["files"][f"{name}.safetensors"] = hashlib.sha256(data).hexdigest()
    (out / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n")


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    main(*sys.argv[1:])
