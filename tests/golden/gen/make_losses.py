#!/usr/bin/env python3
"""Makes tests/golden/losses: random micro-batches and what verl's and TRL's own functions give for them in float64, with
the gradients of autograd. The functions are taken out of a verl checkout and an unpacked TRL (pip download --no-deps
trl) without importing the rest of either. Needs torch, numpy and safetensors.

    python make_losses.py VERL_DIRECTORY VERL_COMMIT TRL_DIRECTORY DIRECTORY

inputs.safetensors: NUM_CASES micro-batches, packed: rows per case, length of each row, then one value a token.
policy.safetensors, other.safetensors: "NAME.loss" [cases], "NAME.grad" [tokens], and "NAME.METRIC" [cases] as verl
reports them, that is, means over the case's own tokens. pairs.safetensors: the preference losses.

verl's own functions: the eleven policy losses, the value loss, the SFT loss, the distillation loss. TRL's own: all
preference losses but sigmoid_norm. Written here, from their definitions: sigmoid_norm and the sums of a training
gateway (SUMS). Where rankd differs by choice:
 - geo_mean: verl takes the mean of the micro-batch's rows; rankd divides by the rows of the mini-batch.
 - clip_cov: verl draws the tokens with torch.randperm; here the draw is replaced by the order of rankd's hash."""
import ast
import dataclasses
import hashlib
import json
import pathlib
import random
import struct
import sys
import types

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.numpy import save

SEED = 20260822
NUM_CASES = 200
MODES = ["token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"]
CONFIG = ["agg_mode", "num_tokens", "num_sequences", "scale", "has_is_weights", "clip_ratio_low", "clip_ratio_high",
          "clip_ratio_c", "tau_pos", "tau_neg", "clip_cov_ratio", "clip_cov_lb", "clip_cov_ub", "kl_cov_ratio",
          "ppo_kl_coef", "dro_beta", "cliprange_value", "kl_type", "loss_max_clamp", "use_policy_gradient"]
POLICY = ["vanilla", "gspo", "sapo", "gpg", "cispo", "dppo_tv", "dppo_kl", "dro", "clip_cov", "kl_cov", "geo_mean"]
KL_TYPES = ["k1", "abs", "k2", "k3"]
PAIR_CONFIG = ["beta", "label_smoothing"]
PAIRS = ["sigmoid", "robust", "hinge", "ipo", "ipo_sum", "sigmoid_norm", "exo_pair", "apo_zero", "apo_down", "nca_pair",
         "sppo_hard"]


def take(path, names, space):
    """The functions of these names of a file, methods included and decorators left out, run in `space`."""
    found = [node for node in ast.walk(ast.parse(path.read_text()))
             if isinstance(node, ast.FunctionDef) and node.name in names]
    if {node.name for node in found} != set(names):
        sys.exit(f"{path}: lacks some of {sorted(names)}")
    for node in found:
        node.decorator_list, node.returns = [], None
        for arg in node.args.args:
            arg.annotation = None
    exec(compile(ast.Module(body=found, type_ignores=[]), str(path), "exec"), space)
    return types.SimpleNamespace(**{name: space[name] for name in names})


# --- the environment that verl's functions need ---
class ActorConfig(types.SimpleNamespace):
    def get(self, key, default=None):
        return getattr(self, key, default)


class AlgoConfig:
    pass


@dataclasses.dataclass
class Metric:
    aggregation: object
    value: object


