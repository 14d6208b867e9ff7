#!/usr/bin/env bash
# One machine: SkyRL trains, {{samplers}} vLLM servers sample. Both listen on loopback alone: SkyRL asks nobody for a key.
set -euo pipefail
mkdir -p {{shared}}/adapters {{shared}}/checkpoints engines && cd engines

# Each engine in an environment of its own: their pins do not agree with each other.
[ -d skyrl ] || { uv venv -p 3.12 skyrl && uv pip install -p skyrl 'skyrl[tinker,{{backend}}]==0.4.0' aiohttp orjson; }
[ -d vllm ] || { uv venv -p 3.12 vllm && uv pip install -p vllm vllm; }

# SkyRL starts its engine by the same `uv run`, from a project that knows the extras' names.
cat > pyproject.toml <<'P'
[project]
name = "engines"
version = "0"
requires-python = ">=3.12"
[project.optional-dependencies]
tinker = []
{{backend}} = []
P

trap 'kill 0' EXIT
VIRTUAL_ENV=$PWD/skyrl UV_PROJECT_ENVIRONMENT=$PWD/skyrl \
uv run --no-sync --extra tinker --extra {{backend}} -m skyrl.tinker.api --host 127.0.0.1 --port 8000 \
  --base-model {{model}} --backend {{backend}}{{role}} --backend-config '{{backend_config}}' \
  --checkpoints-base {{shared}}/checkpoints --database-url sqlite:///{{shared}}/tinker.db &

for i in $(seq 0 {{last_sampler}}); do
  # Trainers take the first {{gpus}} GPUs.
  CUDA_VISIBLE_DEVICES=$(({{gpus}} + i)) VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 \
  vllm/bin/vllm serve {{model}} --host 127.0.0.1 --port $((8100 + i)) --max-model-len {{context}} \
    --enable-lora --max-lora-rank {{rank}} --max-loras 4 --max-cpu-loras 16 &
done
wait
