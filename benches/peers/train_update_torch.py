#!/usr/bin/env python3
"""Updates of `mage train kuhn` compared with PyTorch, in alternating rounds on two threads: python3 benches/peers/train_update_torch.py

An update is 256 meta-episodes (32 groups of 8) of three hands and two reflections: rollout, advantages, and four minibatches. Both
sides start from the weights of mage's warm start, which PyTorch reads from mage's checkpoint, and follow the same recipe: prompts,
masks, opponents, credit, baseline, loss, optimiser and schedules. Their random streams differ, so tokens per update agree only on
average.

PyTorch plays all 256 meta-episodes in lockstep as tensors, including the game; reflections use a KV cache; attention, AdamW and the
QKV and gate-up projections are fused. There are two variants: `torch` computes every sequence; `torch, distinct` computes equal
sequences once, as mage does with prompts. --compile adds the second variant with torch.compile (needs a C++ compiler; compilation
takes minutes and is not counted).

Uses the virtual environment of conformance/torch (run that first). With --learn, PyTorch trains alone and is then evaluated, to show
that its updates are correct.
"""

import argparse
import copy
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
VENV = ROOT / "conformance" / "torch" / ".venv"


def enter_venv():
    """Restarts this script inside the virtual environment with PyTorch. Idle OpenMP threads sleep, because spinning threads are
    several times slower on a loaded machine."""
    python = VENV / "bin" / "python"
    if Path(sys.prefix).resolve() == VENV.resolve():
        return
    if not python.exists():
        sys.exit("run conformance/torch/run.py first: it creates the virtual environment with PyTorch")
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    os.execv(python, [str(python), *sys.argv])


enter_venv()
import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from safetensors.torch import load_file  # noqa: E402

torch.set_num_threads(2)

# The recipe: `mage train kuhn --set rollout.groups=32`.
GROUPS, GROUP_SIZE, EPISODES, MINIBATCHES = 32, 8, 3, 4
GAMMA_STEP, GAMMA_TRAJ, PENALTY = 0.95, 0.6, 0.05
CLIP, DUAL_CLIP, KL_REFLECT, MAX_GRAD_NORM = 0.2, 3.0, 0.1, 1.0
ENTROPY, ENTROPY_END, LEARNING_RATE, MIN_LR_RATIO = 0.1, 0.003, 1e-3, 0.2
SLOT_WORDS, REFLECT_TOKENS = 6, 7

# Opponents: whether they bet with Jack, Queen, King, first without a bet to answer, then facing one.
OPPONENTS = torch.tensor([
    [[0, 0, 1], [0, 0, 1]],  # conservative
    [[1, 1, 1], [0, 1, 1]],  # aggressive
    [[0, 1, 1], [0, 0, 1]],  # intermediate
])
OPPONENT_WEIGHTS = torch.tensor([0.3, 0.3, 0.4])


class Vocabulary:
    """Token ids of the compact words in a checkpoint's vocabulary."""

    def __init__(self, folder):
        ids = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
        self.bos, self.go, self.end, self.reflect_token = (ids[w] for w in ("BOS", "GO", "END", "REFLECT"))
        self.blank, self.unknown = ids["_"], ids["?"]
        self.seats = torch.tensor([ids["first"], ids["second"]])
        self.cards = torch.tensor([ids[w] for w in "JQK"])
        self.actions = torch.tensor([ids["PASS"], ids["BET"]])
        # Control words in an agent's reflection are replaced by `?`.
        self.sanitized = torch.arange(len(ids))
        self.sanitized[[self.bos, self.go, self.end, self.reflect_token, ids["PAD"]]] = self.unknown


def rms(x, weight):
    return F.rms_norm(x, (weight.shape[0],), weight, 1e-6)


def rotate(x, cos, sin):
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat([-b, a], -1) * sin


