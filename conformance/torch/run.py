#!/usr/bin/env python3
"""Conformance of the native engine with PyTorch, transformers and PEFT: python3 conformance/torch/run.py

Creates a virtual environment next to this file (several gigabytes: PyTorch), builds the example `conform`, runs random small
models through both sides and prints the largest relative errors. Exits with 1 if one exceeds 1e-4.
"""

import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
LIMIT = 1e-4

# Tied and untied embeddings, several ratios of query to KV heads, long positions, odd sizes.
CONFIGS = [
    dict(hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
         vocab_size=61, tie_word_embeddings=True, rope_theta=1e4, lengths=(3, 40), rows=12),
    dict(hidden_size=40, intermediate_size=72, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=1, head_dim=12,
         vocab_size=97, tie_word_embeddings=False, rope_theta=1e6, lengths=(2, 60), rows=9),
    dict(hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=2, head_dim=32,
         vocab_size=300, tie_word_embeddings=True, rope_theta=1e6, lengths=(10, 30), rows=20),
    dict(hidden_size=48, intermediate_size=64, num_hidden_layers=1, num_attention_heads=8, num_key_value_heads=4, head_dim=8,
         vocab_size=50, tie_word_embeddings=False, rope_theta=5e5, lengths=(900, 1200), rows=2),
    dict(hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
         vocab_size=40, tie_word_embeddings=True, rope_theta=1e6, lengths=(4000, 4000), rows=1),
]
OBJECTIVES = [
    (dict(type="cross_entropy"), 0.0, []),
    (dict(type="ppo_clip", low=0.2, high=0.28, dual=3.0), 0.05, [(0, "k3", 0.3), (1, "k2", 0.2)]),
    (dict(type="importance_sampling"), -0.1, [(1, "k1", 0.4)]),
]
# Rank, alpha, target modules; one for each of the first configs.
ADAPTERS = [
    (4, 8, ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]),
    (1, 3, ["q_proj", "v_proj"]),
    (8, 4, ["k_proj", "o_proj", "up_proj", "down_proj"]),
    (3, 6, ["gate_proj", "v_proj"]),
]
STEP = dict(learning_rate=1e-2, beta1=0.9, beta2=0.98, epsilon=1e-5, weight_decay=0.1, max_grad_norm=1.0, max_nonfinite_steps=1)
CHATS = [
    [("user", "Your card: the King. PASS or BET?")],
    [("system", "Be brief."), ("user", "hello"), ("assistant", "<think>\nHm, a greeting.\n</think>\n\nhello!"), ("user", "Ünïcödé ♠ and\nlines")],
    [("user", "a"), ("assistant", "no thoughts here"), ("user", "  spaces  "), ("assistant", "<think>\nx\n</think>\n\ny")],
]

# A template with the structure of Qwen3's: tools in the system message, a backwards search for the last user message, reasoning in
# a separate field or inside the text, tool calls and tool responses, and a switch for thinking.
QWEN3_LIKE = r"""
{%- if tools %}
    {{- '<|im_start|>system\n' }}
    {%- if messages[0].role == 'system' %}{{- messages[0].content + '\n\n' }}{%- endif %}
    {{- 'Tools:' }}
    {%- for tool in tools %}{{- '\n' }}{{- tool | tojson }}{%- endfor %}
    {{- '<|im_end|>\n' }}
{%- else %}
    {%- if messages[0].role == 'system' %}{{- '<|im_start|>system\n' + messages[0].content + '<|im_end|>\n' }}{%- endif %}
{%- endif %}
{%- set ns = namespace(searching=true, last=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.searching and message.role == "user" and message.content is string and not (message.content.startswith('<answer>') and message.content.endswith('</answer>')) %}
        {%- set ns.searching = false %}
        {%- set ns.last = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.content is string %}{%- set content = message.content %}{%- else %}{%- set content = '' %}{%- endif %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\n' + content + '<|im_end|>' + '\n' }}
    {%- elif message.role == "assistant" %}
        {%- set thoughts = '' %}
        {%- if message.reasoning_content is string %}
            {%- set thoughts = message.reasoning_content %}
        {%- elif '</think>' in content %}
            {%- set thoughts = content.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\n') %}
        {%- endif %}
        {%- if loop.index0 > ns.last and (loop.last or (not loop.last and thoughts)) %}
            {{- '<|im_start|>' + message.role + '\n<think>\n' + thoughts.strip('\n') + '\n</think>\n\n' + content.lstrip('\n') }}
        {%- else %}
            {{- '<|im_start|>' + message.role + '\n' + content }}
        {%- endif %}
        {%- if message.tool_calls %}
            {%- for call in message.tool_calls %}
                {%- if (loop.first and content) or (not loop.first) %}{{- '\n' }}{%- endif %}
                {%- if call.function %}{%- set call = call.function %}{%- endif %}
                {{- '{"name": "' + call.name + '", "arguments": ' }}
                {%- if call.arguments is string %}{{- call.arguments }}{%- else %}{{- call.arguments | tojson }}{%- endif %}
                {{- '}' }}
            {%- endfor %}
        {%- endif %}
        {{- '<|im_end|>\n' }}
    {%- elif message.role == "tool" %}
        {%- if loop.first or (messages[loop.index0 - 1].role != "tool") %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\n<answer>\n' + content + '\n</answer>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}{{- '<|im_end|>\n' }}{%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\n\n</think>\n\n' }}{%- endif %}
{%- endif %}
""".lstrip("\n")


