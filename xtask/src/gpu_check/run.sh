#!/usr/bin/env bash
# Checks on this machine that spilling changes no number. Needs an NVIDIA driver, NVRTC and the CUDA headers
# (in $CUDA_PATH/include, or where the CUDA toolkit is installed by default), but no compiler.
#
#     ./run [FILE]
#
# FILE (raw.jsonl beside this script unless named) gets one line on the machine, one per program and budget,
# and one on the copy bandwidth.
set -euo pipefail

folder=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
raw=${1:-$folder/raw.jsonl}
check=(gpu_check --budgets '100%,50%,25%' --json)

# One line of text, safe between the quotes of a JSON string.
field() { { "$@" 2>/dev/null || true; } | head -n 1 | tr -d '"\\' | sed 's/^ *//; s/ *$//'; }
gpu() { field nvidia-smi --query-gpu="$1" --format=csv,noheader; }

printf '{"date":"%s","commit":"%s","command":"%s","machine":{"gpu":"%s","gpu_memory":"%s","driver":"%s","processor":"%s","memory":"%s","kernel":"%s"}}\n' \
    "$(date -u +%F)" "$(field cat "$folder/commit")" "${check[*]}" \
    "$(gpu name)" "$(gpu memory.total)" "$(gpu driver_version)" \
    "$(field sed -n 's/^model name[^:]*: //p' /proc/cpuinfo)" "$(field sed -n 's/^MemTotal: *//p' /proc/meminfo)" \
    "$(field uname -sr)" >"$raw"

"$folder/${check[0]}" "${check[@]:1}" | tee -a "$raw"
