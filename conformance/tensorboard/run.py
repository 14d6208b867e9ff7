#!/usr/bin/env python3
"""Comparison of TensorBoard event files with metrics.jsonl.

    conformance/tensorboard/run.py [--mage PROGRAM]

Installs TensorBoard in a virtual environment next to this file (once), trains a tiny agent, and compares every tag, step and value
that TensorBoard's reader finds with metrics.jsonl: equal as 32-bit floats, no step missing or duplicated. Then repeats the run with
several kills (SIGKILL) and resumes, once with a partial record at the end of the event file, as after a power failure. The values
must be equal after every kill and at the end, for a new reader and for a reader that was open all the time. Finally compares the
data that a TensorBoard server returns over loopback.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
import venv
from collections import Counter
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
REQUIREMENTS = ["tensorboard>=2.15"]
TIMEOUT = 120  # seconds for every wait


def arguments():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--mage", type=Path, default=ROOT / "target" / "release" / "mage", help="the mage binary (cargo build --release)")
    p.add_argument("--updates", type=int, default=120, help="updates per run")
    p.add_argument("--kills", type=int, default=4, help="number of kills")
    p.add_argument("--venv", type=Path, default=HERE / ".venv", help="virtual environment of TensorBoard")
    return p.parse_args()


def enter_venv(path):
    """Restarts this script inside the virtual environment, which is created if missing."""
    python = path / "bin" / "python"
    if Path(sys.prefix).resolve() == path.resolve():
        return
    if not python.exists():
        venv.create(path, with_pip=True)
    if subprocess.run([python, "-c", "import tensorboard"], capture_output=True).returncode != 0:
        subprocess.run([python, "-m", "pip", "install", "-q", *REQUIREMENTS], check=True)
    os.execv(python, [str(python), *sys.argv])


OPTIONS = arguments()
enter_venv(OPTIONS.venv)
import numpy as np  # noqa: E402
import tensorboard  # noqa: E402
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # noqa: E402


def recipe(updates):
    """A small recipe that evaluates only at some updates, so that tags have different steps."""
    keys = {"rollout.groups": 3, "rollout.group_size": 4, "warmstart.steps": 5, "warmstart.batch_size": 4, "optim.updates": updates,
            "eval.every": 7, "eval.tasks": 6, "eval.final_tasks": 6, "checkpoint.every": 5, "trajectories.every": 0}
    return ["kuhn", *(part for key, value in keys.items() for part in ("--set", f"{key}={value}"))]


def start(mage, *rest):
    """A training process and its output file."""
    output = tempfile.TemporaryFile()
    return subprocess.Popen([str(mage), "train", *rest, "--threads", "1", "--quiet"], stdout=output, stderr=output), output


def finish(process, output):
    try:
        code = process.wait(TIMEOUT)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        sys.exit(f"mage did not exit within {TIMEOUT} s")
    if code != 0:
        output.seek(0)
        sys.exit(f"mage exited with {code}:\n{output.read().decode()}")


def written(run):
    """The content of metrics.jsonl: tag -> [(step, value)]. Non-finite values are null in JSON."""
    found = {}
    for line in (run / "metrics.jsonl").read_text().splitlines():
        line = json.loads(line)
        step = int(line.pop("update"))
        for tag, value in line.items():
            found.setdefault(tag, []).append((step, np.float32("nan" if value is None else value)))
    return found


def shown(reader):
    """The current content of a TensorBoard reader: tag -> [(step, value)]."""
    reader.Reload()
    return {tag: [(e.step, np.float32(e.value)) for e in reader.Scalars(tag)] for tag in reader.Tags()["scalars"]}


def reader_of(run):
    return EventAccumulator(str(run / "tensorboard"), size_guidance={"scalars": 0})


def differences(expected, found):
    """Descriptions of all differences."""
    wrong = [f"missing tag {tag}" for tag in sorted(expected.keys() - found.keys())]
    wrong += [f"unexpected tag {tag}" for tag in sorted(found.keys() - expected.keys())]
    for tag in sorted(expected.keys() & found.keys()):
        want, have = expected[tag], found[tag]
        counts = Counter(step for step, _ in have)
        repeated = sorted(step for step, n in counts.items() if n > 1)
        missing = sorted({step for step, _ in want} - counts.keys())
        extra = sorted(counts.keys() - {step for step, _ in want})
        for what, steps in [("repeated", repeated), ("missing", missing), ("unexpected", extra)]:
            if steps:
                wrong.append(f"{tag}: {len(steps)} steps {what}, from {steps[0]} to {steps[-1]}")
        if not (repeated or missing or extra):
            if [step for step, _ in want] != [step for step, _ in have]:
                wrong.append(f"{tag}: steps out of order")
            values = dict(have)
            for step, value in want:
                same = value == values[step] or (np.isnan(value) and not np.isfinite(values[step]))
                if not same:
                    wrong.append(f"{tag} at step {step}: expected {value!r}, found {values[step]!r}")
    return wrong


def report(name, expected, found):
    wrong = differences(expected, found)
    steps = max((len(points) for points in expected.values()), default=0)
    count = sum(len(points) for points in expected.values())
    print(f"{name}: {len(expected)} tags, {steps} steps, {count} values, {len(wrong)} differences", flush=True)
    for text in wrong[:20]:
        print(f"  {text}")
    return len(wrong)


def kill_after(process, output, run, lines):
    """Kills the process once the given number of updates is written."""
    metrics, deadline = run / "metrics.jsonl", time.monotonic() + TIMEOUT
    count = lambda: metrics.read_bytes().count(b"\n") if metrics.exists() else 0
    while count() < lines and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.001)
    if process.poll() is not None:
        output.seek(0)
        sys.exit(f"mage exited before it could be killed; raise --updates\n{output.read().decode()}")
    process.send_signal(signal.SIGKILL)
    process.wait()
    if count() < lines:
        sys.exit(f"mage did not write {lines} updates within {TIMEOUT} s")
    return count()


def interrupted(mage, run, updates, kills):
    """Kills and resumes a run several times and returns the number of differences found."""
    wrong, open_reader = 0, None
    process, output = start(mage, *recipe(updates), "--out", str(run))
    for n in range(kills):
        reached = kill_after(process, output, run, (n + 1) * updates // (kills + 1) + 1)
        # A kill can occur between the two writes; on resume the update that only one file has is written again.
        expected, fresh = written(run), shown(reader_of(run))
        last = max(step for points in fresh.values() for step, _ in points)
        if last not in (reached, reached - 1):
            print(f"  metrics.jsonl has {reached} updates and the event file {last}")
            wrong += 1
        upto = {tag: [p for p in points if p[0] <= last] for tag, points in expected.items()}
        wrong += report(f"killed after update {reached}", {t: p for t, p in upto.items() if p}, fresh)
        open_reader = open_reader or reader_of(run)
        shown(open_reader)
        if n == 1:
            [events] = (run / "tensorboard").iterdir()
            with events.open("ab") as file:  # a partial record: the length and the start of a payload
                file.write((200).to_bytes(8, "little") + b"torn")
        process, output = start(mage, "--resume", str(run))
    finish(process, output)
    expected = written(run)
    wrong += report("resumed, new reader", expected, shown(reader_of(run)))
    return wrong + report("resumed, reader open since the first kill", expected, shown(open_reader))


def served(run):
    """The data that a TensorBoard server returns over loopback, without downsampling."""
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", str(run / "tensorboard"), "--host", "127.0.0.1", "--port", "0",
               "--samples_per_plugin", "scalars=1000000", "--reload_interval", "1"]
    with tempfile.NamedTemporaryFile() as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            deadline, address, tags = time.monotonic() + TIMEOUT, None, {}
            while time.monotonic() < deadline and process.poll() is None and not tags:
                time.sleep(0.5)
                for word in Path(log.name).read_text().split():
                    if word.startswith("http://"):
                        address = word.rstrip("/") + "/data/plugin/scalars"
                try:
                    tags = json.load(urllib.request.urlopen(f"{address}/tags", timeout=10)) if address else {}
                except urllib.error.URLError:
                    pass  # not started yet
            if not tags:
                sys.exit(f"TensorBoard did not respond:\n{Path(log.name).read_text()}")
            found = {}
            [(name, by_tag)] = tags.items()
            for tag in by_tag:
                query = urllib.parse.urlencode({"run": name, "tag": tag})
                points = json.load(urllib.request.urlopen(f"{address}/scalars?{query}", timeout=10))
                found[tag] = [(step, np.float32(value)) for _, step, value in points]
            return found
        finally:
            process.terminate()
            process.wait()


def main():
    if not OPTIONS.mage.exists():
        sys.exit(f"{OPTIONS.mage} not found: build it (cargo build --release) or set --mage")
    print(f"tensorboard {tensorboard.__version__}")
    with tempfile.TemporaryDirectory() as folder:
        whole, broken = Path(folder) / "whole", Path(folder) / "broken"
        finish(*start(OPTIONS.mage, *recipe(OPTIONS.updates), "--out", str(whole)))
        expected = written(whole)
        wrong = report("uninterrupted", expected, shown(reader_of(whole)))
        wrong += interrupted(OPTIONS.mage, broken, OPTIONS.updates, OPTIONS.kills)
        wrong += report("TensorBoard server", written(broken), served(broken))
        if (whole / "metrics.jsonl").read_bytes() != (broken / "metrics.jsonl").read_bytes():
            print("metrics.jsonl of the two runs differ")
            wrong += 1
    print("equal" if wrong == 0 else f"DIFFERENT: {wrong} differences")
    sys.exit(0 if wrong == 0 else 1)


if __name__ == "__main__":
    main()
