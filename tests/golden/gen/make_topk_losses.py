#!/usr/bin/env python3
"""Makes tests/golden/topk_losses: random micro-batches with the logits of a student and a teacher, and what
distillation over the teacher's top-k gives for them in float64, with the gradients of autograd by the student's logits.
The functions are taken out of a verl checkout and an unpacked TRL (pip download --no-deps trl) as in make_losses.py.
Needs torch, numpy and safetensors.

    python make_topk_losses.py VERL_DIRECTORY VERL_COMMIT TRL_DIRECTORY DIRECTORY

inputs.safetensors: NUM_CASES micro-batches, packed as there; logits are [tokens, vocab_size] of the case, ids and
teacher_log_probs [tokens, topk]. outputs.safetensors: "MODE.loss" [cases], "MODE.grad" as logits, "MODE.METRIC" [cases].

forward_kl_topk: verl's own functions; where renormalize_topk is on they get a teacher whose top-k sums to 1.
reverse_kl_topk and jsd_topk: TRL's own generalized_jsd_loss (beta 1, and the case's) where topk is the vocabulary; where
it is not, the same function of distributions over the topk ids and one more outcome, the rest. Clamp, policy gradient
and aggregation: verl's. overlap_token_advantage: verl's mean times the share of the tokens that it is over."""
import hashlib
import json
import math
import pathlib
import random
import sys
import types

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.numpy import save

from make_losses import MODES, ActorConfig, actor_config, load_verl, make_mask, take

SEED = 20260823
NUM_CASES = 200
CONFIG = ["agg_mode", "num_tokens", "num_sequences", "scale", "has_is_weights", "clip_ratio_low", "clip_ratio_high",
          "loss_max_clamp", "use_policy_gradient", "topk", "vocab_size", "beta", "log_prob_min_clamp",
          "renormalize_topk"]
POLICY = ["clip_ratio_c", "tau_pos", "tau_neg", "clip_cov_ratio", "clip_cov_lb", "clip_cov_ub", "kl_cov_ratio",
          "ppo_kl_coef", "dro_beta"]  # keys of other losses that actor_config requires
LOSS_MODES = ["forward_kl_topk", "reverse_kl_topk", "jsd_topk"]
METRICS = ["loss_min", "loss_max", "student_mass", "student_mass_min", "student_mass_max", "teacher_mass",
           "teacher_mass_min", "teacher_mass_max", "overlap_ratio", "overlap_token_advantage"]
REST_MIN = 1e-6


def load(verl_directory, trl_directory):
    verl = load_verl(verl_directory)
    space = {"torch": torch, "F": F, "get_ulysses_sequence_parallel_world_size": lambda: 1}
    names = {"kl_divergence", "compute_forward_kl_topk"}
    verl.topk_outputs = take(verl_directory / "verl/trainer/distillation/fsdp/losses.py", names,
                             space).compute_forward_kl_topk
    verl.space = verl.distillation_loss.__globals__
    verl.forward_kl = take(verl_directory / "verl/trainer/distillation/losses.py", {"compute_forward_kl_topk"},
                           verl.space).compute_forward_kl_topk
    verl.generalized_jsd = take(trl_directory / "trl/trainer/gkd_trainer.py", {"generalized_jsd_loss"},
                                {"torch": torch, "F": F}).generalized_jsd_loss
    return verl


