#!/usr/bin/env bash
# A Ray cluster that is there already: SkyRL is a job of it. Jobs' entry points run on the head node, and the engines listen on its
# loopback alone: run mage there, or reach them by `ssh -L 8000:127.0.0.1:8000 HEAD`.
set -euo pipefail
: "${RAY_ADDRESS:=http://127.0.0.1:8265}"

ray job submit --address "$RAY_ADDRESS" --no-wait --submission-id mage-tinker \
  --runtime-env-json '{"env_vars": {"HF_HOME": "{{shared}}/hf", "BACKEND_CONFIG": {{backend_config_quoted}}}}' -- \
  bash -c 'cd {{project}} && {{skyrl_env}}exec uv run {{skyrl_flags}} -m skyrl.tinker.api \
    --host 127.0.0.1 --port 8000 --base-model {{model}} --backend {{backend}} --backend-config "$BACKEND_CONFIG" \
    --checkpoints-base {{shared}}/checkpoints --database-url sqlite:///{{shared}}/tinker.db'
{{#pool}}

for i in $(seq 0 {{last_sampler}}); do
  ray job submit --address "$RAY_ADDRESS" --no-wait --submission-id "mage-vllm-$i" --entrypoint-num-gpus 1 \
    --entrypoint-resources '{"node:__internal_head__": 0.001}' \
    --runtime-env-json '{"env_vars": {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1", "HF_HOME": "{{shared}}/hf"}}' -- \
    {{shared}}/engines/vllm/bin/vllm serve {{model}} --host 127.0.0.1 --port $((8100 + i)) \
    --max-model-len {{context}} --enable-lora --max-lora-rank {{vllm_rank}} --max-loras 4 --max-cpu-loras 16
done
{{/pool}}
echo "ray job list --address $RAY_ADDRESS; ray job stop --address $RAY_ADDRESS mage-tinker"
