#!/usr/bin/env python3
"""Makes the fixtures of the model families: random tiny models, and what each must compute.

    python make_tiny_models.py OUTPUT_DIRECTORY [VARIANT...]

The reference is transformers' eager model in fp64 with the weights of the file, which are fp32 or bf16, so a difference
is the rounding of the implementation under test. Three things that transformers computes in fp32 whatever the model's
dtype are replaced: the norm and the softmax of attention are computed in fp64, and the steps of the rotary tables (fp32
by definition) are rounded correctly, where the stock ones depend on the machine's vector library. The script checks that
all this changes logits by less than 1e-5.

Settings that look odd make fp64 comparisons to 1e-10 possible: rms_norm_eps, 1 / temperature and 1 / sqrt(head_dim) are
exact in fp32, in which kernels take them.
AdamW's eps is large because with 1e-8 the first step turns a gradient of 1e-9, which is rounding noise in fp32, into a
full step.

Layers of experts: transformers holds the matrices of all experts in one tensor; the files have those of each expert,
under the names that transformers writes, and gradients and steps are given by these names. The router's softmax, fp32 in
transformers, is computed in fp64, and equal scores are taken by ascending expert, which torch.topk leaves open. Some
experts have a router of zeros (and no correction bias): their scores are exactly equal, so that ties occur, or below all
that are taken, so that no token comes to them, as to the last of more equal experts than a token takes; the script
checks that both occur where it says so. DeepSeek's correction bias is no parameter of transformers: the file has it, and
no step changes it. In bf16 a token that is close to two experts may go to the other one: instead of the largest error
these models have nmse_bf16.logits, of the median token: the sum of squared differences between the model in bf16, stock
but for ties, and the reference, by the sum of squares of the reference.

golden.safetensors: tokens, cu_seqlens, labels (I32), logits, log_probs, entropy, loss and (F64) grad.NAME,
step1.NAME .. step3.NAME, grad_norms. Models with bf16 weights also have error_bf16.logits, .log_probs and .grad (the
worst of all parameters): how far the stock model in bf16 is from this reference, as the largest difference by the
largest element. An implementation in bf16 cannot be asked to come much closer, and should not stay further away."""
import copy
import hashlib
import json
import math
import sys
import tempfile
from pathlib import Path

import numpy as np
import safetensors
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import (DeepseekV3Config, DeepseekV3ForCausalLM, LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM, MixtralConfig,
                          MixtralForCausalLM, Qwen2Config, Qwen2ForCausalLM, Qwen2MoeConfig, Qwen2MoeForCausalLM,
                          Qwen3Config, Qwen3ForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM)
from transformers.models.deepseek_v3 import modeling_deepseek_v3
from transformers.models.llama import modeling_llama
from transformers.models.mistral import modeling_mistral
from transformers.models.mixtral import modeling_mixtral
from transformers.models.qwen2 import modeling_qwen2
from transformers.models.qwen2_moe import modeling_qwen2_moe
from transformers.models.qwen3 import modeling_qwen3
from transformers.models.qwen3_moe import modeling_qwen3_moe

SEED = 20240607
LENGTHS = [1, 7, 13, 20]
PROMPT = 3  # the first labels of a sequence are not scored
TEMPERATURE = 0.8
ENTROPY_COEFF = 0.125
OPTIM = {"lr": 1e-3, "betas": [0.9, 0.95], "eps": 1e-5, "weight_decay": 0.1, "clip_grad": 0.25}

BASE = {
    "vocab_size": 131,
    "max_position_embeddings": 128,
    "initializer_range": 0.02,
    "rms_norm_eps": 2.0**-17,
    "hidden_act": "silu",
}
LLAMA = {"architectures": ["LlamaForCausalLM"], "model_type": "llama"} | BASE | {
    "attention_bias": False, "mlp_bias": False, "bos_token_id": 1, "pad_token_id": None,
}
QWEN2 = {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"} | BASE | {
    "attention_dropout": 0.0, "bos_token_id": 1, "eos_token_id": 2, "hidden_size": 32, "intermediate_size": 48,
    "num_hidden_layers": 2, "rope_theta": 1000000.0, "torch_dtype": "bfloat16",
}
QWEN3 = QWEN2 | {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "attention_bias": False}
MISTRAL = {"architectures": ["MistralForCausalLM"], "model_type": "mistral"} | BASE | {
    "attention_dropout": 0.0, "bos_token_id": 1, "eos_token_id": 2, "hidden_size": 32, "intermediate_size": 48,
    "num_hidden_layers": 2, "rope_theta": 10000.0, "torch_dtype": "bfloat16",
}
QWEN3_MOE = QWEN3 | {"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "torch_dtype": "float32",
                     "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "use_sliding_window": False,
                     "sliding_window": None}
