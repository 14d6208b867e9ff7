#!/usr/bin/env python3
"""Conformance of SkyRL and vLLM with the native engine, and fault tolerance of training on them.

    conformance/engines/run.py [--mage PROGRAM] [--engines DIR] [--only STEP,…]

Installs SkyRL and vLLM's CPU build in DIR (once; 12 GB), creates a tiny fp32 model, and starts both on loopback. Steps:

  agree        log-probs of a fixed sequence on native, SkyRL, vLLM and transformers differ by at most 1e-5 from the same model
               in fp64, and before training also from each other; one importance-sampling and one CISPO update are equal on
               native and SkyRL; calibration, sampling, exact resume (cargo tests `live_engines`)
  doctor       `mage doctor --engine` passes all checks
  kuhn         30 updates of kuhn.toml, native and with SkyRL + vLLM: the expected score of the last episode rises in both
  losses       CISPO and importance sampling with SkyRL + vLLM
  engine-kill  SkyRL, then vLLM, is killed and restarted during a run: the run waits, restores its state, and completes
  skyrl-kill   without vLLM, SkyRL is killed while it samples and restarted: as above
  mage-kill    mage is killed during a run and resumed
  launch       the output of `mage launch` runs and is accepted by SkyRL's and vLLM's parsers

All processes are ended, also after a failure or Ctrl-C. Prints SKIPPED and exits with 0 if the engines cannot be installed.
"""

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import launch
from engines import TIMEOUT, Process, install, skyrl, vllm

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
STEPS = ["agree", "doctor", "kuhn", "losses", "engine-kill", "skyrl-kill", "mage-kill", "launch"]
# vLLM's CPU build requires a head dimension of at least 32.
SHAPE = ["model.head_dim=32", "model.hidden_size=64", "model.intermediate_size=128", "play.mask_actions=false"]


def arguments():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--mage", type=Path, help="the mage binary; default: built in release mode")
    p.add_argument("--engines", type=Path, default=HERE / ".engines", help="folder of the environments")
    p.add_argument("--only", default=",".join(STEPS), help="steps to run, from " + ", ".join(STEPS))
    args = p.parse_args()
    unknown = set(args.only.split(",")) - set(STEPS)
    if unknown:
        p.error(f"unknown step {', '.join(unknown)}")
    return args


def check_run(what, command, **options):
    """Runs a command and fails if it does."""
    if Process(command, **options).popen.wait():
        raise SystemExit(f"FAILED: {what}")


def updates(run):
    file = run / "metrics.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def wait_for_update(process, run, n):
    end = time.time() + TIMEOUT
    while len(updates(run)) < n:
        if process.popen.poll() is not None or time.time() > end:
            raise SystemExit(f"FAILED: {run} did not reach update {n}")
        time.sleep(0.2)


