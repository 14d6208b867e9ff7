#!/usr/bin/env python3
"""Does `mage eval` get along with a real inference server?

    conformance/endpoint/run.py [--mage PROGRAM] [--server vllm|transformers]

Makes a virtual environment with the server beside this file (once; several gigabytes: PyTorch), makes a tiny new model, serves it
on loopback, and lets it play Kuhn poker by every method. Every task must come to an end, every answer must be counted, and taking
the most likely tokens, the server must say, word for word, what mage's own engine says to the same prompts. What such a model
says makes no sense; that it is asked, read, counted and written down does.

Exits with 0 and says SKIPPED where the server cannot be installed, as on a machine without a registry.
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
PATIENCE = 600  # seconds for a server to start
SERVERS = {
    "transformers": {"install": ["transformers[serving]>=5", "torch"], "probe": "import transformers, uvicorn, fastapi, torch"},
    "vllm": {"install": ["vllm"], "probe": "import vllm"},
}
SHAPE = {"model_type": "qwen3", "hidden_size": 64, "intermediate_size": 192, "num_hidden_layers": 2, "num_attention_heads": 4,
         "num_key_value_heads": 2, "head_dim": 32, "tie_word_embeddings": True, "max_position_embeddings": 8192}
METHODS = ["react", "cot", "reflexion", "a-mem", "memento"]


def arguments():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--mage", type=Path, default=ROOT / "target" / "release" / "mage", help="the program (cargo build --release)")
    p.add_argument("--server", choices=SERVERS, default="transformers", help="which one")
    p.add_argument("--tasks", type=int, default=4)
    p.add_argument("--venv", type=Path, help="where the server is or shall be installed")
    return p.parse_args()


def install(path, server):
    """The virtual environment's programs, or None where the server cannot be had."""
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
    """Until it has answered once."""
    body = json.dumps({"model": str(model), "messages": [{"role": "user", "content": "hello"}], "max_tokens": 1}).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/chat/completions", body, {"content-type": "application/json"})
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        if process.poll() is not None:
            sys.exit("the server ended by itself")
        try:
            return json.load(urllib.request.urlopen(request, timeout=PATIENCE))
        except urllib.error.HTTPError as e:
            if e.code < 500:
                sys.exit(f"the server refuses: {e.code} {e.read()[:500]}")
        except OSError:
            pass
        time.sleep(1)
    sys.exit("the server did not start in time")


def evaluate(mage, where, folder, who, *rest):
    """The records of an evaluation by several methods, and what was summed up."""
    records, summary = folder / f"{where}.jsonl", folder / f"{where}.json"
    command = [mage, "eval", "--env", "kuhn", "--episodes", "2", "--seeds", "1", "--temperature", "0", "--max-tokens", "12", "--quiet", "--json",
               "--records", records, "--summary", summary, *who, *rest]
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"mage eval failed:\n{done.stderr}")
    return [json.loads(line) for line in records.read_text().splitlines()], json.loads(summary.read_text())


def main():
    options = arguments()
    path = options.venv or HERE / ".venv" / options.server
    programs = install(path, options.server)
    if programs is None:
        print(f"SKIPPED: {options.server} cannot be installed here")
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
                there, summary = evaluate(options.mage, "there", folder, ["--endpoint", f"http://127.0.0.1:{port}", "--model", model],
                                          "--in-flight", "4", "--thinking", "off", *tasks)
            finally:
                process.terminate()
                process.wait(60)
        here, _ = evaluate(options.mage, "here", folder, ["--policy", model], "--thinking", "off", *tasks)
    check(options, there, here, summary)


def check(options, there, here, summary):
    finished = [r for r in there if r.get("error") is None]
    assert len(finished) == options.tasks * len(METHODS) == len(there), f"{len(finished)} of {len(there)} records are finished"
    calls = [c for r in there for c in r["requests"]]
    assert all(c["completion"]["usage"]["prompt_tokens"] > 0 for c in calls), "every answer is counted"
    for entrant in summary["entrants"]:
        asked = sum(c["asked"] for c in entrant["tally"]["calls"].values())
        assert entrant["errors"] == 0 and entrant["tally"]["prompt_tokens"] > 0
        print(f"{entrant['name'].rsplit('/', 1)[-1]}: {asked} calls, {entrant['tally']['prompt_tokens']} tokens read, "
              f"{entrant['tally']['answer_tokens']} written")
    # The first call of a task has the same prompt on both sides. A letter of several bytes that is cut off at the end is a
    # replacement character here, and nothing with vLLM.
    text = lambda call: call["completion"]["text"].rstrip("\ufffd").strip()
    first = lambda records: {c["messages"][0]["content"]: text(c) for r in records for c in r["requests"][:1]}
    ours, theirs = first(here), first(there)
    assert ours.keys() == theirs.keys(), "the same prompts"
    same = sum(ours[p] == theirs[p] for p in ours)
    print(f"{options.server}: {len(finished)} tasks, {len(calls)} calls; {same} of {len(ours)} prompts are answered word for word as by "
          "mage's own engine")
    for prompt in ours:
        if ours[prompt] != theirs[prompt]:
            print(f"  ours {ours[prompt]!r}\n  theirs {theirs[prompt]!r}")
    sys.exit(0 if same == len(ours) else 1)


if __name__ == "__main__":
    main()
