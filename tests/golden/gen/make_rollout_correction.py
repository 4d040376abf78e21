#!/usr/bin/env python3
"""Makes tests/golden/rollout_correction: random batches with the weights, masks and metrics that verl's own functions give
for them in f64, the loss bypass_mode on others with autograd's gradient, and verl's presets. The functions are taken out of an unpacked verl (pip download --no-deps verl, version
0.9.1 or later) without importing the rest of it. Needs torch.

    python make_rollout_correction.py VERL_DIRECTORY DIRECTORY

Log-probs are integers in units of 1/64, so that f32 holds them exactly; masks are texts of 0 and 1; weights stand for the
counted tokens only, row after row, and so do gradients. Metrics stand in the order of "names" without their prefix."""
import ast
import dataclasses
import hashlib
import json
import math
import pathlib
import random
import sys
import types
from typing import Any, Optional

import torch

SEED = 20261122
UNIT = 64
CASES_PER_FILE = 120
BYPASS_CASES_PER_FILE = 100
MODES = ["token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"]
OPTIONS = ["token_k1", "token_k2", "token_k3", "seq_sum_k1", "seq_sum_k2", "seq_sum_k3", "seq_mean_k1", "seq_mean_k2",
           "seq_mean_k3", "seq_max_k2", "seq_max_k3"]


def take(path, space):
    """Functions, classes and constants of a file, executed in `space`."""
    tree = ast.parse(path.read_text())
    body = [node for node in tree.body if isinstance(node, (ast.FunctionDef, ast.AnnAssign, ast.Assign, ast.ClassDef))]
    for node in body:
        node.decorator_list = [d for d in getattr(node, "decorator_list", []) if ast.unparse(d) == "dataclass"]
    module = ast.Module(body=[ast.ImportFrom("__future__", [ast.alias("annotations")], 0)] + body, type_ignores=[])
    exec(compile(ast.fix_missing_locations(module), str(path), "exec"), space)
    return space


class Proto:
    @staticmethod
    def from_dict(tensors):
        return types.SimpleNamespace(batch=tensors)


def helper_of(verl):
    tree = ast.parse((verl / "verl/utils/torch_functional.py").read_text())
    found = [n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name in ("masked_sum", "masked_mean")]
    functional = {"torch": torch}
    exec(compile(ast.Module(body=found, type_ignores=[]), "torch_functional", "exec"), functional)
    space = {"torch": torch, "math": math, "Any": Any, "Optional": Optional, "DataProto": Proto,
             "verl_F": types.SimpleNamespace(**functional)}
    return take(verl / "verl/trainer/ppo/rollout_corr_helper.py", space)


class Config(types.SimpleNamespace):
    def get(self, key, default=None):
        return getattr(self, key, default)


def bypass_loss_of(verl, helper):
    """verl's loss, which imports the helper by its module."""
    names = {"agg_loss", "compute_policy_loss_vanilla", "compute_policy_loss_reinforce", "compute_policy_loss_bypass_mode"}
    tree = ast.parse((verl / "verl/trainer/ppo/core_algos.py").read_text())
    found = [n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name in names]
    for node in found:
        node.decorator_list = []
    space = {"torch": torch, "verl_F": helper["verl_F"], "AlgoConfig": type("AlgoConfig", (), {})}
    module = ast.Module(body=[ast.ImportFrom("__future__", [ast.alias("annotations")], 0)] + found, type_ignores=[])
    exec(compile(ast.fix_missing_locations(module), "core_algos", "exec"), space)
    for name in ("verl", "verl.trainer", "verl.trainer.ppo"):
        sys.modules[name] = types.ModuleType(name)
    sys.modules["verl.trainer.ppo.rollout_corr_helper"] = types.SimpleNamespace(**helper)
    return space["compute_policy_loss_bypass_mode"]


