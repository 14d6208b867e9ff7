"""Where does the time of a step or a pass go on this card?

    cargo build --release -p mage-cuda --example speed
    python3 benches/gpu_profile.py target/release/examples/speed d,0.6B,64,128,128 t,0.6B,8,1024 a,4B,8192

The jobs are those of the example `speed`. NVIDIA's `ncu` times every kernel alone, and what a name took is added up over one
step in the middle of the answers (`d`) or one pass (`t`, `a`). Alone, kernels neither overlap nor warm the card, so the sum is
not what a step or a pass takes. Products by cuBLASLt go by one name, helpers of theirs included.
"""

import collections
import csv
import os
import shutil
import subprocess
import sys
import tempfile

NCU = "ncu --clock-control none --cache-control none --graph-profiling node --metrics gpu__time_duration.sum --print-units base --csv"
PRODUCTS = ("nvjet", "gemm", "cublas", "cutlass", "splitK")
# Kernels enough for two passes of every shape, trying products out included.
MOST = 6000
# Tokens of an answer that are drawn: the first ones warm up.
STEPS = 6


def kernels(program, job, *options):
    """Name and microseconds of each kernel of a job, in their order."""
    with tempfile.NamedTemporaryFile("r", suffix=".csv") as log:
        command = [*NCU.split(), *options, "--log-file", log.name, program, job]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode:
            sys.exit(f"{' '.join(command)} failed:\n{done.stdout}{log.read()}")
        for row in csv.DictReader(line for line in log if line.startswith('"')):
            name = row["Kernel Name"].split("(")[0]
            product = any(part in name for part in PRODUCTS)
            yield "cuBLASLt" if product else name, float(row["Metric Value"].replace(",", "")) / 1e3


def between_ends(job, every, end):
    """What each name took, and how often it came, after the last but one kernel called `end` and up to the last."""
    ends = [i for i, (name, _) in enumerate(every) if name == end]
    if len(ends) < 2:
        sys.exit(f"{job}: {len(every)} kernels, and not twice `{end}` among them")
    took, times = collections.Counter(), collections.Counter()
    for name, micros in every[ends[-2] + 1 : ends[-1] + 1]:
        took[name] += micros
        times[name] += 1
    return took, times


def profiled(program, job):
    kind, *rest = job.split(",")
    if kind == "d":
        # Steps end with the drawing of tokens.
        shape, sequences, prompt, new, *words = rest
        middle = str(int(prompt) + int(new) // 2 - STEPS // 2)
        run = ",".join([kind, shape, sequences, middle, str(STEPS), *words])
        return between_ends(job, list(kernels(program, run)), "answer")
    # Passes end with the gradient of the embedding, which adapters leave alone; two or more are among so many kernels.
    return between_ends(job, list(kernels(program, job, "-c", str(MOST))), "embedding_grad")


if len(sys.argv) < 3 or not os.access(sys.argv[1], os.X_OK):
    sys.exit(__doc__)
if shutil.which("ncu") is None:
    sys.exit("ncu was not found: it comes with the CUDA toolkit, as NVIDIA Nsight Compute; put it on PATH")
program = os.path.abspath(sys.argv[1])
for job in sys.argv[2:]:
    took, times = profiled(program, job)
    print(f"{job}: {sum(took.values()) / 1e3:.2f} ms in kernels")
    for name, micros in took.most_common():
        print(f"  {name:24} {micros / 1e3:9.3f} ms {times[name]:6} times")
