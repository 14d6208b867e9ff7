#!/usr/bin/env bash
{{#pool}}
# A Ray cluster that is there already: SkyRL and {{samplers}} vLLM servers are jobs on its head node, which needs {{machine_gpus}} GPUs
# ({{gpus}} to train, one for each server); Ray gives each job its own. All listen on loopback there: run mage there, too, or bring the
# ports over by `ssh -L 8000:127.0.0.1:8000 -L 8100:127.0.0.1:8100 … HEAD`.
{{/pool}}
{{#gpu}}
# A Ray cluster that is there already, of the Ray and Python that install.sh installs: SkyRL is a job on its head node, and asks Ray
# for {{nodes}} x {{gpus}} GPUs to train and {{samplers}} to sample. It listens on the head's loopback: run mage there, or bring the
# port over by `ssh -L 8000:127.0.0.1:8000 HEAD`. Its vLLM engines and their router listen on ALL addresses of their nodes, without a
# key: the cluster's network must be private.
{{/gpu}}
set -euo pipefail
: "${RAY_ADDRESS:=http://127.0.0.1:8265}"
: "${RUN:=$(date +%Y%m%d-%H%M%S)}" # Ray takes a job's name once
submit() { ray job submit --address "$RAY_ADDRESS" --no-wait --submission-id "$@"; }
{{#pool}}
head='{"node:__internal_head__": 0.001}'
{{/pool}}

# No variable and no shell in the commands: releases of Ray quote differently.
submit "mage-tinker-$RUN" \
{{#pool}}
  --entrypoint-num-gpus {{gpus}} --entrypoint-resources "$head" \
{{/pool}}
  --runtime-env-json '{"env_vars": {{job_env}}}' -- \
  flock -nF -E 75 {{shared}}/tinker.lock uv run --directory {{project}} {{skyrl_flags}} -m skyrl.tinker.api --host 127.0.0.1 --port 8000 \
  --base-model {{model}} --backend {{backend}} --backend-config '{{backend_config}}' \
  --checkpoints-base {{shared}}/checkpoints --database-url sqlite:///{{shared}}/tinker.db
{{#pool}}
for i in $(seq 0 {{last_sampler}}); do
  submit "mage-vllm-$i-$RUN" --entrypoint-num-gpus 1 --entrypoint-resources "$head" \
    --runtime-env-json '{"env_vars": {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1", "HF_HOME": "{{shared}}/hf"}}' -- \
    {{shared}}/engines/vllm/bin/vllm serve {{model}} --host 127.0.0.1 --port $((8100 + i)) \
    --max-model-len {{context}} --enable-lora --max-lora-rank {{vllm_rank}} --max-loras 4 --max-cpu-loras 16
done
{{/pool}}
echo "jobs go on by themselves: \`ray job list --address $RAY_ADDRESS\` says how they are, and they end by"
echo "ray job stop --address $RAY_ADDRESS mage-tinker-$RUN"
{{#pool}}
for i in $(seq 0 {{last_sampler}}); do echo "ray job stop --address $RAY_ADDRESS mage-vllm-$i-$RUN"; done
{{/pool}}
