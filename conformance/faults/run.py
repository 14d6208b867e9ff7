"""Injects faults into file operations of trainings, evaluations and sweeps, and checks that nothing is lost.

    python3 conformance/faults/run.py target/release/mage [--jobs N] [--only TEXT] [--stride N]

A first run of each scenario counts its file operations (`fault.c`, preloaded). Then, for each operation and each kind of fault, a run
meets the fault at that operation; it must end without a panic. Resumed without faults, it must succeed and leave the same files as an
undisturbed run, byte by byte, but for wall-clock times, logs and locks; a temporary file or a surplus checkpoint is a difference. Needs
Linux and a C compiler (`cc`). Exits with 1 on any difference.
"""

import argparse
import concurrent.futures
import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
KINDS = ["kill", "torn", "nospc", "full", "eio"]
WRITES = ("write", "pwrite", "pwrite64", "writev", "copy_file_range")
# Seconds for one run.
TIMEOUT = 120
# Differences printed per kind of fault, and per fault.
SHOWN = 5

TINY = ["optim.updates=3", "rollout.groups=2", "rollout.group_size=2", "warmstart.steps=1", "warmstart.batch_size=2", "eval.tasks=2",
        "eval.final_tasks=2", "eval.every=1", "trajectories.every=2", "engine.threads=1"]
GRID = """
description = "a test"
policy = "tiny policy"
tasks = 3
episodes = 2
seeds = [0]
set = [{set}, "optim.updates=1", "checkpoint.keep=1"]
[[env]]
name = "kuhn"
task_sets = ["kuhn"]
recipe = ["kuhn"]
agents = ["bayes"]
[[method]]
name = "MAGE"
train = ["mage"]
"""


def sets(*values):
    return [word for value in (*TINY, *values) for word in ("--set", value)]


def train(*values):
    def command(folder):
        run = folder / "run"
        if (run / "recipe.resolved.toml").exists():
            return ["train", "--resume", run]
        return ["train", "kuhn", *sets(*values), "--out", run]
    return command


def evaluate(folder):
    return ["eval", "bayes", "--env", "kuhn", "--tasks", "6", "--episodes", "2", "--threads", "1", "--trajectories",
            folder / "trajectories.jsonl", "--summary", folder / "summary.json"]


def sweep(folder):
    return ["sweep", GRID_FILE, "--threads", "1", "--out", folder / "sweep"]


# By name: the command, which also resumes, and a fault of an earlier attempt.
SCENARIOS = {
    "training, one checkpoint kept": (train("checkpoint.every=1", "checkpoint.keep=1"), None),
    "training, two checkpoints kept": (train("checkpoint.every=2", "checkpoint.keep=2", "optim.updates=4"), None),
    "training resumed from its second checkpoint": (train("checkpoint.every=1", "checkpoint.keep=1"), "kill:320"),
    "evaluation": (evaluate, None),
    "sweep": (sweep, None),
}


def run(command, folder, fault=None, log=None):
    env = {k: v for k, v in os.environ.items() if not k.startswith(("FAULT", "MAGE"))}
    env.update(NO_COLOR="1", CUDA_VISIBLE_DEVICES="", RUST_BACKTRACE="0")
    if fault or log:
        env.update(LD_PRELOAD=str(LIBRARY), FAULT_DIR=str(folder))
        env.update({"FAULT": fault} if fault else {})
        env.update({"FAULT_LOG": str(log)} if log else {})
    return subprocess.run([MAGE, *map(str, command)], env=env, cwd=folder.parent, capture_output=True, text=True, timeout=TIMEOUT)


def without_times(events):
    """A TensorBoard file without the times of its events."""
    at, kept = 0, []
    while at < len(events):
        (length,) = struct.unpack_from("<Q", events, at)
        event = events[at + 12:at + 12 + length]
        kept.append(event[9:] if event[:1] == b"\x09" else event)
        at += 16 + length
    return kept


def content(path, folder):
    data = path.read_bytes()
    if path.name in ("result.json", "summary.json", "cell.json"):
        value = json.loads(data.decode().replace(str(folder), ""))
        value.pop("seconds", None)
        return value
    if path.name == "trajectories.jsonl":
        return sorted(data.splitlines())
    if "tensorboard" in path.parts:
        return without_times(data)
    return data