class Layer(torch.nn.Module):
    def __init__(self, weights, prefix, heads, head_dim):
        super().__init__()
        load = lambda *names: torch.nn.Parameter(torch.cat([weights[f"{prefix}{n}.weight"] for n in names]))
        self.heads, self.head_dim = heads, head_dim
        self.input_norm, self.post_attention_norm = load("input_layernorm"), load("post_attention_layernorm")
        self.q_norm, self.k_norm = load("self_attn.q_norm"), load("self_attn.k_norm")
        self.qkv, self.out = load("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"), load("self_attn.o_proj")
        self.gate_up, self.down = load("mlp.gate_proj", "mlp.up_proj"), load("mlp.down_proj")

    def forward(self, x, cos, sin, past):
        """`past` holds the keys and values of earlier tokens, or is None. Returns the output and the extended keys and values."""
        rows, length, _ = x.shape
        q, k, v = F.linear(rms(x, self.input_norm), self.qkv).view(rows, length, 3 * self.heads, self.head_dim).transpose(1, 2).chunk(3, 1)
        q, k = rotate(rms(q, self.q_norm), cos, sin), rotate(rms(k, self.k_norm), cos, sin)
        if past is not None:
            k, v = torch.cat([past[0], k], 2), torch.cat([past[1], v], 2)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=past is None)
        x = x + F.linear(mixed.transpose(1, 2).reshape(rows, length, -1), self.out)
        gate, up = F.linear(rms(x, self.post_attention_norm), self.gate_up).chunk(2, -1)
        return x + F.linear(F.silu(gate) * up, self.down), (k, v)