def environment():
    """Restarts this script inside the virtual environment, which is created if missing."""
    venv = HERE / ".venv"
    python = venv / "bin" / "python"
    if Path(sys.prefix).resolve() == venv.resolve():
        return
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
    probe = subprocess.run([str(python), "-c", "import torch, transformers, safetensors, peft"], capture_output=True)
    if probe.returncode != 0:
        subprocess.run([str(python), "-m", "pip", "install", "-q", "-r", str(HERE / "requirements.txt")], check=True)
    os.execv(str(python), [str(python), __file__, *sys.argv[1:]])


environment()
import torch  # noqa: E402
from peft import LoraConfig, PeftModel, get_peft_model  # noqa: E402
from safetensors.torch import load_file  # noqa: E402
from transformers import AutoTokenizer, Qwen3Config, Qwen3ForCausalLM  # noqa: E402
from transformers.utils import logging  # noqa: E402

logging.disable_progress_bar()
torch.set_num_threads(2)


def build():
    subprocess.run(["cargo", "build", "--release", "-q", "-p", "mage-native", "--example", "conform"], cwd=ROOT, check=True)
    target = os.environ.get("CARGO_TARGET_DIR", str(ROOT / "target"))
    return str(Path(target) / "release" / "examples" / "conform")


def rows_of(config, rng):
    rows = []
    for _ in range(config["rows"]):
        n = rng.randint(*config["lengths"])
        tokens = [rng.randrange(config["vocab_size"]) for _ in range(n)]
        allowed = [sorted({t, *(rng.randrange(config["vocab_size"]) for _ in range(4))}) if rng.random() < 0.3 else None for t in tokens]
        rows.append(dict(
            tokens=tokens,
            weights=[0.0] + [rng.random() if rng.random() < 0.7 else 0.0 for _ in range(n - 2)] + [1.0],
            advantages=[rng.uniform(-2, 2) for _ in range(n)],
            old_logprobs=[0.0] * n, ref_logprobs=[0.0] * n,
            classes=[rng.randrange(2) for _ in range(n)],
            allowed=allowed,
        ))
    return rows


def predictions(model, rows):
    """Log-probability and entropy of every token with a weight, sequence by sequence, without padding."""
    logprobs, entropies = [], []
    for row in rows:
        logits = model(input_ids=torch.tensor([row["tokens"]]), use_cache=False).logits[0]
        for t, weight in enumerate(row["weights"]):
            if weight == 0.0:
                continue
            z = logits[t - 1]
            if row["allowed"][t] is not None:
                keep = torch.full_like(z, float("-inf"))
                keep[row["allowed"][t]] = 0.0
                z = z + keep
            logp = torch.log_softmax(z, -1)
            p = logp.exp()
            logprobs.append(logp[row["tokens"][t]])
            entropies.append(-(p * torch.where(p > 0, logp, torch.zeros_like(logp))).sum())
    return torch.stack(logprobs), torch.stack(entropies)


def per_token(rows, field):
    return torch.tensor([r[field][t] for r in rows for t in range(len(r["tokens"])) if r["weights"][t] != 0.0])


