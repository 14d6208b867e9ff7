#!/usr/bin/env python3
"""Tic-Tac-Toe against opponents that each ignore one line: discount across episodes, and comparison of methods.

Trains `tictactoe-blind` with every seed and arm and prints greedy wins out of six by episode, opponents enumerated:

    cargo build --release && python3 docs/results/tictactoe_blind.py --jobs 1 --threads 2
    python3 docs/results/tictactoe_blind.py --arms 0,2,3,4,5 --device cuda --threads 1 --jobs 25 --results docs/results/tictactoe_blind_gpu.jsonl

Each finished run is one line of the result file; a second call resumes.
"""
import argparse

import runs

ARMS = {
    "mage, gamma_traj 0.3 (the recipe)": [],
    "mage, gamma_traj 0.6": ["--set", "method.credit.gamma_traj=0.6"],
    "own-episode": ["own-episode"],
    "lamer": ["lamer"],
    "gigpo": ["gigpo"],
    "grpo": ["grpo"],
}


def run(mage, arm, seed, updates, threads, device, out):
    outcome, metrics, seconds = runs.train(
        mage, out, "tictactoe-blind", *ARMS[arm], "--seed", str(seed), "--threads", str(threads), "--device", device,
        "--set", f"optim.updates={updates}", "--set", "trajectories.every=0")
    sixths = lambda m: [round(6 * m[f"eval/episode_{n}/won"]) for n in (1, 2, 3)]
    return {"arm": arm, "seed": seed, "updates": updates, "threads": threads, "device": device, "seconds": seconds,
            "wins": [round(6 * e["mean"]) for e in outcome["after"]["won"]],
            "curve": {str(int(m["update"])): sixths(m) for m in metrics if "eval/episode_1/won" in m}}


def table(results):
    lines = ["| arm | updates | seed | wins of 6 in episode 1, 2, 3 | 4, 6, 6 from update | seconds |", "|---|---|---|---|---|---|"]
    for r in sorted(results, key=lambda r: (list(ARMS).index(r["arm"]), r["updates"], r["seed"])):
        solved = None
        for update, wins in r["curve"].items():
            solved = (solved or update) if wins == [4, 6, 6] else None
        seconds = f"{r['seconds']:.0f}" if r["seconds"] else "-"
        lines.append(f"| {r['arm']} | {r['updates']} | {r['seed']} | {', '.join(map(str, r['wins']))} | {solved or '-'} | {seconds} |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mage", default="target/release/mage")
    parser.add_argument("--arms", default="0,1,2", help="indices: " + "; ".join(f"{i}: {a}" for i, a in enumerate(ARMS)))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--updates", type=int, default=400)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--device", default="cpu", help="device for training and sampling: cpu, cuda, cuda:N")
    parser.add_argument("--results", default="docs/results/tictactoe_blind.jsonl")
    options = parser.parse_args()
    arms = [list(ARMS)[int(i)] for i in options.arms.split(",")]
    jobs = [(arm, seed, options.updates) for seed in range(options.seeds) for arm in arms]
    runs.require_device(options.results, options.device)
    results, failed = runs.resume(
        options.mage, options.results, lambda r: (r["arm"], r["seed"], r["updates"]), jobs, options.jobs,
        lambda mage, job, out: run(mage, *job, options.threads, options.device, out),
        lambda r: f"{r['arm']}, seed {r['seed']}: {r['wins']} in {r['seconds']:.0f} s")
    print(table(results))
    runs.exit_if_failed(failed)


if __name__ == "__main__":
    main()
