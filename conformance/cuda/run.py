"""Compares training and scoring on a card with torch, on the same weights.

    cargo build --release -p mage-native --example cuda_case
    python3 conformance/cuda/run.py target/release/examples/cuda_case

torch in fp32 is the truth; torch in bf16 says how far bf16 strays. Ours, also bf16, must stray no farther: in the
log-probabilities of many tokens, in the logits of every token at some places (as a training pass and as the sampler see them),
and in each tensor's gradient. How far is the root of the mean square over several batches, since in a single one luck decides
between equals. Torch adds the rows' gradients up in bf16, as its own training does. Needs a card, torch and transformers
(requirements.txt).
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
    print("*** SKIPPED: no CUDA card here, so nothing was compared ***")
    sys.exit(0)
if len(sys.argv) != 2:
    sys.exit(__doc__)
if not os.access(sys.argv[1], os.X_OK):
    sys.exit(f"{sys.argv[1]} is not a program; cargo build --release -p mage-native --example cuda_case makes it")

torch.backends.cuda.matmul.allow_tf32 = False
torch.backends.cudnn.allow_tf32 = False


def passed(model, rows):
    """Log-probabilities of every token but the first of each row, and the gradients of their mean, negated."""
    model.zero_grad()
    said = []
    count = sum(len(r) - 1 for r in rows)
    for row in rows:
        ids = torch.tensor([row], device="cuda")
        logits = model(ids).logits[0, :-1].float()
        chosen = logits.log_softmax(-1).gather(1, ids[0, 1:, None])[:, 0]
        (-chosen.sum() / count).backward()
        said.append(chosen.detach())
    return torch.cat(said), {n: p.grad.float().flatten().clone() for n, p in model.named_parameters()}


def following(model, prefixes):
    """Of each prefix, what its end says of every token: logits whose mean is taken off, since that says nothing."""
    with torch.no_grad():
        return torch.cat([centred(model(torch.tensor([p], device="cuda")).logits[0, -1].float()) for p in prefixes])


def centred(logits):
    return logits - logits.mean()


def rms(x):
    return float(x.double().pow(2).mean().sqrt())


def stray(name, ours, theirs):
    """Prints one comparison; whether ours is no farther."""
    print(f"  {name:<24} {ours:.5f}, torch's in bf16 {theirs:.5f}")
    return ours <= theirs


fine = True
for name, shape in {
    "heads of 128": dict(hidden_size=512, intermediate_size=1536, num_attention_heads=8, num_key_value_heads=2, head_dim=128),
    "heads of 128, 8 to a key": dict(hidden_size=512, intermediate_size=1536, num_attention_heads=16, num_key_value_heads=2, head_dim=128),
    "heads of 64": dict(hidden_size=256, intermediate_size=512, num_attention_heads=4, num_key_value_heads=4, head_dim=64),
    "heads of 24": dict(hidden_size=192, intermediate_size=512, num_attention_heads=4, num_key_value_heads=2, head_dim=24),
    "heads of 16": dict(hidden_size=128, intermediate_size=256, num_attention_heads=8, num_key_value_heads=4, head_dim=16),
}.items():
    torch.manual_seed(0)
    config = Qwen3Config(vocab_size=VOCABULARY, num_hidden_layers=6, max_position_embeddings=2048, tie_word_embeddings=True, **shape)
    model = Qwen3ForCausalLM(config)
    # Norms that have learnt something, and weights that are bf16 numbers: all three start from the same.
    with torch.no_grad():
        for n, p in model.named_parameters():
            if n.endswith("norm.weight"):
                p.copy_(1 + 0.2 * torch.randn_like(p))
            p.copy_(p.bfloat16().float())
    row = lambda n: torch.randint(VOCABULARY, (n,)).tolist()
    batches = [[row(n) for n in (700, 64, 65, 3, 257)] for _ in range(BATCHES)]
    prefixes = [row(n) for n in (1, 16, 65, 100)]
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        with open(f"{folder}/case.json", "w") as f:
            json.dump({"batches": batches, "prefixes": prefixes}, f)
        subprocess.run([sys.argv[1], folder], check=True)
        ours = json.load(open(f"{folder}/out.json"))
        gradients = [load_file(f"{folder}/gradients-{i}.safetensors", device="cuda") for i in range(BATCHES)]
    model = model.cuda()
    true_next = following(model, prefixes)
    truths = [passed(model, rows) for rows in batches]
    model = model.bfloat16()
    half_next = following(model, prefixes)
    halves = [passed(model, rows) for rows in batches]

    print(f"{name}: errors")
    mine = torch.cat([torch.tensor(x, device="cuda") for x in ours["logprobs"]])
    truth, half = (torch.cat([said for said, _ in runs]) for runs in (truths, halves))
    fine &= stray("log-probabilities", rms(mine - truth), rms(half - truth))
    for who in ("trainer", "sampler"):
        mine = torch.cat([centred(torch.tensor(x, device="cuda")) for x in ours[f"by_{who}"]])
        fine &= stray(f"logits, {who}", rms(mine - true_next), rms(half_next - true_next))
    ratios = []
    for n in truths[0][1]:
        # Over all batches, relative to the gradients themselves.
        size = math.sqrt(sum(float(t[n].double().pow(2).sum()) for _, t in truths))
        a = math.sqrt(sum(float((g[n] - t[n]).double().pow(2).sum()) for g, (_, t) in zip(gradients, truths)))
        b = math.sqrt(sum(float((h[n] - t[n]).double().pow(2).sum()) for (_, h), (_, t) in zip(halves, truths)))
        ratios.append((a / b, n, a / size, b / size))
    mean = [sum(r[i] for r in ratios) / len(ratios) for i in (2, 3)]
    fine &= stray(f"{len(ratios)} gradients, mean", *mean)
    worst = max(ratios)
    fine &= stray("the worst of them", worst[2], worst[3])
    print(f"    ({worst[1]}: {worst[0]:.2f} of torch's)", flush=True)
    for ratio, n, a, b in sorted(ratios, reverse=True):
        if ratio > 1:
            print(f"    farther than torch's: {n}, {a:.5f} against {b:.5f}")
print("nowhere farther than torch's own bf16" if fine else "FARTHER than torch's own bf16, see above")
sys.exit(not fine)
