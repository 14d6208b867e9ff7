"""Where does the time of a step or a pass go on this card?

    cargo build --release -p mage-cuda --example speed
    python3 benches/card_profile.py target/release/examples/speed d,0.6B,64,128,128 t,0.6B,8,1024 a,4B,8192

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
# Enough for two passes of every shape, trying products out included.
MOST = 6000


def kernels(program, job):
    """Name and microseconds of each kernel of a job, in their order."""
    with tempfile.NamedTemporaryFile("r", suffix=".csv") as log:
        command = [*NCU.split(), "-c", str(MOST), "--log-file", log.name, program, job]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode:
            sys.exit(f"{' '.join(command)} failed:\n{done.stdout}{log.read()}")
        for row in csv.DictReader(line for line in log if line.startswith('"')):
            name = row["Kernel Name"].split("(")[0]
            product = any(part in name for part in PRODUCTS)
            yield "cuBLASLt" if product else name, float(row["Metric Value"].replace(",", "")) / 1e3


def added(pairs):
    took, times = collections.Counter(), collections.Counter()
    for name, micros in pairs:
        took[name] += micros
        times[name] += 1
    return took, times


def step(program, job):
    """What two more steps take, halved: prompts, and trying products out, are in both."""
    kind, shape, sequences, prompt, new, *words = job.split(",")
    middle = int(prompt) + int(new) // 2 - 2
    runs = [",".join([kind, shape, sequences, str(middle), n, *words]) for n in ("4", "6")]
    (less, fewer), (more, often) = (added(kernels(program, run)) for run in runs)
    return {n: ((more[n] - less[n]) / 2, (often[n] - fewer[n]) // 2) for n in more if often[n] > fewer[n]}


def one_pass(program, job):
    """The last whole one: each ends with the gradient of the embedding."""
    every = list(kernels(program, job))
    ends = [i for i, (name, _) in enumerate(every) if name == "embedding_grad"]
    if len(ends) < 2:
        sys.exit(f"{job}: {len(every)} kernels, and not two passes among them (adapters leave the embedding alone)")
    took, times = added(every[ends[-2] + 1 : ends[-1] + 1])
    return {n: (took[n], times[n]) for n in took}


if len(sys.argv) < 3 or not os.access(sys.argv[1], os.X_OK):
    sys.exit(__doc__)
if shutil.which("ncu") is None:
    sys.exit("ncu was not found: it comes with the CUDA toolkit, as NVIDIA Nsight Compute; put it on PATH")
program = os.path.abspath(sys.argv[1])
for job in sys.argv[2:]:
    found = (step if job.startswith("d,") else one_pass)(program, job)
    print(f"{job}: {sum(micros for micros, _ in found.values()) / 1e3:.2f} ms in kernels")
    for name, (micros, times) in sorted(found.items(), key=lambda x: -x[1][0]):
        print(f"  {name:24} {micros / 1e3:9.3f} ms {times:6} times")
