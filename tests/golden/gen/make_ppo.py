#!/usr/bin/env python3
"""Makes tests/golden/ppo: what whole PPO steps do to an actor and a critic, written here from the formulas, in fp64.

    python make_ppo.py OUTPUT_DIRECTORY

actor, critic, reward: tiny Qwen2 models whose weights are exact in bf16; the actor's are the reference's, too.
prompts.jsonl: prompts of the steps, in their order, and what the digits reward compares answers with.

CASE.json: the job, its settings, read here and by rankd. CASE/stepK.safetensors: the batch of step K as generate_sequences
would give it, with random responses, and expected.NAME [B, R]: what the step makes of it, 0 behind the end of a response.
CASE/metrics.json: the metrics of each step, under rankd's names. CASE/actor.safetensors, critic.safetensors: the
parameters after the last step.

The models are transformers' with the replacements of make_tiny_models.py. A fixture would test nothing if a branch were
never taken, and could not be met in fp32 if a token stood on the edge of a clip: the script checks both.
"""
import hashlib
import json
import math
import sys
from pathlib import Path

import numpy as np
import safetensors
import torch
import transformers
from make_tiny_models import FAMILIES, QWEN2, ExactRotary, attention_f64, inverse_frequencies, norm_f64
from safetensors.torch import save_file
from transformers import Qwen2ForCausalLM, Qwen2ForSequenceClassification, Qwen2ForTokenClassification

SEED = 20261124
PROMPTS, SAMPLES, RESPONSE = 4, 2, 7  # of a step; responses to each; longest response
MAX_STEPS = 3
VOCAB = ["<pad>", "<eos>"] + list("0123456789,:")  # examples/digits/tokenizer.json
PAD, EOS = 0, 1
EDGE = 2e-4  # no ratio and no value is closer than this to a clip bound

SIZES = QWEN2 | {"vocab_size": len(VOCAB), "bos_token_id": None, "eos_token_id": EOS, "pad_token_id": PAD,
                 "hidden_size": 32, "intermediate_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2,
                 "max_position_embeddings": 64, "rope_theta": 10000.0, "use_sliding_window": False,
                 "sliding_window": None}
