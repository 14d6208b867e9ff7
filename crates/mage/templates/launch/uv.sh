#!/usr/bin/env bash
{{#pool}}
# One machine with {{machine_gpus}} GPUs: SkyRL trains with {{gpus}}, {{samplers}} vLLM servers sample with one each. All listen on loopback
# alone. SkyRL asks nobody for a key; vLLM does when VLLM_API_KEY is set, here and where mage runs.
{{/pool}}
{{#gpu}}
# One machine with {{machine_gpus}} GPUs: SkyRL trains on {{gpus}}, and samples by vLLM engines of its own on {{samplers}}. It listens on
# loopback, asks nobody for a key, and its vLLM engines and their router listen on ALL addresses (ports from 8200 on, and one of the
# system's choice), also without a key: a firewall must keep strangers out.
{{/gpu}}
set -euo pipefail
{{children}}
IFS=, read -ra cards <<<"${CUDA_VISIBLE_DEVICES:-$(nvidia-smi --query-gpu=index --format=csv,noheader | paste -sd, -)}"
if [ "${#cards[@]}" -lt {{machine_gpus}} ]; then
  echo "{{machine_gpus}} GPUs are needed (--gpus, --samplers), and ${#cards[@]} are here; CUDA_VISIBLE_DEVICES says which to take" >&2
  exit 1
fi
# `some FIRST COUNT`: GPUs for one part.
some() { (IFS=,; echo "${cards[*]:$1:$2}"); }

# Models by name are kept beside the engines, unless there is a place for them already.
export HF_HOME="${HF_HOME:-{{shared}}/hf}"
cd {{project}}
{{#gpu}}
unset VLLM_API_KEY # SkyRL asks its own engines without a key
{{/gpu}}
part SkyRL env {{skyrl_env}}CUDA_VISIBLE_DEVICES="$(some 0 {{tinker_gpus}})" \
  flock -nF -E 75 {{shared}}/tinker.lock uv run {{skyrl_flags}} -m skyrl.tinker.api --host 127.0.0.1 --port 8000 \
  --base-model {{model}} --backend {{backend}} --backend-config '{{backend_config}}' \
  --checkpoints-base {{shared}}/checkpoints --database-url sqlite:///{{shared}}/tinker.db
{{#pool}}

for i in $(seq 0 {{last_sampler}}); do
  part "vLLM $i" env CUDA_VISIBLE_DEVICES="$(some $(({{gpus}} + i)) 1)" VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 \
    {{shared}}/engines/vllm/bin/vllm serve {{model}} --host 127.0.0.1 --port $((8100 + i)) --max-model-len {{context}} \
    --enable-lora --max-lora-rank {{vllm_rank}} --max-loras 4 --max-cpu-loras 16
done
{{/pool}}
watch_over