def load_verl(root):
    helpers = take(root / "verl/utils/torch_functional.py", {"masked_sum", "masked_mean", "clip_by_value"},
                   {"torch": torch})
    space = {"torch": torch, "verl_F": helpers, "ActorConfig": ActorConfig, "AlgoConfig": AlgoConfig}
    names = {f"compute_policy_loss_{name}" for name in POLICY}
    names |= {"agg_loss", "compute_value_loss", "kl_penalty", "kl_penalty_forward"}
    verl = take(root / "verl/trainer/ppo/core_algos.py", names, space)
    verl.masked_mean = helpers.masked_mean
    tu = types.SimpleNamespace(get_non_tensor_data=lambda data, key, default: data.get(key, default))
    padding = types.SimpleNamespace(NO_PADDING="no_padding")
    verl.sft_loss = take(root / "verl/workers/utils/losses.py", {"sft_loss"},
                         {"torch": torch, "tu": tu, "DatasetPadMode": padding,
                          "masked_sum": helpers.masked_sum}).sft_loss
    kinds = types.SimpleNamespace(MEAN="mean", SUM="sum", MIN="min", MAX="max")
    distill_space = {"torch": torch, "AggregationType": kinds, "Metric": Metric, "agg_loss": verl.agg_loss,
                     "no_padding_2_padding": lambda tensor, data: tensor, "kl_penalty": verl.kl_penalty,
                     "get_policy_loss_fn": lambda name: getattr(verl, f"compute_policy_loss_{name}")}
    estimator = "compute_distillation_loss_reverse_kl_estimator"
    take(root / "verl/trainer/distillation/losses.py",
         {"distillation_loss", "compute_distillation_loss_range", estimator}, distill_space)
    distill_space["get_distillation_loss_fn"] = lambda mode: distill_space[estimator]
    verl.distillation_loss = distill_space["distillation_loss"]
    return verl


# --- the selection of clip_cov ---
def philox4x32(counter, key):
    c, k = list(counter), list(key)
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(p1 >> 32) ^ c[1] ^ k[0], p1 & 0xFFFFFFFF, (p0 >> 32) ^ c[3] ^ k[1], p0 & 0xFFFFFFFF]
        k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return c


def choice_order(old_log_prob):
    """torch.nonzero and torch.randperm as clip_cov calls them; the permutation sorts the candidates by rankd's hash."""
    seen = []

    def nonzero(condition):
        seen[:] = np.argwhere(condition.numpy()).tolist()
        return torch.tensor(seen, dtype=torch.long).reshape(-1, 2)

    def word(row, position):
        bits = struct.unpack("<Q", struct.pack("<d", float(old_log_prob[row, position])))[0]
        out = philox4x32([position, 0, bits & 0xFFFFFFFF, bits >> 32], [0x636C6970, 0x5F636F76])
        return out[1] << 32 | out[0]

    def randperm(count):
        return torch.tensor(sorted(range(count), key=lambda i: (word(*seen[i]), i)), dtype=torch.long)

    return nonzero, randperm


# --- cases ---
@dataclasses.dataclass
class Case:
    lengths: list
    mask: np.ndarray  # [B, R], false beyond a row's length
    columns: dict     # name: f64 [B, R]
    config: dict

    def pack(self, matrix):
        return np.concatenate([np.asarray(matrix)[i, :n] for i, n in enumerate(self.lengths)])


def make_log_ratio(rng):
    kind = rng.random()
    if kind < 0.06:
        return rng.choice([-1, 1]) * rng.uniform(18.0, 24.0)
    if kind < 0.4:
        return rng.gauss(0.0, 0.05)
    return rng.gauss(0.0, 0.8)


def make_columns(rng, shape, constant_rows):
    columns = {name: np.zeros(shape) for name in ("log_probs", "old_log_probs", "advantages", "is_weights", "ref")}
    for i in range(shape[0]):
        row = rng.gauss(0.0, 1.0)
        for t in range(shape[1]):
            ratio = make_log_ratio(rng)
            top = -rng.uniform(0.01, 4.0)
            columns["log_probs"][i, t] = top + min(ratio, 0.0)
            columns["old_log_probs"][i, t] = top - max(ratio, 0.0)
            columns["advantages"][i, t] = row if constant_rows else rng.gauss(0.0, 1.5)
            columns["is_weights"][i, t] = rng.uniform(0.0, 2.0)
            columns["ref"][i, t] = columns["log_probs"][i, t] + rng.choice([0.3, 3.0, 12.0]) * rng.gauss(0.0, 1.0)
    return {name: column.astype(np.float32).astype(np.float64) for name, column in columns.items()}