QWEN2_MOE = QWEN2 | {"architectures": ["Qwen2MoeForCausalLM"], "model_type": "qwen2_moe", "torch_dtype": "float32",
                     "num_attention_heads": 2, "num_key_value_heads": 1, "use_sliding_window": False}
MIXTRAL = MISTRAL | {"architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "torch_dtype": "float32",
                     "num_attention_heads": 2, "num_key_value_heads": 1, "sliding_window": None,
                     "router_jitter_noise": 0.0}
DEEPSEEK = {"architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3"} | BASE | {
    "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 0, "eos_token_id": 1, "hidden_size": 32,
    "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4,
    "kv_lora_rank": 20, "qk_nope_head_dim": 10, "qk_rope_head_dim": 6, "v_head_dim": 7, "rope_theta": 10000.0,
    "first_k_dense_replace": 1, "n_routed_experts": 8, "num_experts_per_tok": 3, "n_shared_experts": 1,
    "moe_intermediate_size": 12, "n_group": 1, "topk_group": 1, "norm_topk_prob": True, "routed_scaling_factor": 2.5,
    "num_nextn_predict_layers": 0, "torch_dtype": "float32",
}
# Experts whose router is zero: see above.
ZERO_ROUTERS = {
    "qwen3_moe_tiny": [4], "qwen3_moe_tiny_tied": [1, 2], "qwen2_moe_tiny": [7, 8], "qwen2_moe_tiny_tied": [0, 3],
    "mixtral_tiny": [1, 3, 4], "mixtral_tiny_tied": [], "deepseek_v3_tiny": [], "deepseek_v3_tiny_tied": [2, 5, 6],
}
HAS_TIES = {"qwen3_moe_tiny_tied", "qwen2_moe_tiny_tied", "mixtral_tiny", "deepseek_v3_tiny_tied"}
HAS_UNUSED = {"qwen3_moe_tiny", "qwen2_moe_tiny", "mixtral_tiny", "deepseek_v3_tiny_tied"}
VARIANTS = {
    # config.json of transformers 5; sizes that tp = 4 replicates or pads.
    "llama_tiny": LLAMA
    | {
        "hidden_size": 64, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "tie_word_embeddings": False, "eos_token_id": 2, "dtype": "float32",
        "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
    },
    # config.json of transformers 4; total width of heads larger than hidden_size.
    "llama_tiny_tied": LLAMA
    | {
        "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 1, "head_dim": 16, "tie_word_embeddings": True, "eos_token_id": [2, 5],
        "torch_dtype": "float32", "rope_theta": 500000,
        "rope_scaling": {"type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                         "original_max_position_embeddings": 16},
    },
    # config.json of Qwen2.5.
    "qwen2_tiny": QWEN2
    | {
        "num_attention_heads": 2, "num_key_value_heads": 1, "tie_word_embeddings": False, "use_sliding_window": False,
        "sliding_window": 128, "max_window_layers": 2,
    },
    # The second layer has a sliding window; the first does not.
    "qwen2_tiny_tied": QWEN2
    | {
        "num_attention_heads": 2, "num_key_value_heads": 2, "tie_word_embeddings": True, "use_sliding_window": True,
        "sliding_window": 6, "max_window_layers": 1,
    },
    # Total width of heads larger than hidden_size, as in Qwen3-0.6B.
    "qwen3_tiny": QWEN3
    | {
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "tie_word_embeddings": False,
        "use_sliding_window": False, "sliding_window": None, "max_window_layers": 2,
    },
    # More ranks than key-value heads, at tp = 2 and 4: partial gradients of k_norm.
    "qwen3_tiny_tied": QWEN3
    | {
        "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 16, "tie_word_embeddings": True,
        "use_sliding_window": True, "sliding_window": 6, "max_window_layers": 1,
    },
    # Every layer has a sliding window (v0.1).
    "mistral_tiny": MISTRAL
    | {
        "num_attention_heads": 2, "num_key_value_heads": 1, "tie_word_embeddings": False, "sliding_window": 6,
    },
    # As Qwen3-30B-A3B: all layers have experts, whose probabilities are normalised.
    "qwen3_moe_tiny": QWEN3_MOE
    | {
        "num_experts": 10, "num_experts_per_tok": 2, "moe_intermediate_size": 12, "norm_topk_prob": True,
        "tie_word_embeddings": False, "decoder_sparse_step": 1, "mlp_only_layers": [],
    },
    # Every second layer has experts.
    "qwen3_moe_tiny_tied": QWEN3_MOE
    | {
        "num_experts": 5, "num_experts_per_tok": 3, "moe_intermediate_size": 20, "norm_topk_prob": False,
        "tie_word_embeddings": True, "decoder_sparse_step": 2, "mlp_only_layers": None,
    },
    # As Qwen1.5-MoE-A2.7B, with a dense first layer.
    "qwen2_moe_tiny": QWEN2_MOE
    | {
        "num_experts": 9, "num_experts_per_tok": 1, "moe_intermediate_size": 12, "norm_topk_prob": False,
        "shared_expert_intermediate_size": 20, "tie_word_embeddings": False, "decoder_sparse_step": 1,
        "mlp_only_layers": [0],
    },
    "qwen2_moe_tiny_tied": QWEN2_MOE
    | {
        "num_experts": 6, "num_experts_per_tok": 4, "moe_intermediate_size": 8, "norm_topk_prob": True,
        "shared_expert_intermediate_size": 12, "tie_word_embeddings": True, "decoder_sparse_step": 2,
        "mlp_only_layers": [],
    },
    "mixtral_tiny": MIXTRAL
    | {"num_local_experts": 5, "num_experts_per_tok": 2, "intermediate_size": 20, "tie_word_embeddings": False},
    "mixtral_tiny_tied": MIXTRAL
    | {
        "num_local_experts": 4, "num_experts_per_tok": 4, "intermediate_size": 12, "num_hidden_layers": 1,
        "sliding_window": 6, "tie_word_embeddings": True,
    },
    # DeepSeek-V3's form. YaRN with factors that fp32 has exactly: the scale of scores is 1.25^2 / 4.
    "deepseek_v3_tiny": DEEPSEEK
    | {
        "q_lora_rank": 13, "n_group": 4, "topk_group": 2, "n_shared_experts": 2, "tie_word_embeddings": False,
        "rope_scaling": {"type": "yarn", "factor": 4.0, "beta_fast": 4, "beta_slow": 1, "mscale": 0.7,
                         "mscale_all_dim": 2.5 / math.log(4), "original_max_position_embeddings": 16},
    },
    # Moonlight's form, with pairs half of the rotated columns apart and a probability that is not divided.
    "deepseek_v3_tiny_tied": DEEPSEEK
    | {
        "q_lora_rank": None, "rope_interleave": False, "norm_topk_prob": False, "routed_scaling_factor": 0.75,
        "num_experts_per_tok": 2, "tie_word_embeddings": True,
    },
    # No layer has experts.
    "deepseek_v3_tiny_dense": DEEPSEEK
    | {
        "q_lora_rank": None, "first_k_dense_replace": 2, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
    },
}


class Family:
    """transformers' classes, and what is replaced in its module."""

    def __init__(self, module, config, model, prefix):
        self.module, self.config, self.model = module, config, model
        self.norm = getattr(module, prefix + "RMSNorm")
        self.router = getattr(module, prefix + "TopKRouter", None) or getattr(module, prefix + "TopkRouter", None)
        self.stock = (self.norm.forward, module.eager_attention_forward)
        self.stock_router = self.router.forward if self.router else None

    def patch(self, norm_forward, attention):
        self.norm.forward = norm_forward
        self.module.eager_attention_forward = attention


FAMILIES = {
    "llama": Family(modeling_llama, LlamaConfig, LlamaForCausalLM, "Llama"),
    "qwen2": Family(modeling_qwen2, Qwen2Config, Qwen2ForCausalLM, "Qwen2"),
    "qwen3": Family(modeling_qwen3, Qwen3Config, Qwen3ForCausalLM, "Qwen3"),
    "mistral": Family(modeling_mistral, MistralConfig, MistralForCausalLM, "Mistral"),
    "qwen2_moe": Family(modeling_qwen2_moe, Qwen2MoeConfig, Qwen2MoeForCausalLM, "Qwen2Moe"),
    "qwen3_moe": Family(modeling_qwen3_moe, Qwen3MoeConfig, Qwen3MoeForCausalLM, "Qwen3Moe"),
    "mixtral": Family(modeling_mixtral, MixtralConfig, MixtralForCausalLM, "Mixtral"),
    "deepseek_v3": Family(modeling_deepseek_v3, DeepseekV3Config, DeepseekV3ForCausalLM, "DeepseekV3"),
}


class Router:
    """The router's forward, whose softmax has a dtype of its own; counts what happens."""

    def __init__(self, stock, normalizes, dtype):
        self.stock, self.normalizes, self.dtype = stock, normalizes, dtype
        self.ties, self.used = 0, {}

    def forward(self, module, hidden_states):
        hidden_states = hidden_states.reshape(-1, module.hidden_dim)
        logits = torch.nn.functional.linear(hidden_states, module.weight)
        probs, choice = self.scores(module, logits.to(self.dtype))
        ordered, order = torch.sort(choice, dim=-1, descending=True, stable=True)
        ids = order[:, : module.top_k]
        top = probs.gather(1, ids)
        tied = torch.zeros(len(ids), dtype=torch.bool)
        if module.top_k < probs.shape[1]:
            tied = ordered[:, module.top_k - 1] == ordered[:, module.top_k]
        stock_ids = self.stock(module, hidden_states)[2]
        assert torch.equal(stock_ids.sort()[0][~tied], ids.sort()[0][~tied]), "choice of experts"
        self.ties += int(tied.sum())
        self.used.setdefault(id(module), set()).update(ids.flatten().tolist())
        if self.normalizes:
            top = top / top.sum(dim=-1, keepdim=True)
        return logits, (top * getattr(module, "routed_scaling_factor", 1)).to(logits.dtype), ids

    def scores(self, module, logits):
        """What weights experts, and what they are chosen by."""
        if not hasattr(module, "e_score_correction_bias"):
            return (torch.softmax(logits, dim=-1),) * 2
        scores = torch.sigmoid(logits)
        groups = (scores + module.e_score_correction_bias).unflatten(1, (module.num_group, -1))
        best = groups.topk(2, dim=-1)[0].sum(dim=-1).topk(module.topk_group, dim=-1)[1]
        kept = torch.zeros(groups.shape[:2], dtype=torch.bool).scatter(1, best, True)
        return scores, groups.masked_fill(~kept[..., None], -torch.inf).flatten(1)

    def install(self, family):
        family.router.forward = lambda module, hidden_states: self.forward(module, hidden_states)


def file_tensors(config, name, tensor):
    """The tensors of a file that have what transformers has in one parameter, by name."""
    is_mixtral = config["model_type"] == "mixtral"
    if is_mixtral:
        name = name.replace(".mlp.", ".block_sparse_moe.")
    if not name.endswith(("experts.gate_up_proj", "experts.down_proj")):
        return {name: tensor}
    gate, up, down = ("w1", "w3", "w2") if is_mixtral else ("gate_proj", "up_proj", "down_proj")
    module, out = name.rsplit(".", 1)[0], {}
    for e, matrix in enumerate(tensor):
        parts = dict(zip((gate, up), matrix.chunk(2))) if name.endswith("gate_up_proj") else {down: matrix}
        out |= {f"{module}.{e}.{part}.weight": value.contiguous() for part, value in parts.items()}
    return out


def put(tensors, prefix, config, name, value):
    for file_name, part in file_tensors(config, name, value).items():
        tensors[prefix + file_name] = part.clone()


def yarn_frequency(scaling, k, head_dim, theta, power):
    def column(rotations):
        return head_dim * math.log(scaling["original_max_position_embeddings"] / (rotations * 2 * math.pi)) / (
            2 * math.log(theta))

    low, high = max(math.floor(column(scaling["beta_fast"])), 0), math.ceil(column(scaling["beta_slow"]))
    high = min(high, head_dim - 1)
    assert low < high
    one = np.float32(1)
    fast = one - np.clip((np.float32(k) - np.float32(low)) / np.float32(high - low), 0, 1).astype(np.float32)
    return one / (np.float32(scaling["factor"]) * power) * (one - fast) + one / power * fast


def inverse_frequencies(config, head_dim):
    scaling = config.get("rope_scaling")
    theta = np.float32(config.get("rope_theta", 10000.0))
    out = []
    for k in range(head_dim // 2):
        exponent = np.float32(2 * k) / np.float32(head_dim)
        power = np.float32(math.pow(float(theta), float(exponent)))
        inv = float(np.float32(1.0) / power)
        if scaling and scaling["type"] == "yarn":
            inv = yarn_frequency(scaling, k, head_dim, float(theta), power)
        elif scaling:
            low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
            original, factor = scaling["original_max_position_embeddings"], scaling["factor"]
            wavelength = 2 * math.pi / inv
            if wavelength > original / low:
                inv = inv / factor
            elif wavelength >= original / high:
                share = (original / wavelength - low) / (high - low)
                inv = (1 - share) * inv / factor + share * inv
        out.append(np.float32(inv))
    return np.array(out, dtype=np.float32)


class ExactRotary(torch.nn.Module):
    def __init__(self, inv_freq, factor):
        super().__init__()
        self.inv_freq_np, self.factor = inv_freq, factor

    def forward(self, x, position_ids=None, **_):
        positions = position_ids[0].numpy().astype(np.float32)
        angles = (positions[:, None] * self.inv_freq_np[None, :]).astype(np.float64)
        tables = [np.concatenate([f(angles) * self.factor] * 2, axis=1).astype(np.float32) for f in (np.cos, np.sin)]
        return tuple(torch.from_numpy(t).to(x.dtype)[None] for t in tables)


def norm_f64(self, x):
    return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon))


