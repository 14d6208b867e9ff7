#!/usr/bin/env python3
"""Tic-Tac-Toe: rules and MCTS compared with OpenSpiel.

Both sides play random games (OpenSpiel from Python, as agents use it) and search in the same positions with the same settings
(OpenSpiel's C++ `MCTSBot`: UCT constant 1.4, one random playout per leaf, solver on). Rounds alternate, on one thread each. Equal win
rates show that both sides play the same game. With --strength, the best response to mage's MCTS also plays OpenSpiel's bot and must
win as often against both.

    python3 benches/peers/tictactoe_openspiel.py [--rounds 5] [--strength 20000] [--json]

Creates a virtual environment next to this file (ignored by git) and installs open_spiel. Prints medians; exits with 1 if the win
rates differ, if steps are less than 20 times as fast, or if a search of 100 simulations is less than twice as fast.
"""

import argparse
import importlib.metadata
import json
import math
import os
import platform
import random
import statistics
import subprocess
import sys
import time

import own_venv

POSITIONS = [[], [0], [1], [4], [0, 4, 8], [4, 0, 8, 2]]
MIN_STEPS_RATIO = 20.0
MIN_MOVE_RATIO = 2.0


class OpenSpiel:
    """OpenSpiel: rules driven from Python, and its C++ MCTS."""

    def __init__(self):
        import pyspiel

        self.pyspiel = pyspiel
        self.game = pyspiel.load_game("tic_tac_toe")

    def after(self, moves):
        state = self.game.new_initial_state()
        for move in moves:
            state.apply_action(move)
        return state

    def mcts(self, simulations, seed):
        rollout = self.pyspiel.RandomRolloutEvaluator(1, seed)
        return self.pyspiel.MCTSBot(self.game, rollout, 1.4, simulations, 1000, True, seed, False)

    def random_games(self, games, seed):
        """Moves per second, and the win rate of the first player."""
        # Bound names and an inline uniform draw are the fastest pure Python.
        draw = random.Random(seed).random
        steps = won = 0
        clock = time.perf_counter()
        for _ in range(games):
            state = self.game.new_initial_state()
            while not state.is_terminal():
                actions = state.legal_actions()
                state.apply_action(actions[int(draw() * len(actions))])
                steps += 1
            won += state.returns()[0] > 0
        return steps / (time.perf_counter() - clock), won / games

    def searches(self, simulations, moves, seed):
        """Mean microseconds per move over positions."""
        bot = self.mcts(simulations, seed)
        states = [self.after(p) for p in POSITIONS]
        clock = time.perf_counter()
        for _ in range(moves):
            for state in states:
                bot.step(state)
        return (time.perf_counter() - clock) * 1e6 / moves / len(states)

    def wins(self, response, opening, games):
        """Win rate of a response table against MCTS with 100 simulations after an opening."""
        bot, won = self.mcts(100, opening + 1), 0
        for _ in range(games):
            state = self.after([opening])
            while not state.is_terminal():
                own = state.current_player() == 0
                state.apply_action(response[str(state).replace("\n", "")] if own else bot.step(state))
            won += state.returns()[0] > 0
        return won / games


def build(example):
    """Builds an example in release mode and returns its path."""
    command = ["cargo", "build", "--release", "-p", "mage-env", "--example", example, "--message-format=json"]
    lines = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()
    artifacts = [json.loads(line) for line in lines if line.startswith("{")]
    return next(a["executable"] for a in artifacts if a.get("target", {}).get("name") == example and a.get("executable"))


def run_mage(binary, plan):
    return json.loads(subprocess.run([binary, json.dumps(plan)], check=True, stdout=subprocess.PIPE, text=True).stdout)


def agree(p, n, q, m):
    """Whether two rates differ by at most four standard errors of their difference."""
    pooled = (p * n + q * m) / (n + m)
    return abs(p - q) <= 4 * math.sqrt(max(pooled * (1 - pooled), 1e-9) * (1 / n + 1 / m))


