#!/usr/bin/env bash
# Checks on this machine that spilling changes no number. Needs an NVIDIA driver, NVRTC and the CUDA headers
# (in $CUDA_PATH/include, or where the CUDA toolkit is installed by default), but no compiler.
#
#     ./run [FILE]
#
# FILE (by default raw.jsonl next to this script) gets one line on the machine, one per program and budget, one on the
# library's copy bandwidth and one on that of plain copies. Then bench-vram/ gets a record of two models, with the optimizer
# on the device and on the host, without a cap and under one; if `python3` has a PyTorch that sees the GPU, it trains the same
# models under the same cap, in memory and with FSDP2's CPU offload. The end is a verdict in five sentences. On a GPU this
# takes at most eight minutes: what they leave no time for is left out, and lines and verdict say so. With several GPUs and
# Open MPI, two further minutes check that one rank per GPU ends with the bits of one process, and FILE gets a line on that.
# Through `cargo xtask stand-in`, all but the models runs without a GPU and without a time limit, and FILE says so.
set -euo pipefail

folder=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
raw=${1:-$folder/raw.jsonl}
check=(gpu_check --budgets '100%,50%,25%,floor' --json)

# Seconds, on a GPU. All of it, with a rest for the verdict; programs that begin; the same with the last one's end and the
# bandwidth; plain copies. What programs do not take, models get.
total=460
programs=240
guard=270
copies=20

# One line of text, safe between the quotes of a JSON string.
field() { { "$@" 2>/dev/null || true; } | head -n 1 | tr -d '"\\' | sed 's/^ *//; s/ *$//'; }
gpu() { field nvidia-smi --query-gpu="$1" --format=csv,noheader; }

# The stand-in for the CUDA driver gives this name to its devices. If programs would load it, they use no GPU, whatever
# nvidia-smi says.
stand_in='CUDA stand-in'
uses_stand_in() {
    local folders folder
    IFS=: read -ra folders <<<"${LD_LIBRARY_PATH:-}"
    for folder in "${folders[@]}"; do
        if grep -qs "$stand_in" "${folder:-.}"/libcuda.so*; then return; fi
    done
    return 1
}
work=.
within() { timeout "$@"; }
if uses_stand_in; then
    within() { "${@:2}"; }
    gpu() {
        case $1 in
            name) printf '%s' "$stand_in" ;;
            driver_version) printf 'compute capability %s' "${STAND_IN_CC:-70}" ;;
            *) printf none ;;
        esac
    }
    # Autotune measures the CPU: its choices must not reach a machine with a GPU.
    work=$folder/stand-in
    mkdir -p "$work"
    printf '[autotune]\ncache = "local"\nlevel = "minimal"\n' >"$work/cubecl.toml"
else
    check+=(--seconds "$programs")
fi

printf '{"date":"%s","commit":"%s","command":"%s","machine":{"gpu":"%s","gpu_memory":"%s","driver":"%s","processor":"%s","memory":"%s","kernel":"%s"}}\n' \
    "$(date -u +%F)" "$(field cat "$folder/commit")" "${check[*]}" \
    "$(gpu name)" "$(gpu memory.total)" "$(gpu driver_version)" \
    "$(field sed -n 's/^model name[^:]*: //p' /proc/cpuinfo)" "$(field sed -n 's/^MemTotal: *//p' /proc/meminfo)" \
    "$(field uname -sr)" >"$raw"

# Remove the record of an earlier run.
rm -rf "$folder/bench-vram"
status=0
if [ "$work" != . ]; then
    # Autotune measures each kernel many times; values do not matter to it.
    (cd "$work" && STAND_IN_HASTE=16 exec "$folder/${check[0]}" tune) || status=$?
fi
(cd "$work" && within "$guard" "$folder/${check[0]}" "${check[@]:1}") | tee -a "$raw" || status=$?
if [ -x "$folder/xtask" ]; then
    within "$copies" "$folder/xtask" gpu-check --link | tee -a "$raw" || status=$?
fi
measure() {
    local left=$((total - SECONDS))
    "$folder/xtask" bench-vram --device cuda --seconds "$((left > 0 ? left : 0))" --seconds-per-cell 120 --steps 6 \
        --optimizer device,host --budgets 50% --train "$folder/train" --out "$folder/bench-vram" "$@" || status=$?
}
if [ "$work" = . ] && [ -x "$folder/xtask" ]; then
    if python3 -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' 2>/dev/null; then
        measure --peer pytorch --ways memory,fsdp --rounds 1
    else
        echo 'PyTorch is not compared: python3 has none here that sees the GPU'
        measure
    fi
fi

# One rank per GPU. All processes share the choices of autotune, which are on disk.
digests() { grep -oE '"(losses|weights)_sha256": *"[0-9a-f]+"' "$1"; }
ranks() {
    local steps=(--config toy --device cuda --json --set train.steps=8 --set "train.accumulate=$gpus" --set eval.every=0
        --set eval.sample_every=0 --set 'eval.questions=[]' --set eval.quiz=0 --set checkpoint.every=0 --set train.schedule.warmup=2)
    rm -rf "$folder/ranks"
    mkdir "$folder/ranks"
    timeout 60 "$folder/train" "${steps[@]}" --out "$folder/ranks/one" >"$folder/ranks/one.json" &&
        timeout 60 "$folder/train" "${steps[@]}" --out "$folder/ranks/each" --ranks "$gpus" >"$folder/ranks/each.json" &&
        digests "$folder/ranks/one.json" >"$folder/ranks/one.bits" &&
        digests "$folder/ranks/each.json" >"$folder/ranks/each.bits" && cmp "$folder/ranks/one.bits" "$folder/ranks/each.bits"
}
if [ "$work" = . ] && [ -x "$folder/train" ]; then
    gpus=$(gpu count)
    [[ $gpus =~ ^[0-9]+$ ]] || gpus=0
    report() { printf '{"program":"ranks","budget":"%s GPUs",%s}\n' "$gpus" "$1" | tee -a "$raw"; }
    if [ "$gpus" -lt 2 ] || ! command -v mpirun >/dev/null; then
        report '"verdict":"skipped","error":"it takes two GPUs and mpirun"'
    elif ranks; then
        report '"verdict":"pass","losses_equal":true,"weights_equal":true'
    else
        report '"verdict":"fail","error":"one rank a GPU does not end with the bits of one process; what it printed is above"'
        status=1
    fi
fi
if [ -x "$folder/xtask" ]; then
    "$folder/xtask" gpu-check --verdict "$raw" || status=$?
fi
exit "$status"
