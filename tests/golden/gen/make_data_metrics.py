#!/usr/bin/env python3
"""Makes tests/golden/data_metrics: random batches, of which rollout correction rejected tokens and whole rows, with the
metrics of a step that verl's compute_data_metrics gives for them. The functions are taken out of an unpacked verl (pip
download --no-deps verl, version 0.9.1 or later) without importing the rest of it. Needs torch.

    python make_data_metrics.py VERL_DIRECTORY DIRECTORY

Numbers are integers in units of 1/64; masks are texts of 0 and 1, row after row. "mask" is response_mask before the
rejection, "kept" after it. Metrics stand in the order of "names"; NaN is null."""
import ast
import hashlib
import json
import logging
import math
import pathlib
import random
import sys
import types
from typing import Any

import torch

SEED = 20261128
UNIT = 64
CASES = 40
COLUMNS = ["token_level_scores", "token_level_rewards", "advantages", "returns", "values"]


def function_of(verl):
    names = {"_compute_response_info", "compute_data_metrics"}
    tree = ast.parse((verl / "verl/trainer/ppo/metric_utils.py").read_text())
    found = [n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name in names]
    space = {"torch": torch, "Any": Any, "logger": logging.getLogger("verl")}
    module = ast.Module(body=[ast.ImportFrom("__future__", [ast.alias("annotations")], 0)] + found, type_ignores=[])
    exec(compile(ast.fix_missing_locations(module), "metric_utils", "exec"), space)
    return space["compute_data_metrics"]


def make_case(rng, measure, names):
    rows, prompt, width = rng.randint(2, 6), rng.randint(1, 4), rng.randint(1, 5)
    lengths = [rng.choice([0, rng.randint(1, width), width]) for _ in range(rows)]
    lengths[rng.randrange(rows)] = width
    mask = [int(t < length) for length in lengths for t in range(width)]
    rejected_rows = [rng.random() < 0.4 for _ in range(rows)]
    kept = [m * int(not rejected_rows[i // width] and rng.random() < 0.8) for i, m in enumerate(mask)]
    attention = []
    for row, length in enumerate(lengths):
        real = rng.randint(1, prompt)
        attention += [0] * (prompt - real) + [1] * (real + length) + [0] * (width - length)
    numbers = {name: [rng.randrange(-3 * UNIT, 3 * UNIT) if m or name in COLUMNS[2:] else 0 for m in mask]
               for name in COLUMNS}
    tensors = {name: torch.tensor(x, dtype=torch.float64).view(rows, width) / UNIT for name, x in numbers.items()}
    tensors["response_mask"] = torch.tensor(kept).view(rows, width)
    tensors["attention_mask"] = torch.tensor(attention).view(rows, prompt + width)
    tensors["prompts"], tensors["responses"] = torch.zeros(rows, prompt), torch.zeros(rows, width)
    metrics = measure(types.SimpleNamespace(batch=tensors, non_tensor_batch={}))
    names += [name for name in metrics if name not in names]
    text = lambda bits: "".join(map(str, bits))
    return {"rows": rows, "prompt": prompt, "width": width, "attention": text(attention), "mask": text(mask),
            "kept": text(kept), **numbers, "values_of": [names.index(name) for name in metrics],
            "expected": [None if math.isnan(x) else float(f"{x:.10g}") for x in metrics.values()]}


def main(verl, directory):
    rng, names = random.Random(SEED), []
    cases = [make_case(rng, function_of(verl), names) for _ in range(CASES)]
    path = directory / "cases.json"
    path.write_text(json.dumps({"names": names, "cases": cases}, separators=(",", ":")) + "\n")
    version = next(verl.glob("verl-*.dist-info")).name.split("-")[1].removesuffix(".dist")
    manifest = {"script": "tests/golden/gen/make_data_metrics.py", "seed": SEED, "python": sys.version.split()[0],
                "verl": version, "torch": torch.__version__,
                "sha256": {"cases.json": hashlib.sha256(path.read_bytes()).hexdigest()}}
    (directory / "manifest.json").write_text(json.dumps(manifest, indent=2) + "\n")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]))
