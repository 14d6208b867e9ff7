"""Do the scripts that `mage launch` writes say what SkyRL and vLLM understand, and do their parts keep out of each other's way?

Every script is run with stand-ins for uv, vllm, ray, srun and git, which write down what they were asked for and start nothing.
What SkyRL and vLLM would have been given is then read by their own parsers, the GPU backends' settings by SkyRL's own
configuration, and manifests by a YAML parser. Of a part of it alone, for want of the engines: python3 launch.py --mage MAGE
"""

import argparse
import json
import os
import signal
import subprocess
import tempfile
import time
from pathlib import Path

PATIENCE = 120  # seconds for a script to have started everything

# Writes down what it was asked for, and serves until it is ended. `ray job submit … -- COMMAND` is a command that Ray's releases
# quote in one of two ways, and a shell takes apart; `srun … COMMAND` goes on with its command.
STAND_IN = r"""#!/usr/bin/env python3
import json, os, shlex, subprocess, sys, time
name, args = os.path.basename(sys.argv[0]), sys.argv[1:]
if name == "sleep":
    time.sleep(0.1)
    sys.exit()
told = {"call": [name, *args], "cards": os.environ.get("CUDA_VISIBLE_DEVICES"), "key": os.environ.get("VLLM_API_KEY")}
with open(os.environ["ASKED"], "a") as log:
    log.write(json.dumps(told) + "\n")
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
        heard = subprocess.check_output(["sh", "-c", f"set -- {quoted}; printf '%s\n' \"$@\""], text=True)
        assert heard.splitlines() == words, f"{quoted} is heard as {heard}"
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
        print(f"SKIPPED: the GPU backends' settings, for want of {e.name}")
        continue
    more = {"trainer.strategy": config.backend, "trainer.policy.model.lora.rank": 12, "trainer.policy.model.lora.alpha": 32}
    for model in ("policy", "critic"):
        more[f"trainer.{model}.model.path"] = config.base_model
    made = SkyRLTrainConfig.from_cli_overrides({**config.backend_config, **more})
    assert made.generator.inference_engine.engine_init_kwargs["max_model_len"] == 16384
    print(f"{config.backend}: SkyRL's configuration takes the settings")
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
    # What SkyRL's configuration for GPUs imports beyond the rest.
    more = str(python.parents[2] / "settings")
    done = subprocess.run([python, "-c", code], input=text, capture_output=True, text=True,
                          env={**os.environ, "HF_HUB_OFFLINE": "1", "JAX_PLATFORMS": "cpu", "PYTHONPATH": more})
    if done.returncode:
        raise SystemExit(f"FAILED: what `mage launch` writes is not understood: {done.stderr[-1500:]}")
    return done.stdout


def calls(asked):
    lines = asked.read_text().splitlines() if asked.exists() else []
    return [json.loads(line) for line in lines]


def starts(asked):
    """What was asked of SkyRL and of vLLM."""
    told = calls(asked)
    skyrl = [c for c in told if c["call"][0] == "uv" and "skyrl.tinker.api" in c["call"]]
    return skyrl, [c for c in told if c["call"][:2] == ["vllm", "serve"]]


def run(script, shared, env, asked, wanted):
    """Runs a script to its end; one that starts servers of its own, until they are there and it is interrupted."""
    serves = script.name in ("start.sh", "engines.sbatch")
    # A shell passes on that it ignores Ctrl-C to what it starts in the background, and a script that inherits this cannot trap it.
    process = subprocess.Popen(["bash", script], env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=shared,
                               preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
    end = time.time() + PATIENCE
    while serves and process.poll() is None and time.time() < end and tuple(map(len, starts(asked))) != wanted:
        time.sleep(0.1)
    if serves:
        process.send_signal(signal.SIGINT)
    said, _ = process.communicate(timeout=PATIENCE)
    if process.returncode != (130 if serves else 0) or "syntax" in said:
        raise SystemExit(f"FAILED: {script} ends with {process.returncode}: {said[-800:]}")


def run_pods(text, python, env, asked, shared):
    """Runs the pods' commands in the environments that a manifest gives them."""
    for part in json.loads(parse(python, PARSE_YAML, text)):
        for pod in [part["spec"]["template"]["spec"]] if part["kind"] == "StatefulSet" else []:
            box = pod["containers"][0]
            given = {e["name"]: e.get("value", "a secret" if "valueFrom" in e else None) for e in box["env"]}
            subprocess.run([*box["command"], *box.get("args", [])], env={**env, **given, "SERVE": "0"}, check=True,
                           cwd=box.get("workingDir", shared))


