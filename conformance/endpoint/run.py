#!/usr/bin/env python3
"""Conformance of `mage eval` with a real inference server.

    conformance/endpoint/run.py [--mage PROGRAM] [--server vllm|transformers]

Installs the server in a virtual environment next to this file (once; several gigabytes: PyTorch), creates a tiny random model,
serves it on loopback, and plays Kuhn poker with every prompt method. Every task must finish, every completion must report its
usage, and greedy first completions must equal those of mage's native engine for the same prompts.

Prints SKIPPED and exits with 0 if the server cannot be installed, for example without a package registry.
"""

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
import venv
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
START_TIMEOUT = 600  # seconds
SERVERS = {
    "transformers": {"install": ["transformers[serving]>=5", "torch"], "probe": "import transformers, uvicorn, fastapi, torch"},
    "vllm": {"install": ["vllm"], "probe": "import vllm"},
}
SHAPE = {"model_type": "qwen3", "hidden_size": 64, "intermediate_size": 192, "num_hidden_layers": 2, "num_attention_heads": 4,
         "num_key_value_heads": 2, "head_dim": 32, "tie_word_embeddings": True, "max_position_embeddings": 8192}
METHODS = ["react", "cot", "reflexion", "a-mem", "memento"]


def arguments():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--mage", type=Path, default=ROOT / "target" / "release" / "mage", help="the mage binary (cargo build --release)")
    p.add_argument("--server", choices=SERVERS, default="transformers", help="the inference server")
    p.add_argument("--tasks", type=int, default=4)
    p.add_argument("--venv", type=Path, help="virtual environment of the server")
    return p.parse_args()


def install(path, server):
    """The bin folder of the virtual environment, or None if the server cannot be installed."""
    python = path / "bin" / "python"
    if not python.exists():
        venv.create(path, with_pip=True)
    probe = lambda: subprocess.run([python, "-c", SERVERS[server]["probe"]], capture_output=True).returncode == 0
    if not probe():
        subprocess.run([python, "-m", "pip", "install", "-q", *SERVERS[server]["install"]])
    return path / "bin" if probe() else None


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def serve(programs, server, model, port, log):
    common = ["--host", "127.0.0.1", "--port", str(port)]
    command = {
        "transformers": [programs / "transformers", "serve", *common],
        "vllm": [programs / "vllm", "serve", model, "--served-model-name", str(model), "--dtype", "float32", "--enforce-eager",
                 "--max-model-len", "8192", *common],
    }[server]
    quiet = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "VLLM_NO_USAGE_STATS": "1",
             "CUDA_VISIBLE_DEVICES": ""}
    return subprocess.Popen([str(c) for c in command], stdout=log, stderr=log, env={**os.environ, **quiet})


def wait_for(port, process, model):
    """Waits for the first successful completion."""
    body = json.dumps({"model": str(model), "messages": [{"role": "user", "content": "hello"}], "max_tokens": 1}).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/chat/completions", body, {"content-type": "application/json"})
    deadline = time.monotonic() + START_TIMEOUT
    while time.monotonic() < deadline:
        if process.poll() is not None:
            sys.exit("the server exited")
        try:
            return json.load(urllib.request.urlopen(request, timeout=START_TIMEOUT))
        except urllib.error.HTTPError as e:
            if e.code < 500:
                sys.exit(f"the server refused the request: {e.code} {e.read()[:500]}")
        except OSError:
            pass
        time.sleep(1)
    sys.exit(f"the server did not start within {START_TIMEOUT} s")


def evaluate(mage, name, folder, policy, *rest):
    """Runs `mage eval` and returns its trajectories and its summary."""
    trajectories, summary = folder / f"{name}.jsonl", folder / f"{name}.json"
    command = [mage, "eval", "--env", "kuhn", "--episodes", "2", "--seeds", "1", "--temperature", "0", "--max-tokens", "12", "--quiet", "--json",
               "--trajectories", trajectories, "--summary", summary, *policy, *rest]
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"mage eval failed:\n{done.stderr}")
    return [json.loads(line) for line in trajectories.read_text().splitlines()], json.loads(summary.read_text())


def main():
    options = arguments()
    path = options.venv or HERE / ".venv" / options.server
    programs = install(path, options.server)
    if programs is None:
        print(f"SKIPPED: {options.server} cannot be installed")
        return
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        (folder / "config.json").write_text(json.dumps(SHAPE))
        (folder / "words.txt").write_text((ROOT / "README.md").read_text() + (ROOT / "ARCHITECTURE.md").read_text())
        model = folder / "model"
        subprocess.run([options.mage, "model", "new", "--config", folder / "config.json", "--tokenizer-from", folder / "words.txt",
                        "--vocab-size", "600", "--init-std", "0.3", model], check=True, capture_output=True)
        port = free_port()
        with open(folder / "server.log", "w+") as log:
            process = serve(programs, options.server, model, port, log)
            try:
                wait_for(port, process, model)
                tasks = ["--tasks", options.tasks, "--method", ",".join(METHODS)]
                remote, summary = evaluate(options.mage, "remote", folder, ["--endpoint", f"http://127.0.0.1:{port}", "--model", model],
                                          "--max-in-flight", "4", "--thinking", "off", *tasks)
            finally:
                process.terminate()
                process.wait(60)
        local, _ = evaluate(options.mage, "local", folder, [model], "--thinking", "off", *tasks)
    check(options, remote, local, summary)


def check(options, remote, local, summary):
    finished = [r for r in remote if r.get("error") is None]
    assert len(finished) == options.tasks * len(METHODS) == len(remote), f"{len(finished)} of {len(remote)} records are finished"
    calls = [c for r in remote for c in r["requests"]]
    assert all(c["completion"]["usage"]["prompt_tokens"] > 0 for c in calls), "a completion has no usage"
    for policy in summary["policies"]:
        requests = policy["requests"]
        count = sum(c["count"] for c in requests["by_kind"].values())
        assert policy["errors"] == 0 and requests["prompt_tokens"] > 0
        print(f"{policy['name'].rsplit('/', 1)[-1]}: {count} requests, {requests['prompt_tokens']} prompt tokens, "
              f"{requests['completion_tokens']} completion tokens")
    # The first request of a task has the same prompt on both sides. mage decodes a truncated multi-byte character at the end
    # as a replacement character, vLLM omits it.
    text = lambda call: call["completion"]["text"].rstrip("\ufffd").strip()
    first = lambda records: {c["messages"][0]["content"]: text(c) for r in records for c in r["requests"][:1]}
    native, server = first(local), first(remote)
    assert native.keys() == server.keys(), "the prompts differ"
    same = sum(native[p] == server[p] for p in native)
    print(f"{options.server}: {len(finished)} tasks, {len(calls)} requests; {same} of {len(native)} first completions equal mage's "
          "native engine")
    for prompt in native:
        if native[prompt] != server[prompt]:
            print(f"  native {native[prompt]!r}\n  server {server[prompt]!r}")
    sys.exit(0 if same == len(native) else 1)


if __name__ == "__main__":
    main()