class Suite:
    def __init__(self, scratch, engines, mage):
        self.scratch, self.engines, self.mage = scratch, engines, mage
        self.model = self.new_model("tiny")
        self.tinker_url, self.tinker = skyrl(engines, scratch, self.model)
        self.vllm_url, self.vllm = vllm(engines, scratch, self.model)
        self.remote = ["kuhn.toml", "skyrl.toml", "--set", f"model.path={self.model}", "--set",
                       f"tinker.url={self.tinker_url}", "--set", f'vllm.servers=["{self.vllm_url}"]', "--set",
                       f"vllm.adapter_dir={scratch}/adapters"]

    def new_model(self, name, *more):
        """A new model after a warm start."""
        settings = [x for s in [*SHAPE, *more] for x in ("--set", s)]
        check_run("creating a model", [self.mage, "warmstart", "kuhn", "-q", "--out", self.scratch / name, *settings])
        return self.scratch / name

    def train(self, name, recipe, **more):
        return Process([self.mage, "train", *recipe, "--out", self.scratch / name, "-q"], cwd=HERE, text=True, **more)

    def live_tests(self, crate, **env):
        """Runs the tests that need engines. Fails if none ran or any was skipped."""
        env = {**os.environ, "MAGE_TINKER_URL": self.tinker_url, "MAGE_VLLM_URL": self.vllm_url,
               "MAGE_ENGINE_MODEL": str(self.model), **{k: str(v) for k, v in env.items()}}
        process = Process(["cargo", "test", "-p", crate, "--test", "external", "live_engines", "--", "--nocapture",
                           "--test-threads", "1"], cwd=ROOT, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        passed = skipped = 0
        for line in process.popen.stdout:
            print(line, end="", flush=True)
            skipped += re.search(r"^test live_engines.* ignored", line) is not None
            found = re.search(r"(\d+) passed", line)
            passed += int(found[1]) if found else 0
        if process.popen.wait() or passed == 0 or skipped:
            raise SystemExit(f"FAILED: the tests `live_engines` of {crate}: {passed} passed, {skipped} of them by skipping")

    def agree(self):
        found = self.scratch / "fingerprints.json"
        self.live_tests("mage-remote")
        self.live_tests("mage-train", MAGE_FINGERPRINTS_OUT=found)
        self.compare(self.model, found)
        # Without a warm start the log-probs are close to uniform, and any two engines must agree.
        folder = self.scratch / "plain"
        folder.mkdir()
        model = self.new_model("plain/tiny", "warmstart.steps=0")
        servers = [skyrl(self.engines, folder, model), vllm(self.engines, folder, model)]
        for _, server in servers:
            server.start()
        (tinker_url, tinker), (vllm_url, sampler) = servers
        self.live_tests("mage-train", "all_engines_agree", MAGE_FINGERPRINTS_OUT=found, MAGE_TINKER_URL=tinker_url,
                        MAGE_VLLM_URL=vllm_url, MAGE_ENGINE_MODEL=model)
        tinker.kill()
        sampler.kill()
        if self.compare(model, found) > 1e-5:
            raise SystemExit("FAILED: two engines differ by more than 1e-5")

    def compare(self, model, found):
        """Compares the engines' log-probs with transformers and fp64. Returns the largest difference of any two engines."""
        # Runs in SkyRL's environment, which has PyTorch and transformers.
        code = f"""
import json, torch
from transformers import AutoModelForCausalLM
def scores(dtype):
    model = AutoModelForCausalLM.from_pretrained({str(model)!r}, dtype=torch.float32).to(dtype)
    tokens = [(i * i * 7 + i * 3 + 1) % model.config.vocab_size for i in range(24)]
    with torch.no_grad():
        logs = torch.log_softmax(model(torch.tensor([tokens])).logits[0], -1)
    return [logs[i, t].item() for i, t in enumerate(tokens[1:])]
print(json.dumps([scores(torch.float32), scores(torch.float64)]))
"""
        done = subprocess.run([self.engines / "skyrl/bin/python", "-c", code], capture_output=True, text=True,
                              env={**os.environ, "HF_HUB_OFFLINE": "1"})
        if done.returncode:
            raise SystemExit(f"FAILED: transformers: {done.stderr[-800:]}")
        transformers, exact = json.loads(done.stdout.splitlines()[-1])
        by_engine = {**json.loads(found.read_text()), "transformers": transformers}

        def max_diff(a, b):
            return max(abs(x - y) for x, y in zip(a, b, strict=True))

        print(f"log-probs from {max(exact):.2f} to {min(exact):.2f}, fp32 compared with fp64:")
        others = {}
        for name, logprobs in by_engine.items():
            others[name] = max(max_diff(logprobs, other) for other in by_engine.values())
            print(f"  {name:13} {max_diff(logprobs, exact):.1e} from fp64, at most {others[name]:.1e} from another engine")
        if max(max_diff(logprobs, exact) for logprobs in by_engine.values()) > 1e-5:
            raise SystemExit("FAILED: an engine differs from fp64 by more than 1e-5")
        return max(others.values())

    def doctor(self):
        check_run("doctor", [self.mage, "doctor", "--engine", *self.remote], cwd=HERE)

    def kuhn(self):
        for name, recipe in [("native", ["kuhn.toml", "native.toml", "--set", f"model.path={self.model}"]),
                             ("skyrl", self.remote)]:
            if self.train(name, recipe).popen.wait():
                raise SystemExit(f"FAILED: training with {name}")
            result = json.loads((self.scratch / name / "result.json").read_text())
            before, after = (result[k]["score"][-1]["mean"] for k in ("before", "after"))
            print(f"{name}: last episode {before:.3f} before, {after:.3f} after")
            if after < before + 0.01:
                raise SystemExit(f"FAILED: {name} did not learn")
        worst = max(u["mismatch_kl/first"] for u in updates(self.scratch / "skyrl"))
        print(f"largest divergence of sampler and trainer: {worst:.1e} nats per token")
        if worst > 1e-6:
            raise SystemExit("FAILED: SkyRL and vLLM differ")

    def losses(self):
        few = ["--set", "optim.updates=2", "--set", "eval.final_tasks=24"]
        for loss in ["cispo", "importance_sampling"]:
            run = self.train(loss, [*self.remote, *few, "--set", f"loss.objective={loss}"])
            if run.popen.wait() or len(updates(self.scratch / loss)) != 2:
                raise SystemExit(f"FAILED: training with {loss}")
            print(f"{loss}: two updates")

    short = ["--set", "optim.updates=8", "--set", "checkpoint.every=2", "--set", "eval.final_tasks=24"]

    def engine_kill(self):
        with open(self.scratch / "engine-kill.log", "w+") as log:
            process = self.train("engine-kill", self.remote + self.short, stderr=log)
            for at, server in [(2, self.tinker), (5, self.vllm)]:
                wait_for_update(process, self.scratch / "engine-kill", at)
                server.kill()
                time.sleep(5)
                server.start()
            if process.popen.wait() or len(updates(self.scratch / "engine-kill")) != 8:
                raise SystemExit("FAILED: a run whose engines were killed did not complete")
            log.seek(0)
            lines = log.read()
        print(lines)
        for words in [f"{self.tinker_url}/api/v1 lost the model", f"{self.vllm_url} is unreachable",
                      f"{self.vllm_url} is available again"]:
            if words not in lines:
                raise SystemExit(f"FAILED: missing log line: {words}")

    def skyrl_kill(self):
        remote = [r if not r.startswith("vllm.servers=") else "vllm.servers=[]" for r in self.remote]
        few = ["--set", "rollout.groups=4", "--set", "optim.updates=6", "--set", "checkpoint.every=4", "--set",
               "eval.final_tasks=24"]
        run = self.scratch / "skyrl-kill"
        with open(self.scratch / "skyrl-kill.log", "w+") as log:
            process = self.train("skyrl-kill", remote + few, stderr=log)
            # After an update's metrics line the next rollout starts; a checkpoint is written only after the fourth update.
            for at in (2, 5):
                wait_for_update(process, run, at)
                time.sleep(0.5)
                self.tinker.kill()
                time.sleep(3)
                self.tinker.start()
            if process.popen.wait() or [u["update"] for u in updates(run)] != list(range(1, 7)):
                raise SystemExit("FAILED: a run whose only server was killed did not apply every update once")
            log.seek(0)
            lines = log.read()
        print(lines)
        restored, errors = lines.count("lost the model"), sum(u["errors"] for u in updates(run))
        if restored != 2 or lines.count("is unreachable") > 2 or errors:
            raise SystemExit(f"FAILED: {restored} restores (expected 2), {errors} meta-episodes lost (expected 0)")

    def mage_kill(self):
        process = self.train("mage-kill", self.remote + self.short)
        wait_for_update(process, self.scratch / "mage-kill", 3)
        process.kill()
        check_run("resuming", [self.mage, "train", "--resume", self.scratch / "mage-kill", "-q"], cwd=HERE)
        if [u["update"] for u in updates(self.scratch / "mage-kill")] != list(range(1, 9)):
            raise SystemExit("FAILED: a resumed run did not apply every update once")
        left = [p.name for p in (self.scratch / "checkpoints").glob("*/*") if "state" in p.name]
        print(f"SkyRL stores {len(left)} states of all runs")

    def launch(self):
        launch.check(self.mage, self.engines, self.scratch)


def main():
    args = arguments()
    engines = args.engines.resolve()
    for sign in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(sign, lambda *_: sys.exit("ended by a signal"))
    failed = install(engines)
    if failed:
        print(f"SKIPPED: the engines cannot be installed: {failed}", file=sys.stderr)
        return
    mage = args.mage.resolve() if args.mage else ROOT / "target" / "release" / "mage"
    steps = [s for s in STEPS if s in args.only.split(",")]
    try:
        if not args.mage:
            check_run("building mage", ["cargo", "build", "--release", "-p", "mage"], cwd=ROOT)
        with tempfile.TemporaryDirectory(prefix="mage-engines-") as scratch:
            try:
                suite = Suite(Path(scratch), engines, mage)
                suite.tinker.start()
                if steps != ["skyrl-kill"]:
                    suite.vllm.start()
                for step in steps:
                    started = time.time()
                    print(f"== {step}", flush=True)
                    getattr(suite, step.replace("-", "_"))()
                    print(f"== {step}: passed, {time.time() - started:.0f} s", flush=True)
            finally:
                left = Process.end_all()
    finally:
        left = Process.end_all()
    if left:
        raise SystemExit(f"FAILED: processes {left} are still running")
    print("all steps passed")


main()