def attention_f64(module, query, key, value, attention_mask, scaling, sliding_window=None, **_):
    key = modeling_llama.repeat_kv(key, module.num_key_value_groups)
    value = modeling_llama.repeat_kv(value, module.num_key_value_groups)
    scores = query @ key.transpose(2, 3) * scaling
    hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    if sliding_window:
        hidden |= torch.ones(scores.shape[-2:], dtype=torch.bool).tril(-sliding_window)
    weights = torch.softmax(scores.masked_fill(hidden, -torch.inf), dim=-1)
    return (weights @ value).transpose(1, 2).contiguous(), weights


def make_model(name, config, seed):
    family = FAMILIES[config["model_type"]]
    kwargs = {k: v for k, v in config.items() if k not in ("architectures", "model_type", "torch_dtype")}
    if family.router:
        kwargs["experts_implementation"] = "eager"
    model = family.model(family.config(**kwargs, attn_implementation="eager")).float().eval()
    zero_routers = ZERO_ROUTERS.get(name, [])
    rng = np.random.default_rng(seed)
    with torch.no_grad():
        for name, p in model.named_parameters():
            values = rng.standard_normal(tuple(p.shape))
            values = 1 + 0.1 * values if name.endswith("norm.weight") else 0.15 * values
            if name.endswith(".mlp.gate.weight"):
                values[zero_routers] = 0
            p.copy_(torch.from_numpy(values.astype(np.float32)))
            if is_bf16(config):
                p.copy_(p.bfloat16().float())
        for name, bias in correction_biases(model):
            values = 0.05 * rng.standard_normal(tuple(bias.shape))
            values[zero_routers] = 0
            bias.copy_(torch.from_numpy(values.astype(np.float32)))
    return model


