#!/usr/bin/env python3
"""Does TensorBoard show what a run wrote to metrics.jsonl?

    conformance/tensorboard/run.py [--mage PROGRAM]

Makes a virtual environment with TensorBoard beside this file (once), trains a tiny agent, and compares every tag, step and
value that TensorBoard's own reader finds with metrics.jsonl: equal as 32-bit floats, no step missing, none twice. Then the
same run again, killed in the middle (kill -9) and resumed several times, once with half a record at the end of the event
file, as a power cut may leave it: what is read must be equal after every kill and at the end, for a reader that begins then
and for one that has been looking on all the time, as an open TensorBoard does. At last a TensorBoard process is asked over
loopback what its page would draw.
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
PATIENCE = 120  # seconds for anything that is waited for


def arguments():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--mage", type=Path, default=ROOT / "target" / "release" / "mage", help="the program (cargo build --release)")
    p.add_argument("--updates", type=int, default=120, help="length of the run")
    p.add_argument("--kills", type=int, default=4, help="how often it is killed")
    p.add_argument("--venv", type=Path, default=HERE / ".venv", help="where TensorBoard is or shall be installed")
    return p.parse_args()


def enter_venv(path):
    """Goes on inside the virtual environment, which is made if it is not there."""
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
    """Small, with evaluations at some updates only, so that tags differ in their steps."""
    keys = {"rollout.groups": 3, "rollout.group_size": 4, "warmstart.steps": 5, "warmstart.batch_size": 4, "optim.updates": updates,
            "eval.every": 7, "eval.tasks": 6, "eval.final_tasks": 6, "checkpoint.every": 5, "trajectories.every": 0}
    return ["kuhn", *(part for key, value in keys.items() for part in ("--set", f"{key}={value}"))]


def start(mage, *rest):
    """A training process, with what it says in a file."""
    said = tempfile.TemporaryFile()
    return subprocess.Popen([str(mage), "train", *rest, "--threads", "1", "--quiet"], stdout=said, stderr=said), said


def finish(process, said):
    try:
        code = process.wait(PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        sys.exit(f"mage did not end within {PATIENCE} s")
    if code != 0:
        said.seek(0)
        sys.exit(f"mage ended with {code}:\n{said.read().decode()}")


def written(run):
    """What metrics.jsonl says: tag -> [(step, value)]. JSON has null for what is no finite number."""
    found = {}
    for line in (run / "metrics.jsonl").read_text().splitlines():
        line = json.loads(line)
        step = int(line.pop("update"))
        for tag, value in line.items():
            found.setdefault(tag, []).append((step, np.float32("nan" if value is None else value)))
    return found


def shown(reader):
    """What TensorBoard's reader has found by now, in the same form."""
    reader.Reload()
    return {tag: [(e.step, np.float32(e.value)) for e in reader.Scalars(tag)] for tag in reader.Tags()["scalars"]}


def reader_of(run):
    return EventAccumulator(str(run / "tensorboard"), size_guidance={"scalars": 0})


def differences(expected, found):
    """What is wrong, in words."""
    wrong = [f"no tag {tag}" for tag in sorted(expected.keys() - found.keys())]
    wrong += [f"a tag {tag} that was never written" for tag in sorted(found.keys() - expected.keys())]
    for tag in sorted(expected.keys() & found.keys()):
        want, have = expected[tag], found[tag]
        counts = Counter(step for step, _ in have)
        twice = sorted(step for step, n in counts.items() if n > 1)
        missing = sorted({step for step, _ in want} - counts.keys())
        extra = sorted(counts.keys() - {step for step, _ in want})
        for what, steps in [("more than once", twice), ("missing", missing), ("never written", extra)]:
            if steps:
                wrong.append(f"{tag}: {len(steps)} steps {what}, from {steps[0]} to {steps[-1]}")
        if not (twice or missing or extra):
            if [step for step, _ in want] != [step for step, _ in have]:
                wrong.append(f"{tag}: steps out of order")
            values = dict(have)
            for step, value in want:
                same = value == values[step] or (np.isnan(value) and not np.isfinite(values[step]))
                if not same:
                    wrong.append(f"{tag} at step {step}: {value!r} was written, {values[step]!r} is shown")
    return wrong


