"""Do the scripts that `mage launch` writes say what SkyRL and vLLM understand?

Every script is run with stand-ins for uv, vllm, ray, srun and git, which write down what they were asked for and start nothing.
What SkyRL and vLLM would have been given is then read by their own parsers, and manifests by a YAML parser. The GPU backends'
settings are beyond what SkyRL checks without a GPU stack: of those, the JSON alone.
"""

import json
import os
import subprocess

# Writes its arguments down; `ray job submit … -- COMMAND` and `srun … COMMAND` go on with their command.
STAND_IN = """#!/usr/bin/env python3
import json, os, sys
name, args = os.path.basename(sys.argv[0]), sys.argv[1:]
json.dump([name, *args], log := open(os.environ["ASKED"], "a")); log.write("\\n"); log.close()
rest = []
if name == "ray" and "--" in args:
    given = json.loads(args[args.index("--runtime-env-json") + 1])
    os.environ.update(given["env_vars"])
    rest = args[args.index("--") + 1:]
if name == "uv" and args[0] == "venv":
    os.makedirs(args[-1], exist_ok=True)
if name == "srun":
    rest = args[args.index("-w") + 2:]
if name == "scontrol":
    print("one\\ntwo\\nthree")
if name == "hostname":
    print("10.0.0.1")
if rest:
    os.execvp(rest[0], rest)
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
    done = subprocess.run([python, "-c", code], input=text, capture_output=True, text=True,
                          env={**os.environ, "HF_HUB_OFFLINE": "1", "JAX_PLATFORMS": "cpu"})
    if done.returncode:
        raise SystemExit(f"FAILED: what `mage launch` writes is not understood: {done.stderr[-1500:]}")
    return done.stdout


def run(script, shared, stand_ins, asked):
    env = {**os.environ, "PATH": f"{stand_ins}:{os.environ['PATH']}", "ASKED": str(asked), "SLURM_JOB_NODELIST": "n"}
    done = subprocess.run(["bash", script], env=env, capture_output=True, text=True, timeout=120, start_new_session=True,
                          cwd=shared)
    # `trap 'kill 0' EXIT` ends the script itself with its servers.
    if done.returncode not in (0, -15) or "syntax" in done.stderr:
        raise SystemExit(f"FAILED: {script} ends with {done.returncode}: {done.stderr[-800:]}")


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
            (shared / "engines/SkyRL/pyproject.toml").write_text('"tinker>=0.25.0,<0.26.0"\n')
            made = subprocess.run([mage, "launch", place, "--model", "Qwen/Qwen3-4B", "--backend", backend, "--shared", shared,
                                   "--rank", "12", "--json"], capture_output=True, text=True)
            if made.returncode:
                raise SystemExit(f"FAILED: mage launch {place}: {made.stderr}")
            files, asked = json.loads(made.stdout), shared / "asked"
            for name, text in files.items():
                (shared / name).write_text(text)
                if name.endswith((".sh", ".sbatch")):
                    run(shared / name, shared, stand_ins, asked)
            calls = [json.loads(line) for line in asked.read_text().splitlines()]
            for name, text in files.items():
                if name.endswith(".yaml"):
                    for part in json.loads(parse(engines / "vllm/bin/python", PARSE_YAML, text)):
                        for pod in [part["spec"]["template"]["spec"]] if part["kind"] == "StatefulSet" else []:
                            box = pod["containers"][0]
                            env = {**os.environ, **{e["name"]: e["value"] for e in box["env"]}, "ASKED": str(asked),
                                   "PATH": f"{stand_ins}:{os.environ['PATH']}"}
                            subprocess.run([*box["command"], *box.get("args", [])], env=env, check=True,
                                           cwd=box.get("workingDir", shared))
                    calls = [json.loads(line) for line in asked.read_text().splitlines()]
            starts = [c[c.index("skyrl.tinker.api") + 1:] for c in calls if c[0] == "uv" and "skyrl.tinker.api" in c]
            serves = [c[2:] for c in calls if c[0] == "vllm" and c[1] == "serve"]
            wanted = (4 if place != "kubernetes" else 1) if backend == "jax" else 0
            if (len(starts), len(serves)) != (1, wanted):
                raise SystemExit(f"FAILED: {place}, {backend}: {len(starts)} trainers and {len(serves)} samplers are started")
            skyrl += starts
            vllm += serves
    parse(engines / "skyrl/bin/python", PARSE_SKYRL, "".join(json.dumps(c) + "\n" for c in skyrl))
    parse(engines / "vllm/bin/python", PARSE_VLLM, "".join(json.dumps(c) + "\n" for c in vllm))
    print(f"{len(skyrl)} starts of SkyRL and {len(vllm)} of vLLM are understood")
