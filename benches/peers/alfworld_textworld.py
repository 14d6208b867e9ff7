#!/usr/bin/env python3
"""ALFWorld: steps per second compared with TextWorld.

    benches/peers/alfworld_textworld.py --data DIR [--golden FILE]

Replays recorded commands on official games on both sides and prints one JSON object. A step is a command, its observation, the list
of admissible commands and the won flag; a checksum over all of them shows that both sides did the same work. TextWorld is installed
in a virtual environment on the first run (see conformance/alfworld/run.py). DIR contains official games: `json_2.1.1/` or archives
of it (`.tar`, `.tar.xz`, `.tar.zst`).
"""

import argparse
import gzip
import json
import resource
import subprocess
import sys
import tempfile
import time
import zlib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "conformance" / "alfworld"))
import run as conformance  # noqa: E402


def arguments():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--data", type=Path, required=True, help="folder of official games")
    p.add_argument("--golden", type=Path, help="recordings; default: DIR/textworld_traces.jsonl.gz")
    p.add_argument("--episodes", type=int, default=20, help="number of recorded episodes")
    p.add_argument("--repeat", type=int, default=200, help="repetitions of mage")
    p.add_argument("--mage-speed", type=Path, help="the example binary alfworld_speed; default: built")
    p.add_argument("--venv", type=Path, default=ROOT / "conformance" / "alfworld" / ".venv")
    return p.parse_args()


class Checksum:
    """A checksum over observations, admissible commands and won flags."""

    def __init__(self):
        self.sum = 0

    def add(self, state):
        parts = [state.feedback, *state["admissible_commands"]]
        for part in parts:
            self.sum = zlib.crc32(part.encode(), self.sum)
        self.sum = zlib.crc32(bytes([bool(state["won"])]), self.sum)


def textworld(episodes):
    """Loads all games, then plays all episodes, in this process."""
    from textworld import EnvInfos
    from textworld.envs.pddl import PddlEnv

    checksum, loading, stepping, steps = Checksum(), 0.0, 0.0, 0
    cpu = 0.0
    opening, rest = [], []
    for episode in episodes:
        start = time.perf_counter()
        env = PddlEnv(EnvInfos(admissible_commands=True))
        env.load(episode["file"])
        conformance.assign_names(env._entity_infos)
        opening.append(env.reset())
        loading += time.perf_counter() - start
        start, used = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF)
        for command in episode["commands"]:
            state, _, _ = env.step(command)
            rest.append(state)
            steps += 1
        stepping += time.perf_counter() - start
        now = resource.getrusage(resource.RUSAGE_SELF)
        cpu += now.ru_utime + now.ru_stime - used.ru_utime - used.ru_stime
    for state in opening + rest:
        checksum.add(state)
    return {
        "load_and_reset_s": loading / len(episodes),
        "steps_per_s": steps / stepping,
        "steps_per_cpu_s": steps / cpu,
        "steps": steps,
        "checksum": checksum.sum,
    }


def main():
    args = arguments()
    conformance.enter_venv(args.venv)
    golden = args.golden or args.data / "textworld_traces.jsonl.gz"
    opened = gzip.open(golden, "rt") if golden.suffix == ".gz" else open(golden)
    with opened as file:
        traces = [json.loads(line) for line in file]
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        recorded = {t["game"] for t in traces}
        games = conformance.official_games(args.data, work, lambda names: [name for name in names if name in recorded])
        files = {name: path for path, name in games}
        usable = [t for t in traces if t["game"] in files]
        chosen = usable[:: max(1, len(usable) // args.episodes)][: args.episodes]
        episodes = [
            {"file": str(files[t["game"]]), "commands": [s["cmd"] for s in t["steps"] if s["cmd"] is not None]} for t in chosen
        ]
        plan = work / "plan.json"
        plan.write_text(json.dumps({"repeat": args.repeat, "episodes": episodes}))
        program = args.mage_speed
        if program is None:
            build = ["cargo", "build", "--release", "-p", "mage-env", "--example", "alfworld_speed"]
            subprocess.run(build, cwd=ROOT, check=True)
            program = ROOT / "target" / "release" / "examples" / "alfworld_speed"
        ours = json.loads(subprocess.run([program, "replay", plan], check=True, capture_output=True).stdout)
        theirs = textworld(episodes)
        memory = json.loads(subprocess.run([program, "memory", args.data, "256"], check=True, capture_output=True).stdout)
    report = {
        "episodes": len(episodes),
        "mage": ours,
        "textworld": theirs,
        "times_faster": {
            "steps": ours["steps_per_s"] / theirs["steps_per_s"],
            "load_and_reset": theirs["load_and_reset_s"] / ours["load_and_reset_s"],
        },
        "same": ours["checksum"] == theirs["checksum"],
        "memory": memory,
    }
    print(json.dumps(report, indent=2))
    sys.exit(0 if report["same"] else 1)


if __name__ == "__main__":
    main()
