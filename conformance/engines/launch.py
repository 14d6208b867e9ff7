"""Test of the scripts that `mage launch` writes.

Every script runs with stand-ins for uv, vllm, ray, srun and git, which log their arguments and start nothing. The arguments for
SkyRL and vLLM are then parsed by the engines' own parsers, the settings of the GPU backends by SkyRL's configuration, and
manifests by a YAML parser. Servers must not share GPUs or listen without a key where one is required. Without the engines, only
the scripts are run: python3 launch.py --mage MAGE
"""

import argparse
import json
import os
import signal
import subprocess
import tempfile
import time
from pathlib import Path

TIMEOUT = 120  # seconds for a script to start everything

# Logs its arguments and runs until it is killed. Ray's releases quote the command of `ray job submit … -- COMMAND` in one of two
# ways, and a shell splits it; `srun … COMMAND` executes its command.
STAND_IN = r"""#!/usr/bin/env python3
import json, os, shlex, subprocess, sys, time
name, args = os.path.basename(sys.argv[0]), sys.argv[1:]
if name == "sleep":
    time.sleep(0.1)
    sys.exit()
entry = {"call": [name, *args], "gpus": os.environ.get("CUDA_VISIBLE_DEVICES"), "key": os.environ.get("VLLM_API_KEY")}
with open(os.environ["CALL_LOG"], "a") as log:
    log.write(json.dumps(entry) + "\n")
if name == "uv" and args[0] == "venv":
    os.makedirs(args[-1], exist_ok=True)
if name == "scontrol":
    print("one\ntwo\nthree")
if name == "hostname":
    print("10.0.0.1")
if name == "ray" and "--" in args:
    os.environ.update(json.loads(args[args.index("--runtime-env-json") + 1])["env_vars"], SERVE="0")
    if "--entrypoint-num-gpus" in args:
        os.environ["CUDA_VISIBLE_DEVICES"] = "given by Ray: " + args[args.index("--entrypoint-num-gpus") + 1]
    words = args[args.index("--") + 1:]
    for quoted in (shlex.join(words), subprocess.list2cmdline(words)):
        parsed = subprocess.check_output(["sh", "-c", f"set -- {quoted}; printf '%s\n' \"$@\""], text=True)
        assert parsed.splitlines() == words, f"{quoted} is parsed as {parsed}"
    os.execvp("sh", ["sh", "-c", quoted])
if name == "srun":
    rest = args[args.index("-w") + 2:]
    os.execvp(rest[0], rest)
serves = name == "vllm" or args[:1] == ["run"] or args[:1] == ["start"]
for _ in range(600 if serves and os.environ.get("SERVE") != "0" else 0):
    time.sleep(0.2)
"""

PARSE_SKYRL = """
import argparse, json, sys
from skyrl.backends.jax import JaxBackendConfig
from skyrl.tinker.config import EngineConfig, add_model
parser = argparse.ArgumentParser()
add_model(parser, EngineConfig)
parser.add_argument("--host"); parser.add_argument("--port", type=int)  # as skyrl.tinker.api has them
for line in sys.stdin:
    args = vars(parser.parse_args(json.loads(line)))
    assert args.pop("host") and args.pop("port") == 8000
    config = EngineConfig(**args)
    if config.backend == "jax":
        JaxBackendConfig(**config.backend_config)
        continue
    try:
        from skyrl.train.config import SkyRLTrainConfig
    except ImportError as e:
        print(f"SKIPPED: settings of the GPU backends: {e.name} is missing")
        continue
    more = {"trainer.strategy": config.backend, "trainer.policy.model.lora.rank": 12, "trainer.policy.model.lora.alpha": 32}
    for model in ("policy", "critic"):
        more[f"trainer.{model}.model.path"] = config.base_model
    made = SkyRLTrainConfig.from_cli_overrides({**config.backend_config, **more})
    assert made.generator.inference_engine.engine_init_kwargs["max_model_len"] == 16384
    print(f"{config.backend}: SkyRL's configuration accepts the settings")
"""