def presets_of(verl):
    path = verl / "verl/trainer/config/algorithm.py"
    tree = ast.parse(path.read_text())
    node = next(n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == "RolloutCorrectionConfig")
    node.bases = []
    space = {"dataclass": dataclasses.dataclass, "Optional": Optional}
    exec(compile(ast.Module(body=[node], type_ignores=[]), str(path), "exec"), space)
    config = space["RolloutCorrectionConfig"]
    names = [n.name for n in node.body if isinstance(n, ast.FunctionDef) and
             any(ast.unparse(d) == "classmethod" for d in n.decorator_list)]
    return {name: dataclasses.asdict(getattr(config, name)()) for name in names}


def number(value):
    return float(f"{value:.10g}")


def make_inputs(rng, index):
    num_rows = 1 if index % 8 == 0 else rng.randint(2, 4)
    width = 1 if index % 24 == 0 else rng.randint(2, 6)
    spread = rng.choice([0.05, 0.3, 1.0, 3.0, 21.0, 40.0])
    lengths = [rng.choice([0, rng.randint(1, width), width]) for _ in range(num_rows)]
    lengths[rng.randrange(num_rows)] = rng.randint(1, width)
    old, rollout, mask = [], [], []
    for length in lengths:
        holes = rng.random() < 0.2
        for t in range(width):
            base = -rng.expovariate(1.0)
            shift = spread * rng.uniform(-1, 1)
            rollout.append(min(0, round(base * UNIT)))
            old.append(min(0, round((base + shift) * UNIT)) if spread < 20 else round((base + shift) * UNIT))
            mask.append(int(t < length and not (holes and 0 < t and rng.random() < 0.5)))
    return num_rows, width, old, rollout, mask


def threshold_of(rng, option):
    if option.endswith("k1"):
        return rng.choice(["0.5_2.0", "2", "0.9_1.2", "0.001_3", "1.01_1.5", "1.5"])
    return rng.choice(["0.01", "0.2", "1", "5.5", "1e3"])


def make_config(rng):
    level = rng.choice([None, "token", "token", "sequence", "sequence"])
    config = {"rollout_is": level, "rollout_is_threshold": rng.choice([2.0, "1.5", 5, "0.5_5.0", "0.7_2.0", "0.95_1.05"]),
              "rollout_is_batch_normalize": rng.random() < 0.4, "rollout_rs": None, "rollout_rs_threshold": None}
    count = rng.choice([0, 1, 1, 1, 2, 3])
    if count:
        options = rng.sample(OPTIONS, count)
        bounds = [threshold_of(rng, option) for option in options]
        if count > 1 and rng.random() < 0.2:  # one for all
            options = [o for o in options if o.endswith("k1") == options[0].endswith("k1")]
            bounds = bounds[:1]
        config["rollout_rs"] = ",".join(options + options[:1] * (rng.random() < 0.1))
        config["rollout_rs_threshold"] = ",".join(bounds)
    return config


def make_case(rng, index, helper, names):
    num_rows, width, old, rollout, mask = make_inputs(rng, index)
    config = make_config(rng)
    shape = (num_rows, width)
    as_log_probs = lambda units: torch.tensor(units, dtype=torch.float64).view(shape) / UNIT
    proto, new_mask, metrics = helper["compute_rollout_correction_and_rejection_mask"](
        as_log_probs(old), as_log_probs(rollout), torch.tensor(mask, dtype=torch.float64).view(shape), **config)
    for name in metrics:
        if name not in names:
            names.append(name)
    case = {"rows": num_rows, "width": width, "old": old, "rollout": rollout, "mask": "".join(map(str, mask)),
            "config": config, "keep": "".join(str(int(x)) for x in new_mask.flatten().tolist()),
            "names": [names.index(name) for name in metrics], "values": [number(x) for x in metrics.values()]}
    if proto:
        weights = proto.batch["rollout_is_weights"].flatten().tolist()
        assert all(m or w == 0 for w, m in zip(weights, mask))
        case["weights"] = [number(w) for w, m in zip(weights, mask) if m]
    return case


BYPASS_METRICS = ["rollout_is_mean", "rollout_is_max", "rollout_is_min", "rollout_is_ratio_fraction_high",
                  "rollout_is_ratio_fraction_low", "rollout_is_oob_ratio", "rollout_rs_masked_fraction",
                  "rollout_rs_seq_masked_fraction", "kl", "k3_kl", "chi2_token", "chi2_seq", "training_ppl",
                  "training_log_ppl", "rollout_ppl", "rollout_log_ppl", "log_ppl_diff", "log_ppl_abs_diff",
                  "log_ppl_diff_max", "log_ppl_diff_min", "ppl_ratio"]


