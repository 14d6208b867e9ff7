#!/usr/bin/env bash
# Creates the engines' environments in {{shared}}/engines. Run it once on a machine that mounts {{shared}}, and after a change of
# versions. Requires uv, also on every machine that starts an engine.
set -euo pipefail
mkdir -p {{shared}}/engines {{shared}}/adapters {{shared}}/checkpoints && cd {{shared}}/engines
# A Python in the shared directory, visible to all machines.
export UV_PYTHON_INSTALL_DIR=$PWD/python UV_MANAGED_PYTHON=1
{{#pool}}

# One environment per engine, since their version pins conflict. Recreated when the list of packages changes.
environment() {
  local name=$1
  shift
  if [ "$(cat "$name/installed" 2>/dev/null)" != "$*" ]; then
    uv venv --clear -p 3.12 "$name"
    uv pip install -p "$name" "$@"
    echo "$*" >"$name/installed"
  fi
}
environment skyrl 'skyrl[tinker,jax,gpu]==0.4.0' aiohttp orjson
environment vllm vllm==0.32.0
# SkyRL starts its engine with the `uv run` that started it, from a project that defines the names of the extras.
cat >pyproject.toml <<'P'
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

# From the repository, since the GPU extras need package indexes that the PyPI package does not specify. SKYRL_REF is a tag, a branch
# or a full commit hash; these files are made for release 0.4.0.
: "${SKYRL_REF:=skyrl-v0.4.0}"
from=https://github.com/NovaSky-AI/SkyRL
[ -e SkyRL/.git ] || git init -q SkyRL
cd SkyRL
git fetch -q --depth 1 "$from" "$SKYRL_REF" || {
  echo "SKYRL_REF=$SKYRL_REF cannot be fetched; \`git ls-remote --tags $from\` lists the tags" >&2
  exit 1
}
git checkout -q --detach FETCH_HEAD
version=$(sed -n 's/^__version__ = "\(.*\)"$/\1/p' skyrl/__init__.py)
# Its pinned SDK version determines the protocol version.
sdk=$(grep -om1 '"tinker[^a-zA-Z"][^"]*"' pyproject.toml || true)
case $sdk in
  *'=0.25'*'<0.26'* | *'<0.26'*'=0.25'*) ;;
  *)
    echo "SKYRL_REF=$SKYRL_REF is SkyRL $version with SDK $sdk, but mage supports SDK 0.25 (>=0.25,<0.26), as in SkyRL 0.4.0:" \
      "set another SKYRL_REF and run this script again" >&2
    exit 1
    ;;
esac
case $version in
  0.4.*) ;;
  *) echo "warning: this is SkyRL $version; these files are made for 0.4.0" >&2 ;;
esac
uv sync --extra tinker --extra {{backend}}
{{/gpu}}
