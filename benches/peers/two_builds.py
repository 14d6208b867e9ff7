#!/usr/bin/env python3
"""Compares two builds of mage on the CPU, alternating with PyTorch where it has a counterpart.

    python3 benches/peers/two_builds.py OLD NEW [--python PYTHON] [--rounds 3] [--cores 2,3] [--old-keys]

OLD and NEW are folders with the binaries `train_step`, `sampler_speed` (examples of mage-native) and `mage`, built with --release. PYTHON
is an interpreter with PyTorch; without it, only the builds are compared. --old-keys: OLD was built before the keys were renamed (e4e179e).
Prints medians over the rounds, and all values.
"""

import argparse
import json
import os
import statistics
import subprocess
import tempfile
from pathlib import Path

import native_torch
import sampler_torch

HERE = Path(__file__).resolve().parent
FORMER = {"prompt_tokens": "prompt", "completion_tokens": "answer", "prefix_tokens": "common", "trajectories.every": "records.every"}


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("old", type=Path)
    p.add_argument("new", type=Path)
    p.add_argument("--python")
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--cores", default="0,1")
    p.add_argument("--old-keys", action="store_true")
    options = p.parse_args()
    builds = {"old": options.old.resolve(), "new": options.new.resolve()}

    def call(*command):
        env = dict(os.environ, CUDA_VISIBLE_DEVICES="")
        command = ["taskset", "-c", options.cores, *map(str, command)]
        return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=env).stdout

    def keys(build, values):
        former = FORMER if build == "old" and options.old_keys else {}
        return [f"{former.get(k, k)}={v}" for k, v in values.items()]

    def example(build, name, values):
        return json.loads(call(builds[build] / name, "threads=2", *keys(build, values)))

    def torch(script, shape):
        return json.loads(call(options.python, HERE / script, json.dumps(shape)))

    def compare(title, build_value, torch_value=None):
        values = {"old": [], "new": [], "torch": []}
        for r in range(options.rounds):  # alternating, so that all sides see the same load
            for build in builds:
                values[build].append(build_value(build, r))
            if options.python and torch_value:
                values["torch"].append(torch_value())
        medians = ", ".join(f"{side} {statistics.median(v):.4g}" for side, v in values.items() if v)
        print(f"{title}: {medians}  {[[float(f'{x:.4g}') for x in v] for v in values.values() if v]}", flush=True)

    def update(build, seed):
        with tempfile.TemporaryDirectory() as folder:
            recipe = {"rollout.groups": 32, "optim.updates": 30, "warmstart.steps": 150, "eval.every": 0, "eval.final_tasks": 24,
                      "checkpoint.every": 1_000_000, "trajectories.every": 0}
            sets = [part for key in keys(build, recipe) for part in ("--set", key)]
            run = Path(folder) / "run"
            call(builds[build] / "mage", "train", "kuhn", *sets, "--threads", "2", "--seed", seed, "--out", run, "--quiet")
            lines = (run / "timing.jsonl").read_text().splitlines()[:-1]  # the last update writes a checkpoint
            return statistics.median(1000 * json.loads(line)["total"] for line in lines)

    for name, shape in native_torch.SHAPES.items():
        compare(f"training step, {name}, ms", lambda build, _: example(build, "train_step", shape)["median_ms"],
                lambda: torch("native_torch.py", shape)["median_ms"])
    for batch in (1, 16):
        shape = dict(sampler_torch.STACK, batch=batch, prompt_tokens=128, completion_tokens=128)
        compare(f"sampler, {batch} at a time, tokens/s",
                lambda build, _: example(build, "sampler_speed", dict(shape, requests=batch * 4))["tokens_per_second"],
                lambda: torch("sampler_torch.py", shape)["tokens_per_second"])
    short = dict(sampler_torch.STACK, batch=512, prompt_tokens=136, prefix_tokens=128, completion_tokens=4, requests=10_000)
    compare("sampler, shared prefixes, requests/s", lambda build, _: example(build, "sampler_speed", short)["requests_per_second"])
    compare("update, ms", update)


if __name__ == "__main__":
    main()