def make_mask(rng, lengths, width):
    mask = np.zeros((len(lengths), width), dtype=bool)
    for i, length in enumerate(lengths):
        kind = rng.random()
        for t in range(length):
            mask[i, t] = kind >= 0.12 and (kind < 0.6 or rng.random() < 0.7)
    return mask


def make_config(rng, index, mask):
    low, high = rng.choice([(0.2, 0.2), (0.2, 0.28), (0.1, 0.5), (3e-4, 4e-4), (0.9, 3.0)])
    kl_type = rng.randrange(len(KL_TYPES))
    return {
        "agg_mode": index % len(MODES), "num_tokens": int(mask.sum()) + rng.choice([0, 1, 17]) + (not mask.any()),
        "num_sequences": mask.shape[0] + rng.choice([0, 0, 3]), "scale": rng.choice([mask.shape[1], 10, 4096]),
        "has_is_weights": int(rng.random() < 0.4), "clip_ratio_low": low, "clip_ratio_high": high,
        "clip_ratio_c": rng.choice([1.2, 3.0, 20.0]), "tau_pos": rng.choice([1.0, 0.5, 2.0]),
        "tau_neg": rng.choice([1.05, 1.0, 3.0]), "clip_cov_ratio": rng.choice([2e-4, 0.1, 0.4]),
        "clip_cov_lb": rng.choice([1.0, 0.05, -0.5]), "clip_cov_ub": rng.choice([5.0, 1.5, 50.0]),
        "kl_cov_ratio": rng.choice([2e-4, 0.15, 0.5]), "ppo_kl_coef": rng.choice([0.1, 1.0]),
        "dro_beta": rng.choice([0.05, 0.1, 1.0]), "cliprange_value": rng.choice([0.5, 0.05, 3.0]),
        "kl_type": kl_type, "loss_max_clamp": rng.choice([0.0, 0.5, 10.0]),
        "use_policy_gradient": int(kl_type == 0 or rng.random() < 0.3),
    }


def make_case(rng, index):
    num_rows = rng.choice([1, 1, 2, 2, 3, 4])
    lengths = [rng.randint(1, 8) for _ in range(num_rows)]
    width = max(lengths) + rng.choice([0, 0, 1])
    mask = make_mask(rng, lengths, width)
    columns = make_columns(rng, mask.shape, num_rows > 1 and rng.random() < 0.3)
    for column in columns.values():  # finite, so that verl's multiplications with the mask work
        column[~mask] = 0.25
    case = Case(lengths, mask, columns, make_config(rng, index, mask))
    if mask.sum() == 2 or len(set(columns["advantages"][mask])) == 1:  # equal covariances: kl_cov may select any of them
        case.config["kl_cov_ratio"] = 1.0
    return case


# --- verl's results ---
def actor_config(config):
    clip = {key: config[key] for key in ("clip_ratio_low", "clip_ratio_high", "clip_ratio_c", "tau_pos", "tau_neg")}
    policy = {key: config[key] for key in ("clip_cov_ratio", "clip_cov_lb", "clip_cov_ub", "kl_cov_ratio",
                                           "ppo_kl_coef", "dro_beta")}
    info = {"dp_size": 1, "batch_num_tokens": config["num_tokens"], "global_batch_size": config["num_sequences"],
            "loss_scale_factor": config["scale"]}
    return ActorConfig(clip_ratio=0.2, policy_loss=ActorConfig(**policy), global_batch_info=info,
                       loss_agg_mode=MODES[config["agg_mode"]], loss_scale_factor=config["scale"], **clip)


