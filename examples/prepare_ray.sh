#!/usr/bin/env bash
# Prepares on a Ray cluster whose nodes share /shared and have the packages of the extras
# `prepare` and `ray` (pip install '.[prepare,ray]'). Run it from the repository's root, where RAY_ADDRESS names the
# dashboard:
#
#     RAY_ADDRESS=http://head:8265 bash examples/prepare_ray.sh /shared/fineweb-edu /shared/tokens
#
# A task whose node dies runs on another; run it again, and it does only what is missing.
set -euo pipefail
source=$1 tokens=$2
ray job submit \
    --runtime-env-json '{"working_dir": ".", "excludes": ["/data", "/.venv", "/.git"], "env_vars": {"TIKTOKEN_CACHE_DIR": "'"${TIKTOKEN_CACHE_DIR:-}"'"}}' \
    -- python prepare_data.py --cluster ray --source "$source" --tokens-root "$tokens"
