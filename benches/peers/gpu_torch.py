"""PyTorch counterpart of `cargo run --release -p mage-cuda --example speed`: the same shapes and jobs.

    python benches/peers/gpu_torch.py t,0.6B,8,1024 t,0.6B,8,1024,compile d,0.6B,64,128,128 d,0.6B,64,128,128,compile a,4B,8192

`t` measures forward and backward passes, `d` decoding with a CUDA graph, `a` a pass with recomputation and a fused AdamW step over fp32
master weights. An option may follow: `compile`; `eager` decodes without a graph; `hf` uses transformers' Qwen3 and its `generate`, minus
the time for a single token, which is mostly prefill. Weights and tokens are random, activations bf16; attention is torch's own.
"""

import statistics
import sys
import time

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

SHAPES = {"0.6B": (1024, 28, 16, 3072), "1.7B": (2048, 28, 16, 6144), "4B": (2560, 36, 32, 9728), "4B6": (2560, 6, 32, 9728)}
KV, HEAD, VOCABULARY = 8, 128, 151_936
torch.set_float32_matmul_precision("high")


def matrix(rows, columns):
    return nn.Parameter(torch.empty(rows, columns, device="cuda", dtype=torch.bfloat16).normal_(0, 0.02))


def ones(count):
    return nn.Parameter(torch.ones(count, device="cuda", dtype=torch.bfloat16))


def norm(x, w):
    return F.rms_norm(x, w.shape, w, 1e-6)


def rotate(x, cosine, sine):
    first, second = x.chunk(2, -1)
    return x * cosine + torch.cat([-second, first], -1) * sine


class Block(nn.Module):
    def __init__(self, d, heads, inner):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2, self.q_norm, self.k_norm = ones(d), ones(d), ones(HEAD), ones(HEAD)
        self.qkv, self.out = matrix((heads + 2 * KV) * HEAD, d), matrix(d, heads * HEAD)
        self.gate_up, self.down = matrix(2 * inner, d), matrix(d, inner)

    def forward(self, x, cosine, sine, cache=None):
        b, t, _ = x.shape
        q, k, v = F.linear(norm(x, self.norm1), self.qkv).view(b, t, -1, HEAD).split([self.heads, KV, KV], 2)
        # Normalised before the transpose: the fastest variant for torch that was measured.
        q, k = norm(q, self.q_norm).transpose(1, 2), norm(k, self.k_norm).transpose(1, 2)
        q, k, v = rotate(q, cosine, sine), rotate(k, cosine, sine), v.transpose(1, 2)
        if cache is None:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        else:
            keys, values, position, mask = cache
            keys.index_copy_(2, position, k)
            values.index_copy_(2, position, v)
            y = F.scaled_dot_product_attention(q, keys, values, attn_mask=mask, enable_gqa=True)
        x = x + F.linear(y.transpose(1, 2).reshape(b, t, -1), self.out)
        gate, up = F.linear(norm(x, self.norm2), self.gate_up).chunk(2, -1)
        return x + F.linear(F.silu(gate) * up, self.down)


class Model(nn.Module):
    def __init__(self, name):
        super().__init__()
        d, layers, heads, inner = SHAPES[name]
        self.embedding, self.norm = matrix(VOCABULARY, d), ones(d)
        self.blocks = nn.ModuleList(Block(d, heads, inner) for _ in range(layers))

    def forward(self, tokens, cosine, sine, recompute=False):
        x = F.embedding(tokens, self.embedding)
        for block in self.blocks:
            x = checkpoint(block, x, cosine, sine, use_reentrant=False) if recompute else block(x, cosine, sine)
        return F.linear(norm(x, self.norm), self.embedding)