def differentiate(case, compute, name="log_probs"):
    """compute(leaf, columns, mask) -> loss, metrics; with the gradient by the column `name`."""
    columns = {key: torch.tensor(value) for key, value in case.columns.items()}
    leaf = columns[name].requires_grad_(True)
    loss, metrics = compute(leaf, columns, torch.tensor(case.mask))
    grad = torch.autograd.grad(loss, leaf, allow_unused=True)[0] if loss.requires_grad else None
    grad = np.zeros(case.mask.shape) if grad is None else grad.numpy()
    metrics = {key: float(torch.as_tensor(value).detach()) for key, value in metrics.items()}
    return float(loss.detach()), case.pack(grad), metrics


def policy_loss(verl, name, case):
    function = getattr(verl, f"compute_policy_loss_{name}")
    config = actor_config(case.config)

    def compute(leaf, columns, mask):
        weights = columns["is_weights"] if case.config["has_is_weights"] else None
        loss, metrics = function(columns["old_log_probs"], leaf, columns["advantages"], mask, config.loss_agg_mode,
                                 config, weights)
        if name == "geo_mean":
            loss = loss * mask.shape[0] / case.config["num_sequences"]
        return loss, {key.removeprefix("actor/"): value for key, value in metrics.items()}

    if name != "clip_cov":
        return differentiate(case, compute)
    saved = torch.nonzero, torch.randperm
    torch.nonzero, torch.randperm = choice_order(case.columns["old_log_probs"])
    try:
        return differentiate(case, compute)
    finally:
        torch.nonzero, torch.randperm = saved


def value_loss(verl, case):
    """vpreds are log_probs, values old_log_probs, returns advantages."""
    info = actor_config(case.config).global_batch_info

    def compute(leaf, columns, mask):
        loss, clipfrac = verl.compute_value_loss(leaf, columns["advantages"], columns["old_log_probs"], mask,
                                                 case.config["cliprange_value"], MODES[case.config["agg_mode"]], **info)
        return loss, {"vf_clipfrac": clipfrac, "vpred_mean": verl.masked_mean(leaf, mask).detach()}

    return differentiate(case, compute)


def sft_loss(verl, case):
    def compute(leaf, columns, mask):
        data = {"dp_size": 1, "batch_num_tokens": case.config["num_tokens"], "pad_mode": "padded",
                "response_mask": mask}
        return verl.sft_loss(None, {"log_probs": leaf}, data)

    return differentiate(case, compute)


def distillation_loss(verl, case):
    if not case.mask.any():  # verl takes the minimum over no tokens and fails
        return 0.0, np.zeros(sum(case.lengths)), {"abs_loss": 0.0, "loss_min": 0.0, "loss_max": 0.0}
    config = actor_config(case.config)
    settings = ActorConfig(loss_mode=KL_TYPES[case.config["kl_type"]], policy_loss_mode="vanilla",
                           use_policy_gradient=bool(case.config["use_policy_gradient"]),
                           loss_max_clamp=case.config["loss_max_clamp"] or None, clip_ratio=0.2,
                           clip_ratio_low=case.config["clip_ratio_low"], global_batch_info={},
                           clip_ratio_high=case.config["clip_ratio_high"])

    def compute(leaf, columns, mask):
        data = {"response_mask": mask, "old_log_probs": columns["old_log_probs"], "dp_size": 1,
                "teacher_logprobs": columns["ref"].unsqueeze(-1), "batch_num_tokens": case.config["num_tokens"],
                "global_batch_size": case.config["num_sequences"]}
        if case.config["has_is_weights"]:
            data["rollout_is_weights"] = columns["is_weights"]
        loss, metrics = verl.distillation_loss(config, ActorConfig(distillation_loss=settings), {"log_probs": leaf},
                                               data)
        metrics = {key.removeprefix("distillation/"): getattr(value, "value", value) for key, value in metrics.items()}
        return loss, {key: metrics[key] for key in ("abs_loss", "loss_min", "loss_max")}

    return differentiate(case, compute)