def report(name, expected, found):
    wrong = differences(expected, found)
    steps = max((len(points) for points in expected.values()), default=0)
    count = sum(len(points) for points in expected.values())
    print(f"{name}: {len(expected)} tags, {steps} steps, {count} values, {len(wrong)} differences", flush=True)
    for text in wrong[:20]:
        print(f"  {text}")
    return len(wrong)


def kill_in_the_middle(process, said, run, lines):
    """Waits until so many updates were written, then kills the process."""
    metrics, deadline = run / "metrics.jsonl", time.monotonic() + PATIENCE
    count = lambda: metrics.read_bytes().count(b"\n") if metrics.exists() else 0
    while count() < lines and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.001)
    if process.poll() is not None:
        said.seek(0)
        sys.exit(f"mage ended before it could be killed; give more --updates\n{said.read().decode()}")
    process.send_signal(signal.SIGKILL)
    process.wait()
    if count() < lines:
        sys.exit(f"mage did not write {lines} updates within {PATIENCE} s")
    return count()


def interrupted(mage, run, updates, kills):
    """A run that is killed and resumed; returns how many differences were seen on the way."""
    wrong, onlooker = 0, None
    process, said = start(mage, *recipe(updates), "--out", str(run))
    for n in range(kills):
        reached = kill_in_the_middle(process, said, run, (n + 1) * updates // (kills + 1) + 1)
        # A kill may fall between the two files; the line that only one of them has is written again on resume.
        expected, fresh = written(run), shown(reader_of(run))
        last = max(step for points in fresh.values() for step, _ in points)
        if last not in (reached, reached - 1):
            print(f"  metrics.jsonl has {reached} updates and the event file {last}")
            wrong += 1
        upto = {tag: [p for p in points if p[0] <= last] for tag, points in expected.items()}
        wrong += report(f"killed after update {reached}", {t: p for t, p in upto.items() if p}, fresh)
        onlooker = onlooker or reader_of(run)
        shown(onlooker)
        if n == 1:
            [events] = (run / "tensorboard").iterdir()
            with events.open("ab") as file:  # half a record: the length, and the beginning of a payload
                file.write((200).to_bytes(8, "little") + b"torn")
        process, said = start(mage, "--resume", str(run))
    finish(process, said)
    expected = written(run)
    wrong += report("resumed, read anew", expected, shown(reader_of(run)))
    return wrong + report("resumed, read by one who looked on", expected, shown(onlooker))


def on_the_page(run):
    """What a TensorBoard process would draw, asked over loopback. It thins out long series unless told how much to keep."""
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", str(run / "tensorboard"), "--host", "127.0.0.1", "--port", "0",
               "--samples_per_plugin", "scalars=1000000", "--reload_interval", "1"]
    with tempfile.NamedTemporaryFile() as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            deadline, address, tags = time.monotonic() + PATIENCE, None, {}
            while time.monotonic() < deadline and process.poll() is None and not tags:
                time.sleep(0.5)
                for word in Path(log.name).read_text().split():
                    if word.startswith("http://"):
                        address = word.rstrip("/") + "/data/plugin/scalars"
                try:
                    tags = json.load(urllib.request.urlopen(f"{address}/tags", timeout=10)) if address else {}
                except urllib.error.URLError:
                    pass  # not up yet
            if not tags:
                sys.exit(f"TensorBoard did not answer:\n{Path(log.name).read_text()}")
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
        sys.exit(f"{OPTIONS.mage} is not there: build it (cargo build --release), or give --mage")
    print(f"tensorboard {tensorboard.__version__}")
    with tempfile.TemporaryDirectory() as folder:
        whole, broken = Path(folder) / "whole", Path(folder) / "broken"
        finish(*start(OPTIONS.mage, *recipe(OPTIONS.updates), "--out", str(whole)))
        expected = written(whole)
        wrong = report("uninterrupted", expected, shown(reader_of(whole)))
        wrong += interrupted(OPTIONS.mage, broken, OPTIONS.updates, OPTIONS.kills)
        wrong += report("on the page", written(broken), on_the_page(broken))
        if (whole / "metrics.jsonl").read_bytes() != (broken / "metrics.jsonl").read_bytes():
            print("metrics.jsonl of the two runs differ")
            wrong += 1
    print("equal" if wrong == 0 else f"DIFFERENT: {wrong} differences")
    sys.exit(0 if wrong == 0 else 1)


if __name__ == "__main__":
    main()