def outcome(folder):
    """The files of a finished scenario, but for times, logs and locks."""
    files = (p for p in sorted(folder.rglob("*")) if p.is_file())
    kept = (p for p in files if "logs" not in p.parts and p.name not in ("lock", "timing.jsonl"))
    return {str(p.relative_to(folder)): content(p, folder) for p in kept}


def differences(found, expected):
    missing = [f"{name} is missing" for name in expected if name not in found]
    surplus = [f"{name} is left over" for name in found if name not in expected]
    return missing + surplus + [f"{name} differs" for name in expected if name in found and found[name] != expected[name]]


def start(scenario, folder):
    """Creates the folder of a scenario with what an earlier attempt left, and returns the command."""
    command, earlier_fault = SCENARIOS[scenario]
    folder.mkdir(parents=True)
    if earlier_fault:
        run(command(folder), folder, fault=earlier_fault)
    return command


def inject(scenario, kind, at, expected):
    """Runs a scenario with a fault and resumes it; returns whether the fault ended the run, and the differences."""
    folder = WORK / f"{list(SCENARIOS).index(scenario)}-{kind}-{at}" / "data"
    command = start(scenario, folder)
    try:
        disturbed = run(command(folder), folder, fault=f"{kind}:{at}")
        problems = []
        allowed = (0, 1, -9) if kind in ("kill", "torn") else (0, 1)
        if disturbed.returncode not in allowed or "panicked" in disturbed.stderr:
            problems.append(f"ended with {disturbed.returncode}: {disturbed.stderr.strip()[-300:]}")
        resumed = run(command(folder), folder)
        if resumed.returncode != 0:
            problems.append(f"resuming ended with {resumed.returncode}: {resumed.stderr.strip()[-300:]}")
        else:
            problems += differences(outcome(folder), expected)
        return disturbed.returncode != 0, problems
    except subprocess.TimeoutExpired as e:
        return True, [str(e)]
    finally:
        shutil.rmtree(folder.parent)


def main():
    print("scenario | operations | kind of fault | injected | ended the run | differences")
    print("---|---|---|---|---|---")
    failures, total = 0, 0
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        for scenario in SCENARIOS:
            if args.only not in scenario:
                continue
            folder, log = WORK / "undisturbed" / "data", WORK / "log"
            command = start(scenario, folder)
            log.unlink(missing_ok=True)
            done = run(command(folder), folder, log=log)
            if done.returncode != 0:
                sys.exit(f"{scenario}: the undisturbed run failed\n{done.stderr}")
            expected = outcome(folder)
            shutil.rmtree(folder.parent)
            operations = [line.split()[0] for line in log.read_text().splitlines()]
            for i, kind in enumerate(KINDS):
                at = [n for n, name in enumerate(operations, 1) if kind != "torn" or name in WRITES]
                at = at[(args.stride * (2 * i + 1) // (2 * len(KINDS)))::args.stride]
                results = list(pool.map(lambda n: inject(scenario, kind, n, expected), at))
                wrong = [(n, problems) for n, (_, problems) in zip(at, results) if problems]
                ended = sum(1 for ended, _ in results if ended)
                print(f"{scenario} | {len(operations)} | {kind} | {len(at)} | {ended} | {len(wrong)}", flush=True)
                total += len(at)
                for n, problems in wrong[:SHOWN]:
                    print(f"  {kind}:{n} ({operations[n - 1]}): {'; '.join(problems[:SHOWN])}", file=sys.stderr, flush=True)
                failures += len(wrong)
    print(f"{total} faults, {failures} with differences")
    sys.exit(bool(failures))


parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("mage", type=Path, help="the binary")
parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes at a time")
parser.add_argument("--only", default="", help="scenarios whose name contains this text")
parser.add_argument("--stride", type=int, default=1, help="inject at each N-th operation only")
args = parser.parse_args()
MAGE = str(args.mage.resolve())
if not os.access(MAGE, os.X_OK):
    sys.exit(f"{MAGE} is not executable: build it with `cargo build --release`")
if not shutil.which("cc"):
    sys.exit("no C compiler (cc) found; it is needed to build the failing file operations")
# In memory if possible: most of the time would be spent in syncs.
memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
with tempfile.TemporaryDirectory(prefix="mage-faults-", dir=memory) as work:
    WORK = Path(work).resolve()
    LIBRARY, GRID_FILE = WORK / "fault.so", WORK / "grid.toml"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", LIBRARY, HERE / "fault.c", "-ldl"], check=True)
    GRID_FILE.write_text(GRID.format(set=", ".join(json.dumps(s) for s in TINY)))
    main()