HEAD = {"num_hidden_layers": 1, "classifier_dropout": 0.0, "id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}
MODELS = {
    "actor": (Qwen2ForCausalLM, SIZES | {"tie_word_embeddings": False}),
    "critic": (Qwen2ForTokenClassification, SIZES | HEAD | {"tie_word_embeddings": False}),
    "reward": (Qwen2ForSequenceClassification, SIZES | HEAD | {"tie_word_embeddings": False}),
}

# --- the jobs for rankd ---
JOB = {
    "data": {"train_files": ["prompts.jsonl"], "max_prompt_length": 8, "max_response_length": RESPONSE,
             "train_batch_size": PROMPTS, "shuffle": False},
    "actor_rollout_ref": {
        "model": {"path": "actor", "tokenizer_path": "../../../examples/digits/tokenizer.json"},
        "actor": {
            "megatron": {"dtype": "float32"},
            "optim": {"lr": 1e-2, "betas": [0.9, 0.95], "eps": 1e-3, "weight_decay": 0.1, "clip_grad": 0.5,
                      "lr_warmup_steps": 2, "lr_warmup_init": 4e-3, "lr_decay_style": "cosine", "lr_decay_steps": 6,
                      "min_lr": 1e-3},
            "ppo_mini_batch_size": 2, "ppo_epochs": 2, "ppo_micro_batch_size_per_gpu": 1, "clip_ratio_low": 0.2,
            "clip_ratio_high": 0.5, "clip_ratio_c": 1.6, "old_log_prob": "recompute", "entropy_coeff": 0.02, "use_kl_loss": False,
            "kl_loss_coef": 0.1, "kl_loss_type": "low_var_kl", "loss_agg_mode": "token-mean",
        },
        "rollout": {"n": SAMPLES, "temperature": 0.8},
    },
    "critic": {
        "model": {"path": "critic"},
        "optim": {"lr": 2e-2, "betas": [0.9, 0.99], "eps": 1e-3, "weight_decay": 0.05, "clip_grad": 1.0,
                  "lr_decay_style": "linear", "lr_decay_steps": 4, "min_lr": 2e-3},
        "ppo_mini_batch_size": 1, "ppo_epochs": 2, "cliprange_value": 0.2,
    },
    "algorithm": {"adv_estimator": "gae", "gamma": 0.97, "lam": 0.9, "use_kl_in_reward": True, "kl_penalty": "kl",
                  "kl_ctrl": {"type": "fixed", "kl_coef": 0.1}},
    "reward": {"reward_model": {"enable": True, "model_path": "reward"}},
    "trainer": {"total_training_steps": 2},
}


def merged(base, changes):
    return base | {k: merged(base.get(k, {}), v) if isinstance(v, dict) else v for k, v in changes.items()}


CASES = {
    # The score of a reward model, and KL in the reward.
    "reward_model": JOB,
    # Both rewards, both uses of the KL with an adaptive weight, a critic warm-up, other means and
    # batch sizes.
    "kl_loss": merged(JOB, {
        "actor_rollout_ref": {"actor": {"ppo_mini_batch_size": 1, "ppo_epochs": 1, "use_kl_loss": True,
                                        "entropy_coeff": 0.05, "loss_agg_mode": "seq-mean-token-mean"}},
        "critic": {"ppo_mini_batch_size": 2, "loss_agg_mode": "seq-mean-token-sum"},
        "algorithm": {"kl_penalty": "low_var_kl",
                      "kl_ctrl": {"type": "adaptive", "kl_coef": 0.2, "target_kl": 0.05, "horizon": 20}},
        "reward": {"name": "digits", "reward_model": {"coef": 0.5}},
        "trainer": {"critic_warmup": 2, "total_training_steps": 3}}),
}


# --- models and data ---
def make_model(name, rng):
    cls, config = MODELS[name]
    kwargs = {k: v for k, v in config.items() if k not in ("architectures", "model_type", "torch_dtype")}
    model = cls(FAMILIES["qwen2"].config(**kwargs, attn_implementation="eager")).float().eval()
    with torch.no_grad():
        for parameter, p in model.named_parameters():
            values = rng.standard_normal(tuple(p.shape))
            values = 1 + 0.1 * values if parameter.endswith("norm.weight") else 0.2 * values
            p.copy_(torch.from_numpy(values).bfloat16())
    model.model.rotary_emb = ExactRotary(
        inverse_frequencies(config, config["hidden_size"] // config["num_attention_heads"]))
    return model


def make_prompts(rng):
    """Text of digits and commas of different lengths, with what the digits reward compares answers with."""
    def text(low, high):
        return ",".join(str(d) for d in rng.integers(0, 10, rng.integers(low, high + 1)))
    return [{"prompt": text(1, 4), "ground_truth": text(1, 3)} for _ in range(PROMPTS * MAX_STEPS)]


def make_responses(rng):
    """Random tokens; those that are shorter than RESPONSE end with EOS."""
    lengths = rng.integers(1, RESPONSE + 1, PROMPTS * SAMPLES)
    lengths[rng.permutation(len(lengths))[:2]] = [RESPONSE, 1]
    return [rng.integers(2, len(VOCAB), n - (n < RESPONSE)).tolist() + [EOS] * int(n < RESPONSE) for n in lengths]


class Batch:
    def __init__(self, prompts, responses):
        rows = [p for p in prompts for _ in range(SAMPLES)]
        self.prompts = [[VOCAB.index(c) for c in row["prompt"]] for row in rows]
        self.responses = responses
        self.truths = [row["ground_truth"] for row in rows]
        self.mask = torch.stack([(torch.arange(RESPONSE) < len(r)).double() for r in responses])

    def tensors(self):
        """The columns that generate_sequences returns, but for its log-probs."""
        width = JOB["data"]["max_prompt_length"]
        prompts = torch.tensor([[PAD] * (width - len(p)) + p for p in self.prompts])
        responses = torch.tensor([r + [PAD] * (RESPONSE - len(r)) for r in self.responses])
        is_prompt = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in self.prompts])
        attention = torch.cat([is_prompt, self.mask.long()], 1)
        return {"prompts": prompts, "responses": responses, "response_mask": self.mask.long(),
                "input_ids": torch.cat([prompts, responses], 1), "attention_mask": attention,
                "position_ids": (attention.cumsum(1) - 1).clamp(min=0)}

    def rows(self, mini_batch_size):
        size = mini_batch_size * SAMPLES
        return [slice(at, at + size) for at in range(0, len(self.prompts), size)]

    def outputs(self, model, rows):
        """The model's outputs at the positions that predict the response tokens, and at the last token, by row."""
        for prompt, response in zip(self.prompts[rows], self.responses[rows]):
            ids = torch.tensor([prompt + response])
            hidden = model.model(input_ids=ids, position_ids=torch.arange(ids.shape[1])[None]).last_hidden_state[0]
            yield hidden[len(prompt) - 1:-1], hidden[-1], response


ALL = slice(None)


def padded(rows):
    return torch.stack([torch.nn.functional.pad(row, (0, RESPONSE - len(row))) for row in rows])


def policy(model, batch, rows, temperature):
    """Log-prob of each response token and entropy at its position."""
    log_probs, entropies = [], []
    for hidden, _, response in batch.outputs(model, rows):
        log_p = torch.log_softmax(model.lm_head(hidden) / temperature, -1)
        log_probs.append(log_p.gather(1, torch.tensor(response)[:, None])[:, 0])
        entropies.append(-(log_p.exp() * log_p).sum(-1))
    return padded(log_probs), padded(entropies)


def values_of(critic, batch, rows):
    return padded([critic.score(hidden)[:, 0] for hidden, _, _ in batch.outputs(critic, rows)])


def digits_score(answer, truth):
    """The share of characters in their places; a digit that is near the right one on the circle of ten counts in part."""
    credit = float(len(answer) == len(truth))
    for got, want in zip(answer, truth):
        if got == want:
            credit += 1
        elif got.isdigit() and want.isdigit():
            distance = abs(int(got) - int(want))
            credit += 0.5 * max(0.0, 1 - min(distance, 10 - distance) / 3)
    return credit / (max(len(answer), len(truth)) + 1)


def scores_of(reward, batch, config):
    """The reward model's output at the last token, and what the function says of the text."""
    scores = torch.zeros_like(batch.mask)
    for row, (_, last, response) in enumerate(batch.outputs(reward, ALL)):
        score = config["reward_model"].get("coef", 1.0) * reward.score(last)[0]
        if config.get("name") == "digits":
            score = score + digits_score("".join(VOCAB[t] for t in response if t != EOS), batch.truths[row])
        scores[row, len(response) - 1] = score
    return scores


# --- the algorithm ---
def mean(x, mask):
    return (x * mask).sum() / mask.sum()


def aggregate(x, mask, mode):
    sums, lengths = (x * mask).sum(1), mask.sum(1)
    return {"token-mean": sums.sum() / lengths.sum(), "seq-mean-token-sum": sums.mean(),
            "seq-mean-token-mean": (sums / lengths).mean()}[mode]


def gae(rewards, values, mask, gamma, lam):
    raw = torch.zeros_like(rewards)
    for row in range(len(rewards)):
        next_value, carry = 0.0, 0.0
        for t in reversed(range(int(mask[row].sum()))):
            carry = rewards[row, t] + gamma * next_value - values[row, t] + gamma * lam * carry
            next_value = values[row, t]
            raw[row, t] = carry
    count, centre = mask.sum(), mean(raw, mask)
    variance = mean((raw - centre) ** 2, mask) * count / (count - 1)
    return (raw - centre) * torch.rsqrt(variance + 1e-8) * mask, (raw + values) * mask


def away_from(x, edges, mask):
    for edge in edges:
        distance = (x - edge).abs()[mask > 0].min()
        assert distance > EDGE, f"a token is {distance:.1e} from the edge {edge}: choose another seed"


def policy_loss(log_probs, old, advantages, mask, config):
    low, high, dual = 1 - config["clip_ratio_low"], 1 + config["clip_ratio_high"], config["clip_ratio_c"]
    difference = (log_probs - old).clamp(-20, 20)
    ratio = difference.exp()
    if (difference.detach() * mask).abs().max() > 0:
        away_from(ratio.detach(), [low, high, dual], mask)
    plain, clipped = -advantages * ratio, -advantages * ratio.clamp(low, high)
    worse = torch.maximum(plain, clipped)
    bound = -advantages * dual
    loss = torch.where(advantages < 0, torch.minimum(bound, worse), worse)
    return aggregate(loss, mask, config["loss_agg_mode"]), {
        "actor/pg_clipfrac": mean((clipped > plain).double(), mask),
        "actor/pg_clipfrac_lower": mean(((worse > bound) & (advantages < 0)).double(), mask),
        "actor/ppo_kl": mean(-difference, mask)}


def kl_estimate(name, log_probs, ref):
    if name == "kl":
        return log_probs - ref
    assert name == "low_var_kl"
    x = (ref - log_probs).clamp(-20, 20)
    return (x.exp() - x - 1).clamp(-10, 10)


def actor_loss(actor, batch, rows, columns, job):
    config = job["actor_rollout_ref"]["actor"]
    mask = batch.mask[rows]
    log_probs, entropy = policy(actor, batch, rows, job["actor_rollout_ref"]["rollout"]["temperature"])
    pg_loss, metrics = policy_loss(log_probs, columns["old_log_probs"][rows], columns["advantages"][rows], mask, config)
    entropy_loss = aggregate(entropy, mask, config["loss_agg_mode"])
    loss = pg_loss - config["entropy_coeff"] * entropy_loss
    metrics |= {"actor/pg_loss": pg_loss, "actor/entropy_loss": entropy_loss}
    if config["use_kl_loss"]:
        kl = kl_estimate(config["kl_loss_type"], log_probs, columns["ref_log_prob"][rows])
        kl_loss = aggregate(kl, mask, config["loss_agg_mode"])
        loss = loss + config["kl_loss_coef"] * kl_loss
        metrics |= {"actor/kl_loss": kl_loss, "actor/kl_coef": config["kl_loss_coef"]}
    return loss, metrics


def critic_loss(critic, batch, rows, columns, job):
    clip = job["critic"]["cliprange_value"]
    mask, old, returns = batch.mask[rows], columns["values"][rows], columns["returns"][rows]
    values = values_of(critic, batch, rows)
    away_from((values - old).detach(), [-clip, clip], mask)
    clipped = torch.maximum(torch.minimum(values, old + clip), old - clip)
    plain_error, clipped_error = (values - returns) ** 2, (clipped - returns) ** 2
    mode = job["critic"].get("loss_agg_mode", job["actor_rollout_ref"]["actor"]["loss_agg_mode"])
    loss = aggregate(torch.maximum(plain_error, clipped_error), mask, mode) / 2
    return loss, {"critic/vf_loss": loss, "critic/vf_clipfrac": mean((clipped_error > plain_error).double(), mask),
                  "critic/vpred_mean": mean(values, mask)}


class Optimizer:
    """AdamW (no decay of vectors and biases), clipping by the global norm, Megatron's schedule: a rate a training step."""

    def __init__(self, model, config):
        self.config, self.num_updates = config, 0
        self.parameters = list(model.parameters())
        self.moments = [(torch.zeros_like(p), torch.zeros_like(p)) for p in self.parameters]
        self.num_steps = 0

    def lr(self):
        c, n, warmup = self.config, self.num_updates, self.config.get("lr_warmup_steps", 0)
        if warmup and n <= warmup:
            return c["lr_warmup_init"] + (c["lr"] - c["lr_warmup_init"]) * n / warmup
        q = (n - warmup) / (c["lr_decay_steps"] - warmup)
        share = {"linear": 1 - q, "cosine": (1 + math.cos(math.pi * q)) / 2}[c["lr_decay_style"]]
        return c["min_lr"] + share * (c["lr"] - c["min_lr"])

    @torch.no_grad()
    def step(self):
        c, lr = self.config, self.lr()
        (beta1, beta2), self.num_steps = c["betas"], self.num_steps + 1
        norm = math.sqrt(sum(float((p.grad ** 2).sum()) for p in self.parameters))
        scale = min(1.0, c["clip_grad"] / (norm + 1e-6))
        for p, (m, v) in zip(self.parameters, self.moments):
            grad = p.grad * scale
            m.mul_(beta1).add_(grad, alpha=1 - beta1)
            v.mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
            direction = m / (1 - beta1 ** self.num_steps) / ((v / (1 - beta2 ** self.num_steps)).sqrt() + c["eps"])
            decay = c["weight_decay"] if p.dim() > 1 else 0.0
            p.sub_(lr * (direction + decay * p))
            p.grad = None
        return norm


def update(name, model, optimizer, loss_of, batch, columns, job, section):
    collected = []
    for _ in range(section["ppo_epochs"]):
        for rows in batch.rows(section["ppo_mini_batch_size"]):
            loss, metrics = loss_of(model, batch, rows, columns, job)
            loss.backward()
            metrics |= {f"{name}/loss": loss, f"{name}/grad_norm": optimizer.step()}
            collected.append({k: float(torch.as_tensor(v, dtype=torch.float64).detach()) for k, v in metrics.items()})
    optimizer.num_updates += 1
    return {k: float(np.mean([m[k] for m in collected])) for k in collected[0]} | {f"{name}/lr": optimizer.lr()}


def statistics(name, x):
    return {f"{name}/mean": float(x.mean()), f"{name}/max": float(x.max()), f"{name}/min": float(x.min())}


def data_metrics(columns, mask):
    out = {}
    for name, column in {"score": "token_level_scores", "rewards": "token_level_rewards"}.items():
        out |= statistics(f"critic/{name}", columns[column].sum(1))
    for name in ("advantages", "returns", "values"):
        out |= statistics(f"critic/{name}", columns[name][mask > 0])
    returns, values = columns["returns"][mask > 0], columns["values"][mask > 0]
    return out | {"critic/vf_explained_var": float(1 - (returns - values).var() / (returns.var() + 1e-5))}


class Run:
    def __init__(self, job, models, dtype):
        self.job = job
        self.actor, self.ref, self.critic, self.reward = (models(n).to(dtype) for n in ("actor", "actor", "critic", "reward"))
        self.optimizers = [Optimizer(self.critic, job["critic"]["optim"]),
                           Optimizer(self.actor, job["actor_rollout_ref"]["actor"]["optim"])]
        self.kl_coef, self.num_steps = job["algorithm"]["kl_ctrl"]["kl_coef"], 0

    @torch.no_grad()
    def columns(self, batch):
        algorithm, rollout = self.job["algorithm"], self.job["actor_rollout_ref"]["rollout"]
        config = self.job["actor_rollout_ref"]["actor"]
        old, entropy = policy(self.actor, batch, ALL, rollout["temperature"])
        ref, _ = policy(self.ref, batch, ALL, rollout["temperature"])
        values, scores = values_of(self.critic, batch, ALL), scores_of(self.reward, batch, self.job["reward"])
        kl = kl_estimate(algorithm["kl_penalty"], old, ref) * batch.mask
        rewards = scores - self.kl_coef * kl
        advantages, returns = gae(rewards, values, batch.mask, algorithm["gamma"], algorithm["lam"])
        current_kl = float((kl.sum(1) / batch.mask.sum(1)).mean())
        metrics = {"actor/entropy": float(aggregate(entropy, batch.mask, config["loss_agg_mode"])),
                   "actor/reward_kl_penalty": current_kl, "actor/reward_kl_penalty_coeff": self.kl_coef}
        control = algorithm["kl_ctrl"]
        if control["type"] == "adaptive":
            error = min(max(current_kl / control["target_kl"] - 1, -0.2), 0.2)
            self.kl_coef *= 1 + error * len(old) / control["horizon"]
        return {"old_log_probs": old, "ref_log_prob": ref, "values": values, "token_level_scores": scores,
                "token_level_rewards": rewards, "advantages": advantages, "returns": returns}, metrics

    def step(self, batch):
        self.num_steps += 1
        columns, metrics = self.columns(batch)
        metrics |= data_metrics(columns, batch.mask)
        critic, actor = self.optimizers
        config = self.job["actor_rollout_ref"]["actor"]
        metrics |= update("critic", self.critic, critic, critic_loss, batch, columns, self.job, self.job["critic"])
        if self.num_steps >= self.job["trainer"].get("critic_warmup", 0):
            metrics |= update("actor", self.actor, actor, actor_loss, batch, columns, self.job, config)
        return columns, metrics

    def parameters(self):
        return {name: {n: p.detach().float().clone() for n, p in model.named_parameters()}
                for name, model in (("actor", self.actor), ("critic", self.critic))}


# --- files ---
def check_branches(name, job, metrics):
    keys = ["actor/pg_clipfrac", "actor/pg_clipfrac_lower", "critic/vf_clipfrac", "actor/reward_kl_penalty"]
    for key in keys + ["actor/kl_loss"] * job["actor_rollout_ref"]["actor"]["use_kl_loss"]:
        assert any(m.get(key, 0) != 0 for m in metrics), f"{name}: {key} is 0 in every step"
    for key, section in (("actor", job["actor_rollout_ref"]["actor"]), ("critic", job["critic"])):
        assert any(m.get(f"{key}/grad_norm", 0) > section["optim"]["clip_grad"] for m in metrics), f"{name}: {key} clips nothing"


def largest_difference(a, b, worst):
    return worst(float((a[m][n] - b[m][n]).abs().max()) for m in a for n in a[m])


def make_case(out, name, job, models, batches):
    run, rough = Run(job, models, torch.float64), Run(job, models, torch.float32)
    folder, first, metrics = out / name, run.parameters(), []
    folder.mkdir(exist_ok=True)
    for step, batch in enumerate(batches[:job["trainer"]["total_training_steps"]], 1):
        columns, of_step = run.step(batch)
        rough.step(batch)
        metrics.append(of_step)
        expected = {n: c.detach().float().contiguous() for n, c in columns.items()}
        save_file(batch.tensors() | {"rollout_log_probs": expected["old_log_probs"].clone()} |
                  {f"expected.{n}": c for n, c in expected.items()}, folder / f"step{step}.safetensors")
    check_branches(name, job, metrics)
    last = run.parameters()
    moved, error = largest_difference(first, last, min), largest_difference(rough.parameters(), last, max)
    assert moved > 1e-3, f"{name}: a parameter moved by no more than {moved}"
    for model, parameters in last.items():
        save_file(parameters, folder / f"{model}.safetensors")
    (out / f"{name}.json").write_text(json.dumps(job, indent=2) + "\n")
    (folder / "metrics.json").write_text(json.dumps(metrics, indent=1) + "\n")
    print(f"{name}: every parameter moved by {moved:.1e} or more; fp32 is off by up to {error:.1e}")
    for step, of_step in enumerate(metrics, 1):
        print(step, {k: round(v, 5) for k, v in of_step.items()})


def main(out):
    rng = np.random.default_rng(SEED)
    FAMILIES["qwen2"].patch(norm_f64, attention_f64)
    out.mkdir(parents=True, exist_ok=True)
    weights = {}
    for name, (cls, config) in MODELS.items():
        weights[name] = make_model(name, rng).state_dict()
        (out / name).mkdir(exist_ok=True)
        (out / name / "config.json").write_text(json.dumps(config | {"architectures": [cls.__name__]}, indent=2) + "\n")
        save_file({n: p.bfloat16() for n, p in weights[name].items()}, out / name / "model.safetensors",
                  metadata={"format": "pt"})

    def models(name):
        model = make_model(name, np.random.default_rng(0))
        model.load_state_dict(weights[name])
        return model

    prompts = make_prompts(rng)
    with open(out / "prompts.jsonl", "w") as file:
        for row in prompts:
            file.write(json.dumps({"data_source": "digits", "prompt": row["prompt"], "reward_model": {
                "style": "rule", "ground_truth": row["ground_truth"]}}) + "\n")
    batches = [Batch(prompts[at:at + PROMPTS], make_responses(rng)) for at in range(0, len(prompts), PROMPTS)]
    for name, job in CASES.items():
        make_case(out, name, job, models, batches)

    files = sorted(f for f in out.rglob("*") if f.is_file() and f.name != "manifest.json")
    manifest = {
        "script": "tests/golden/gen/make_ppo.py", "seed": SEED,
        "versions": {"transformers": transformers.__version__, "torch": torch.__version__.split("+")[0],
                     "safetensors": safetensors.__version__, "numpy": np.__version__},
        "sha256": {str(f.relative_to(out)): hashlib.sha256(f.read_bytes()).hexdigest() for f in files},
    }
    (out / "manifest.json").write_text(json.dumps(manifest, indent=2) + "\n")
    print(sum(f.stat().st_size for f in files), "bytes")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    torch.set_num_threads(1)
    main(Path(sys.argv[1]))
