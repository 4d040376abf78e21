#!/usr/bin/env python3
"""What PyTorch and transformers do on the shapes of rankd-bench, as JSON for `rankd-bench --compare`.

Models have random bf16 weights, attention is SDPA. AdamW is the fused one and works on bf16 without fp32 masters;
gradients are not clipped. With --strong the models are compiled (torch.compile), else nothing is. Needs torch and
transformers; takes about 30 s on an H200, some minutes with --strong.

  python3 bench/pytorch_baseline.py --json pytorch.json [--filter TEXT] [--device cuda] [--strong] [--tiny]
"""
import argparse
import datetime
import gc
import json
import statistics
import sys
import time

try:
    import torch
    import transformers
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention
except ImportError as error:  # --help must work without PyTorch
    torch, missing = None, error

SHAPES = {
    "1.5b": dict(hidden_size=1536, intermediate_size=8960, num_hidden_layers=28, num_attention_heads=12,
                 num_key_value_heads=2, vocab_size=151936, tie_word_embeddings=True),
    "7b": dict(hidden_size=3584, intermediate_size=18944, num_hidden_layers=28, num_attention_heads=28,
               num_key_value_heads=4, vocab_size=152064, tie_word_embeddings=False),
}
SPARSE = {
    "30b_a3b_12": ("Qwen3MoeConfig", dict(
        hidden_size=2048, intermediate_size=6144, moe_intermediate_size=768, num_hidden_layers=12,
        num_attention_heads=32, num_key_value_heads=4, head_dim=128, num_experts=128, num_experts_per_tok=8,
        norm_topk_prob=True, decoder_sparse_step=1, mlp_only_layers=[], vocab_size=151936)),
    "moonlight": ("DeepseekV3Config", dict(
        hidden_size=2048, intermediate_size=11264, moe_intermediate_size=1408, num_hidden_layers=27,
        num_attention_heads=16, num_key_value_heads=16, kv_lora_rank=512, q_lora_rank=None, qk_nope_head_dim=128,
        qk_rope_head_dim=64, v_head_dim=128, n_routed_experts=64, n_shared_experts=2, num_experts_per_tok=6,
        first_k_dense_replace=1, n_group=1, topk_group=1, norm_topk_prob=True, routed_scaling_factor=2.446,
        vocab_size=163840)),
}
TINY_SPARSE = dict(hidden_size=64, intermediate_size=96, moe_intermediate_size=32, num_hidden_layers=2, num_experts=8,
                   n_routed_experts=8, num_experts_per_tok=2, vocab_size=320)
TINY = dict(hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
            vocab_size=320, tie_word_embeddings=True)
WEIGHTS = [(2048, 1536), (1536, 1536), (17920, 1536), (1536, 8960), (4608, 3584), (3584, 3584), (37888, 3584),
           (3584, 18944)]