def loss_of(model, rows, objective, entropy, kl):
    logprobs, entropies = predictions(model, rows)
    advantages, old, ref, classes, weights = (per_token(rows, f) for f in ("advantages", "old_logprobs", "ref_logprobs", "classes", "weights"))
    ratio = (logprobs - old).exp()
    if objective["type"] == "cross_entropy":
        cost = -logprobs
    elif objective["type"] == "importance_sampling":
        cost = -ratio * advantages
    else:
        gain = torch.minimum(ratio * advantages, ratio.clamp(1 - objective["low"], 1 + objective["high"]) * advantages)
        gain = torch.where(advantages < 0, torch.maximum(gain, objective["dual"] * advantages), gain)
        cost = -gain
    cost = cost - entropy * entropies
    for cls, form, coefficient in kl:
        d = logprobs - ref
        value = dict(k1=d, k2=d * d / 2, k3=(-d).exp() + d - 1)[form]
        cost = cost + coefficient * value * (classes == cls)
    return (weights * cost).sum(), logprobs


def relative(a, b):
    """Largest difference relative to the largest value."""
    a, b = torch.as_tensor(a, dtype=torch.float64), torch.as_tensor(b, dtype=torch.float64)
    return ((a - b).abs().max() / b.abs().max().clamp_min(1e-30)).item()


def greedy(model, prompt, count):
    tokens = list(prompt)
    with torch.no_grad():
        for _ in range(count):
            tokens.append(int(model(input_ids=torch.tensor([tokens]), use_cache=False).logits[0, -1].argmax()))
    return tokens[len(prompt):]


def model_of(config, rng):
    shape = {k: v for k, v in config.items() if k not in ("lengths", "rows", "rope_theta")}
    torch.manual_seed(rng.randrange(1 << 30))
    hf = Qwen3Config(**shape, max_position_embeddings=8192, initializer_range=0.15, rope_parameters=dict(rope_type="default", rope_theta=config["rope_theta"]),
                     attn_implementation="eager", use_cache=False, pad_token_id=None, bos_token_id=None, eos_token_id=None)
    model = Qwen3ForCausalLM(hf).float()
    with torch.no_grad():
        for p in model.parameters():
            if p.dim() == 1:
                p.uniform_(0.5, 1.5)
    return model


def with_history(rows, model, rng):
    """Sets old and reference log-probabilities at chosen distances from the current ones, which are returned."""
    with torch.no_grad():
        now, _ = predictions(model, rows)
    values = iter(now.tolist())
    for r in rows:
        for t in range(len(r["tokens"])):
            if r["weights"][t] != 0.0:
                x = next(values)
                r["old_logprobs"][t] = x - rng.choice([0.0, 0.05, -0.6, 0.6, 1.6])
                r["ref_logprobs"][t] = x - rng.uniform(-0.5, 0.5)
    return now


def show(name, errors):
    print(f"{name:34}", "  ".join(f"{k} {v:.1e}" if k != "greedy" else f"{k} {v} differ" for k, v in errors.items()), flush=True)
    return max(errors.values())


