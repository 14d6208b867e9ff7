"""Compares a training pass on a card with torch, on the same weights.

    python conformance/cuda/run.py target/release/examples/card_case

torch in fp32 is the truth; torch in bf16 says how far bf16 strays. Ours, also bf16, must stray no farther in the
log-probabilities and, on average, in the gradients; in no tensor's gradient more than half as far again, which is luck. Needs a card, torch and transformers (requirements.txt).
"""

import json
import subprocess
import sys
import tempfile

import torch
from safetensors.torch import load_file
from transformers import Qwen3Config, Qwen3ForCausalLM

if not torch.cuda.is_available():
    print("*** SKIPPED: no CUDA card here, so nothing was compared ***")
    sys.exit(0)

torch.backends.cuda.matmul.allow_tf32 = False
torch.backends.cudnn.allow_tf32 = False


def passed(model, rows):
    """Log-probabilities of every token but the first of each row, and the gradients of their mean, negated."""
    model.zero_grad()
    said, total = [], 0.0
    count = sum(len(r) - 1 for r in rows)
    for row in rows:
        ids = torch.tensor([row], device="cuda")
        logits = model(ids).logits[0, :-1].float()
        chosen = logits.log_softmax(-1).gather(1, ids[0, 1:, None])[:, 0]
        (-chosen.sum() / count).backward()
        said.append(chosen.detach())
    return torch.cat(said), {n: p.grad.float().flatten() for n, p in model.named_parameters()}


def apart(a, b):
    return float((a.double() - b.double()).norm() / b.double().norm())


failed = False
for name, shape in {
    "heads of 128": dict(hidden_size=512, intermediate_size=1536, num_attention_heads=8, num_key_value_heads=2, head_dim=128),
    "heads of 64": dict(hidden_size=256, intermediate_size=512, num_attention_heads=4, num_key_value_heads=4, head_dim=64),
    "heads of 24": dict(hidden_size=192, intermediate_size=512, num_attention_heads=4, num_key_value_heads=2, head_dim=24),
    "heads of 16": dict(hidden_size=128, intermediate_size=256, num_attention_heads=8, num_key_value_heads=4, head_dim=16),
}.items():
    torch.manual_seed(0)
    config = Qwen3Config(vocab_size=3000, num_hidden_layers=6, max_position_embeddings=2048, tie_word_embeddings=True, **shape)
    model = Qwen3ForCausalLM(config)
    # Norms that have learnt something, and weights that are bf16 numbers: all three start from the same.
    with torch.no_grad():
        for n, p in model.named_parameters():
            if n.endswith("norm.weight"):
                p.copy_(1 + 0.2 * torch.randn_like(p))
            p.copy_(p.bfloat16().float())
    rows = [torch.randint(3000, (n,)).tolist() for n in (700, 64, 65, 3, 257)]
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        with open(f"{folder}/rows.json", "w") as f:
            json.dump(rows, f)
        subprocess.run([sys.argv[1], folder], check=True)
        ours = json.load(open(f"{folder}/out.json"))
        gradients = {n: g.cuda() for n, g in load_file(f"{folder}/gradients.safetensors").items()}
    model = model.cuda()
    truth, true_gradients = passed(model, rows)
    half, half_gradients = passed(model.bfloat16(), rows)
    mine = torch.tensor(ours["logprobs"], device="cuda")
    error = lambda x: float((x - truth).double().pow(2).mean().sqrt())
    print(f"{name}: log-probabilities stray {error(mine):.5f}, torch's in bf16 {error(half):.5f}")
    failed |= not error(mine) <= error(half)
    worst, mean = (0.0, "", 0.0), []
    for n, g in true_gradients.items():
        a, b = apart(gradients[n], g), apart(half_gradients[n], g)
        mean.append((a, b))
        if not a / b <= worst[0]:
            worst = (a / b, n, a)
    ours_mean, torch_mean = (sum(m[i] for m in mean) / len(mean) for i in (0, 1))
    print(f"  gradients of {len(mean)} tensors: {ours_mean:.5f} on average, torch's {torch_mean:.5f}; "
          f"the worst for us, {worst[1]}, {worst[2]:.5f}, is {worst[0]:.2f} of torch's")
    failed |= not (ours_mean <= torch_mean and worst[0] <= 1.5)
sys.exit(failed)