# --- sums of a training gateway, from their definitions ---
def sum_loss(name, case):
    low, high = 1.0 - case.config["clip_ratio_low"], 1.0 + case.config["clip_ratio_high"]

    def compute(leaf, columns, mask):
        weights, ratio = columns["advantages"], torch.exp(leaf - columns["old_log_probs"])
        if name == "gspo":
            mean = torch.stack([row[m].sum() / max(int(m.sum()), 1)
                                for row, m in zip((leaf - columns["old_log_probs"]).detach(), mask)])
            ratio = torch.exp(mean[:, None] + leaf - leaf.detach())
        terms = {
            "cross_entropy": lambda: -weights * leaf,
            "importance_sampling": lambda: -ratio * weights,
            "ppo": lambda: -torch.minimum(ratio * weights, ratio.clamp(low, high) * weights),
            "cispo": lambda: -ratio.clamp(low, high).detach() * leaf * weights,
            "dro": lambda: -(leaf * weights - case.config["dro_beta"] / 2 * (leaf - columns["old_log_probs"]) ** 2),
        }
        terms["gspo"] = terms["ppo"]
        return terms[name]()[mask].sum(), {}

    return differentiate(case, compute)


SUMS = ["cross_entropy", "importance_sampling", "ppo", "cispo", "dro", "gspo"]


# --- preference losses ---
def load_trl(root):
    kinds = {name: types.SimpleNamespace(value=name) for name in ("ALPHA_DIVERGENCE", "JS_DIVERGENCE")}
    space = {"torch": torch, "F": F, "FDivergenceType": types.SimpleNamespace(**kinds)}
    return take(root / "trl/trainer/dpo_trainer.py", {"dpo_loss"}, space).dpo_loss


def pair_loss(dpo_loss, name, beta, smoothing, sums, counts):
    """sums [4, P]: chosen and rejected log-probs of policy and reference; the gradient is by the first two."""
    leaf = torch.tensor(sums[:2], requires_grad=True)
    policy, ref = leaf, torch.tensor(sums[2:])
    if name in ("ipo", "sigmoid_norm"):
        policy, ref = policy / torch.tensor(counts), ref / torch.tensor(counts)
    trainer = types.SimpleNamespace(accelerator=types.SimpleNamespace(device="cpu"), reference_free=False, beta=beta,
                                    f_divergence_type="reverse_kl", label_smoothing=smoothing)
    known = {"ipo_sum": "ipo", "sigmoid_norm": "sigmoid"}.get(name, name)
    if name == "sigmoid_norm":
        trainer.label_smoothing = 0.0
    losses, _, _ = dpo_loss(trainer, policy[0], policy[1], ref[0], ref[1], known)
    loss = losses.mean()
    return float(loss.detach()), torch.autograd.grad(loss, leaf)[0].numpy()


def make_pairs(rng, dpo_loss):
    rows, lengths, config = [], [], []
    masks, columns = [], {"log_probs": [], "ref": []}
    outputs = {name: {"loss": [], "grad": []} for name in PAIRS}
    for _ in range(NUM_CASES):
        num_pairs = rng.randint(1, 3)
        beta, smoothing = rng.choice([0.1, 0.5, 0.01]), rng.choice([0.0, 0.1, 0.3])
        sums, counts = np.zeros((4, num_pairs)), np.zeros((2, num_pairs))
        for pair in range(num_pairs):
            for side in range(2):
                length = rng.randint(1, 6)
                mask = [rng.random() < 0.7 for _ in range(length)]
                mask[rng.randrange(length)] = True
                policy = np.float32([-rng.uniform(0.01, 4.0) for _ in range(length)])
                ref = (policy + np.float32([rng.choice([0.2, 3.0]) * rng.gauss(0.0, 1.0) for _ in range(length)]))
                lengths.append(length)
                masks += mask
                columns["log_probs"] += policy.tolist()
                columns["ref"] += ref.tolist()
                sums[side, pair] = policy.astype(np.float64)[mask].sum()
                sums[2 + side, pair] = ref.astype(np.float64)[mask].sum()
                counts[side, pair] = sum(mask)
        rows.append(2 * num_pairs)
        config.append([beta, smoothing])
        for name in PAIRS:
            loss, grad = pair_loss(dpo_loss, name, beta, smoothing or (1e-3 if name == "exo_pair" else 0.0), sums,
                                   counts)
            outputs[name]["loss"].append(loss)
            outputs[name]["grad"] += grad.T.reshape(-1).tolist()  # by sum; the two sides of a pair are adjacent
    tensors = {"rows": np.int32(rows), "lengths": np.int32(lengths), "mask": np.uint8(masks),
               "config": np.float64(config)}
    tensors |= {name: np.float32(column) for name, column in columns.items()}
    for name in PAIRS:
        tensors[f"{name}.loss"] = np.float64(outputs[name]["loss"])
        tensors[f"{name}.grad"] = np.float32(outputs[name]["grad"])
    return tensors


