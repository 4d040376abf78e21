"""GRPO on the digits task (examples/digits) with daemons that run already. usage: grpo_digits.py HOSTS [--steps N]"""
import argparse
import json
import pathlib

import numpy as np
import rankd

PROMPTS, SAMPLES, MINI, LENGTH = 90, 16, 30, 8  # prompts a step, responses a prompt, prompts an update, tokens
ALPHABET = "0123456789,:"  # ids from 2 on; 0 pads, 1 ends


def score(got: str, want: str) -> float:
    """1 for the right answer; a digit close to the right one counts up to 0.5, the right length like a character."""
    near = [abs(int(a) - int(b)) if a.isdigit() and b.isdigit() else 9 for a, b in zip(got, want)]
    parts = [1.0 if a == b else 0.5 * max(0.0, 1 - min(d, 10 - d) / 3) if a.isdigit() and b.isdigit() else 0.0
             for a, b, d in zip(got, want, near)]
    return (sum(parts) + (len(got) == len(want))) / (max(len(got), len(want)) + 1)


def setup(client: rankd.Client, digits: pathlib.Path, tp: int) -> None:
    mesh = rankd.Mesh(tp=tp)
    client.configure({"actor": mesh, "rollout": mesh})
    client.actor.init_model({"model.hf_config": json.loads((digits / "config.json").read_text()), "megatron.seed": 42,
                             "optim.lr": 1e-3, "optim.betas": [0.9, 0.99], "optim.clip_grad": 1.0})
    client.rollout.init_model({"share_weights_of": "actor", "rollout.max_model_len": 2 * LENGTH})


def train(client: rankd.Client, digits: pathlib.Path, steps: int) -> "list[dict[str, float | None]]":
    lines = [json.loads(line) for line in (digits / "train.jsonl").read_text().splitlines()]
    replicas = client.mesh("actor").size["dp"]
    history: "list[dict[str, float | None]]" = []
    for step in range(steps):
        rows = [lines[(step * PROMPTS + i) % len(lines)] for i in range(PROMPTS) for _ in range(SAMPLES)]
        tokens = [[ALPHABET.index(c) + 2 for c in row["prompt"]] for row in rows]
        prompts = np.array([[0] * (LENGTH - len(ids)) + ids for ids in tokens])
        first = step * len(rows)  # every response has a noise stream of its own
        batch = client.rollout.generate_sequences(
            {"prompts": prompts, "attention_mask": (prompts > 0).astype(np.int64),
             "stream": np.arange(first, first + len(rows))}, {"response_length": LENGTH}).batch
        texts = ["".join(ALPHABET[i - 2] for i in ids if i > 1) for ids in batch.array("responses")]
        scores = np.array([score(text, row["reward_model"]["ground_truth"]) for text, row in zip(texts, rows)])
        groups = scores.reshape(-1, SAMPLES)
        normed = (groups - groups.mean(1, keepdims=True)) / (groups.std(1, ddof=1, keepdims=True) + 1e-6)
        mask = batch.array("response_mask")
        batch["advantages"] = (normed.reshape(-1, 1) * mask).astype(np.float32)
        batch = batch.rows(rankd.layout(batch.array("attention_mask").sum(1), replicas, MINI * SAMPLES))
        lengths, counted = batch.array("attention_mask").sum(1), batch.array("response_mask").sum(1)
        tokens_of = batch.select("input_ids", "attention_mask", "position_ids", "responses")
        plan = rankd.make_plan(lengths, replicas, max_token_len=4096)
        old = client.actor.compute_log_prob(tokens_of, plan, {"calculate_entropy": False}).batch
        plan = rankd.make_plan(lengths, replicas, max_token_len=4096, loss_tokens=counted, mini_batch_rows=MINI * SAMPLES)
        update = client.actor.update_actor({**tokens_of, **old, **batch.select("response_mask", "advantages")}, plan,
                                           {"clip_ratio_high": 0.28, "entropy_coeff": 0.2})
        history.append({**update.metrics, "critic/score/mean": float(scores.mean())})
        print(f"step {step + 1}/{steps}  reward {scores.mean():.4f}", flush=True)
    return history


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("hosts", help="ADDRESS,ADDRESS,... or @FILE")
    parser.add_argument("--digits", type=pathlib.Path, default=pathlib.Path(__file__).parents[3] / "examples/digits")
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--tp", type=int, default=2)
    parser.add_argument("--token-file")
    parser.add_argument("--certs", type=pathlib.Path, help="folder of ca.crt, rankctl.crt and rankctl.key: mutual TLS")
    args = parser.parse_args()
    tls = rankd.Tls(*(str(args.certs / name) for name in ("ca.crt", "rankctl.crt", "rankctl.key"))) if args.certs else None
    with rankd.connect(args.hosts, token_file=args.token_file, tls=tls) as group:
        group.claim()
        setup(group, args.digits, args.tp)
        train(group, args.digits, args.steps)
