#!/usr/bin/env python3
"""Kuhn poker, random playouts: this project's rules against OpenSpiel's driven from Python, in one run.

    python3 benches/peers/kuhn_openspiel.py [--seconds 1.0] [--repetitions 7] [--json]

Makes a virtual environment beside this file (git-ignored), installs open_spiel into it, builds the Rust example
`kuhn_steps` and lets both sides play by turns, on one thread each. Both do the same work: a new state, then until the end
whose turn it is, chances or legal actions, a uniform draw, apply; at the end the returns. A step is one applied action,
nature's included. Times are taken inside each process, without start-up. Medians over repetitions; exit status 1 if
the ratio is below the bar of 20.
"""

import argparse
import json
import pathlib
import platform
import random
import statistics
import subprocess
import sys
import time

import own_venv

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
BAR = 20.0


def openspiel_playouts(game, playouts, rng):
    """Steps and seconds of so many playouts, and the first seat's mean return."""
    # Names bound once and a bare uniform draw: as fast as plain Python gets. Kuhn's chances are all equal.
    draw = rng.random
    steps, total = 0, 0.0
    start = time.perf_counter()
    for _ in range(playouts):
        state = game.new_initial_state()
        while not state.is_terminal():
            if state.is_chance_node():
                outcomes = state.chance_outcomes()
                action = outcomes[int(draw() * len(outcomes))][0]
            else:
                actions = state.legal_actions()
                action = actions[int(draw() * len(actions))]
            state.apply_action(action)
            steps += 1
        total += state.returns()[0]
    return steps, time.perf_counter() - start, total / playouts


def rust_playouts(binary, playouts, seed):
    out = json.loads(subprocess.run([binary, str(playouts), str(seed)], check=True, capture_output=True).stdout)
    return out["steps"], out["seconds"], out["mean_return_0"]


def calibrate(play, seconds):
    """How many playouts take about this long."""
    n = 1000
    while True:
        _, took, _ = play(n, 0)
        if took >= seconds / 10:
            return max(1, int(n * seconds / took))
        n *= 4


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=1.0, help="about how long one repetition of one side takes")
    parser.add_argument("--repetitions", type=int, default=7)
    parser.add_argument("--json", action="store_true", help="print one line of JSON instead of the table")
    args = parser.parse_args()
    own_venv.enter("openspiel", "pyspiel", "open_spiel")

    import importlib.metadata

    import pyspiel

    build = ["cargo", "build", "--release", "-p", "mage-env", "--example", "kuhn_steps", "--message-format=json"]
    messages = subprocess.run(build, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()
    binaries = [m["executable"] for m in map(json.loads, messages) if m.get("executable")]
    binary = binaries[-1]

    game = pyspiel.load_game("kuhn_poker")
    sides = {
        "mage (Rust)": lambda n, seed: rust_playouts(binary, n, seed),
        "OpenSpiel from Python": lambda n, seed: openspiel_playouts(game, n, random.Random(seed)),
    }
    counts = {name: calibrate(play, args.seconds) for name, play in sides.items()}
    rates = {name: [] for name in sides}
    for repetition in range(args.repetitions):
        for name, play in sides.items():
            steps, seconds, mean = play(counts[name], repetition + 1)
            rates[name].append(steps / seconds)
            # Uniform play is worth 1/8 to the first seat: both must have played the same game.
            if abs(mean - 0.125) > 0.02:
                sys.exit(f"{name}: the first seat earned {mean:.4f} a hand, not 0.125")

    ours, theirs = (statistics.median(rates[name]) for name in sides)
    pairs = [a / b for a, b in zip(*rates.values())]
    versions = f"open_spiel {importlib.metadata.version('open_spiel')}, Python {platform.python_version()}"
    result = {
        "steps_per_second": {name: statistics.median(r) for name, r in rates.items()},
        "range": {name: [min(r), max(r)] for name, r in rates.items()},
        "ratio": ours / theirs,
        "ratio_range": [min(pairs), max(pairs)],
        "bar": BAR,
        "versions": versions,
    }
    if args.json:
        print(json.dumps(result))
    else:
        print(f"{versions}; medians of {args.repetitions}, one thread each, by turns\n")
        print(f"{'':24}{'steps/s':>16}{'lowest':>16}{'highest':>16}")
        for name, r in rates.items():
            print(f"{name:24}{statistics.median(r):>16,.0f}{min(r):>16,.0f}{max(r):>16,.0f}")
        print(f"\nratio {ours / theirs:.1f} (pairwise {min(pairs):.1f} to {max(pairs):.1f}); bar {BAR:.0f}")
    sys.exit(0 if ours / theirs >= BAR else 1)


if __name__ == "__main__":
    main()