def case(conform, name, config, objective, entropy, kl, rng):
    model, rows, errors = model_of(config, rng), rows_of(config, rng), {}
    now = with_history(rows, model, rng)
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        model.save_pretrained(folder)
        prompts = [r["tokens"][: max(1, min(50, len(r["tokens"]) // 2))] for r in rows[:3]]
        data = dict(rows=rows, objective=objective, entropy=entropy, kl=kl, step=STEP, steps=4, prompts=prompts, greedy_tokens=10, chats=[])
        (folder / "case.json").write_text(json.dumps(data))
        subprocess.run([conform, str(folder)], check=True)
        ours = json.loads((folder / "out" / "result.json").read_text())

        errors["log-probs"] = relative(ours["logprobs"], now)
        with torch.no_grad():
            theirs = [model(input_ids=torch.tensor([p]), use_cache=False).logits[0, -1] for p in prompts]
        errors["logits"] = max(relative(a, b) for a, b in zip(ours["logits"], theirs))
        errors["greedy"] = sum(a != greedy(model, p, 10) for a, p in zip(ours["greedy"], prompts))

        decayed = [p for p in model.parameters() if p.dim() > 1]
        plain = [p for p in model.parameters() if p.dim() == 1]
        groups = [dict(params=decayed, weight_decay=STEP["weight_decay"]), dict(params=plain, weight_decay=0.0)]
        optimiser = torch.optim.AdamW(groups, lr=STEP["learning_rate"], betas=(STEP["beta1"], STEP["beta2"]), eps=STEP["epsilon"])
        losses, norms, gradient = [], [], 0.0
        for step in range(4):
            loss, _ = loss_of(model, rows, objective, entropy, kl)
            optimiser.zero_grad()
            loss.backward()
            losses.append(loss.item())
            if step == 0:
                gradients = load_file(folder / "out" / "gradients.safetensors")
                named = {n: p.grad for n, p in model.named_parameters()}
                assert set(gradients) == set(named), set(gradients) ^ set(named)
                gradient = max(relative(gradients[n], g) for n, g in named.items())
            norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), STEP["max_grad_norm"]).item())
            optimiser.step()
        errors["loss"] = abs(ours["losses"][0] - losses[0]) / max(abs(losses[0]), 1e-30)
        errors["gradients"] = gradient
        errors["4 steps: losses"] = relative(ours["losses"], losses)
        errors["4 steps: norms"] = relative(ours["norms"], norms)
        trained = Qwen3ForCausalLM.from_pretrained(folder / "out" / "trained", attn_implementation="eager", dtype=torch.float32)
        errors["4 steps: weights"] = max(relative(p, dict(model.named_parameters())[n]) for n, p in trained.named_parameters())

        # The checkpoint that mage wrote, read by both sides.
        shutil.copy(folder / "case.json", folder / "out" / "trained" / "case.json")
        subprocess.run([conform, str(folder / "out" / "trained")], check=True)
        again = json.loads((folder / "out" / "trained" / "out" / "result.json").read_text())
        with torch.no_grad():
            errors["mage checkpoint"] = relative(again["logprobs"], predictions(trained, rows)[0])
    return show(name, errors)


def adapter_case(conform, name, config, adapter, objective, entropy, kl, rng):
    """Training and inference with a LoRA adapter, compared with PEFT."""
    rank, alpha, targets = adapter
    base, rows, errors = model_of(config, rng), rows_of(config, rng), {}
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        base.save_pretrained(folder)
        model = get_peft_model(base, LoraConfig(r=rank, lora_alpha=alpha, target_modules=targets, lora_dropout=0.0, task_type="CAUSAL_LM"))
        trainable = {n.replace(".default.", "."): p for n, p in model.named_parameters() if p.requires_grad}
        with torch.no_grad():
            for n, p in trainable.items():
                if ".lora_B." in n:  # initially zero, which would hide errors
                    p.normal_(0.0, 0.1)
        model.save_pretrained(folder / "adapter")
        now = with_history(rows, model, rng)
        prompts = [r["tokens"][: max(1, min(50, len(r["tokens"]) // 2))] for r in rows[:3]]
        data = dict(rows=rows, objective=objective, entropy=entropy, kl=kl, step=STEP, steps=4, prompts=prompts, greedy_tokens=10, chats=[])
        (folder / "case.json").write_text(json.dumps(data))
        subprocess.run([conform, str(folder)], check=True)
        out = folder / "out"
        ours = json.loads((out / "result.json").read_text())
        errors["PEFT adapter: log-probs"] = relative(ours["logprobs"], now)
        with torch.no_grad():
            theirs = [model(input_ids=torch.tensor([p]), use_cache=False).logits[0, -1] for p in prompts]
        errors["logits"] = max(relative(a, b) for a, b in zip(ours["logits"], theirs))
        errors["greedy"] = sum(a != greedy(model, p, 10) for a, p in zip(ours["greedy"], prompts))

        optimiser = torch.optim.AdamW(trainable.values(), lr=STEP["learning_rate"], betas=(STEP["beta1"], STEP["beta2"]),
                                      eps=STEP["epsilon"], weight_decay=STEP["weight_decay"])
        losses, norms = [], []
        for step in range(4):
            loss, _ = loss_of(model, rows, objective, entropy, kl)
            optimiser.zero_grad()
            loss.backward()
            losses.append(loss.item())
            if step == 0:
                gradients = load_file(out / "gradients.safetensors")
                assert set(gradients) == set(trainable), set(gradients) ^ set(trainable)
                errors["gradients"] = max(relative(gradients[n], p.grad) for n, p in trainable.items())
            norms.append(torch.nn.utils.clip_grad_norm_(trainable.values(), STEP["max_grad_norm"]).item())
            optimiser.step()
        errors["4 steps: losses"] = relative(ours["losses"], losses)
        errors["4 steps: norms"] = relative(ours["norms"], norms)
        trained = load_file(out / "trained" / "adapter_model.safetensors")
        errors["4 steps: adapter"] = max(relative(trained[n], p.detach()) for n, p in trainable.items())

        # The adapter and the merged model that mage wrote, read by PEFT and transformers; and PEFT's own merge.
        fresh = lambda: Qwen3ForCausalLM.from_pretrained(folder, attn_implementation="eager", dtype=torch.float32)
        loaded = PeftModel.from_pretrained(fresh(), out / "trained")
        config_out = json.loads((out / "trained" / "adapter_config.json").read_text())
        assert sorted(config_out["target_modules"]) == sorted(targets) and config_out["r"] == rank, config_out
        shutil.rmtree(folder / "adapter")
        shutil.copytree(out / "trained", folder / "adapter")
        merged = Qwen3ForCausalLM.from_pretrained(out / "merged", attn_implementation="eager", dtype=torch.float32)
        subprocess.run([conform, str(folder)], check=True)
        again = json.loads((out / "result.json").read_text())["logprobs"]
        with torch.no_grad():
            errors["mage adapter in PEFT"] = relative(again, predictions(loaded, rows)[0])
            errors["merged by mage"] = relative(again, predictions(merged, rows)[0])
            errors["merged by PEFT"] = relative(again, predictions(loaded.merge_and_unload(), rows)[0])
    return show(name, errors)


def chat(conform, qwen3_like):
    """Number of conversations that the two renderers tokenise differently, with mage's template or a Qwen3-like one."""
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        text = folder / "text.txt"
        text.write_text("Your card: the King. The opponent BETs. hello, brief Ünïcödé ♠\n" * 30)
        model = folder / "model"
        subprocess.run([conform, "new", str(model), str(text)], check=True)
        if qwen3_like:
            (model / "chat_template.jinja").write_text(QWEN3_LIKE)
        data = dict(rows=[dict(tokens=[1, 2], weights=[0, 1], advantages=[], old_logprobs=[], ref_logprobs=[], classes=[], allowed=[])],
                    objective=dict(type="cross_entropy"), entropy=0.0, kl=[], step=STEP, steps=1, prompts=[], greedy_tokens=1,
                    chats=[[dict(role=r, content=c) for r, c in c_] for c_ in CHATS])
        (model / "case.json").write_text(json.dumps(data))
        subprocess.run([conform, str(model)], check=True)
        ours = json.loads((model / "out" / "result.json").read_text())["chats"]
        tokenizer = AutoTokenizer.from_pretrained(model)
        theirs = []
        for c in data["chats"]:
            for thinking, start in [(True, True), (False, True), (True, False)]:
                ids = tokenizer.apply_chat_template(c, add_generation_prompt=start, enable_thinking=thinking, tokenize=True)
                theirs.append(list(ids["input_ids"] if hasattr(ids, "keys") else ids))
        Qwen3ForCausalLM.from_pretrained(model)
        wrong = sum(a != b for a, b in zip(ours, theirs)) + (len(ours) != len(theirs))
        print(f"{'Qwen3-like chat template' if qwen3_like else 'mage chat template':34} {len(theirs)} renderings, {wrong} differ", flush=True)
        return wrong


def main():
    conform = build()
    print(f"torch {torch.__version__}; largest difference over largest value, limit {LIMIT:.0e}")
    rng = random.Random(7)
    worst = float(chat(conform, False) + chat(conform, True))
    for i, config in enumerate(CONFIGS):
        for objective, entropy, kl in OBJECTIVES:
            worst = max(worst, case(conform, f"config {i}, {objective['type']}", config, objective, entropy, kl, rng))
    for i, (config, adapter) in enumerate(zip(CONFIGS, ADAPTERS)):
        for objective, entropy, kl in OBJECTIVES[:2]:
            name = f"config {i}, rank {adapter[0]}, {objective['type']}"
            worst = max(worst, adapter_case(conform, name, config, adapter, objective, entropy, kl, rng))
    print(f"worst {worst:.1e}: {'equal' if worst <= LIMIT else 'DIFFERENT'}")
    sys.exit(0 if worst <= LIMIT else 1)


if __name__ == "__main__":
    main()