def correction_biases(model):
    return [(n, b) for n, b in model.named_buffers() if n.endswith("e_score_correction_bias")]


def is_bf16(config):
    return config.get("torch_dtype") == "bfloat16"


def forward(model, batch):
    """Logits [T, V], and per token log-prob of the label and entropy at TEMPERATURE (0 without a label)."""
    logits = [model(input_ids=torch.tensor([seq]), position_ids=torch.arange(len(seq))[None]).logits[0]
              for seq in batch["sequences"]]
    logits = torch.cat(logits)
    logits = logits.float() if logits.dtype == torch.bfloat16 else logits  # as in transformers for its loss
    log_p = torch.log_softmax(logits / TEMPERATURE, dim=-1)
    labels = torch.tensor(batch["labels"])
    mask = labels >= 0
    chosen = log_p.gather(1, labels.clamp(min=0)[:, None])[:, 0]
    log_probs = torch.where(mask, chosen, torch.zeros_like(chosen))
    entropy = torch.where(mask, -(log_p.exp() * log_p).sum(-1), torch.zeros_like(chosen))
    loss = -(log_probs.sum() + ENTROPY_COEFF * entropy.sum()) / mask.sum()
    return logits, log_probs, entropy, loss


def make_batch(rng, vocab_size):
    sequences = [rng.integers(0, vocab_size, n).tolist() for n in LENGTHS]
    sequences[2][4] = vocab_size - 1  # the last row of the vocabulary
    labels = []
    for seq in sequences:
        labels += [t if i >= PROMPT else -1 for i, t in enumerate(seq[1:])] + [-1]
    return {"sequences": sequences, "labels": labels}


