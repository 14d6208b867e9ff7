"""GPU time per kernel of a decode step or a training pass.

    cargo build --release -p mage-cuda --example speed
    python3 benches/gpu_profile.py target/release/examples/speed d,0.6B,64,128,128 t,0.6B,8,1024 a,4B,8192

The jobs are those of the example `speed`. NVIDIA's `ncu` times every kernel in isolation; times are summed by kernel name over one
decode step in the middle of the completions (`d`) or one pass (`t`, `a`). Isolated kernels do not overlap and run at another
clock, so the sum differs from the time of a step. All cuBLASLt kernels are reported under one name.
"""

import collections
import csv
import os
import shutil
import subprocess
import sys
import tempfile

NCU = "ncu --clock-control none --cache-control none --graph-profiling node --metrics gpu__time_duration.sum --print-units base --csv"
CUBLASLT = ("nvjet", "gemm", "cublas", "cutlass", "splitK")
# Enough kernels for two passes of every shape, including GEMM autotuning.
MAX_KERNELS = 6000
# Decode steps to profile; the first ones are warm-up.
STEPS = 6


def kernels(program, job, *options):
    """Name and microseconds of each kernel of a job, in launch order."""
    with tempfile.NamedTemporaryFile("r", suffix=".csv") as log:
        command = [*NCU.split(), *options, "--log-file", log.name, program, job]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode:
            sys.exit(f"{' '.join(command)} failed:\n{done.stdout}{log.read()}")
        for row in csv.DictReader(line for line in log if line.startswith('"')):
            name = row["Kernel Name"].split("(")[0]
            cublaslt = any(part in name for part in CUBLASLT)
            yield "cuBLASLt" if cublaslt else name, float(row["Metric Value"].replace(",", "")) / 1e3


def last_interval(job, launches, end):
    """Time and launch count by kernel name between the last two launches of the kernel `end`, including the last."""
    ends = [i for i, (name, _) in enumerate(launches) if name == end]
    if len(ends) < 2:
        sys.exit(f"{job}: fewer than two launches of `{end}` among {len(launches)} kernels")
    time, count = collections.Counter(), collections.Counter()
    for name, micros in launches[ends[-2] + 1 : ends[-1] + 1]:
        time[name] += micros
        count[name] += 1
    return time, count


def profile(program, job):
    kind, *rest = job.split(",")
    if kind == "d":
        # The sampling kernel ends a decode step.
        shape, sequences, prompt, new, *words = rest
        middle = str(int(prompt) + int(new) // 2 - STEPS // 2)
        run = ",".join([kind, shape, sequences, middle, str(STEPS), *words])
        return last_interval(job, list(kernels(program, run)), "sample_or_score")
    # The embedding gradient ends a pass (not with adapters); MAX_KERNELS include at least two passes.
    return last_interval(job, list(kernels(program, job, "-c", str(MAX_KERNELS))), "embedding_grad")


if len(sys.argv) < 3 or not os.access(sys.argv[1], os.X_OK):
    sys.exit(__doc__)
if shutil.which("ncu") is None:
    sys.exit("ncu not found: install NVIDIA Nsight Compute (part of the CUDA toolkit) and add it to PATH")
program = os.path.abspath(sys.argv[1])
for job in sys.argv[2:]:
    time, count = profile(program, job)
    print(f"{job}: {sum(time.values()) / 1e3:.2f} ms in kernels")
    for name, micros in time.most_common():
        print(f"  {name:24} {micros / 1e3:9.3f} ms {count[name]:6} launches")