# --- cases ---
def make_case(rng, index):
    lengths = [rng.randint(1, 4) for _ in range(rng.choice([1, 1, 2, 3]))]
    mask = make_mask(rng, lengths, max(lengths))
    vocab_size, scale = rng.randint(3, 10), rng.choice([1.0, 3.0, 8.0])
    topk = rng.choice([vocab_size, rng.randint(1, vocab_size), rng.randint(1, vocab_size)])
    kind = rng.choice(["near", "far", "far"])
    logits, teacher = [], []
    for _ in range(sum(lengths)):
        row = [rng.gauss(0.0, scale) for _ in range(vocab_size)]
        logits.append(row)
        teacher.append([rng.gauss(x, 0.1) if kind == "near" else rng.gauss(0.0, scale) for x in row])
    low, high = rng.choice([(0.2, 0.2), (0.2, 0.28), (0.9, 3.0)])
    config = {
        "agg_mode": index % len(MODES), "num_tokens": int(mask.sum()) + rng.choice([0, 1, 17]) + (not mask.any()),
        "num_sequences": len(lengths) + rng.choice([0, 0, 3]), "scale": rng.choice([mask.shape[1], 10, 4096]),
        "has_is_weights": int(rng.random() < 0.4), "clip_ratio_low": low, "clip_ratio_high": high,
        "loss_max_clamp": rng.choice([0.0, 0.0, 0.5]), "use_policy_gradient": int(rng.random() < 0.25), "topk": topk,
        "vocab_size": vocab_size, "beta": rng.choice([0.0, 0.1, 0.5, 0.5, 0.9, 1.0]),
        "log_prob_min_clamp": rng.choice([0.0, 0.0, -10.0, -2.0]), "renormalize_topk": int(rng.random() < 0.2)}
    log_probs = torch.log_softmax(torch.tensor(teacher, dtype=torch.float64), dim=-1)
    top = torch.topk(log_probs, topk, dim=-1)
    count = sum(lengths)
    case = types.SimpleNamespace(lengths=lengths, mask=mask, config=config)
    case.logits = np.float32(logits)
    case.teacher_log_probs = top.values.numpy()  # f64: over the whole vocabulary they sum to 1
    case.ids = np.int32(top.indices.numpy())
    case.labels = np.int32([rng.randrange(vocab_size) for _ in range(count)])
    case.old = np.float32([rng.gauss(-1.0, 0.7) for _ in range(count)])
    case.is_weights = np.float32([rng.uniform(0.0, 2.0) for _ in range(count)])
    return case


# --- expected results ---
def padded(case, packed):
    """[tokens] to [rows, width]; differentiable."""
    rows, begin, width = [], 0, case.mask.shape[1]
    for length in case.lengths:
        rows.append(F.pad(packed[begin:begin + length], (0, width - length)))
        begin += length
    return torch.stack(rows)


def divergence(verl, mode, case, logits, teacher_log_probs, ids):
    """Of every token, with GKD's formula."""
    beta = 1.0 if mode == "reverse_kl_topk" else case.config["beta"]
    low = case.config["log_prob_min_clamp"] or -math.inf
    student = torch.log_softmax(logits, dim=-1).gather(1, ids)
    parts = [student.clamp_min(low), teacher_log_probs.clamp_min(low)]
    if case.config["topk"] == case.config["vocab_size"] and low == -math.inf:
        # TRL's softmax has no effect: these are log-probs over the whole vocabulary.
        return verl.generalized_jsd(parts[0], parts[1], beta=beta, reduction="none").sum(-1)
    for i, log_probs in enumerate((student, teacher_log_probs)):
        rest = (1.0 - log_probs.exp().sum(-1, keepdim=True)).clamp_min(REST_MIN)
        parts[i] = torch.cat([parts[i], rest.log()], dim=-1)
    s, t = parts
    if beta == 0.0:
        return (t.exp() * (t - s)).sum(-1)
    if beta == 1.0:
        return (s.exp() * (s - t)).sum(-1)
    m = torch.log((1.0 - beta) * s.exp() + beta * t.exp())
    return (beta * t.exp() * (t - m) + (1.0 - beta) * s.exp() * (s - m)).sum(-1)


def topk_outputs(verl, case, logits, teacher_log_probs, ids):
    offsets = torch.tensor([0] + list(np.cumsum(case.lengths)))
    loss = ActorConfig(log_prob_min_clamp=case.config["log_prob_min_clamp"] or None, use_chunked_topk=False)
    nested = [torch.nested.nested_tensor_from_jagged(x, offsets) for x in (teacher_log_probs, ids)]
    return {key: padded(case, value[0]) for key, value in verl.topk_outputs(
        logits[None], nested[0], nested[1], ActorConfig(distillation_loss=loss), "thd").items()}


