"""Compares training and scoring on a GPU with torch, on the same weights.

    cargo build --release -p mage-native --example cuda_case
    python3 conformance/cuda/run.py target/release/examples/cuda_case

torch in fp32 is the ground truth, and torch in bf16 shows the error of bf16. The error of this implementation, also in bf16, must not be
larger: in the log-probabilities of many tokens, in the logits of every token after some prefixes (from a training pass and from the
sampler), and in each tensor's gradient. Errors are root mean squares over several batches, because a single batch is too noisy. torch
accumulates gradients over sequences in bf16, as in its own bf16 training. Needs a GPU, torch and transformers (requirements.txt).
"""

import json
import math
import os
import subprocess
import sys
import tempfile

import torch
from safetensors.torch import load_file
from transformers import Qwen3Config, Qwen3ForCausalLM

BATCHES = 8
VOCABULARY = 3000

if not torch.cuda.is_available():
    print("*** SKIPPED: no CUDA GPU; nothing was compared ***")
    sys.exit(0)
if len(sys.argv) != 2:
    sys.exit(__doc__)
if not os.access(sys.argv[1], os.X_OK):
    sys.exit(f"{sys.argv[1]} is not executable; build it with `cargo build --release -p mage-native --example cuda_case`")

torch.backends.cuda.matmul.allow_tf32 = False
torch.backends.cudnn.allow_tf32 = False


def forward_backward(model, sequences):
    """Log-probabilities of every token but the first of each sequence, and the gradients of their negated mean."""
    model.zero_grad()
    logprobs = []
    count = sum(len(s) - 1 for s in sequences)
    for sequence in sequences:
        ids = torch.tensor([sequence], device="cuda")
        logits = model(ids).logits[0, :-1].float()
        chosen = logits.log_softmax(-1).gather(1, ids[0, 1:, None])[:, 0]
        (-chosen.sum() / count).backward()
        logprobs.append(chosen.detach())
    return torch.cat(logprobs), {n: p.grad.float().flatten().clone() for n, p in model.named_parameters()}


def next_token_logits(model, prefixes):
    """Logits of the token after each prefix, minus their mean, which has no effect."""
    with torch.no_grad():
        return torch.cat([centred(model(torch.tensor([p], device="cuda")).logits[0, -1].float()) for p in prefixes])


def centred(logits):
    return logits - logits.mean()


def rms(x):
    return float(x.double().pow(2).mean().sqrt())


def compare(name, ours, theirs):
    """Prints one comparison and returns whether our error is no larger."""
    print(f"  {name:<24} {ours:.5f}, torch in bf16 {theirs:.5f}")
    return ours <= theirs


passed = True
for name, shape in {
    "head_dim 128": dict(hidden_size=512, intermediate_size=1536, num_attention_heads=8, num_key_value_heads=2, head_dim=128),
    "head_dim 128, 8 query heads per KV head": dict(hidden_size=512, intermediate_size=1536, num_attention_heads=16, num_key_value_heads=2, head_dim=128),
    "head_dim 64": dict(hidden_size=256, intermediate_size=512, num_attention_heads=4, num_key_value_heads=4, head_dim=64),
    "head_dim 24": dict(hidden_size=192, intermediate_size=512, num_attention_heads=4, num_key_value_heads=2, head_dim=24),
    "head_dim 16": dict(hidden_size=128, intermediate_size=256, num_attention_heads=8, num_key_value_heads=4, head_dim=16),
}.items():
    torch.manual_seed(0)
    config = Qwen3Config(vocab_size=VOCABULARY, num_hidden_layers=6, max_position_embeddings=2048, tie_word_embeddings=True, **shape)
    model = Qwen3ForCausalLM(config)
    # Non-trivial norm weights, and weights representable in bf16, so that all three start from the same values.
    with torch.no_grad():
        for n, p in model.named_parameters():
            if n.endswith("norm.weight"):
                p.copy_(1 + 0.2 * torch.randn_like(p))
            p.copy_(p.bfloat16().float())
    random_tokens = lambda n: torch.randint(VOCABULARY, (n,)).tolist()
    batches = [[random_tokens(n) for n in (700, 64, 65, 3, 257)] for _ in range(BATCHES)]
    prefixes = [random_tokens(n) for n in (1, 16, 65, 100)]
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        with open(f"{folder}/case.json", "w") as f:
            json.dump({"batches": batches, "prefixes": prefixes}, f)
        subprocess.run([sys.argv[1], folder], check=True)
        ours = json.load(open(f"{folder}/out.json"))
        gradients = [load_file(f"{folder}/gradients-{i}.safetensors", device="cuda") for i in range(BATCHES)]
    model = model.cuda()
    fp32_next = next_token_logits(model, prefixes)
    fp32_runs = [forward_backward(model, batch) for batch in batches]
    model = model.bfloat16()
    bf16_next = next_token_logits(model, prefixes)
    bf16_runs = [forward_backward(model, batch) for batch in batches]

    print(f"{name}: errors")
    mine = torch.cat([torch.tensor(x, device="cuda") for x in ours["logprobs"]])
    fp32, bf16 = (torch.cat([logprobs for logprobs, _ in runs]) for runs in (fp32_runs, bf16_runs))
    passed &= compare("log-probabilities", rms(mine - fp32), rms(bf16 - fp32))
    for source in ("trainer", "sampler"):
        mine = torch.cat([centred(torch.tensor(x, device="cuda")) for x in ours[f"by_{source}"]])
        passed &= compare(f"logits, {source}", rms(mine - fp32_next), rms(bf16_next - fp32_next))
    ratios = []
    for n in fp32_runs[0][1]:
        # Over all batches, relative to the norm of the gradient.
        size = math.sqrt(sum(float(t[n].double().pow(2).sum()) for _, t in fp32_runs))
        a = math.sqrt(sum(float((g[n] - t[n]).double().pow(2).sum()) for g, (_, t) in zip(gradients, fp32_runs)))
        b = math.sqrt(sum(float((h[n] - t[n]).double().pow(2).sum()) for (_, h), (_, t) in zip(bf16_runs, fp32_runs)))
        ratios.append((a / b, n, a / size, b / size))
    mean = [sum(r[i] for r in ratios) / len(ratios) for i in (2, 3)]
    passed &= compare(f"{len(ratios)} gradients, mean", *mean)
    worst = max(ratios)
    passed &= compare("worst of them", worst[2], worst[3])
    print(f"    ({worst[1]}: {worst[0]:.2f} of torch's error)", flush=True)
    for ratio, n, a, b in sorted(ratios, reverse=True):
        if ratio > 1:
            print(f"    larger than torch's: {n}, {a:.5f} against {b:.5f}")
print("no error exceeds that of torch in bf16" if passed else "FAILED: errors exceed those of torch in bf16, see above")
sys.exit(not passed)