def make_bypass_case(rng, index, loss_fn, names):
    num_rows, width, log_prob, rollout, mask = make_inputs(rng, index)
    shape = (num_rows, width)
    advantages = [rng.randrange(-3 * UNIT, 3 * UNIT) for _ in mask]
    as_tensor = lambda units: torch.tensor(units, dtype=torch.float64).view(shape) / UNIT
    low, high = rng.choice([(0.2, 0.2), (0.2, 0.28), (0.1, 0.5)])
    correction = {**make_config(rng), "loss_type": rng.choice(["ppo_clip", "reinforce"])}
    correction["rollout_is_batch_normalize"] = False
    info = {"batch_num_tokens": sum(mask) + rng.choice([0, 1, 17]), "global_batch_size": num_rows + rng.choice([0, 0, 3]),
            "loss_scale_factor": rng.choice([width, 10, 4096])}
    config = Config(clip_ratio=0.2, clip_ratio_low=low, clip_ratio_high=high, clip_ratio_c=rng.choice([1.2, 3.0, 20.0]),
                    global_batch_info={"dp_size": 1, **info}, policy_loss=Config(rollout_correction=Config(**correction)))
    leaf = as_tensor(log_prob).requires_grad_(True)
    loss, metrics = loss_fn(as_tensor(rollout), leaf, as_tensor(advantages), torch.tensor(mask, dtype=torch.float64).view(shape),
                            MODES[index % len(MODES)], config)
    loss.backward()
    metrics = {name.split("/")[1]: value for name, value in metrics.items()}
    metrics = {name: metrics[name] for name in ["ppo_kl", "pg_clipfrac", "pg_clipfrac_lower"] + BYPASS_METRICS
               if name in metrics}
    names += [name for name in metrics if name not in names]
    return {"rows": num_rows, "width": width, "old": log_prob, "rollout": rollout, "advantages": advantages,
            "mask": "".join(map(str, mask)), "mode": MODES[index % len(MODES)], "config": correction,
            "clip": [low, high, config.clip_ratio_c], "global": list(info.values()), "loss": number(loss.item()),
            "grad": [number(g) for g, m in zip(leaf.grad.flatten().tolist(), mask) if m],
            "names": [names.index(name) for name in metrics], "values": [number(x) for x in metrics.values()]}


def make_good_case(make, rng, index, function, names):
    while True:
        try:
            return make(rng, index, function, names)
        except ZeroDivisionError:  # all weights are 0: verl divides by their mean square
            continue


def main(verl, directory):
    helper = helper_of(verl)
    rng = random.Random(SEED)
    hashes = {}
    outputs = {"presets.json": presets_of(verl)}
    for part in range(2):
        names = []
        cases = [make_good_case(make_case, rng, index, helper, names) for index in range(CASES_PER_FILE)]
        outputs[f"cases_{part}.json"] = {"names": [n.removeprefix("rollout_corr/") for n in names], "cases": cases}
    loss_fn = bypass_loss_of(verl, helper)
    for part in range(2):
        names = []
        cases = [make_good_case(make_bypass_case, rng, index, loss_fn, names) for index in range(BYPASS_CASES_PER_FILE)]
        outputs[f"bypass_{part}.json"] = {"names": names, "cases": cases}
    for name, golden in outputs.items():
        path = directory / name
        path.write_text(json.dumps(golden, separators=(",", ":")) + "\n")
        hashes[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    version = next(verl.glob("verl-*.dist-info")).name.split("-")[1].removesuffix(".dist")
    manifest = {"script": "tests/golden/gen/make_rollout_correction.py", "seed": SEED, "python": sys.version.split()[0],
                "verl": version, "torch": torch.__version__, "sha256": hashes}
    (directory / "manifest.json").write_text(json.dumps(manifest, indent=2) + "\n")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]))