def train(model, config, batch, tensors):
    decayed = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() == 1]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": OPTIM["weight_decay"]}, {"params": others, "weight_decay": 0.0}],
        lr=OPTIM["lr"], betas=tuple(OPTIM["betas"]), eps=OPTIM["eps"])
    norms = []
    for step in range(1, 4):
        optimizer.zero_grad()
        loss = forward(model, batch)[3]
        loss.backward()
        if step == 1:
            tensors["loss"] = loss.detach().reshape(1)
            for name, p in model.named_parameters():
                put(tensors, "grad.", config, name, p.grad)
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), OPTIM["clip_grad"]).reshape(1))
        assert norms[-1] > OPTIM["clip_grad"], "clipping must act"
        optimizer.step()
        for name, p in model.named_parameters():
            # fp32 is sufficient for the larger model: the smaller one tests the same code to 1e-10.
            kept = torch.float64 if model.config.tie_word_embeddings else torch.float32
            put(tensors, f"step{step}.", config, name, p.detach().to(kept))
        for name, bias in correction_biases(model):
            tensors[f"step{step}.{name}"] = bias.clone()
    tensors["grad_norms"] = torch.cat(norms)


def errors_of_bf16(model, batch, tensors):
    """How far the stock bf16 model is from the reference in `tensors`."""
    inv_freq = model.model.rotary_emb.inv_freq.clone()
    model = model.bfloat16()
    model.model.rotary_emb.inv_freq = inv_freq  # stays fp32 when transformers loads a bf16 model
    logits, log_probs, entropy, loss = forward(model, batch)
    loss.backward()
    computed = {"logits": logits, "log_probs": log_probs}
    computed |= {"grad." + name: p.grad for name, p in model.named_parameters()}
    for name, actual in computed.items():
        error = (actual.detach().double() - tensors[name]).abs().max() / tensors[name].abs().max()
        kind = "error_bf16." + name.split(".")[0]
        tensors[kind] = torch.maximum(error.reshape(1), tensors.get(kind, torch.zeros(1)))


