#!/usr/bin/env python3
"""Makes tests/golden/validation: samples of validations and the metrics that verl's own functions give for them, and
verl's choice of the samples that are shown. The functions are taken out of an unpacked verl (pip download --no-deps verl)
without importing the rest of it. Needs numpy.

    python make_validation.py VERL_DIRECTORY DIRECTORY"""
import ast
import hashlib
import json
import pathlib
import random
import sys
from collections import defaultdict
from functools import partial
from typing import Any, Callable

import numpy as np

SEED = 20260131


def take(path, names):
    """The functions of these names, methods included, of a file."""
    tree = ast.parse(path.read_text())
    found = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name in names]
    space = {"np": np, "defaultdict": defaultdict, "partial": partial, "Any": Any, "Callable": Callable}
    exec(compile(ast.Module(body=found, type_ignores=[]), str(path), "exec"), space)
    return space


def make_case(rng, num_prompts, num_samples, sources, with_pred, missing):
    samples = []
    for prompt in range(num_prompts):
        source = sources[prompt % len(sources)]
        for _ in range(num_samples):
            right = rng.random() < 0.4
            sample = {"data_source": source, "prompt": prompt, "reward": rng.choice([0.0, 0.1, 1.0, rng.random()])}
            sample["acc"] = right if rng.random() < 0.5 else float(right)
            if with_pred:
                sample["pred"] = rng.choice(["7", "8", "72", "[INVALID]"])
            sample["length"] = rng.randrange(500)
            if rng.random() < missing:
                sample[rng.choice([name for name in sample if name in ("acc", "pred", "length")])] = None
            samples.append(sample)
    rng.shuffle(samples)
    return samples


def metrics_of(samples, process, update):
    variables = [name for name in samples[0] if name not in ("data_source", "prompt")]
    infos = {name: [sample.get(name) for sample in samples] for name in variables}
    space = update.__globals__
    space["process_validation_metrics"] = process
    sources = [sample["data_source"] for sample in samples]
    return update(None, sources, [sample["prompt"] for sample in samples], infos, [])


def shown(count):
    """As the trainer does it: sorted by input, shuffled by RandomState(42)."""
    items = [chr(ord("a") + i) if count <= 26 else f"{i:04d}" for i in range(count)]
    np.random.RandomState(42).shuffle(items)
    return [sorted(items).index(item) for item in items]


def main(verl, directory):
    trainer = verl / "verl/trainer/ppo"
    process = take(trainer / "metric_utils.py", {"process_validation_metrics", "bootstrap_metric", "calc_maj_val"})
    update = take(trainer / "ray_trainer.py", {"_val_metrics_update"})["_val_metrics_update"]
    rng = random.Random(SEED)
    cases = []
    for num_prompts, num_samples, sources, with_pred, missing in [
        (3, 1, ["openai/gsm8k"], False, 0.0),
        (2, 2, ["a", "b"], False, 0.0),
        (3, 3, ["a"], True, 0.0),
        (2, 5, ["a", "b"], True, 0.0),
        (2, 8, ["math"], True, 0.2),
        (3, 4, ["a", "b"], True, 0.5),
        (1, 16, ["a"], True, 0.0),
    ]:
        samples = make_case(rng, num_prompts, num_samples, sources, with_pred, missing)
        metrics = metrics_of(samples, process["process_validation_metrics"], update)
        cases.append({"samples": samples, "metrics": {name: float(value) for name, value in metrics.items()}})
    golden = {"cases": cases, "shown": [shown(count) for count in (1, 2, 10, 33, 70)]}
    path = directory / "cases.json"
    path.write_text(json.dumps(golden, separators=(",", ":")) + "\n")
    version = next(verl.glob("verl-*.dist-info")).name.split("-")[1].removesuffix(".dist")
    manifest = {"script": "tests/golden/gen/make_validation.py", "seed": SEED, "python": sys.version.split()[0],
                "verl": version, "numpy": np.__version__,
                "sha256": {path.name: hashlib.sha256(path.read_bytes()).hexdigest()}}
    (directory / "manifest.json").write_text(json.dumps(manifest, indent=2) + "\n")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]))
