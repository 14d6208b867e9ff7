#!/usr/bin/env python3
"""How much faster are our Tic-Tac-Toe rules and tree search than OpenSpiel's?

Both sides play random games by the rules (OpenSpiel from Python, as agents use it) and search for moves in the same
positions with the same settings (OpenSpiel's C++ `MCTSBot`: UCT constant 1.4, one random playout a leaf, solver on).
Rounds alternate between the two; medians are printed as one JSON object. Shares of games won show that both play the same
game, and with --strength OpenSpiel's bot also meets the best answer to *our* search, which must win as often against both.

    python3 -m venv target/peers/openspiel
    target/peers/openspiel/bin/pip install open_spiel
    target/peers/openspiel/bin/python benches/peers/tictactoe_openspiel.py [--rounds 5] [--strength 20000]
"""

import argparse
import json
import math
import os
import random
import statistics
import subprocess
import sys
import time

import pyspiel

POSITIONS = [[], [0], [1], [4], [0, 4, 8], [4, 0, 8, 2]]
GAME = pyspiel.load_game("tic_tac_toe")


def after(moves):
    state = GAME.new_initial_state()
    for move in moves:
        state.apply_action(move)
    return state


def mcts(simulations, seed):
    rollout = pyspiel.RandomRolloutEvaluator(1, seed)
    return pyspiel.MCTSBot(GAME, rollout, 1.4, simulations, 1000, True, seed, False)


def random_games(games, seed):
    """Moves a second, and the share of games the first player won."""
    rng = random.Random(seed)
    steps = won = 0
    clock = time.perf_counter()
    for _ in range(games):
        state = GAME.new_initial_state()
        while not state.is_terminal():
            state.apply_action(rng.choice(state.legal_actions()))
            steps += 1
        won += state.returns()[0] > 0
    return steps / (time.perf_counter() - clock), won / games


def searches(simulations, moves, seed):
    """Microseconds a move, on average over positions."""
    bot = mcts(simulations, seed)
    states = [after(p) for p in POSITIONS]
    clock = time.perf_counter()
    for _ in range(moves):
        for state in states:
            bot.step(state)
    return (time.perf_counter() - clock) * 1e6 / moves / len(states)


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


def strength(games):
    """How often the best answer to our search wins against ours and against OpenSpiel's, by opening."""
    table = json.loads(subprocess.run([build("tictactoe_answer"), "100", str(games)], check=True, stdout=subprocess.PIPE, text=True).stdout)
    rows = {}
    for opening, ours_won in table["won"].items():
        bot, won = mcts(100, int(opening) + 1), 0
        for _ in range(games):
            state = after([int(opening)])
            while not state.is_terminal():
                own = state.current_player() == 0
                state.apply_action(table["answer"][str(state).replace("\n", "")] if own else bot.step(state))
            won += state.returns()[0] > 0
        theirs_won = won / games
        rows[opening] = {"ours": ours_won, "openspiel": theirs_won, "agree": agree(ours_won, games, theirs_won, games)}
    return {"games": games, "samples": table["samples"], "by_opening": rows}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--games", type=int, default=20_000, help="random games a round, on OpenSpiel's side")
    parser.add_argument("--strength", type=int, default=0, metavar="GAMES", help="also compare strengths in so many games")
    args = parser.parse_args()
    os.chdir(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
    binary = build("tictactoe_speed")

    plan = {"positions": POSITIONS, "simulations": [100, 1000], "moves": 100, "games": 20 * args.games}
    theirs, own = [], []
    for seed in range(args.rounds):
        rate, won = random_games(args.games, seed)
        theirs.append({"steps": rate, "won": won, "100": searches(100, 100, seed + 1), "1000": searches(1000, 20, seed + 1)})
        one = ours(binary, plan | {"seed": seed})
        own.append({"steps": one["steps_per_s"], "won": one["first_wins"], **one["move_us"], "env": one["env_steps_per_s"]})

    def median(rows, key):
        return statistics.median(row[key] for row in rows)

    won = statistics.mean(r["won"] for r in own), statistics.mean(r["won"] for r in theirs)
    same = agree(won[0], plan["games"] * args.rounds, won[1], args.games * args.rounds)
    report = {
        "rounds": args.rounds,
        "openspiel": pyspiel.__version__ if hasattr(pyspiel, "__version__") else None,
        "steps_per_s": {"ours": median(own, "steps"), "openspiel": median(theirs, "steps")},
        "agent_steps_per_s_in_words": median(own, "env"),
        "move_us": {n: {"ours": median(own, n), "openspiel": median(theirs, n)} for n in ("100", "1000")},
        "first_player_wins": {"ours": won[0], "openspiel": won[1], "agree": same},
    }
    steps, move = report["steps_per_s"], report["move_us"]["100"]
    report["steps_ratio"] = steps["ours"] / steps["openspiel"]
    report["move_100_ratio"] = move["openspiel"] / move["ours"]
    if args.strength:
        report["strength"] = strength(args.strength)
    print(json.dumps(report, indent=2))
    agreed = [same] + [row["agree"] for row in report.get("strength", {}).get("by_opening", {}).values()]
    sys.exit(0 if all(agreed) else 1)


if __name__ == "__main__":
    main()
