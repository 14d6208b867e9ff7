"""Profiles the kernels of an inference step or a training pass on a GPU.

    cargo build --release -p mage-cuda --example speed
    python3 benches/gpu_profile.py target/release/examples/speed d,0.6B,64,128,128 t,0.6B,8,1024 a,4B,8192

Jobs are those of the example `speed`. NVIDIA's `ncu` times each kernel alone; times are summed by kernel name over one step in the middle
of decoding (`d`) or one pass (`t`, `a`). Alone, kernels neither overlap nor heat the GPU, so the sum differs from the time of a step or
pass. cuBLASLt kernels, including helpers, are summed under one name.
"""

import collections
import csv
import os
import shutil
import subprocess
import sys
import tempfile

NCU = "ncu --clock-control none --cache-control none --graph-profiling node --metrics gpu__time_duration.sum --print-units base --csv"
CUBLAS_KERNELS = ("nvjet", "gemm", "cublas", "cutlass", "splitK")
# Our own kernels whose names contain one of these.
OWN_KERNELS = ("fused_gemm", "fused_gemm_split_k", "fused_gemm_swiglu")
# Enough kernels for two passes of every shape, including GEMM tuning.
MAX_KERNELS = 6000
# Decoded tokens; the first ones warm up.
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
            is_cublas = name not in OWN_KERNELS and any(part in name for part in CUBLAS_KERNELS)
            yield "cuBLASLt" if is_cublas else name, float(row["Metric Value"].replace(",", "")) / 1e3


def between_last_two(job, launches, last_kernel):
    """Time and count by kernel name, after the last but one launch of `last_kernel` up to the last."""
    ends = [i for i, (name, _) in enumerate(launches) if name == last_kernel]
    if len(ends) < 2:
        sys.exit(f"{job}: `{last_kernel}` occurs fewer than two times in {len(launches)} kernels")
    time, count = collections.Counter(), collections.Counter()
    for name, micros in launches[ends[-2] + 1 : ends[-1] + 1]:
        time[name] += micros
        count[name] += 1
    return time, count


def profile(program, job):
    kind, *rest = job.split(",")
    if kind == "d":
        # A step ends with sampling.
        shape, sequences, prompt, new, *options = rest
        middle = str(int(prompt) + int(new) // 2 - STEPS // 2)
        run = ",".join([kind, shape, sequences, middle, str(STEPS), *options])
        return between_last_two(job, list(kernels(program, run)), "sample_or_score")
    # A pass ends with the embedding gradient (except with LoRA); at least two passes fit into this many kernels.
    return between_last_two(job, list(kernels(program, job, "-c", str(MAX_KERNELS))), "embedding_grad")


if len(sys.argv) < 3 or not os.access(sys.argv[1], os.X_OK):
    sys.exit(__doc__)
if shutil.which("ncu") is None:
    sys.exit("ncu not found: install the CUDA toolkit (NVIDIA Nsight Compute) and add it to PATH")
program = os.path.abspath(sys.argv[1])
for job in sys.argv[2:]:
    time, count = profile(program, job)
    print(f"{job}: {sum(time.values()) / 1e3:.2f} ms in kernels")
    for name, micros in time.most_common():
        print(f"  {name:24} {micros / 1e3:9.3f} ms {count[name]:6} launches")