PARSE_VLLM = """
import json, sys
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser
parser = make_arg_parser(FlexibleArgumentParser())
for line in sys.stdin:
    args = parser.parse_args(json.loads(line))
    assert args.enable_lora and args.max_lora_rank >= 12, args
"""

PARSE_YAML = """
import json, sys, yaml
print(json.dumps(list(yaml.safe_load_all(sys.stdin))))
"""


def parse(python, code, text):
    # Additional imports of SkyRL's GPU configuration.
    more = str(python.parents[2] / "settings")
    done = subprocess.run([python, "-c", code], input=text, capture_output=True, text=True,
                          env={**os.environ, "HF_HUB_OFFLINE": "1", "JAX_PLATFORMS": "cpu", "PYTHONPATH": more})
    if done.returncode:
        raise SystemExit(f"FAILED: a parser rejects the output of `mage launch`: {done.stderr[-1500:]}")
    return done.stdout


def calls(log):
    lines = log.read_text().splitlines() if log.exists() else []
    return [json.loads(line) for line in lines]


def starts(log):
    """The logged starts of SkyRL and of vLLM."""
    entries = calls(log)
    skyrl = [c for c in entries if c["call"][0] == "uv" and "skyrl.tinker.api" in c["call"]]
    return skyrl, [c for c in entries if c["call"][:2] == ["vllm", "serve"]]


def run(script, shared, env, log, expected):
    """Runs a script. A script that starts servers is interrupted once they have started."""
    serves = script.name in ("start.sh", "engines.sbatch")
    # A background shell ignores SIGINT, and a script that inherits this disposition cannot trap it.
    process = subprocess.Popen(["bash", script], env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=shared,
                               preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
    end = time.time() + TIMEOUT
    while serves and process.poll() is None and time.time() < end and tuple(map(len, starts(log))) != expected:
        time.sleep(0.1)
    if serves:
        process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=TIMEOUT)
    if process.returncode != (130 if serves else 0) or "syntax" in output:
        raise SystemExit(f"FAILED: {script} exits with {process.returncode}: {output[-800:]}")


def run_pods(text, python, env, shared):
    """Runs the commands of the pods of a manifest with their environment variables."""
    for part in json.loads(parse(python, PARSE_YAML, text)):
        for pod in [part["spec"]["template"]["spec"]] if part["kind"] == "StatefulSet" else []:
            box = pod["containers"][0]
            variables = {e["name"]: e.get("value", "a secret" if "valueFrom" in e else None) for e in box["env"]}
            subprocess.run([*box["command"], *box.get("args", [])], env={**env, **variables, "SERVE": "0"}, check=True,
                           cwd=box.get("workingDir", shared))


def check_servers(target, backend, log, expected):
    """Checks the number of servers, their addresses, keys and GPUs."""
    skyrl, vllm = starts(log)
    name = f"{target}, {backend}"
    if (len(skyrl), len(vllm)) != expected:
        raise SystemExit(f"FAILED: {name}: {len(skyrl)} trainers and {len(vllm)} samplers started, expected {expected}")
    for entry in skyrl + vllm:
        host = entry["call"][entry["call"].index("--host") + 1]
        if host != "127.0.0.1" and target not in ("slurm", "kubernetes"):
            raise SystemExit(f"FAILED: {name}: {entry['call'][0]} listens on {host}")
        if entry in vllm and host != "127.0.0.1" and not entry["key"]:
            raise SystemExit(f"FAILED: {name}: vLLM listens on {host} without a key")
        if entry in skyrl and target == "slurm" and host != "127.0.0.1":
            raise SystemExit(f"FAILED: {name}: SkyRL, which has no keys, listens on {host}")
    if target == "uv":
        gpus = [gpu for entry in skyrl + vllm for gpu in entry["gpus"].split(",")]
        if len(set(gpus)) != len(gpus):
            raise SystemExit(f"FAILED: {name}: servers share GPUs: {gpus}")
    if target == "ray" and backend == "jax" and not all("given by Ray" in entry["gpus"] for entry in skyrl + vllm):
        raise SystemExit(f"FAILED: {name}: a job sees the GPUs of others")
    return [c["call"][c["call"].index("skyrl.tinker.api") + 1:] for c in skyrl], [c["call"][2:] for c in vllm]


