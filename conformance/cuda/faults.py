"""Injects GPU faults into training runs and checks that nothing is lost.

    python conformance/cuda/faults.py target/release/mage

One run is undisturbed. Others lose the GPU in the middle (driver calls fail from some call on: `fault.c`), or start on a GPU without
free memory or with a mismatched driver. Each must end with an error that states the operation and a hint, must leave its directory
unchanged if it cannot start, and after resuming must end with the same bits as the undisturbed run. Needs a GPU, torch, and a C compiler
(`cc`).
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
    sys.exit(f"{MAGE} is not executable: build it with `cargo build --release`")
if not shutil.which("cc"):
    sys.exit("no C compiler (cc) found; it is needed to build the failing driver")

import torch

if not torch.cuda.is_available():
    print("*** SKIPPED: no CUDA GPU; faults were not tested ***")
    sys.exit(0)
# Few updates, and batch-invariant sampling, so that runs can be compared bit by bit.
RECIPE = ["kuhn", "--set", "optim.updates=6", "--set", "checkpoint.every=2", "--set", "eval.every=0", "--set", "eval.tasks=60",
          "--set", "eval.final_tasks=60", "--set", "engine.batch_invariant=true"]
folder = tempfile.TemporaryDirectory(prefix="mage-faults-")
work = Path(folder.name)
failed = []


def failing_driver():
    """Builds the failing driver and returns its directory."""
    torch.cuda.init()
    maps = Path("/proc/self/maps").read_text().split()
    real_driver = next(m for m in maps if "/libcuda.so" in m)
    directory = work / "driver"
    directory.mkdir()
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-Wl,--no-as-needed", "-Wl,-soname,libcuda.so", "-o", directory / "libcuda.so",
                    HERE / "fault.c", real_driver, "-ldl"], check=True)
    return directory


def train(*arguments, fault=None, counts=None):
    """Runs `mage train` on the GPU and returns its exit code and stderr."""
    env = dict(os.environ, NO_COLOR="1")
    if fault or counts:
        env["LD_LIBRARY_PATH"] = f"{driver}:{env.get('LD_LIBRARY_PATH', '')}"
        env.update({"FAULT": fault} if fault else {})
        env.update({"FAULT_COUNTS": str(counts)} if counts else {})
    done = subprocess.run([MAGE, "train", *arguments, "--device", "cuda"], env=env, capture_output=True, text=True, timeout=300)
    return done.returncode, done.stderr


def file_hashes(run):
    """Hashes of every file of a run except logs of attempts."""
    files = (p for p in sorted(run.rglob("*")) if p.is_file())
    excluded = ("logs", "tensorboard")
    kept = (p for p in files if not any(e in p.parts for e in excluded) and p.name not in ("lock", "timing.jsonl"))
    return {str(p.relative_to(run)): hashlib.sha256(p.read_bytes()).hexdigest() for p in kept}


def outcome(run):
    """What two runs must agree on bit by bit: the metrics of every update, and the weights."""
    weights = sorted(run.glob("checkpoints/*/**/*.safetensors"))
    return (run / "metrics.jsonl").read_bytes(), {str(w.relative_to(run)): w.read_bytes() for w in weights}


def check(name, holds, stderr=""):
    print(f"{'ok    ' if holds else 'FAILED'} {name}", flush=True)
    if not holds:
        failed.append(name)
        print(stderr)


def check_error(name, result, *words):
    """Checks that a run ended with an error message that contains these words, and did not panic; prints the message."""
    code, stderr = result
    last = stderr.strip().splitlines()[-1:]
    check(f"{name}: {' '.join(last)}", code == 1 and "panicked" not in stderr and all(w in stderr for w in words), stderr)


driver = failing_driver()
undisturbed = work / "undisturbed"
code, stderr = train(*RECIPE, "--out", str(undisturbed), counts=work / "counts")
check("an undisturbed run", code == 0, stderr)
if failed:
    sys.exit("the undisturbed run failed; there is nothing to compare with")
calls = {name: int(count) for name, count in (line.split() for line in (work / "counts").read_text().splitlines())}
print("calls:", calls)
expected = outcome(undisturbed)
repeated = work / "repeated"
code, stderr = train(*RECIPE, "--out", str(repeated))
check("a repeated run has the same bits", code == 0 and outcome(repeated) == expected, stderr)


def at(function, fraction, error):
    return f"{function}:{max(1, int(calls[function] * fraction))}:{error}"


faults = {
    "a graph launch fails": (at("cuGraphLaunch", 0.6, 719), "CUDA_ERROR_LAUNCH_FAILED", "from its last checkpoint"),
    "a kernel launch finds no device": (at("cuLaunchKernel", 0.8, 46), "CUDA_ERROR_DEVICE_UNAVAILABLE", "nvidia-smi"),
    "the device is lost": (at("cuStreamSynchronize", 0.7, 999), "CUDA_ERROR_UNKNOWN", "nvidia-smi"),
    "memory runs out": (at("cuMemAlloc_v2", 0.9, 2), "CUDA_ERROR_OUT_OF_MEMORY", "nvidia-smi"),
}
for name, (fault, *words) in faults.items():
    run = work / name.replace(" ", "-")
    check_error(name, train(*RECIPE, "--out", str(run), fault=fault), *words)
    before = file_hashes(run)
    metrics = run / "metrics.jsonl"
    print(f"       left: {len(before)} files, {len(metrics.read_text().splitlines()) if metrics.exists() else 0} updates")
    for name, fault, *words in [
        ("then no memory at the start", "cuMemAlloc_v2:3:2", "CUDA_ERROR_OUT_OF_MEMORY", "nvidia-smi"),
        ("then a driver of another version", "cuInit:1:803", "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", "libcuda.so"),
    ]:
        check_error(f"  {name}", train("--resume", str(run), fault=fault), *words)
        check(f"  {name}: the directory is unchanged", file_hashes(run) == before)
    if run.name == "a-graph-launch-fails":
        free, _ = torch.cuda.mem_get_info()
        holder = torch.empty(free - (400 << 20), dtype=torch.uint8, device="cuda")
        check_error("  then another process has the memory", train("--resume", str(run)), "memory")
        check("  then another process has the memory: the directory is unchanged", file_hashes(run) == before)
        del holder
        torch.cuda.empty_cache()
    code, stderr = train("--resume", str(run))
    check("  resumed, the same bits as the undisturbed run", code == 0 and outcome(run) == expected, stderr)
print(f"{len(failed)} failed: {', '.join(failed)}" if failed else "all checks passed")
sys.exit(bool(failed))
