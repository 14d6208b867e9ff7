"""Takes the card away from a training run, and its memory, and looks whether anything was lost.

    python conformance/cuda/faults.py target/release/mage

One run is left in peace. Others lose the card in the middle (the driver's calls fail from some call on: `fault.c`), or start on a
card whose memory is taken or whose driver does not fit. Each must end with an error that says what was asked and what may help,
leave its directory as it was where it could not start, and once resumed end with the same bits as the run that was left in peace. Needs a card, torch,
and a C compiler (`cc`).
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

if len(sys.argv) != 2:
    sys.exit(__doc__)
HERE = Path(__file__).resolve().parent
MAGE = str(Path(sys.argv[1]).resolve())
if not os.access(MAGE, os.X_OK):
    sys.exit(f"{MAGE} cannot be run: build it with `cargo build --release`")
if not shutil.which("cc"):
    sys.exit("there is no C compiler (cc), which makes the driver that fails")

import torch

if not torch.cuda.is_available():
    print("*** SKIPPED: no CUDA card here, so none could be lost ***")
    sys.exit(0)
# Few updates, and answers that do not depend on their company: so that runs can be compared to the bit.
RECIPE = ["kuhn", "--set", "optim.updates=6", "--set", "checkpoint.every=2", "--set", "eval.every=0", "--set", "eval.tasks=60",
          "--set", "eval.final_tasks=60", "--set", "engine.batch_invariant=true"]
folder = tempfile.TemporaryDirectory(prefix="mage-faults-")
work = Path(folder.name)
failed = []


def failing_driver():
    """Builds the failing driver; the folder it is in."""
    torch.cuda.init()
    maps = Path("/proc/self/maps").read_text().split()
    driver = next(m for m in maps if "/libcuda.so" in m)
    made = work / "driver"
    made.mkdir()
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-Wl,--no-as-needed", "-Wl,-soname,libcuda.so", "-o", made / "libcuda.so",
                    HERE / "fault.c", driver, "-ldl"], check=True)
    return made


def train(*arguments, fault=None, counts=None):
    """Runs `mage train` on the card; its exit code and what it said."""
    env = dict(os.environ, NO_COLOR="1")
    if fault or counts:
        env["LD_LIBRARY_PATH"] = f"{driver}:{env.get('LD_LIBRARY_PATH', '')}"
        env.update({"FAULT": fault} if fault else {})
        env.update({"FAULT_COUNTS": str(counts)} if counts else {})
    done = subprocess.run([MAGE, "train", *arguments, "--device", "cuda"], env=env, capture_output=True, text=True, timeout=300)
    return done.returncode, done.stderr


def held(run):
    """What a run is made of: every file but those that tell of attempts."""
    files = (p for p in sorted(run.rglob("*")) if p.is_file())
    told = ("logs", "tensorboard")
    keep = (p for p in files if not any(t in p.parts for t in told) and p.name not in ("lock", "timing.jsonl"))
    return {str(p.relative_to(run)): hashlib.sha256(p.read_bytes()).hexdigest() for p in keep}


def outcome(run):
    """What two runs must agree on to the bit: every update's figures, and the weights."""
    weights = sorted(run.glob("checkpoints/*/**/*.safetensors"))
    return (run / "metrics.jsonl").read_bytes(), {str(w.relative_to(run)): w.read_bytes() for w in weights}


def check(name, holds, said=""):
    print(f"{'ok    ' if holds else 'FAILED'} {name}", flush=True)
    if not holds:
        failed.append(name)
        print(said)


def refused(name, result, *words):
    """Whether a run ended with an error that has these words, and did not fall over; shows it."""
    code, said = result
    last = said.strip().splitlines()[-1:]
    check(f"{name}: {' '.join(last)}", code == 1 and "panicked" not in said and all(w in said for w in words), said)


driver = failing_driver()
peace = work / "peace"
code, said = train(*RECIPE, "--out", str(peace), counts=work / "counts")
check("a run in peace", code == 0, said)
if failed:
    sys.exit("without that run there is nothing to compare with")
calls = {name: int(count) for name, count in (line.split() for line in (work / "counts").read_text().splitlines())}
print("calls:", calls)
want = outcome(peace)
again = work / "again"
code, said = train(*RECIPE, "--out", str(again))
check("again, the same bits", code == 0 and outcome(again) == want, said)


def at(function, share, error):
    return f"{function}:{max(1, int(calls[function] * share))}:{error}"


lost = {
    "a graph fails": (at("cuGraphLaunch", 0.6, 719), "CUDA_ERROR_LAUNCH_FAILED", "goes on from its last checkpoint"),
    "a kernel finds no card": (at("cuLaunchKernel", 0.8, 46), "CUDA_ERROR_DEVICE_UNAVAILABLE", "nvidia-smi"),
    "the card is gone": (at("cuStreamSynchronize", 0.7, 999), "CUDA_ERROR_UNKNOWN", "nvidia-smi"),
    "no memory later": (at("cuMemAlloc_v2", 0.9, 2), "CUDA_ERROR_OUT_OF_MEMORY", "nvidia-smi"),
}
for name, (fault, *words) in lost.items():
    run = work / name.replace(" ", "-")
    refused(name, train(*RECIPE, "--out", str(run), fault=fault), *words)
    kept = held(run)
    metrics = run / "metrics.jsonl"
    print(f"       left: {len(kept)} files, {len(metrics.read_text().splitlines()) if metrics.exists() else 0} updates")
    for name, fault, *words in [
        ("then no memory at the start", "cuMemAlloc_v2:3:2", "CUDA_ERROR_OUT_OF_MEMORY", "nvidia-smi"),
        ("then a driver of another version", "cuInit:1:803", "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", "libcuda.so"),
    ]:
        refused(f"  {name}", train("--resume", str(run), fault=fault), *words)
        check(f"  {name}: the directory is as it was", held(run) == kept)
    if run.name == "a-graph-fails":
        free, _ = torch.cuda.mem_get_info()
        holder = torch.empty(free - (400 << 20), dtype=torch.uint8, device="cuda")
        refused("  then another program has the memory", train("--resume", str(run)), "memory")
        check("  then another program has the memory: the directory is as it was", held(run) == kept)
        del holder
        torch.cuda.empty_cache()
    code, said = train("--resume", str(run))
    check("  resumed, the same bits as in peace", code == 0 and outcome(run) == want, said)
print(f"{len(failed)} failed: {', '.join(failed)}" if failed else "nothing was lost")
sys.exit(bool(failed))
