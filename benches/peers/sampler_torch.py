#!/usr/bin/env python3
"""CPU decode throughput compared with PyTorch, in alternating rounds on two threads: python3 benches/peers/sampler_torch.py

Uses the virtual environment of conformance/torch (run that first). PyTorch decodes eagerly in inference mode with a preallocated KV
cache, fused attention and multinomial sampling, all sequences of a batch in lockstep. Then 10,000 short requests with a shared
prefix, with and without prefix sharing.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
STACK = dict(d=128, l=4, h=4, kv=2, hd=32, ff=384, v=512)
TINY = dict(d=32, l=2, h=2, kv=2, hd=16, ff=96, v=100)


def torch_decode(s):
    import time

    import torch
    import torch.nn.functional as F

    torch.set_num_threads(2)
    torch.manual_seed(1)
    D, L, H, KV, HD, FF, V, B, P, A = (s[k] for k in "d l h kv hd ff v batch prompt_tokens completion_tokens".split())
    W = lambda o, i: torch.randn(o, i) * 0.02
    rms = lambda x, w: F.rms_norm(x, (w.shape[0],), w, 1e-6)
    rope = lambda x, c, s: x * c + torch.cat([-x[..., HD // 2:], x[..., :HD // 2]], -1) * s
    layers = [dict(n1=torch.ones(D), n2=torch.ones(D), qn=torch.ones(HD), kn=torch.ones(HD), qkv=W((H + 2 * KV) * HD, D),
                   o=W(D, H * HD), gu=W(2 * FF, D), down=W(D, FF)) for _ in range(L)]
    emb, norm = W(V, D), torch.ones(D)
    f = torch.arange(P + A).float()[:, None] * (1e6 ** (-torch.arange(HD // 2).float() / (HD // 2)))[None]
    f = torch.cat([f, f], -1)
    cos, sin = f.cos(), f.sin()

    def step(tokens, at, caches):
        b, t = tokens.shape
        x = F.embedding(tokens, emb)
        for w, (ck, cv) in zip(layers, caches):
            q, k, v = F.linear(rms(x, w["n1"]), w["qkv"]).view(b, t, H + 2 * KV, HD).split([H, KV, KV], 2)
            q = rope(rms(q, w["qn"]).transpose(1, 2), cos[at:at + t], sin[at:at + t])
            ck[:, :, at:at + t] = rope(rms(k, w["kn"]).transpose(1, 2), cos[at:at + t], sin[at:at + t])
            cv[:, :, at:at + t] = v.transpose(1, 2)
            o = F.scaled_dot_product_attention(q, ck[:, :, :at + t], cv[:, :, :at + t], is_causal=t > 1, enable_gqa=H != KV)
            x = x + F.linear(o.transpose(1, 2).reshape(b, t, H * HD), w["o"])
            g, u = F.linear(rms(x, w["n2"]), w["gu"]).chunk(2, -1)
            x = x + F.linear(F.silu(g) * u, w["down"])
        logp = F.log_softmax(F.linear(rms(x[:, -1], norm), emb), -1)
        token = torch.multinomial(logp.exp(), 1)
        return token, logp.gather(1, token)

    best = None
    with torch.inference_mode():
        for _ in range(4):
            caches = [(torch.zeros(B, KV, P + A, HD), torch.zeros(B, KV, P + A, HD)) for _ in range(L)]
            start = time.perf_counter()
            token, _ = step(torch.randint(V, (B, P)), 0, caches)
            for i in range(A - 1):
                token, _ = step(token, P + i, caches)
            seconds = time.perf_counter() - start
            best = seconds if best is None else min(best, seconds)
    print(json.dumps(dict(tokens_per_second=B * A / best, seconds=best)))


def main():
    if len(sys.argv) > 1:
        return torch_decode(json.loads(sys.argv[1]))
    python = ROOT / "conformance" / "torch" / ".venv" / "bin" / "python"
    if not python.exists():
        sys.exit("run conformance/torch/run.py first: it creates the virtual environment with PyTorch")
    subprocess.run(["cargo", "build", "--release", "-q", "-p", "mage-native", "--example", "sampler_speed"], cwd=ROOT, check=True)
    binary = str(Path(os.environ.get("CARGO_TARGET_DIR", str(ROOT / "target"))) / "release" / "examples" / "sampler_speed")
    call = lambda *command: json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    native = lambda **keys: call(binary, "threads=2", *(f"{k}={v}" for k, v in keys.items()))
    print(f"load before: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    for batch in (1, 16):
        shape = dict(STACK, batch=batch, prompt_tokens=128, completion_tokens=128)
        rounds = [(native(**shape, requests=batch * 4), call(str(python), __file__, json.dumps(shape))) for _ in range(3)]
        a, b = (sorted(r[i]["tokens_per_second"] for r in rounds)[1] for i in (0, 1))
        print(f"d=128, 4 layers, batch {batch:2}, prompt 128, completion 128: native {a:9.0f} tokens/s  torch {b:9.0f}  ratio {a / b:.1f}")
    shape = dict(STACK, batch=16, prompt_tokens=128, completion_tokens=128, requests=64)
    for adapters in (0, 1, 4, 16):
        r = [native(**shape, adapters=adapters, rank=16)["tokens_per_second"] for _ in range(3)]
        print(f"batch 16 with {adapters:2} adapters of rank 16: native {sorted(r)[1]:9.0f} tokens/s")
    short = dict(STACK, batch=512, prompt_tokens=136, prefix_tokens=128, completion_tokens=4, requests=10_000)
    rounds = [(native(**short), native(**short, sharing=0)) for _ in range(3)]
    a, b = (sorted(r[i]["requests_per_second"] for r in rounds)[1] for i in (0, 1))
    print(f"10,000 requests, 128 of 136 prompt tokens shared, completion 4: {a:8.0f} requests/s with prefix sharing  {b:8.0f} without  ratio {a / b:.1f}")
    for name, keys in (("20 of 24 prompt tokens shared", dict(prompt_tokens=24, prefix_tokens=20)), ("none shared", dict(prompt_tokens=24))):
        r = [native(**TINY, batch=2000, completion_tokens=4, requests=50_000, **keys)["requests_per_second"] for _ in range(3)]
        print(f"d=32, 2 layers, 2000 in flight, prompt 24, completion 4, {name}: {sorted(r)[1]:8.0f} requests/s")
    print(f"load after: {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
