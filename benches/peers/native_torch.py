#!/usr/bin/env python3
"""CPU training steps compared with PyTorch, in alternating rounds on two threads: python3 benches/peers/native_torch.py

Uses the virtual environment of conformance/torch (run that first). PyTorch uses fused attention, fused AdamW, and sequences sorted
by length in four right-padded groups (the causal mask excludes the padding).
"""

import json
import os
import random
import resource
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
SHAPES = {
    "stack: d=128, 4 layers, 16x256": dict(d=128, l=4, h=4, kv=2, hd=32, ff=384, v=512, rows=16, low=256, high=256, steps=8),
    "tiny: d=32, 2 layers, 2000 sequences of 10-40": dict(d=32, l=2, h=2, kv=2, hd=16, ff=96, v=32, rows=2000, low=10, high=40, steps=8),
    "tiny: d=64, 2 layers, 2000 sequences of 10-40": dict(d=64, l=2, h=2, kv=2, hd=32, ff=192, v=32, rows=2000, low=10, high=40, steps=8),
}


def torch_steps(s):
    """PyTorch's side, in a separate process so that its peak memory is measured alone."""
    import time

    import torch
    import torch.nn.functional as F

    torch.set_num_threads(2)
    torch.manual_seed(1)
    rng = random.Random(1)
    D, L, H, KV, HD, FF, V = (s[k] for k in "d l h kv hd ff v".split())
    P = lambda o, i: torch.nn.Parameter(torch.randn(o, i) * 0.02)
    O = lambda n: torch.nn.Parameter(torch.ones(n))
    rms = lambda x, w: F.rms_norm(x, (w.shape[0],), w, 1e-6)

    def rope(x, c, s):
        a, b = x.chunk(2, -1)
        return x * c + torch.cat([-b, a], -1) * s

    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.n1, self.n2, self.qn, self.kn = O(D), O(D), O(HD), O(HD)
            self.qkv, self.o = P((H + 2 * KV) * HD, D), P(D, H * HD)
            self.gu, self.down = P(2 * FF, D), P(D, FF)

        def forward(self, x, c, s):
            b, t, _ = x.shape
            q, k, v = F.linear(rms(x, self.n1), self.qkv).view(b, t, H + 2 * KV, HD).split([H, KV, KV], 2)
            q = rope(rms(q, self.qn).transpose(1, 2), c, s)
            k = rope(rms(k, self.kn).transpose(1, 2), c, s)
            o = F.scaled_dot_product_attention(q, k, v.transpose(1, 2), is_causal=True, enable_gqa=H != KV)
            x = x + F.linear(o.transpose(1, 2).reshape(b, t, H * HD), self.o)
            g, u = F.linear(rms(x, self.n2), self.gu).chunk(2, -1)
            return x + F.linear(F.silu(g) * u, self.down)

    lengths = sorted(rng.randint(s["low"], s["high"]) for _ in range(s["rows"]))
    width = max(lengths)
    tokens = torch.randint(V, (len(lengths), width))
    targets = tokens[:, 1:].clone()
    for i, n in enumerate(lengths):
        targets[i, n - 1:] = -100
    f = torch.arange(width).float()[:, None] * (1e6 ** (-torch.arange(HD // 2).float() / (HD // 2)))[None]
    f = torch.cat([f, f], -1)
    cos, sin = f.cos(), f.sin()
    emb, norm, layers = P(V, D), O(D), torch.nn.ModuleList([Layer() for _ in range(L)])
    params = [emb, norm, *layers.parameters()]
    optimiser = torch.optim.AdamW(params, lr=1e-3, weight_decay=0.01, fused=True)
    # Groups of similar length need little padding; their gradients are accumulated into one update.
    groups = 1 if lengths[0] == width else s.get("groups", 4)
    size = -(-len(lengths) // groups)
    times = []
    for _ in range(s["steps"]):
        start = time.perf_counter()
        total = 0.0
        for g in range(0, len(lengths), size):
            w = max(lengths[g:g + size])
            x = F.embedding(tokens[g:g + size, :w], emb)
            for layer in layers:
                x = layer(x, cos[:w], sin[:w])
            logits = F.linear(rms(x[:, :-1], norm), emb)
            loss = F.cross_entropy(logits.reshape(-1, V), targets[g:g + size, :w - 1].reshape(-1), ignore_index=-100, reduction="sum")
            loss.backward()
            total += loss.item()
        optimiser.step()
        optimiser.zero_grad()
        times.append((time.perf_counter() - start) * 1e3)
    settled = sorted(times[len(times) // 3:])
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps(dict(median_ms=settled[len(settled) // 2], best_ms=settled[0], tokens=sum(lengths), peak_mib=peak)))


def idle_mib():
    """Memory of a process that only imports PyTorch."""
    import torch  # noqa: F401

    print(json.dumps(dict(peak_mib=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)))


def main():
    python = ROOT / "conformance" / "torch" / ".venv" / "bin" / "python"
    if len(sys.argv) > 1:
        return idle_mib() if sys.argv[1] == "idle" else torch_steps(json.loads(sys.argv[1]))
    if not python.exists():
        sys.exit("run conformance/torch/run.py first: it creates the virtual environment with PyTorch")
    subprocess.run(["cargo", "build", "--release", "-q", "-p", "mage-native", "--example", "train_step"], cwd=ROOT, check=True)
    binary = str(Path(os.environ.get("CARGO_TARGET_DIR", str(ROOT / "target"))) / "release" / "examples" / "train_step")
    call = lambda *command: json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    print(f"load before: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores; importing PyTorch takes {call(str(python), __file__, 'idle')['peak_mib']:.0f} MiB")
    for name, shape in SHAPES.items():
        rounds = []
        for _ in range(5):  # alternating, so that both sides see the same load
            native = call(binary, "threads=2", *(f"{k}={v}" for k, v in shape.items()))
            torch = call(str(python), __file__, json.dumps(shape))
            rounds.append((native, torch))
        best = [min(r[i]["best_ms"] for r in rounds) for i in (0, 1)]
        middle = [sorted(r[i]["median_ms"] for r in rounds)[2] for i in (0, 1)]
        print(f"{name} ({rounds[0][0]['parameters']} parameters, {rounds[0][0]['tokens']} tokens)")
        print(f"  native  median {middle[0]:8.1f} ms  best {best[0]:8.1f} ms  peak {rounds[0][0]['peak_mib']:7.0f} MiB")
        print(f"  torch   median {middle[1]:8.1f} ms  best {best[1]:8.1f} ms  peak {rounds[0][1]['peak_mib']:7.0f} MiB")
        print(f"  native / torch: {middle[0] / middle[1]:.2f} (median), {best[0] / best[1]:.2f} (best)")
    print(f"load after: {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