def nmse_of_bf16(model, batch, tensors):
    """How far the logits of a token of the bf16 model with experts, stock but for ties, are from the reference in
    `tensors`."""
    inv_freq = model.model.rotary_emb.inv_freq.clone()
    model = model.bfloat16()
    model.model.rotary_emb.inv_freq = inv_freq
    with torch.no_grad():
        logits = forward(model, batch)[0].double()
    errors = ((logits - tensors["logits"]) ** 2).sum(-1) / (tensors["logits"] ** 2).sum(-1)
    tensors["nmse_bf16.logits"] = errors.median().reshape(1)


def check_names(model, weights):
    """transformers writes the same tensors."""
    with tempfile.TemporaryDirectory() as path:
        model.save_pretrained(path)
        written = load_file(Path(path) / "model.safetensors")
    assert written.keys() == weights.keys(), written.keys() ^ weights.keys()
    assert all(torch.equal(written[n].float(), weights[n].float()) for n in written)


def install_router(name, config, dtype):
    family = FAMILIES[config["model_type"]]
    if not family.router:
        return None
    normalizes = config["model_type"] == "mixtral" or config["norm_topk_prob"]
    router = Router(family.stock_router, normalizes, dtype)
    router.install(family)
    return router


def check_router(name, config, router):
    if not router:
        return
    num_experts = config.get("num_experts") or config.get("num_local_experts") or config["n_routed_experts"]
    unused = sum(num_experts - len(used) for used in router.used.values())
    assert bool(router.ties) == (name in HAS_TIES), f"{router.ties} ties"
    assert unused or name not in HAS_UNUSED, "all experts are used"


