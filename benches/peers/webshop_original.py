#!/usr/bin/env python3
"""WebShop: steps per second on recorded episodes, compared with the original.

    python3 benches/peers/webshop_original.py --recordings FILE --data DIR [--webshop CHECKOUT] [--json]

mage runs `cargo run --release -p mage-env --example webshop_speed -- replay`: every recorded action, with page text and list of
clickables, on one thread. The original is either run on the same actions (--webshop: a checkout of princeton-nlp/WebShop or of a
project that contains it, with its requirements, its index and spaCy's English model installed in this Python), or taken as stated
by its authors: 17 to 24 steps per second on two cores with the same 1,000 products; the larger value is used. The output states
which. Exits with 1 if the ratio is below 1,000.
"""

import argparse
import gzip
import json
import os
import pathlib
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
STATED = 24.0
MIN_RATIO = 1000.0


def recorded(path):
    """Goal indices and actions of the recorded episodes."""
    opener = gzip.open if path.endswith(".gz") else open
    with opener(path, "rt", encoding="utf-8") as file:
        for line in file:
            episode = json.loads(line)
            yield episode["goal_index"], [s["action"] for s in episode["steps"] if s.get("action")]


def ours(args):
    command = ["cargo", "run", "--release", "--quiet", "-p", "mage-env", "--example", "webshop_speed", "--"]
    command += ["replay", os.path.abspath(args.recordings), os.path.abspath(args.data), str(args.repeat)]
    run = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    return json.loads(run.stdout)["steps_per_s"]


def original(args):
    """Measured steps per second of the original."""
    sys.path.insert(0, args.webshop)
    from web_agent_site.envs import WebAgentTextEnv

    data = pathlib.Path(args.data)
    env = WebAgentTextEnv(
        observation_mode="text",
        file_path=str(data / "items_shuffle_1000.json"),
        attr_path=str(data / "items_ins_v2_1000.json"),
        num_products=1000,
        human_goals=False,
        seed=0,
    )
    steps, seconds = 0, 0.0
    for goal, actions in recorded(args.recordings):
        env.reset(session=goal)
        clock = time.perf_counter()
        for action in actions:
            env.step(action)
            env.get_available_actions()
            steps += 1
        seconds += time.perf_counter() - clock
    return steps / seconds


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--recordings", required=True, help="recorded episodes, JSON lines, gzipped or not")
    parser.add_argument("--data", required=True, help="folder of the official files")
    parser.add_argument("--webshop", help="an installed checkout of the original")
    parser.add_argument("--repeat", type=int, default=20, help="repetitions of mage")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    result = {"mage": ours(args)}
    result["original"] = original(args) if args.webshop else STATED
    result["original_is"] = "measured" if args.webshop else "stated"
    result["ratio"] = result["mage"] / result["original"]
    if args.json:
        print(json.dumps(result))
    else:
        print(f"mage {result['mage']:.0f} steps/s, original {result['original']:.1f} ({result['original_is']}): {result['ratio']:.0f}×")
    return 0 if result["ratio"] >= MIN_RATIO else 1


if __name__ == "__main__":
    sys.exit(main())