# --- files ---
def collect(cases, name, function):
    results = [function(case) for case in cases]
    tensors = {f"{name}.loss": np.float64([loss for loss, _, _ in results]),
               f"{name}.grad": np.float32(np.concatenate([grad for _, grad, _ in results]))}
    for key in results[0][2]:
        tensors[f"{name}.{key}"] = np.float32([metrics[key] for _, _, metrics in results])
    return tensors


def make_inputs(cases):
    tensors = {"rows": np.int32([len(case.lengths) for case in cases]),
               "lengths": np.int32([n for case in cases for n in case.lengths]),
               "mask": np.concatenate([case.pack(case.mask) for case in cases]).astype(np.uint8),
               "config": np.float64([[case.config[key] for key in CONFIG] for case in cases])}
    for name in cases[0].columns:
        tensors[name] = np.concatenate([case.pack(case.columns[name]) for case in cases]).astype(np.float32)
    return tensors


def main(verl_directory, commit, trl_directory, directory):
    verl, dpo_loss = load_verl(verl_directory), load_trl(trl_directory)
    rng = random.Random(SEED)
    cases = [make_case(rng, index) for index in range(NUM_CASES)]
    policy, other = {}, {}
    for name in POLICY:
        policy |= collect(cases, name, lambda case, name=name: policy_loss(verl, name, case))
    for name in SUMS:
        other |= collect(cases, f"sum_{name}", lambda case, name=name: sum_loss(name, case))
    for name, function in (("value", value_loss), ("sft", sft_loss), ("distill", distillation_loss)):
        other |= collect(cases, name, lambda case, function=function: function(verl, case))
    files = {"inputs.safetensors": (make_inputs(cases), CONFIG), "policy.safetensors": (policy, []),
             "other.safetensors": (other, []), "pairs.safetensors": (make_pairs(rng, dpo_loss), PAIR_CONFIG)}
    manifest = {"script": "tests/golden/gen/make_losses.py", "seed": SEED, "python": sys.version.split()[0],
                "torch": torch.__version__, "numpy": np.__version__, "verl": commit,
                "trl": next(trl_directory.glob("trl-*.dist-info")).name.split("-")[1].removesuffix(".dist"),
                "sha256": {}}
    for name, (tensors, columns) in files.items():
        path = directory / name
        path.write_bytes(save(tensors, {"config": ",".join(columns)} if columns else None))
        manifest["sha256"][name] = hashlib.sha256(path.read_bytes()).hexdigest()
    (directory / "manifest.json").write_text(json.dumps(manifest, indent=2) + "\n")


if __name__ == "__main__":
    if len(sys.argv) != 5:
        sys.exit(__doc__)
    main(pathlib.Path(sys.argv[1]), sys.argv[2], pathlib.Path(sys.argv[3]), pathlib.Path(sys.argv[4]))