def check(mage, engines, scratch):
    stand_ins = scratch / "stand-ins"
    stand_ins.mkdir()
    for name in ["uv", "vllm", "ray", "srun", "scontrol", "hostname", "git", "sleep"]:
        (stand_ins / name).write_text(STAND_IN)
        (stand_ins / name).chmod(0o755)
    skyrl, vllm = [], []
    for target in ["uv", "ray", "slurm", "kubernetes"]:
        for backend in ["jax", "fsdp", "megatron"]:
            shared = scratch / f"{target}-{backend}"
            for inside, name in [("engines/vllm/bin", "vllm"), ("engines/SkyRL/.venv/bin", "ray")]:
                (shared / inside).mkdir(parents=True)
                (shared / inside / name).symlink_to(stand_ins / name)
            (shared / "engines/SkyRL/skyrl").mkdir()
            (shared / "engines/SkyRL/skyrl/__init__.py").write_text('__version__ = "0.4.0"\n')
            (shared / "engines/SkyRL/pyproject.toml").write_text('"tinker>=0.25.0,<0.26.0"\n')
            launched = subprocess.run([mage, "launch", target, "--model", "Qwen/Qwen3-4B", "--backend", backend, "--shared-dir", shared,
                                       "--lora-rank", "12", "--dry-run", "--json"], capture_output=True, text=True)
            if launched.returncode:
                raise SystemExit(f"FAILED: mage launch {target}: {launched.stderr}")
            files, log = json.loads(launched.stdout), shared / "calls.jsonl"
            env = {**os.environ, "PATH": f"{stand_ins}:{os.environ['PATH']}", "CALL_LOG": str(log), "SLURM_JOB_NODELIST": "n",
                   "CUDA_VISIBLE_DEVICES": "0,1,2,3,4,5,6,7", "STOP_SECONDS": "5"}
            env.pop("VLLM_API_KEY", None)
            if target == "slurm":
                env["VLLM_API_KEY"] = "a secret"
            expected = (1, (4 if target != "kubernetes" else 1) if backend == "jax" else 0)
            for name, text in files.items():
                (shared / name).write_text(text)
                if name.endswith((".sh", ".sbatch")):
                    run(shared / name, shared, env, log, expected)
                if name.endswith(".yaml"):
                    if not engines:
                        print(f"SKIPPED: {target}, {backend}: the manifest needs the YAML parser of vLLM's environment")
                        expected = (0, 0)
                        continue
                    run_pods(text, engines / "vllm/bin/python", env, shared)
            found = check_servers(target, backend, log, expected)
            skyrl += found[0]
            vllm += found[1]
    if not engines:
        print(f"SKIPPED: parsing of {len(skyrl)} SkyRL and {len(vllm)} vLLM command lines: no --engines")
        return
    output = parse(engines / "skyrl/bin/python", PARSE_SKYRL, "".join(json.dumps(c) + "\n" for c in skyrl))
    print(*sorted({line for line in output.splitlines() if "settings" in line}), sep="\n")
    parse(engines / "vllm/bin/python", PARSE_VLLM, "".join(json.dumps(c) + "\n" for c in vllm))
    print(f"{len(skyrl)} SkyRL and {len(vllm)} vLLM command lines accepted by their parsers")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mage", type=Path, required=True, help="the mage binary")
    parser.add_argument("--engines", type=Path, help="folder in which run.py installed the engines; without it their parsers are skipped")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="mage-launch-") as scratch:
        check(args.mage.resolve(), args.engines.resolve() if args.engines else None, Path(scratch))