def evaluate(verl, mode, case):
    if not case.mask.any():  # verl takes the minimum over no tokens and fails
        return 0.0, np.zeros_like(case.logits), dict.fromkeys(METRICS, 0.0)
    logits = torch.tensor(case.logits, dtype=torch.float64, requires_grad=True)
    ids, raw = torch.tensor(case.ids, dtype=torch.long), torch.tensor(case.teacher_log_probs, dtype=torch.float64)
    mask, given = torch.tensor(case.mask), raw
    if mode == "forward_kl_topk" and case.config["renormalize_topk"]:
        given = raw - torch.logsumexp(raw, dim=-1, keepdim=True)
    outputs = topk_outputs(verl, case, logits, given, ids)
    outputs["teacher_mass"] = padded(case, raw.exp().sum(-1))
    values = padded(case, divergence(verl, mode, case, logits, raw, ids))

    def loss_fn(**arguments):
        losses, metrics = verl.forward_kl(**arguments)
        return (losses if mode == "forward_kl_topk" else values), metrics

    verl.space["get_distillation_loss_fn"] = lambda name: loss_fn
    config = case.config
    settings = ActorConfig(loss_mode=mode, policy_loss_mode="vanilla", clip_ratio=0.2, global_batch_info={},
                           use_policy_gradient=bool(config["use_policy_gradient"]), topk=config["topk"],
                           loss_max_clamp=config["loss_max_clamp"] or None, clip_ratio_low=config["clip_ratio_low"],
                           clip_ratio_high=config["clip_ratio_high"])
    labels = torch.tensor(case.labels, dtype=torch.long)[:, None]
    outputs["log_probs"] = padded(case, torch.log_softmax(logits, dim=-1).gather(1, labels)[:, 0])
    data = {"response_mask": mask, "old_log_probs": padded(case, torch.tensor(case.old, dtype=torch.float64)),
            "dp_size": 1, "batch_num_tokens": config["num_tokens"], "global_batch_size": config["num_sequences"]}
    if config["has_is_weights"]:
        data["rollout_is_weights"] = padded(case, torch.tensor(case.is_weights, dtype=torch.float64))
    loss, metrics = verl.distillation_loss(actor_config(config | dict.fromkeys(POLICY, 1.0)),
                                           ActorConfig(distillation_loss=settings), outputs, data)
    grad = torch.autograd.grad(loss, logits, allow_unused=True)[0]
    metrics = {key.removeprefix("distillation/"): float(torch.as_tensor(getattr(value, "value", value)).detach())
               for key, value in metrics.items()}
    share = ((outputs["overlap_count"] > 0) & mask).sum() / mask.sum()
    metrics["overlap_token_advantage"] *= float(share)
    return (float(loss.detach()), np.zeros_like(case.logits) if grad is None else grad.numpy(),
            {key: metrics[key] for key in METRICS})


def main(verl_directory, commit, trl_directory, directory):
    torch.Tensor.float = torch.Tensor.double  # verl's kl_divergence rounds to float32
    verl = load(verl_directory, trl_directory)
    rng = random.Random(SEED)
    cases = [make_case(rng, index) for index in range(NUM_CASES)]
    inputs = {"rows": np.int32([len(case.lengths) for case in cases]),
              "lengths": np.int32([n for case in cases for n in case.lengths]),
              "mask": np.uint8([bool(case.mask[i, t]) for case in cases for i, n in enumerate(case.lengths)
                                for t in range(n)]),
              "config": np.float64([[case.config[key] for key in CONFIG] for case in cases])}
    for name in ("logits", "ids", "teacher_log_probs", "labels", "old", "is_weights"):
        inputs[name] = np.concatenate([getattr(case, name).reshape(-1) for case in cases])
    outputs = {}
    for mode in LOSS_MODES:
        results = [evaluate(verl, mode, case) for case in cases]
        outputs[f"{mode}.loss"] = np.float64([loss for loss, _, _ in results])
        outputs[f"{mode}.grad"] = np.float32(np.concatenate([grad.reshape(-1) for _, grad, _ in results]))
        for key in METRICS:
            outputs[f"{mode}.{key}"] = np.float32([metrics[key] for _, _, metrics in results])
    manifest = {"script": "tests/golden/gen/make_topk_losses.py", "seed": SEED, "python": sys.version.split()[0],
                "torch": torch.__version__, "numpy": np.__version__, "verl": commit,
                "trl": next(trl_directory.glob("trl-*.dist-info")).name.split("-")[1].removesuffix(".dist"),
                "sha256": {}}
    for name, tensors in (("inputs.safetensors", inputs), ("outputs.safetensors", outputs)):
        path = directory / name
        path.write_bytes(save(tensors, {"config": ",".join(CONFIG)} if name == "inputs.safetensors" else None))
        manifest["sha256"][name] = hashlib.sha256(path.read_bytes()).hexdigest()
    (directory / "manifest.json").write_text(json.dumps(manifest, indent=2) + "\n")


if __name__ == "__main__":
    if len(sys.argv) != 5:
        sys.exit(__doc__)
    main(pathlib.Path(sys.argv[1]), sys.argv[2], pathlib.Path(sys.argv[3]), pathlib.Path(sys.argv[4]))