def look(place, backend, asked, wanted):
    """The right number of parts, each with GPUs and a key of its own where it needs them."""
    skyrl, vllm = starts(asked)
    name = f"{place}, {backend}"
    if (len(skyrl), len(vllm)) != wanted:
        raise SystemExit(f"FAILED: {name}: {len(skyrl)} trainers and {len(vllm)} samplers are started")
    for told in skyrl + vllm:
        host = told["call"][told["call"].index("--host") + 1]
        if host != "127.0.0.1" and place not in ("slurm", "kubernetes"):
            raise SystemExit(f"FAILED: {name}: {told['call'][0]} listens on {host}")
        if told in vllm and host != "127.0.0.1" and not told["key"]:
            raise SystemExit(f"FAILED: {name}: vLLM listens on {host} without a key")
        if told in skyrl and place == "slurm" and host != "127.0.0.1":
            raise SystemExit(f"FAILED: {name}: SkyRL, which asks for no key, listens on {host}")
    if place == "uv":
        cards = [card for told in skyrl + vllm for card in told["cards"].split(",")]
        if len(set(cards)) != len(cards):
            raise SystemExit(f"FAILED: {name}: parts share GPUs: {cards}")
    if place == "ray" and backend == "jax" and not all("given by Ray" in told["cards"] for told in skyrl + vllm):
        raise SystemExit(f"FAILED: {name}: a job sees the GPUs of others")
    return [c["call"][c["call"].index("skyrl.tinker.api") + 1:] for c in skyrl], [c["call"][2:] for c in vllm]


def check(mage, engines, scratch):
    stand_ins = scratch / "stand-ins"
    stand_ins.mkdir()
    for name in ["uv", "vllm", "ray", "srun", "scontrol", "hostname", "git", "sleep"]:
        (stand_ins / name).write_text(STAND_IN)
        (stand_ins / name).chmod(0o755)
    skyrl, vllm = [], []
    for place in ["uv", "ray", "slurm", "kubernetes"]:
        for backend in ["jax", "fsdp", "megatron"]:
            shared = scratch / f"{place}-{backend}"
            for inside, name in [("engines/vllm/bin", "vllm"), ("engines/SkyRL/.venv/bin", "ray")]:
                (shared / inside).mkdir(parents=True)
                (shared / inside / name).symlink_to(stand_ins / name)
            (shared / "engines/SkyRL/skyrl").mkdir()
            (shared / "engines/SkyRL/skyrl/__init__.py").write_text('__version__ = "0.4.0"\n')
            (shared / "engines/SkyRL/pyproject.toml").write_text('"tinker>=0.25.0,<0.26.0"\n')
            made = subprocess.run([mage, "launch", place, "--model", "Qwen/Qwen3-4B", "--backend", backend, "--shared", shared,
                                   "--lora-rank", "12", "--dry-run", "--json"], capture_output=True, text=True)
            if made.returncode:
                raise SystemExit(f"FAILED: mage launch {place}: {made.stderr}")
            files, asked = json.loads(made.stdout), shared / "asked"
            env = {**os.environ, "PATH": f"{stand_ins}:{os.environ['PATH']}", "ASKED": str(asked), "SLURM_JOB_NODELIST": "n",
                   "CUDA_VISIBLE_DEVICES": "0,1,2,3,4,5,6,7", "STOP_SECONDS": "5"}
            env.pop("VLLM_API_KEY", None)
            if place == "slurm":
                env["VLLM_API_KEY"] = "a secret"
            wanted = (1, (4 if place != "kubernetes" else 1) if backend == "jax" else 0)
            for name, text in files.items():
                (shared / name).write_text(text)
                if name.endswith((".sh", ".sbatch")):
                    run(shared / name, shared, env, asked, wanted)
                if name.endswith(".yaml"):
                    if not engines:
                        print(f"SKIPPED: {place}, {backend}: its manifest is read by vLLM's YAML parser")
                        wanted = (0, 0)
                        continue
                    run_pods(text, engines / "vllm/bin/python", env, asked, shared)
            found = look(place, backend, asked, wanted)
            skyrl += found[0]
            vllm += found[1]
    if not engines:
        print(f"SKIPPED: {len(skyrl)} starts of SkyRL and {len(vllm)} of vLLM were not read by their own parsers: no --engines")
        return
    said = parse(engines / "skyrl/bin/python", PARSE_SKYRL, "".join(json.dumps(c) + "\n" for c in skyrl))
    print(*sorted({line for line in said.splitlines() if "settings" in line}), sep="\n")
    parse(engines / "vllm/bin/python", PARSE_VLLM, "".join(json.dumps(c) + "\n" for c in vllm))
    print(f"{len(skyrl)} starts of SkyRL and {len(vllm)} of vLLM are understood")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mage", type=Path, required=True, help="the program")
    parser.add_argument("--engines", type=Path, help="where run.py has installed the engines; without it their parsers are skipped")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="mage-launch-") as scratch:
        check(args.mage.resolve(), args.engines.resolve() if args.engines else None, Path(scratch))
