"""GRPO on the task of examples/digits. Usage: grpo_digits.py HOSTS STEPS"""
import json
import pathlib
import sys

import numpy as np
import rankd

DIGITS = pathlib.Path(__file__).parents[3] / "examples" / "digits"
PROMPTS, SAMPLES, LENGTH = 90, 16, 8  # prompts, responses of each, tokens
ALPHABET = "0123456789,:"  # ids from 2 on; 0 pads, 1 ends


def score(got: str, want: str) -> float:
    """1 for the right answer; part for close digits and the right length."""
    points = float(len(got) == len(want))
    for a, b in zip(got, want):
        away = abs(int(a) - int(b)) if (a + b).isdigit() else 5
        points += 1 if a == b else max(0.0, 0.5 - min(away, 10 - away) / 6)
    return points / (max(len(got), len(want)) + 1)


def setup(group: rankd.Client) -> None:
    group.configure({"actor": rankd.Mesh(tp=2), "rollout": rankd.Mesh(tp=2)})
    config = json.loads((DIGITS / "config.json").read_text())
    group.actor.init_model({"model.hf_config": config, "megatron.seed": 42,
                            "optim.lr": 1e-3, "optim.betas": [0.9, 0.99]})
    group.rollout.init_model({"share_weights_of": "actor"})


def step(group: rankd.Client, lines: "list[str]", i: int) -> rankd.Metrics:
    stream = np.arange(PROMPTS * SAMPLES) + i * PROMPTS * SAMPLES
    rows = [json.loads(lines[n // SAMPLES % len(lines)]) for n in stream]
    ids = [[ALPHABET.index(c) + 2 for c in row["prompt"]] for row in rows]
    batch = group.rollout.generate_sequences(
        {**rankd.pad_prompts(ids, LENGTH), "stream": stream},
        {"response_length": LENGTH}).batch
    texts = ["".join(ALPHABET[id - 2] for id in response if id > 1)
             for response in batch.array("responses")]
    scores = [score(text, row["reward_model"]["ground_truth"])
              for text, row in zip(texts, rows)]
    batch["advantages"] = rankd.grpo_advantages(
        scores, batch.array("response_mask"), SAMPLES)
    batch = group.balance("actor", batch, 30 * SAMPLES)  # 3 updates a step
    batch.update(group.actor.compute_log_prob(
        batch, group.plan("actor", batch)).batch)
    update = group.actor.update_actor(
        batch, group.plan("actor", batch, mini_batch_rows=30 * SAMPLES),
        {"clip_ratio_high": 0.28, "entropy_coeff": 0.2})
    return {**update.metrics, "reward": float(np.mean(scores))}


if __name__ == "__main__":
    with rankd.connect(sys.argv[1]) as group:
        group.claim()
        setup(group)
        lines = (DIGITS / "train.jsonl").read_text().splitlines()
        for i in range(int(sys.argv[2])):
            reward = step(group, lines, i)["reward"]
            print(f"step {i + 1}  reward {reward:.4f}", flush=True)
