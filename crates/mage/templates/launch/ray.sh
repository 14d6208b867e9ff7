#!/usr/bin/env bash
# A Ray cluster that is there already: SkyRL is a job of it, with {{nodes}} x {{gpus}} GPUs for training. The job's server listens
# on loopback of the head node: reach it by `ssh -L 8000:127.0.0.1:8000 HEAD`, or run mage there.
set -euo pipefail
: "${RAY_ADDRESS:=http://127.0.0.1:8265}"

ray job submit --address "$RAY_ADDRESS" --no-wait --submission-id mage-tinker \
  --runtime-env-json '{"env_vars": {"HF_HOME": "{{shared}}/hf"}}' -- \
  bash -c "cd {{shared}}/engines && uv run --no-sync --extra tinker --extra {{backend}} -m skyrl.tinker.api \
    --host 127.0.0.1 --port 8000 --base-model {{model}} --backend {{backend}}{{role}} \
    --backend-config '{{backend_config}}' \
    --checkpoints-base {{shared}}/checkpoints --database-url sqlite:///{{shared}}/tinker.db"

for i in $(seq 0 {{last_sampler}}); do
  ray job submit --address "$RAY_ADDRESS" --no-wait --submission-id "mage-vllm-$i" --entrypoint-num-gpus 1 \
    --runtime-env-json '{"env_vars": {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1", "HF_HOME": "{{shared}}/hf"}}' -- \
    {{shared}}/engines/vllm/bin/vllm serve {{model}} --host 127.0.0.1 --port $((8100 + i)) \
    --max-model-len {{context}} --enable-lora --max-lora-rank {{rank}} --max-loras 4 --max-cpu-loras 16
done
echo "ray job list --address $RAY_ADDRESS; ray job stop mage-tinker"