def rope_table(count):
    frequencies = 1e6 ** (-torch.arange(HEAD // 2, device="cuda").float() / (HEAD // 2))
    angles = (torch.arange(count, device="cuda").float()[:, None] * frequencies).repeat(1, 2)
    return angles.cos().bfloat16(), angles.sin().bfloat16()


def median_seconds(work, repeats=6, warmup=3):
    times = []
    for _ in range(repeats + warmup):
        torch.cuda.synchronize()
        start = time.perf_counter()
        work()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return statistics.median(times[warmup:])


def train(job, name, sequences, length, compiled):
    model, tokens = Model(name), torch.randint(VOCABULARY, (sequences, length), device="cuda")
    targets, (cosine, sine) = torch.randint(VOCABULARY, (sequences * length,), device="cuda"), rope_table(length)

    def loss(tokens):
        return F.cross_entropy(model(tokens, cosine, sine).view(-1, VOCABULARY).float(), targets)

    loss = torch.compile(loss) if compiled else loss

    def work():
        model.zero_grad(set_to_none=True)
        loss(tokens).backward()

    seconds = median_seconds(work)
    report(job, f"{seconds * 1e3:.1f} ms, {sequences * length / seconds:.0f} tokens/s")


def adamw_step(job, name, tokens):
    model, sequences = Model(name), tokens // 1024
    ids, (cosine, sine) = torch.randint(VOCABULARY, (sequences, 1024), device="cuda"), rope_table(1024)
    targets = torch.randint(VOCABULARY, (tokens,), device="cuda")
    parameters = list(model.parameters())
    master_weights = [nn.Parameter(p.detach().float()) for p in parameters]
    optimizer = torch.optim.AdamW(master_weights, lr=1e-6, betas=(0.9, 0.95), weight_decay=0.01, fused=True)

    def work():
        F.cross_entropy(model(ids, cosine, sine, recompute=True).view(-1, VOCABULARY).float(), targets).backward()
        for master, p in zip(master_weights, parameters):
            master.grad, p.grad = p.grad.float(), None
        nn.utils.clip_grad_norm_(master_weights, 1.0, foreach=True)
        optimizer.step()
        for master, p in zip(master_weights, parameters):
            master.grad = None
            p.data.copy_(master.data)

    seconds = median_seconds(work, repeats=4, warmup=2)
    report(job, f"{seconds * 1e3:.1f} ms, {tokens / seconds:.0f} tokens/s")


@torch.no_grad()
def decode(job, name, batch, prompt, new, option):
    model, max_len = Model(name), prompt + new
    cosines, sines = rope_table(max_len)
    kv_cache = [[torch.randn(batch, KV, max_len, HEAD, device="cuda").bfloat16() for _ in range(2)] for _ in model.blocks]
    token = torch.randint(VOCABULARY, (batch, 1), device="cuda")
    position, positions = torch.tensor([prompt], device="cuda"), torch.arange(max_len, device="cuda")

    def decode_step(token, position):
        mask, x = (positions <= position)[None, None, None], F.embedding(token, model.embedding)
        cosine, sine = cosines.index_select(0, position), sines.index_select(0, position)
        for block, (keys, values) in zip(model.blocks, kv_cache):
            x = block(x, cosine, sine, (keys, values, position, mask))
        return F.linear(norm(x, model.norm), model.embedding).argmax(-1)

    def eager():
        position.fill_(prompt)
        for _ in range(new):
            token.copy_(decode_step(token, position))
            position.add_(1).clamp_(max=max_len - 1)

    if option == "eager":
        seconds = median_seconds(eager, repeats=2, warmup=1) / new
        return report(job, f"{seconds * 1e3:.3f} ms per step, {batch / seconds:.0f} tokens/s")
    decode_step = torch.compile(decode_step, mode="max-autotune-no-cudagraphs") if option == "compile" else decode_step
    warmup_stream = torch.cuda.Stream()
    warmup_stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(warmup_stream):
        for _ in range(3):
            decode_step(token, position)
    torch.cuda.current_stream().wait_stream(warmup_stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        token.copy_(decode_step(token, position))
        position.add_(1).clamp_(max=max_len - 1)

    def work():
        position.fill_(prompt)
        for _ in range(new):
            graph.replay()

    seconds = median_seconds(work, repeats=3, warmup=1) / new
    report(job, f"{seconds * 1e3:.3f} ms per step, {batch / seconds:.0f} tokens/s")


def transformers_model(name):
    from transformers import Qwen3Config, Qwen3ForCausalLM

    d, layers, heads, inner = SHAPES[name]
    config = Qwen3Config(
        vocab_size=VOCABULARY, hidden_size=d, intermediate_size=inner, num_hidden_layers=layers, num_attention_heads=heads,
        num_key_value_heads=KV, head_dim=HEAD, tie_word_embeddings=True, bos_token_id=None, eos_token_id=None, pad_token_id=0)
    return Qwen3ForCausalLM(config).to("cuda", torch.bfloat16)


def transformers_train(job, name, sequences, length):
    model, tokens = transformers_model(name), torch.randint(VOCABULARY, (sequences, length), device="cuda")

    def work():
        model.zero_grad(set_to_none=True)
        model(input_ids=tokens, labels=tokens).loss.backward()

    seconds = median_seconds(work)
    report(job, f"{seconds * 1e3:.1f} ms, {sequences * length / seconds:.0f} tokens/s")


@torch.no_grad()
def transformers_decode(job, name, batch, prompt, new):
    model, tokens = transformers_model(name).eval(), torch.randint(VOCABULARY, (batch, prompt), device="cuda")

    def generate(count):
        mask = torch.ones_like(tokens)
        model.generate(input_ids=tokens, attention_mask=mask, max_new_tokens=count, min_new_tokens=count, do_sample=False)

    first = median_seconds(lambda: generate(1), repeats=2, warmup=1)
    seconds = (median_seconds(lambda: generate(new), repeats=2, warmup=1) - first) / (new - 1)
    report(job, f"{seconds * 1e3:.3f} ms per step, {batch / seconds:.0f} tokens/s")


def report(job, text):
    print(f"{job}: {text}, peak {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB", flush=True)


for job in sys.argv[1:]:
    kind, name, *rest = job.split(",")
    option = "" if rest[-1].isdigit() else rest.pop()
    sizes = [int(x) for x in rest]
    torch._dynamo.reset()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    try:
        if option == "hf":
            {"t": transformers_train, "d": transformers_decode}[kind](job, name, *sizes)
        elif kind == "t":
            train(job, name, *sizes, option == "compile")
        elif kind == "d":
            decode(job, name, *sizes, option)
        else:
            adamw_step(job, name, *sizes)
    except torch.cuda.OutOfMemoryError as e:
        print(f"{job}: {e}", flush=True)
