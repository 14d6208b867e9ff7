#!/usr/bin/env python3
"""Kuhn poker: random playouts per second, compared with OpenSpiel driven from Python.

    python3 benches/peers/kuhn_openspiel.py [--seconds 1.0] [--repetitions 7] [--json]

Creates a virtual environment next to this file (ignored by git), installs open_spiel, builds the Rust example `kuhn_steps`, and
alternates both sides on one thread each. Both do the same work: a new state; until it is terminal: current player, chance outcomes or
legal actions, a uniform draw, apply; finally the returns. A step is one applied action, including chance. Times are measured inside
each process, without start-up. Prints medians; exits with 1 if the ratio is below 20.
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
MIN_RATIO = 20.0


def openspiel_playouts(game, playouts, rng):
    """Steps and seconds of the given number of playouts, and the first player's mean return."""
    # Bound names and an inline uniform draw are the fastest pure Python. Kuhn's chance outcomes are equally likely.
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
    """The number of playouts that take about this long."""
    n = 1000
    while True:
        _, elapsed, _ = play(n, 0)
        if elapsed >= seconds / 10:
            return max(1, int(n * seconds / elapsed))
        n *= 4


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=1.0, help="approximate duration of one repetition of one side")
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
            # The value of uniform play to the first player is 1/8, which checks that both sides play the same game.
            if abs(mean - 0.125) > 0.02:
                sys.exit(f"{name}: the first player's mean return is {mean:.4f}, expected 0.125")

    mage, peer = (statistics.median(rates[name]) for name in sides)
    pairs = [a / b for a, b in zip(*rates.values())]
    versions = f"open_spiel {importlib.metadata.version('open_spiel')}, Python {platform.python_version()}"
    result = {
        "steps_per_second": {name: statistics.median(r) for name, r in rates.items()},
        "range": {name: [min(r), max(r)] for name, r in rates.items()},
        "ratio": mage / peer,
        "ratio_range": [min(pairs), max(pairs)],
        "min_ratio": MIN_RATIO,
        "versions": versions,
    }
    if args.json:
        print(json.dumps(result))
    else:
        print(f"{versions}; medians of {args.repetitions}, one thread each, alternating\n")
        print(f"{'':24}{'steps/s':>16}{'lowest':>16}{'highest':>16}")
        for name, r in rates.items():
            print(f"{name:24}{statistics.median(r):>16,.0f}{min(r):>16,.0f}{max(r):>16,.0f}")
        print(f"\nratio {mage / peer:.1f} (pairwise {min(pairs):.1f} to {max(pairs):.1f}); required {MIN_RATIO:.0f}")
    sys.exit(0 if mage / peer >= MIN_RATIO else 1)


if __name__ == "__main__":
    main()
