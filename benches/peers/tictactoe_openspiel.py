#!/usr/bin/env python3
"""How much faster are our Tic-Tac-Toe rules and tree search than OpenSpiel's?

Both sides play random games by the rules (OpenSpiel from Python, as agents use it) and search for moves in the same
positions with the same settings (OpenSpiel's C++ `MCTSBot`: UCT constant 1.4, one random playout a leaf, solver on).
Rounds alternate between the two, on one thread each. Shares of games won show that both play the same game, and with
--strength OpenSpiel's bot also meets the best answer to *our* search, which must win as often against both.

    python3 benches/peers/tictactoe_openspiel.py [--rounds 5] [--strength 20000] [--json]

Makes a virtual environment beside this file (git-ignored) and installs open_spiel into it. Prints medians; exit status 1 if the
two play differently, if steps are less than 20 times as fast, or if a search of 100 simulations is less than twice as fast.
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
STEPS_BAR = 20.0
MOVE_BAR = 2.0


class OpenSpiel:
    """The peer: its rules driven from Python, and its own tree search."""

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
        """Moves a second, and the share of games the first player won."""
        # Names bound once and a bare uniform draw: as fast as plain Python gets.
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
        """Microseconds a move, on average over positions."""
        bot = self.mcts(simulations, seed)
        states = [self.after(p) for p in POSITIONS]
        clock = time.perf_counter()
        for _ in range(moves):
            for state in states:
                bot.step(state)
        return (time.perf_counter() - clock) * 1e6 / moves / len(states)

    def wins(self, answer, opening, games):
        """How often a table of answers wins against the tree search of 100 simulations, after an opening."""
        bot, won = self.mcts(100, opening + 1), 0
        for _ in range(games):
            state = self.after([opening])
            while not state.is_terminal():
                own = state.current_player() == 0
                state.apply_action(answer[str(state).replace("\n", "")] if own else bot.step(state))
            won += state.returns()[0] > 0
        return won / games


def build(example):
    """The path of one of our examples, built for speed."""
    command = ["cargo", "build", "--release", "-p", "mage-env", "--example", example, "--message-format=json"]
    lines = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()
    artifacts = [json.loads(line) for line in lines if line.startswith("{")]
    return next(a["executable"] for a in artifacts if a.get("target", {}).get("name") == example and a.get("executable"))


def ours(binary, plan):
    return json.loads(subprocess.run([binary, json.dumps(plan)], check=True, stdout=subprocess.PIPE, text=True).stdout)


def agree(p, n, q, m):
    """Whether two shares differ by no more than four standard errors of their difference."""
    pooled = (p * n + q * m) / (n + m)
    return abs(p - q) <= 4 * math.sqrt(max(pooled * (1 - pooled), 1e-9) * (1 / n + 1 / m))


def strength(peer, games):
    """How often the best answer to our search wins against ours and against OpenSpiel's, by opening."""
    command = [build("tictactoe_answer"), "100", str(games)]
    table = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
    rows = {}
    for name, opening in [("corner", "0"), ("edge", "1"), ("centre", "4")]:
        own, theirs = table["won"][opening], peer.wins(table["answer"], int(opening), games)
        rows[name] = {"mage": own, "openspiel": theirs, "agree": agree(own, games, theirs, games)}
    return {"games": games, "samples": table["samples"], "by_opening": rows}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--games", type=int, default=20_000, help="random games a round, on OpenSpiel's side")
    parser.add_argument("--strength", type=int, default=0, metavar="GAMES", help="also compare strengths in so many games")
    parser.add_argument("--json", action="store_true", help="print one line of JSON instead of the table")
    args = parser.parse_args()
    own_venv.enter("openspiel", "pyspiel", "open_spiel")
    os.chdir(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
    binary, peer = build("tictactoe_speed"), OpenSpiel()

    plan = {"positions": POSITIONS, "simulations": [100, 1000], "moves": 100, "games": 20 * args.games}
    theirs, own = [], []
    for seed in range(args.rounds):
        rate, won = peer.random_games(args.games, seed)
        hundred, thousand = peer.searches(100, 100, seed + 1), peer.searches(1000, 20, seed + 1)
        theirs.append({"steps": rate, "won": won, "100": hundred, "1000": thousand})
        one = ours(binary, plan | {"seed": seed})
        own.append({"steps": one["steps_per_s"], "won": one["first_wins"], **one["move_us"], "env": one["env_steps_per_s"]})

    def both(key):
        return {"mage": statistics.median(r[key] for r in own), "openspiel": statistics.median(r[key] for r in theirs)}

    won = statistics.mean(r["won"] for r in own), statistics.mean(r["won"] for r in theirs)
    same = agree(won[0], plan["games"] * args.rounds, won[1], args.games * args.rounds)
    report = {
        "rounds": args.rounds,
        "versions": f"open_spiel {importlib.metadata.version('open_spiel')}, Python {platform.python_version()}",
        "steps_per_s": both("steps"),
        "agent_steps_per_s_in_words": statistics.median(r["env"] for r in own),
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
    fast = report["steps_ratio"] >= STEPS_BAR and report["move_ratio"]["100"] >= MOVE_BAR
    sys.exit(0 if all(agreed) and fast else 1)


def table(report):
    steps, won = report["steps_per_s"], report["first_player_wins"]
    print(f"{report['versions']}; medians of {report['rounds']}, one thread each, by turns\n")
    print(f"{'':36}{'mage':>14}{'OpenSpiel':>14}{'ratio':>8}")
    print(f"{'random games, steps/s':36}{steps['mage']:>14,.0f}{steps['openspiel']:>14,.0f}{report['steps_ratio']:>8.1f}")
    for n, move in report["move_us"].items():
        ratio = report["move_ratio"][n]
        print(f"{f'a move of {n} simulations, µs':36}{move['mage']:>14.1f}{move['openspiel']:>14.1f}{ratio:>8.1f}")
    print(f"{'first player wins random games':36}{won['mage']:>14.4f}{won['openspiel']:>14.4f}")
    print(f"mage's agent steps/s in words: {report['agent_steps_per_s_in_words']:,.0f}")
    if "strength" in report:
        print(f"\nbest answer to mage's MCTS-100, {report['strength']['games']} fresh games after each opening:")
        for name, row in report["strength"]["by_opening"].items():
            print(f"{f'{name}, share won':36}{row['mage']:>14.4f}{row['openspiel']:>14.4f}")
    print(f"bars: steps {STEPS_BAR:.0f}, a move of 100 simulations {MOVE_BAR:.0f}")


if __name__ == "__main__":
    main()
