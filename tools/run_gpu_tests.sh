#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The GPU tests of a bundle (./dev bundle): prints a line for each and writes results as JSON to
# gpu-tests.json, or to the file given. The exit code is the number of failures, 77 without a GPU.
set -uo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
answer=${1:-gpu-tests.json}
export LD_LIBRARY_PATH="$here/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
export LOCKSTEP_CUDA_MODULE="$here/bin/liblockstep_cuda.so"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0
lines=()

# The folder of cuBLASLt: the toolkit's, or that of the wheels in Python's packages.
if [[ -z ${LOCKSTEP_CUDA_LIBRARIES:-} ]] && ! ldconfig -p 2>/dev/null | grep -q libcublasLt.so.13; then
  folders=(/usr/local/cuda/lib64)
  if command -v python3 >/dev/null; then
    while read -r site; do
      folders+=("$site"/nvidia/*/lib)
    done < <(python3 -c 'import site; print("\n".join(site.getsitepackages() + [site.getusersitepackages()]))')
  fi
  for folder in "${folders[@]}"; do
    if [[ -e $folder/libcublasLt.so.13 ]]; then
      export LOCKSTEP_CUDA_LIBRARIES=$folder
      export LD_LIBRARY_PATH="$LD_LIBRARY_PATH:$folder"
      break
    fi
  done
fi

# check NAME COMMAND..
check() {
  local name=$1 log start=$SECONDS state=passed
  shift
  log=$work/${name// /-}.log
  if ! timeout 900 "$@" >"$log" 2>&1; then
    state=FAILED
    failed=$((failed + 1))
    tail -n 30 "$log" | sed 's/^/  | /'
  fi
  printf '%-7s %4d s  %s\n' "$state" $((SECONDS - start)) "$name"
  lines+=("{\"name\":\"$name\",\"state\":\"${state,,}\",\"seconds\":$((SECONDS - start))}")
}

# sha JOB ARGS..: the hash of the weights that a run leaves.
sha() {
  (cd "$work" && "$here/bin/launcher" "$@" 2>"$work/run.log" -o json | tail -n 1 |
    sed -n 's/.*"sha256":"\([0-9a-f]*\)".*/\1/p')
}

same_bits() {
  local one two killed gpu
  gpu=$(nvidia-smi --query-gpu=uuid --format=csv,noheader | head -n 1)
  export LOCKSTEP_GPUS="$gpu,$gpu" # two workers on one GPU
  one=$(sha --nproc-per-node=1 "$work/job.yaml")
  two=$(sha --nproc-per-node=2 "$work/job.yaml")
  killed=$(sha chaos --nproc-per-node=2 --kill rank:1@step:20 "$work/job.yaml")
  cat "$work/run.log"
  printf '1 worker   %s\n2 workers  %s\n1 killed   %s\n' "$one" "$two" "$killed"
  [[ -n $one && $one == "$two" && $one == "$killed" ]]
}

cat >"$work/job.yaml" <<'END'
name: bits
resources: {nproc_per_node: 2, device: cuda}
train:
  model: {mlp: {hidden: [256, 256]}}
  data: {synthetic: {train_samples: 4000, test_samples: 400, features: 100, classes: 10}}
  global_batch: 128
  shards: 4
  steps: 60
  optimizer: {adamw: {lr: 0.001}}
  precision: bf16
  seed: 1
END

"$here/bin/launcher" doctor
usable=$?
if ((usable != 0)); then
  printf 'no GPU can be used: nothing was tested\n'
  printf '{"schema":1,"gpu":false,"tests":[]}\n' >"$answer"
  exit 77
fi
check 'kernels against float64' "$here/tests/conformance_cuda_ops_test" --gtest_filter='*Device*:CudaOpsCount*'
check 'models against the CPU' env LOCKSTEP_TEST_GPU=1 "$here/tests/engine_cuda_executor_test"
check 'the same bits with 1 and 2 workers and a killed one' same_bits
joined=$(IFS=,; printf '%s' "${lines[*]}")
printf '{"schema":1,"gpu":true,"failed":%d,"tests":[%s]}\n' "$failed" "$joined" >"$answer"
printf '%d failed; %s\n' "$failed" "$answer"
exit "$failed"
