#!/usr/bin/env bash
{{#pool}}
# One machine: SkyRL trains, {{samplers}} vLLM servers sample. All listen on loopback alone: SkyRL asks nobody for a key.
{{/pool}}
{{#gpu}}
# One machine: SkyRL trains, and samples by {{samplers}} vLLM engines of its own. It listens on loopback alone and asks nobody for a
# key.
{{/gpu}}
set -euo pipefail
trap 'kill 0' EXIT
cd {{project}}
CUDA_VISIBLE_DEVICES={{trainer_cards}} {{skyrl_env}}\
uv run {{skyrl_flags}} -m skyrl.tinker.api --host 127.0.0.1 --port 8000 \
  --base-model {{model}} --backend {{backend}} --backend-config '{{backend_config}}' \
  --checkpoints-base {{shared}}/checkpoints --database-url sqlite:///{{shared}}/tinker.db &
{{#pool}}

for i in $(seq 0 {{last_sampler}}); do
  # The trainer has the first {{gpus}} GPUs.
  CUDA_VISIBLE_DEVICES=$(({{gpus}} + i)) VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 \
  {{shared}}/engines/vllm/bin/vllm serve {{model}} --host 127.0.0.1 --port $((8100 + i)) --max-model-len {{context}} \
    --enable-lora --max-lora-rank {{vllm_rank}} --max-loras 4 --max-cpu-loras 16 &
done
{{/pool}}
wait
