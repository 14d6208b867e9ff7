#!/usr/bin/env bash
# Makes the engines' environments in {{shared}}/engines: once, where {{shared}} is mounted, and again after a change of versions.
# uv must be there, and on every machine that starts an engine.
set -euo pipefail
mkdir -p {{shared}}/engines {{shared}}/adapters {{shared}}/checkpoints && cd {{shared}}/engines
# With a Python that the other machines see, too.
export UV_PYTHON_INSTALL_DIR=$PWD/python UV_MANAGED_PYTHON=1
{{#pool}}

# Each engine in an environment of its own: their pins do not agree with each other. Made anew when other packages are asked for.
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
# SkyRL starts its engine by the same `uv run` that it was started by, from a project that knows the extras' names.
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

# From its repository: the extras for GPUs need package indexes that the package on PyPI does not name. SKYRL_REF is a tag, a branch
# or a whole commit; the settings here are those of release 0.4.0.
: "${SKYRL_REF:=skyrl-v0.4.0}"
from=https://github.com/NovaSky-AI/SkyRL
[ -e SkyRL/.git ] || git init -q SkyRL
cd SkyRL
git fetch -q --depth 1 "$from" "$SKYRL_REF" || {
  echo "SKYRL_REF=$SKYRL_REF cannot be had: \`git ls-remote --tags $from\` lists what there is" >&2
  exit 1
}
git checkout -q --detach FETCH_HEAD
version=$(sed -n 's/^__version__ = "\(.*\)"$/\1/p' skyrl/__init__.py)
# The SDK it is pinned to is the dialect it speaks.
sdk=$(grep -om1 '"tinker[^a-zA-Z"][^"]*"' pyproject.toml || true)
case $sdk in
  *'=0.25'*'<0.26'* | *'<0.26'*'=0.25'*) ;;
  *)
    echo "SKYRL_REF=$SKYRL_REF is SkyRL $version for the SDK $sdk, and mage speaks the dialect of 0.25 (>=0.25,<0.26), as" \
      "SkyRL 0.4.0 does: set another SKYRL_REF, and run this again" >&2
    exit 1
    ;;
esac
case $version in
  0.4.*) ;;
  *) echo "careful: this is SkyRL $version; the settings in these files are those of 0.4.0" >&2 ;;
esac
uv sync --extra tinker --extra {{backend}}
{{/gpu}}
