#!/usr/bin/env bash
# Makes the engines' environments in {{shared}}/engines: once, where {{shared}} is mounted. uv must be there, and on every
# machine that starts an engine.
set -euo pipefail
mkdir -p {{shared}}/engines {{shared}}/adapters {{shared}}/checkpoints && cd {{shared}}/engines
# With a Python that the other machines see, too.
export UV_PYTHON_INSTALL_DIR=$PWD/python UV_MANAGED_PYTHON=1
{{#pool}}

# Each engine in an environment of its own: their pins do not agree with each other.
[ -e skyrl/installed ] || {
  uv venv --clear -p 3.12 skyrl
  uv pip install -p skyrl 'skyrl[tinker,jax,gpu]==0.4.0' aiohttp orjson
  touch skyrl/installed
}
[ -e vllm/installed ] || {
  uv venv --clear -p 3.12 vllm
  uv pip install -p vllm vllm==0.32.0
  touch vllm/installed
}
# SkyRL starts its engine by the same `uv run` that it was started by, from a project that knows the extras' names.
cat > pyproject.toml <<'P'
[project]
name = "engines"
version = "0"
requires-python = ">=3.12"
[project.optional-dependencies]
tinker = []
jax = []
P
{{/pool}}
{{#gpu}}

# From its repository: the extras for GPUs need package indexes that the package on PyPI does not name.
: "${SKYRL_REF:=main}"
[ -e SkyRL ] || git clone --branch "$SKYRL_REF" https://github.com/NovaSky-AI/SkyRL
cd SkyRL
grep -q '"tinker>=0\.25' pyproject.toml || { echo "$SKYRL_REF speaks another dialect than 0.25: set SKYRL_REF to one before" >&2; exit 1; }
uv sync --extra tinker --extra {{backend}}
{{/gpu}}