def strength(peer, games):
    """Win rates of the best response to mage's MCTS against mage's and OpenSpiel's MCTS, by opening."""
    command = [build("tictactoe_best_response"), "100", str(games)]
    table = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
    rows = {}
    for name, opening in [("corner", "0"), ("edge", "1"), ("centre", "4")]:
        mage, openspiel = table["won"][opening], peer.wins(table["best_response"], int(opening), games)
        rows[name] = {"mage": mage, "openspiel": openspiel, "agree": agree(mage, games, openspiel, games)}
    return {"games": games, "samples": table["samples"], "by_opening": rows}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--games", type=int, default=20_000, help="OpenSpiel's random games per round")
    parser.add_argument("--strength", type=int, default=0, metavar="GAMES", help="also compare playing strength in this number of games")
    parser.add_argument("--json", action="store_true", help="print one line of JSON instead of the table")
    args = parser.parse_args()
    own_venv.enter("openspiel", "pyspiel", "open_spiel")
    os.chdir(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
    binary, peer = build("tictactoe_speed"), OpenSpiel()

    plan = {"positions": POSITIONS, "simulations": [100, 1000], "moves": 100, "games": 20 * args.games}
    openspiel, mage = [], []
    for seed in range(args.rounds):
        rate, won = peer.random_games(args.games, seed)
        hundred, thousand = peer.searches(100, 100, seed + 1), peer.searches(1000, 20, seed + 1)
        openspiel.append({"steps": rate, "won": won, "100": hundred, "1000": thousand})
        one = run_mage(binary, plan | {"seed": seed})
        mage.append({"steps": one["steps_per_s"], "won": one["first_wins"], **one["move_us"], "env": one["env_steps_per_s"]})

    def both(key):
        return {"mage": statistics.median(r[key] for r in mage), "openspiel": statistics.median(r[key] for r in openspiel)}

    won = statistics.mean(r["won"] for r in mage), statistics.mean(r["won"] for r in openspiel)
    same = agree(won[0], plan["games"] * args.rounds, won[1], args.games * args.rounds)
    report = {
        "rounds": args.rounds,
        "versions": f"open_spiel {importlib.metadata.version('open_spiel')}, Python {platform.python_version()}",
        "steps_per_s": both("steps"),
        "env_steps_per_s_with_text": statistics.median(r["env"] for r in mage),
        "move_us": {n: both(n) for n in ("100", "1000")},
        "first_player_wins": {"mage": won[0], "openspiel": won[1], "agree": same},
    }
    steps, moves = report["steps_per_s"], report["move_us"]
    report["steps_ratio"] = steps["mage"] / steps["openspiel"]
    report["move_ratio"] = {n: m["openspiel"] / m["mage"] for n, m in moves.items()}
    if args.strength:
        report["strength"] = strength(peer, args.strength)
    if args.json:
        print(json.dumps(report))
    else:
        table(report)
    agreed = [same] + [row["agree"] for row in report.get("strength", {}).get("by_opening", {}).values()]
    fast = report["steps_ratio"] >= MIN_STEPS_RATIO and report["move_ratio"]["100"] >= MIN_MOVE_RATIO
    sys.exit(0 if all(agreed) and fast else 1)


def table(report):
    steps, won = report["steps_per_s"], report["first_player_wins"]
    print(f"{report['versions']}; medians of {report['rounds']}, one thread each, alternating\n")
    print(f"{'':36}{'mage':>14}{'OpenSpiel':>14}{'ratio':>8}")
    print(f"{'random games, steps/s':36}{steps['mage']:>14,.0f}{steps['openspiel']:>14,.0f}{report['steps_ratio']:>8.1f}")
    for n, move in report["move_us"].items():
        ratio = report["move_ratio"][n]
        print(f"{f'MCTS move, {n} simulations, µs':36}{move['mage']:>14.1f}{move['openspiel']:>14.1f}{ratio:>8.1f}")
    print(f"{'first player wins random games':36}{won['mage']:>14.4f}{won['openspiel']:>14.4f}")
    print(f"mage, environment steps/s with text: {report['env_steps_per_s_with_text']:,.0f}")
    if "strength" in report:
        print(f"\nbest response to mage's MCTS-100, {report['strength']['games']} games per opening:")
        for name, row in report["strength"]["by_opening"].items():
            print(f"{f'{name}, win rate':36}{row['mage']:>14.4f}{row['openspiel']:>14.4f}")
    print(f"required ratios: steps {MIN_STEPS_RATIO:.0f}, move of 100 simulations {MIN_MOVE_RATIO:.0f}")


if __name__ == "__main__":
    main()
