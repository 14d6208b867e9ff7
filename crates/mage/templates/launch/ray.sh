#!/usr/bin/env bash
{{#pool}}
# For an existing Ray cluster: SkyRL and {{samplers}} vLLM servers are jobs on its head node, which needs {{machine_gpus}} GPUs ({{gpus}} for
# training, one per server); Ray assigns them. All servers listen on loopback: run mage on the head node, or forward the ports with
# `ssh -L 8000:127.0.0.1:8000 -L 8100:127.0.0.1:8100 … HEAD`.
{{/pool}}
{{#gpu}}
# For an existing Ray cluster with the Ray and Python versions of install.sh: SkyRL is a job on its head node and requests
# {{nodes}} x {{gpus}} GPUs for training and {{samplers}} for sampling from Ray. It listens on the head's loopback: run mage there, or forward
# the port with `ssh -L 8000:127.0.0.1:8000 HEAD`. Its vLLM engines and their router listen on ALL addresses of their nodes without
# authentication: the cluster's network must be private.
{{/gpu}}
set -euo pipefail
: "${RAY_ADDRESS:=http://127.0.0.1:8265}"
: "${RUN:=$(date +%Y%m%d-%H%M%S)}" # Ray requires unique job names
submit() { ray job submit --address "$RAY_ADDRESS" --no-wait --submission-id "$@"; }
{{#pool}}
head='{"node:__internal_head__": 0.001}'
{{/pool}}

# The commands contain no variables or shell syntax, since quoting differs between Ray releases.
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
echo "the jobs run in the background; \`ray job list --address $RAY_ADDRESS\` shows their status; stop them with"
echo "ray job stop --address $RAY_ADDRESS mage-tinker-$RUN"
{{#pool}}
for i in $(seq 0 {{last_sampler}}); do echo "ray job stop --address $RAY_ADDRESS mage-vllm-$i-$RUN"; done
{{/pool}}