class Bench:
    def __init__(self, options):
        self.options = options
        self.device = torch.device(options.device)
        self.rows = []

    def sync(self):
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def seconds(self, fn, warm=3, timed=5, calls=1):
        """Median seconds of one call of fn."""
        for _ in range(warm):
            fn()
        times = []
        for _ in range(timed):
            self.sync()
            begin = time.perf_counter()
            for _ in range(calls):
                fn()
            self.sync()
            times.append((time.perf_counter() - begin) / calls)
        return statistics.median(times)

    def seconds_of_kernels(self, fn, calls=20):
        """Median seconds of fn(i) on the device: replayed from a graph, so that the interpreter has no part in it."""
        if self.device.type != "cuda":
            return self.seconds(lambda: fn(0))
        for i in range(calls):
            fn(i)
        self.sync()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for i in range(calls):
                fn(i)
        return self.seconds(graph.replay) / calls

    def wants(self, *names):
        return any(self.options.filter in name for name in names)

    def add(self, name, shape, measured, unit):
        if not self.wants(name):
            return
        self.rows.append(dict(name=name, shape=shape, measured=measured, unit=unit))
        print(f"{name:30} {shape:44} {measured:12.2f} {unit}", flush=True)

    def clean(self):
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()

    # --- single operators ---

    def gemm(self):
        for tokens in (8192, 64):
            for n, k in WEIGHTS + ([(8192, 8192)] if tokens == 8192 else [(151936, 1536)]):
                name = "gemm_8192" if n == 8192 else f"gemm_{n}x{k}_m{tokens}"
                if not self.wants(name):
                    continue
                m, n, k = (8, 16, 32) if self.options.tiny else (tokens, n, k)
                x = [torch.randn(m, k, device=self.device, dtype=torch.bfloat16) for _ in range(4)]
                w = [torch.randn(n, k, device=self.device, dtype=torch.bfloat16) for _ in range(4)]
                out = torch.empty(m, n, device=self.device, dtype=torch.bfloat16)
                seconds = self.seconds_of_kernels(lambda i: torch.matmul(x[i % 4], w[i % 4].t(), out=out))
                if tokens == 64:
                    self.add(name, f"M={m} N={n} K={k}", 2 * (m * n + m * k + n * k) / seconds / 1e9, "GB/s")
                else:
                    self.add(name, f"M={m} N={n} K={k}", 2 * m * n * k / seconds / 1e12, "TFLOP/s")

    def attention_seconds(self, q, k, v, grad):
        """Forward and backward of the fastest backend, each on its own."""
        forward, backward = [], []
        backends = [SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION]
        for backend in backends if self.device.type == "cuda" else [SDPBackend.MATH]:
            try:
                with sdpa_kernel([backend]):
                    forward.append(self.seconds(
                        lambda: scaled_dot_product_attention(q, k, v, is_causal=True), calls=5))
                    out = scaled_dot_product_attention(q, k, v, is_causal=True)
                    backward.append(self.seconds(
                        lambda: torch.autograd.grad(out, (q, k, v), grad, retain_graph=True), calls=5))
            except RuntimeError as error:
                print(f"  {backend}: {str(error).splitlines()[0]}")
        return min(forward), min(backward)

    def attention(self):
        cases = [("hd128", 2, 4096, 28, 128), ("hd128_32k", 1, 32768, 28, 128), ("1.5b_2048", 4, 2048, 12, 128),
                 ("hd64", 2, 4096, 14, 64)]
        for suffix, seqs, length, heads, head_dim in cases:
            if not self.wants(f"attn_fwd_{suffix}", f"attn_bwd_{suffix}"):
                continue
            if self.options.tiny:
                seqs, length, heads, head_dim = 2, 24, 4, 16
            # Keys and values are expanded to all heads: not all backends support grouped ones.
            q, k, v, grad = (torch.randn(seqs, heads, length, head_dim, device=self.device, dtype=torch.bfloat16)
                             for _ in range(4))
            for tensor in (q, k, v):
                tensor.requires_grad_(True)
            pairs = seqs * length * length * heads * head_dim
            forward, backward = self.attention_seconds(q, k, v, grad)
            shape = f"seqs={seqs} len={length} heads={heads} head_dim={head_dim}"
            self.add(f"attn_fwd_{suffix}", shape, 2 * pairs / forward / 1e12, "TFLOP/s")
            self.add(f"attn_bwd_{suffix}", shape, 5 * pairs / backward / 1e12, "TFLOP/s")

    # --- models ---

    def model(self, size):
        config = transformers.Qwen2Config(**(TINY if self.options.tiny else SHAPES[size]),
                                          max_position_embeddings=4096, attn_implementation="sdpa")
        before = torch.get_default_dtype()
        torch.set_default_dtype(torch.bfloat16)
        with self.device:
            model = transformers.Qwen2ForCausalLM(config)
        torch.set_default_dtype(before)
        return torch.compile(model) if self.options.strong else model, config

    def sparse_model(self, name):
        """A model of experts; transformers multiplies by all of them in one grouped GEMM where it can."""
        family, shape = SPARSE[name]
        config = getattr(transformers, family)(
            **{**shape, **(TINY_SPARSE if self.options.tiny else {})}, max_position_embeddings=4096,
            attn_implementation="sdpa", experts_implementation="grouped_mm")
        before = torch.get_default_dtype()
        torch.set_default_dtype(torch.bfloat16)
        with self.device:
            model = transformers.AutoModelForCausalLM.from_config(config)
        torch.set_default_dtype(before)
        return torch.compile(model) if self.options.strong else model, config

    def train_sparse(self):
        for size in SPARSE:
            name = f"fwd_bwd_{size}"
            if not self.wants(name):
                continue
            self.clean()
            model, config = self.sparse_model(size)
            model.train()
            ids, shape = self.batch(config)

            def pass_both():
                model(input_ids=ids, labels=ids, use_cache=False).loss.backward()
                model.zero_grad(set_to_none=True)

            self.add(name, shape, ids.numel() / self.seconds(pass_both, 2, 3), "tok/s")
            del model, pass_both

    def batch(self, config):
        seqs, length = (2, 12) if self.options.tiny else (4, 2048)
        ids = torch.randint(config.vocab_size, (seqs, length), device=self.device)
        return ids, f"{seqs}x{length} tokens"

    def train(self):
        if self.wants("train_step_1.5b", "peak_memory_1.5b"):
            self.clean()
            model, config = self.model("1.5b")
            ids, shape = self.batch(config)
            optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, betas=(0.9, 0.95), eps=1e-8,
                                          weight_decay=0.01, fused=True)

            def step():
                model(input_ids=ids, labels=ids, use_cache=False).loss.backward()
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)

            seconds = self.seconds(step)
            self.add("train_step_1.5b", shape, ids.numel() / seconds, "tok/s")
            if self.device.type == "cuda":
                self.add("peak_memory_1.5b", shape, torch.cuda.max_memory_allocated() / 2**30, "GiB")
            del model, optimizer, step
        if self.wants("fwd_bwd_7b"):
            self.clean()
            model, config = self.model("7b")
            model.gradient_checkpointing_enable()
            model.train()
            ids, shape = self.batch(config)

            def pass_both():
                model(input_ids=ids, labels=ids, use_cache=False).loss.backward()
                model.zero_grad(set_to_none=True)

            self.add("fwd_bwd_7b", shape, ids.numel() / self.seconds(pass_both, 2, 3), "tok/s")
            del model, pass_both

    def sequence_log_probs(self, model, ids):
        """Sums over the tokens of each sequence: what preference learning compares."""
        logits = model(input_ids=ids, use_cache=False).logits[:, :-1]
        return -torch.nn.functional.cross_entropy(logits.transpose(1, 2).float(), ids[:, 1:],
                                                  reduction="none").sum(-1)

    def dpo(self):
        if not self.wants("dpo_step_1.5b"):
            return
        self.clean()
        model, config = self.model("1.5b")
        reference, _ = self.model("1.5b")
        reference.requires_grad_(False)
        ids, shape = self.batch(config)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.01,
                                      fused=True)

        def step():  # pairs: the first half of the rows are chosen responses, the second half rejected
            with torch.no_grad():
                frozen = self.sequence_log_probs(reference, ids)
            ratio = self.sequence_log_probs(model, ids) - frozen
            half = len(ratio) // 2
            (-torch.nn.functional.logsigmoid(0.1 * (ratio[:half] - ratio[half:])).mean()).backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

        self.add("dpo_step_1.5b", shape, ids.numel() / self.seconds(step), "tok/s")

    def logprob(self):
        for size in ("1.5b", "7b"):
            if not self.wants(f"logprob_{size}"):
                continue
            self.clean()
            model, config = self.model(size)
            ids, shape = self.batch(config)
            labels = ids.roll(-1, 1)

            def log_probs_and_entropy():
                logits = model(input_ids=ids, use_cache=False).logits
                log_probs, entropy = [], []
                for row, label in zip(logits, labels):  # one sequence at a time: less peak memory
                    log_p = torch.log_softmax(row, dim=-1)
                    log_probs.append(log_p.gather(-1, label[:, None])[:, 0])
                    entropy.append(torch.logsumexp(row, -1) - (torch.softmax(row, -1) * row).sum(-1))
                return torch.stack(log_probs).cpu(), torch.stack(entropy).cpu()

            self.add(f"logprob_{size}", shape, ids.numel() / self.seconds(log_probs_and_entropy), "tok/s")
            del model, log_probs_and_entropy

    def decode(self):
        for size, seqs in (("1.5b", 64), ("7b", 64)):
            name = f"decode_{size}_b{seqs}"
            if not self.wants(name):
                continue
            self.clean()
            model, config = self.model(size)
            warm, timed, context = (2, 2, 16) if self.options.tiny else (4, 24, 1024)
            seqs = 3 if self.options.tiny else seqs
            ids = torch.randint(config.vocab_size, (seqs, context - warm - timed // 2), device=self.device)
            cache = transformers.DynamicCache()
            logits = model(input_ids=ids, past_key_values=cache, logits_to_keep=1).logits
            for i in range(warm + timed):
                if i == warm:
                    self.sync()
                    begin = time.perf_counter()
                token = torch.multinomial(torch.softmax(logits[:, -1].float(), -1), 1)
                logits = model(input_ids=token, past_key_values=cache, logits_to_keep=1).logits
            self.sync()
            seconds = (time.perf_counter() - begin) / timed
            self.add(name, f"{seqs} seqs, context {context}", seqs / seconds, "tok/s")
            del model, cache, logits


def versions(strong):
    names = [f"PyTorch {torch.__version__}", f"transformers {transformers.__version__}"]
    if strong:
        names.append("compiled")
    if torch.version.cuda:
        names.append(f"CUDA {torch.version.cuda}")
    return ", ".join(names)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", required=True, help="where the results go")
    parser.add_argument("--filter", default="", help="only benchmarks whose name contains this")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--strong", action="store_true", help="compile the models")
    parser.add_argument("--tiny", action="store_true", help="shapes of a test")
    options = parser.parse_args()
    if torch is None:
        sys.exit(f"pytorch_baseline.py: {missing}; it needs torch and transformers")
    bench = Bench(options)
    torch.manual_seed(1)
    for group in (bench.gemm, bench.attention, bench.train, bench.train_sparse, bench.dpo, bench.logprob,
                  bench.decode):
        try:
            with torch.set_grad_enabled(group in (bench.attention, bench.train, bench.train_sparse, bench.dpo)):
                group()
        except (RuntimeError, ValueError, TypeError) as error:  # continue with the other figures
            print(f"{group.__name__}: {error}", flush=True)
    hardware = torch.cuda.get_device_name() if bench.device.type == "cuda" else "CPU"
    date = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    for row in bench.rows:
        row.update(date=date, hardware=hardware, versions=versions(options.strong))
    with open(bench.options.json, "w", encoding="utf-8") as out:
        json.dump(bench.rows, out, indent=1)
        out.write("\n")


if __name__ == "__main__":
    main()
