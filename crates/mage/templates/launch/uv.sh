#!/usr/bin/env bash
{{#pool}}
# One machine with {{machine_gpus}} GPUs: SkyRL trains on {{gpus}}, {{samplers}} vLLM servers sample on one each. All servers listen on
# loopback only. SkyRL has no authentication; vLLM requires a key if VLLM_API_KEY is set, here and for mage.
{{/pool}}
{{#gpu}}
# One machine with {{machine_gpus}} GPUs: SkyRL trains on {{gpus}} and samples with its own vLLM engines on {{samplers}}. It listens on
# loopback without authentication. Its vLLM engines and their router listen on ALL addresses (ports from 8200 on, and one ephemeral
# port) without authentication: block them with a firewall.
{{/gpu}}
set -euo pipefail
{{children}}
IFS=, read -ra gpus <<<"${CUDA_VISIBLE_DEVICES:-$(nvidia-smi --query-gpu=index --format=csv,noheader | paste -sd, -)}"
if [ "${#gpus[@]}" -lt {{machine_gpus}} ]; then
  echo "{{machine_gpus}} GPUs required (--gpus, --samplers), but ${#gpus[@]} found; CUDA_VISIBLE_DEVICES selects GPUs" >&2
  exit 1
fi
# `gpu_range FIRST COUNT` prints the GPUs of one server.
gpu_range() { (IFS=,; echo "${gpus[*]:$1:$2}"); }

# Models from the Hub are cached in the shared directory, unless HF_HOME is set.
export HF_HOME="${HF_HOME:-{{shared}}/hf}"
cd {{project}}
{{#gpu}}
unset VLLM_API_KEY # SkyRL calls its own engines without a key
{{/gpu}}
start SkyRL env {{skyrl_env}}CUDA_VISIBLE_DEVICES="$(gpu_range 0 {{tinker_gpus}})" \
  flock -nF -E 75 {{shared}}/tinker.lock uv run {{skyrl_flags}} -m skyrl.tinker.api --host 127.0.0.1 --port 8000 \
  --base-model {{model}} --backend {{backend}} --backend-config '{{backend_config}}' \
  --checkpoints-base {{shared}}/checkpoints --database-url sqlite:///{{shared}}/tinker.db
{{#pool}}

for i in $(seq 0 {{last_sampler}}); do
  start "vLLM $i" env CUDA_VISIBLE_DEVICES="$(gpu_range $(({{gpus}} + i)) 1)" VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 \
    {{shared}}/engines/vllm/bin/vllm serve {{model}} --host 127.0.0.1 --port $((8100 + i)) --max-model-len {{context}} \
    --enable-lora --max-lora-rank {{vllm_rank}} --max-loras 4 --max-cpu-loras 16
done
{{/pool}}
monitor