class Policy(torch.nn.Module):
    """A small Qwen3, loaded from a mage checkpoint."""

    def __init__(self, folder):
        super().__init__()
        config = json.loads((folder / "config.json").read_text())
        weights = load_file(folder / "model.safetensors")
        heads, head_dim = config["num_attention_heads"], config["head_dim"]
        assert config["num_key_value_heads"] == heads and not config["tie_word_embeddings"]
        self.embedding = torch.nn.Parameter(weights["model.embed_tokens.weight"])
        self.head = torch.nn.Parameter(weights["lm_head.weight"])
        self.norm = torch.nn.Parameter(weights["model.norm.weight"])
        layers = range(config["num_hidden_layers"])
        self.layers = torch.nn.ModuleList(Layer(weights, f"model.layers.{i}.", heads, head_dim) for i in layers)
        frequencies = config["rope_theta"] ** (-torch.arange(head_dim // 2).float() / (head_dim // 2))
        angles = torch.arange(64).float()[:, None] * frequencies[None]
        angles = torch.cat([angles, angles], -1)
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

    def forward(self, tokens, last, cache=None):
        """Logits of the last `last` positions, and the KV cache."""
        start = 0 if cache is None else cache[0][0].shape[2]
        here = slice(start, start + tokens.shape[1])
        x, seen = F.embedding(tokens, self.embedding), []
        for i, layer in enumerate(self.layers):
            x, pair = layer(x, self.cos[here], self.sin[here], None if cache is None else cache[i])
            seen.append(pair)
        return F.linear(rms(x[:, -last:], self.norm), self.head), seen


class TorchTrainer:
    """The PyTorch side: policy, reference policy and optimiser."""

    def __init__(self, folder, updates, distinct=False, compiled=False):
        self.vocab = Vocabulary(folder)
        self.policy = Policy(folder)
        self.reference = copy.deepcopy(self.policy).requires_grad_(False)
        if compiled:
            self.policy.compile(dynamic=True)
            self.reference.compile(dynamic=True)
        self.updates, self.distinct = updates, distinct
        self.restart(folder, 0)

    def restart(self, folder, seed):
        """Resets to a checkpoint's weights and keeps compiled code."""
        weights = Policy(folder).state_dict()
        self.policy.load_state_dict(weights)
        self.reference.load_state_dict(weights)
        self.optimiser = torch.optim.AdamW(self.policy.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.98), weight_decay=0.0, fused=True)
        self.update_number, self.step = 0, 0
        torch.manual_seed(seed)

    def logits(self, model, tokens, last, keep=False):
        """Logits of sequences of equal length; with `distinct`, equal ones are computed once. With `keep` also the KV cache."""
        if not self.distinct:
            logits, cache = model(tokens, last)
            return (logits, cache) if keep else logits
        rows, back = torch.unique(tokens, dim=0, return_inverse=True)
        logits, cache = model(rows, last)
        return (logits[back], [(k[back], v[back]) for k, v in cache]) if keep else logits[back]

    def sample_actions(self, prompts):
        """Samples PASS (0) or BET (1) for every prompt, with its log-probability."""
        logprobs = self.logits(self.policy, prompts, 1)[:, 0, self.vocab.actions].log_softmax(-1)
        bets = torch.rand(len(prompts)) < logprobs[:, 1].exp()
        return bets.long(), logprobs.gather(1, bets.long()[:, None])[:, 0]

    def sample_reflections(self, prompts):
        """Samples a reflection for every prompt: tokens, log-probabilities, and a mask of the tokens up to the end."""
        tokens, logprobs, mask = [], [], []
        running = torch.ones(len(prompts), dtype=torch.bool)
        logits, cache = self.logits(self.policy, prompts, 1, keep=True)
        for i in range(REFLECT_TOKENS):
            all_logprobs = logits[:, 0].log_softmax(-1)
            sampled = torch.multinomial(all_logprobs.exp(), 1)
            tokens.append(sampled[:, 0])
            logprobs.append(all_logprobs.gather(1, sampled)[:, 0])
            mask.append(running)
            running = running & (sampled[:, 0] != self.vocab.end)
            if i + 1 == REFLECT_TOKENS or not running.any():
                break
            logits, cache = self.policy(sampled, 1, cache)
        missing = REFLECT_TOKENS - len(tokens)
        stack = lambda columns: F.pad(torch.stack(columns, 1), (0, missing))
        return stack(tokens), stack(logprobs), stack(mask)

    @torch.no_grad()
    def rollout(self, groups, group_size):
        """Plays a batch of meta-episodes in lockstep. Returns plays, reflections, rewards by episode, and second turns."""
        w, n = self.vocab, groups * group_size
        repeat_group = lambda per_group: per_group.repeat_interleave(group_size, 0)
        seat = repeat_group(torch.randint(2, (groups,)))
        opponent = repeat_group(torch.multinomial(OPPONENT_WEIGHTS, groups, replacement=True))
        deals = repeat_group(torch.rand(groups, EPISODES, 3).argsort(-1)[..., :2])
        column = lambda word: torch.full((n, 1), word)
        bos, go, reflect = column(w.bos), column(w.go), column(w.reflect_token)
        memory = torch.full((n, (EPISODES - 1) * SLOT_WORDS), w.blank)
        all_rows = torch.arange(n)
        rewards, second_turn, plays, reflections = [], [], [], []
        for episode in range(EPISODES):
            cards = deals[:, episode]
            own, other = cards.gather(1, seat[:, None])[:, 0], cards.gather(1, 1 - seat[:, None])[:, 0]
            opening_bets, calls = OPPONENTS[opponent, 0, other], OPPONENTS[opponent, 1, other]
            observation = torch.stack([w.seats[seat], w.cards[own]], 1)
            # Actions in order: 0 pass, 1 bet, -1 none yet.
            line = torch.full((n, 3), -1)
            line[:, 0] = torch.where(seat == 1, opening_bets, -1)

            def turn(rows):
                history_words = torch.where(line[rows, :2] >= 0, w.actions[line[rows, :2].clamp(min=0)], w.blank)
                prompts = torch.cat([bos[rows], memory[rows], observation[rows], history_words, go[rows]], 1)
                actions, logprobs = self.sample_actions(prompts)
                plays.append((prompts, actions, logprobs, rows, torch.full_like(rows, episode)))
                return actions

            own_action = turn(all_rows)
            line[:, 0] = torch.where(seat == 0, own_action, line[:, 0])
            opponent_action = torch.where(own_action == 1, calls, opening_bets)
            line[:, 1] = torch.where(seat == 0, opponent_action, own_action)
            line[:, 2] = torch.where((seat == 1) & (line[:, 0] == 0) & (own_action == 1), calls, -1)
            has_second_turn = (seat == 0) & (line[:, 0] == 0) & (line[:, 1] == 1)
            rows = has_second_turn.nonzero()[:, 0]
            if len(rows):
                line[rows, 2] = turn(rows)
            first_folds = (line[:, 1] == 1) & (line[:, 2] == 0) & (line[:, 0] == 0)
            second_folds = (line[:, 0] == 1) & (line[:, 1] == 0)
            showdown = ~(first_folds | second_folds)
            stake = 1 + (showdown & ((line == 1).sum(1) == 2)).long()
            first_wins = torch.where(showdown, cards[:, 0] > cards[:, 1], second_folds)
            rewards.append((stake * torch.where(first_wins == (seat == 0), 1, -1)).float())
            second_turn.append(has_second_turn)
            if episode + 1 < EPISODES:
                history_words = torch.where(line >= 0, w.actions[line.clamp(min=0)], w.blank)
                seen = torch.where(showdown, w.cards[other], w.unknown)
                prompts = torch.cat([bos, reflect, observation, history_words, seen[:, None], go], 1)
                tokens, logprobs, mask = self.sample_reflections(prompts)
                kept_tokens = (mask & (tokens != w.end))[:, :SLOT_WORDS]
                memory[:, episode * SLOT_WORDS:(episode + 1) * SLOT_WORDS] = torch.where(kept_tokens, w.sanitized[tokens[:, :SLOT_WORDS]], w.blank)
                reflections.append((torch.cat([prompts, tokens], 1), logprobs, mask, all_rows, torch.full_like(all_rows, episode + 1)))
        join = lambda parts: [torch.cat(columns) for columns in zip(*parts)]
        return join(plays), join(reflections), torch.stack(rewards, 1), torch.stack(second_turn, 1)

    @torch.no_grad()
    def advantages(self, plays, reflections, rewards, second_turn):
        """Differential returns minus the mean over (group, episode index)."""
        differential = rewards - F.pad(rewards, (1, 0))[:, :-1]
        from_first_turn = differential * torch.where(second_turn, GAMMA_STEP, 1.0)
        later_episodes = torch.zeros_like(differential)
        for episode in reversed(range(EPISODES - 1)):
            later_episodes[:, episode] = GAMMA_TRAJ * (from_first_turn[:, episode + 1] + later_episodes[:, episode + 1])
        rows, episodes = plays[3], plays[4]
        # Only the prompt of the first player's second turn ends with two actions.
        second = plays[0][:, -2] != self.vocab.blank
        of_plays = torch.where(second, differential[rows, episodes], from_first_turn[rows, episodes]) + later_episodes[rows, episodes]
        empty = reflections[0][:, -REFLECT_TOKENS] == self.vocab.end
        of_reflections = (from_first_turn + later_episodes)[reflections[3], reflections[4]] - PENALTY * empty
        value = torch.cat([of_plays, of_reflections])
        bucket = torch.cat([rows, reflections[3]]) // GROUP_SIZE * EPISODES + torch.cat([episodes, reflections[4]])
        sums = torch.zeros(len(rewards) // GROUP_SIZE * EPISODES)
        counts = sums.index_add(0, bucket, torch.ones_like(value))
        value = value - (sums.index_add(0, bucket, value) / counts.clamp(min=1))[bucket]
        return value[:len(rows)], value[len(rows):]

    def reflection_logprobs(self, model, tokens):
        """The log-probability of every reflection token, given prompts and reflections."""
        all_logprobs = self.logits(model, tokens[:, :-1], REFLECT_TOKENS).log_softmax(-1)
        return all_logprobs.gather(2, tokens[:, -REFLECT_TOKENS:, None])[..., 0]

    def update(self):
        """One update: rollout, advantages, reference log-probs, training. Returns mean rewards by episode, trained tokens and
        prompt tokens."""
        done = self.update_number / max(self.updates - 1, 1)
        entropy_bonus = ENTROPY + (ENTROPY_END - ENTROPY) * done
        plays, reflections, rewards, second_turn = self.rollout(GROUPS, GROUP_SIZE)
        play_advantages, reflect_advantages = self.advantages(plays, reflections, rewards, second_turn)
        with torch.no_grad():
            reference = self.reflection_logprobs(self.reference, reflections[0])
        minibatch_of = torch.empty(GROUPS * GROUP_SIZE, dtype=torch.long)
        minibatch_of[torch.randperm(GROUPS * GROUP_SIZE)] = torch.arange(GROUPS * GROUP_SIZE) * MINIBATCHES // (GROUPS * GROUP_SIZE)
        for part in range(MINIBATCHES):
            in_plays, in_reflections = minibatch_of[plays[3]] == part, minibatch_of[reflections[3]] == part
            prompts, actions, old = plays[0][in_plays], plays[1][in_plays], plays[2][in_plays]
            action_logprobs = self.logits(self.policy, prompts, 1)[:, 0, self.vocab.actions].log_softmax(-1)
            entropy = -(action_logprobs.exp() * action_logprobs).sum(1)
            new = action_logprobs.gather(1, actions[:, None])[:, 0]
            loss = (surrogate(new, old, play_advantages[in_plays]) - entropy_bonus * entropy).sum()
            tokens, old, mask = reflections[0][in_reflections], reflections[1][in_reflections], reflections[2][in_reflections]
            new = self.reflection_logprobs(self.policy, tokens)
            log_ratio = torch.where(mask, reference[in_reflections] - new, 0.0)
            token_losses = surrogate(new, old, reflect_advantages[in_reflections][:, None]) + KL_REFLECT * (log_ratio.exp() - log_ratio - 1)
            loss = loss + (torch.where(mask, token_losses, 0.0).sum(1) / mask.sum(1)).sum()
            self.optimiser.zero_grad()
            (loss / (len(prompts) + len(tokens))).backward()
            torch.nn.utils.clip_grad_norm_(self.policy.parameters(), MAX_GRAD_NORM)
            remaining = 1 - self.step / max(self.updates * MINIBATCHES, 1)
            self.optimiser.param_groups[0]["lr"] = LEARNING_RATE * (MIN_LR_RATIO + (1 - MIN_LR_RATIO) * remaining)
            self.optimiser.step()
            self.step += 1
        self.update_number += 1
        return rewards.mean(0), len(plays[0]) + int(reflections[2].sum()), plays[0].numel() + reflections[0][:, :-REFLECT_TOKENS].numel()


def surrogate(new, old, advantage):
    """The PPO loss of a token, with dual clip."""
    ratio = (new - old).exp()
    cost = -torch.minimum(ratio * advantage, ratio.clamp(1 - CLIP, 1 + CLIP) * advantage)
    return torch.where(advantage < 0, torch.minimum(cost, -DUAL_CLIP * advantage), cost)


def mage_run(mage, folder, updates, warmstart, seed):
    """Runs `mage train` without intermediate evaluations or checkpoints. Returns its metrics and timings."""
    keys = {"rollout.groups": GROUPS, "optim.updates": updates, "warmstart.steps": warmstart, "eval.every": 0,
            "eval.final_tasks": 24, "checkpoint.every": 1_000_000, "trajectories.every": 0}
    sets = [part for key, value in keys.items() for part in ("--set", f"{key}={value}")]
    command = [str(mage), "train", "kuhn", *sets, "--threads", "2", "--seed", str(seed), "--out", str(folder), "--quiet"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)} failed:\n{done.stderr}")
    lines = lambda name: [json.loads(line) for line in (folder / name).read_text().splitlines()]
    return lines("metrics.jsonl"), lines("timing.jsonl")


def compare(options, folder):
    print(f"load before: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores; torch {torch.__version__}, {options.rounds} rounds of {options.updates} updates")
    variants = {"torch": (False, False), "torch, distinct": (True, False)}
    if options.compile:
        variants["torch, compiled"] = (True, True)
    names, trainers = ["mage", *variants], {}
    seconds, tokens, prompts = ({name: [] for name in names} for _ in range(3))
    parts = {"rollout": [], "reference": [], "train": []}
    for r in range(options.rounds):  # alternating, so that all sides see the same load
        run = folder / f"round-{r}"
        metrics, timing = mage_run(options.mage, run, options.updates, options.warmstart, r)
        # The last update writes a checkpoint and is not counted.
        seconds["mage"].append([line["total"] for line in timing[:-1]])
        for part, values in parts.items():
            values.extend(line[part] for line in timing[:-1])
        tokens["mage"].extend(line["tokens/trained"] for line in metrics)
        # A play is one token; a meta-episode reflects after every episode except the last.
        reflections = GROUPS * GROUP_SIZE * (EPISODES - 1)
        prompts["mage"].extend(line["tokens/play_total"] * 18 + reflections * 9 for line in metrics)
        for name in names[1:]:
            checkpoint = run / "checkpoints" / "000000"
            if name not in trainers:
                trainers[name] = TorchTrainer(checkpoint, options.updates, *variants[name])
                for _ in range(3):  # warm-up
                    trainers[name].update()
            trainer = trainers[name]
            trainer.restart(checkpoint, r)
            assert sum(p.numel() for p in trainer.policy.parameters()) == json.loads((run / "run.json").read_text())["parameters"]
            times = []
            for _ in range(options.updates):
                start = time.perf_counter()
                _, trained, prompted = trainer.update()
                times.append(time.perf_counter() - start)
                tokens[name].append(trained)
                prompts[name].append(prompted)
            seconds[name].append(times[:-1])
        medians = (f"{name} {statistics.median(seconds[name][-1]) * 1e3:.1f}" for name in names)
        print(f"round {r + 1}, ms per update: {'; '.join(medians)}; load {os.getloadavg()[0]:.1f}", file=sys.stderr, flush=True)
    middle = {name: statistics.median(statistics.median(times) for times in seconds[name]) for name in names}
    best = {name: min(min(times) for times in seconds[name]) for name in names}
    for name in names:
        rounds = " ".join(f"{statistics.median(times) * 1e3:.0f}" for times in seconds[name])
        print(f"{name:16} median {middle[name] * 1e3:6.1f} ms  best {best[name] * 1e3:6.1f} ms  rounds {rounds}  "
              f"tokens per update: {statistics.mean(tokens[name]):.0f} trained, {statistics.mean(prompts[name]):.0f} in prompts")
    print("of mage's median:", ", ".join(f"{part} {statistics.median(values) * 1e3:.1f} ms" for part, values in parts.items()))
    for name in names[1:]:
        pairs = [statistics.median(t) / statistics.median(m) for m, t in zip(seconds["mage"], seconds[name])]
        print(f"{name} / mage: {middle[name] / middle['mage']:.2f} (median; by round {min(pairs):.2f} to {max(pairs):.2f}), "
              f"{best[name] / best['mage']:.2f} (best)")
    print(f"load after: {os.getloadavg()[0]:.1f}")


def learn(options, folder):
    """Trains with PyTorch alone and prints mean rewards by episode, in chips per hand."""
    run = folder / "start"
    mage_run(options.mage, run, 1, options.warmstart, 0)
    trainer = TorchTrainer(run / "checkpoints" / "000000", options.updates, options.distinct)
    show = lambda values: "  ".join(f"{v:+.3f}" for v in values)

    def measured():
        rewards = torch.cat([trainer.rollout(2048, 1)[2] for _ in range(16)])
        return f"{show(rewards.mean(0))} ± {rewards.std(0).max() / len(rewards) ** 0.5:.3f}"

    print(f"by episode, {16 * 2048} fresh meta-episodes: {measured()}")
    recent = []
    for n in range(1, options.updates + 1):
        recent.append(trainer.update()[0])
        if n % 10 == 0 or n == options.updates:
            print(f"update {n:4}: {show(torch.stack(recent).mean(0))} over the last {len(recent)}", flush=True)
            recent = []
    print(f"by episode, {16 * 2048} fresh meta-episodes: {measured()} after {options.updates} updates")
    print("exact optima: memoryless 0.125; Bayes-adaptive 0.125 0.197 0.232")


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--mage", type=Path, default=ROOT / "target" / "release" / "mage", help="the mage binary (cargo build --release)")
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--updates", type=int, help="updates per round (default 40), or in total with --learn (default 100)")
    p.add_argument("--warmstart", type=int, default=250, help="steps of mage's warm start")
    p.add_argument("--learn", action="store_true", help="train with PyTorch alone, and print rewards by episode")
    p.add_argument("--compile", action="store_true", help="time torch.compile as well")
    p.add_argument("--distinct", action="store_true", help="with --learn: compute equal sequences once")
    options = p.parse_args()
    options.updates = options.updates or (100 if options.learn else 40)
    if not options.mage.exists():
        sys.exit(f"{options.mage} not found: build it (cargo build --release) or set --mage")
    with tempfile.TemporaryDirectory() as folder:
        (learn if options.learn else compare)(options, Path(folder))


if __name__ == "__main__":
    main()