def make(out, name, config):
    family = FAMILIES[config["model_type"]]
    family.patch(*family.stock)
    out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(SEED)
    model = make_model(name, config, SEED)
    stock_model = copy.deepcopy(model)
    (out / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    dtype = torch.bfloat16 if is_bf16(config) else torch.float32
    weights = {}
    for n, p in model.named_parameters():
        put(weights, "", config, n, p.detach().to(dtype).contiguous())
    weights |= {n: b.clone() for n, b in correction_biases(model)}
    save_file(weights, out / "model.safetensors", metadata={"format": "pt"})
    check_names(model, weights)

    model = model.double()
    head_dim = config.get("head_dim") or config.get("qk_rope_head_dim") or config["hidden_size"] // config["num_attention_heads"]
    batch = make_batch(np.random.default_rng(SEED + 1), config["vocab_size"])
    install_router(name, config, torch.float32)
    with torch.no_grad():
        stock = forward(model, batch)[0]
        inv_freq = inverse_frequencies(config, head_dim)
        stock_freq = model.model.rotary_emb.inv_freq.double().numpy()
        assert np.max(np.abs(inv_freq / stock_freq - 1)) < 1e-6, "rotary frequencies"
        model.model.rotary_emb = ExactRotary(inv_freq, model.model.rotary_emb.attention_scaling)
        family.patch(norm_f64, attention_f64)
        router = install_router(name, config, torch.float64)
        logits, log_probs, entropy, _ = forward(model, batch)
    difference = float(torch.max(torch.abs(stock - logits)))
    assert 0 < difference < 1e-5, f"replacements change logits by {difference}"

    tensors = {
        "tokens": torch.tensor(sum(batch["sequences"], []), dtype=torch.int32),
        "cu_seqlens": torch.tensor(np.cumsum([0] + LENGTHS), dtype=torch.int32),
        "labels": torch.tensor(batch["labels"], dtype=torch.int32),
        "logits": logits, "log_probs": log_probs, "entropy": entropy,
    }
    check_router(name, config, router)
    train(model, config, batch, tensors)
    if is_bf16(config):
        family.patch(*family.stock)
        errors_of_bf16(stock_model, batch, tensors)
    family.patch(*family.stock)
    if router:
        family.router.forward = family.stock_router
        if name in HAS_TIES:
            install_router(name, config, torch.float32)
        nmse_of_bf16(stock_model, batch, tensors)
    save_file({n: t.detach().contiguous() for n, t in tensors.items()}, out / "golden.safetensors")

    files = ["config.json", "model.safetensors", "golden.safetensors"]
    manifest = {
        "script": "gen/make_tiny_models.py", "seed": SEED, "temperature": TEMPERATURE, "entropy_coeff": ENTROPY_COEFF,
        "optim": OPTIM,
        "versions": {"transformers": transformers.__version__, "torch": torch.__version__.split("+")[0],
                     "safetensors": safetensors.__version__, "numpy": np.__version__},
        "sha256": {f: hashlib.sha256((out / f).read_bytes()).hexdigest() for f in files},
    }
    (out / "manifest.json").write_text(json.dumps(manifest, indent=2) + "\n")
    print(name, {f: (out / f).stat().st_size for f in files}, "loss", float(tensors["loss"][0]),
          "norms", tensors["grad_norms"].tolist(),
          {n: f"{float(t):.1e}" for n, t in tensors.items() if "_bf16." in n})


if __name__ == "__main__":
    if len(sys.argv) < 2 or not set(sys.argv[2:]) <= set(VARIANTS):
        sys.exit(__doc__)
    torch.set_num_threads(1)
    for variant in sys.argv[2:] or VARIANTS:
        make(Path(sys.argv[1]) / variant, variant, VARIANTS[variant])
