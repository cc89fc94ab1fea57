#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The GPU tests of a bundle (./dev bundle): prints a line for each and writes results as JSON to
# gpu-tests.json, or to the file given. The exit code is the number of failures, or 77 without a GPU,
# when all of them are skipped. Where CUDA's compute-sanitizer is installed, each kernel's test runs once
# more under it; $LOCKSTEP_COMPUTE_SANITIZER names another, and empty means none.
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
  if ((usable != 0)) || [[ -z ${1:-} ]]; then
    printf 'skipped         %s\n' "$name"
    lines+=("{\"name\":\"$name\",\"state\":\"skipped\",\"seconds\":0}")
    return
  fi
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

# Where the moments lie, and how a step is recorded, changes no bit.
moments_elsewhere() {
  local gpu one host parts single each step
  gpu=$(nvidia-smi --query-gpu=uuid --format=csv,noheader | head -n 1)
  export LOCKSTEP_GPUS="$gpu,$gpu,$gpu,$gpu"
  one=$(sha --nproc-per-node=1 "$work/job.yaml")
  host=$(sha --nproc-per-node=1 --set resources.offload_optimizer=true "$work/job.yaml")
  parts=$(sha chaos --nproc-per-node=4 --set train.zero_stage=1 --kill rank:1@step:20/begun "$work/job.yaml")
  cat "$work/run.log"
  single=$(sha --nproc-per-node=1 --set train.shards=1 "$work/job.yaml")
  each=$(sha --nproc-per-node=1 --set train.shards=1 --set train.passes.step_graph=false "$work/job.yaml")
  step=$(sha --nproc-per-node=1 --set train.shards=1 --set train.passes.whole_step_graph=true "$work/job.yaml")
  printf 'whole %s\nhost  %s\nparts %s\none recording %s\nmany          %s\nwith update   %s\n' "$one" "$host" \
    "$parts" "$single" "$each" "$step"
  [[ -n $one && $one == "$host" && $one == "$parts" && -n $single && $single == "$each" && $single == "$step" ]]
}

# 1,000 steps of a small GPT: the memory of the GPU and of the worker is flat from the first third on.
soak() {
  local run gpu samples least most rss_first rss_last
  head -c 400000 /dev/urandom | od -An -vtx1 >"$work/text"
  (cd "$work" && exec "$here/bin/launcher" --nproc-per-node=1 -o json "$work/soak.yaml" >soak.json 2>soak.log) &
  run=$!
  gpu=$work/soak.gpu
  : >"$gpu"
  while kill -0 "$run" 2>/dev/null; do
    printf '%s %s\n' "$(nvidia-smi --query-gpu=memory.used --format=csv,noheader,nounits | head -n 1)" \
      "$(awk '/VmRSS/ {print $2}' /proc/"$(pgrep -n -f "$here/bin/worker" || printf 0)"/status 2>/dev/null)" >>"$gpu"
    sleep 1
  done
  if ! wait "$run"; then
    cat "$work/soak.log"
    return 1
  fi
  samples=$(awk 'NF == 2' "$gpu" | wc -l)
  if ((samples < 6)); then
    printf 'only %d looks at the memory: not long enough to say anything\n' "$samples"
    return 1
  fi
  # Without the last look: the worker may be on its way out.
  read -r least most rss_first rss_last < <(awk 'NF == 2' "$gpu" | head -n $((samples - 1)) |
    tail -n +$((samples / 3 + 1)) |
    awk 'NR == 1 {least = most = $1; first = $2} {if ($1 < least) least = $1; if ($1 > most) most = $1; last = $2}
      END {print least, most, first, last}')
  printf 'GPU memory %s to %s MiB, worker %s to %s KiB, %d looks\n' "$least" "$most" "$rss_first" "$rss_last" "$samples"
  ((most - least <= 2 && rss_last - rss_first <= 16384))
}

# under_sanitizer TOOL: the kernels' tests; what the tool finds is a failure.
under_sanitizer() {
  "$sanitizer" --tool "$1" --error-exitcode 86 "$here/tests/conformance_cuda_ops_test" \
    --gtest_filter='*DeviceKernelAgreesWithFloat64*'
}

cat >"$work/soak.yaml" <<END
name: soak
resources: {nproc_per_node: 1, device: cuda}
train:
  model: {gpt: {layers: 8, heads: 8, width: 512, vocab: 320}}
  data: {text: {path: $work/text, length: 512}}
  global_batch: 32
  shards: 1
  steps: 1000
  optimizer: {adamw: {lr: 0.0003}}
  clip_norm: 1
  precision: bf16
  eval: {every: never}
  seed: 1
END

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
gpu=true
if ((usable != 0)); then
  gpu=false
  printf 'no GPU can be used (what is missing is above): all tests are skipped\n'
fi
check 'kernels against float64' "$here/tests/conformance_cuda_ops_test" --gtest_filter='*Device*:CudaOpsCount*'
check 'models against the CPU' env LOCKSTEP_TEST_GPU=1 "$here/tests/engine_cuda_executor_test"
check 'the same bits with 1 and 2 workers and a killed one' same_bits
check 'the same bits wherever the moments lie' moments_elsewhere
check '1,000 steps in flat memory' soak
sanitizer=${LOCKSTEP_COMPUTE_SANITIZER-$(PATH=$PATH:/usr/local/cuda/bin command -v compute-sanitizer)}
[[ -n $sanitizer ]] || printf 'no compute-sanitizer here: kernels do not run under it\n'
for tool in memcheck racecheck synccheck; do
  check "kernels under $tool" ${sanitizer:+under_sanitizer "$tool"}
done
joined=$(IFS=,; printf '%s' "${lines[*]}")
printf '{"schema":1,"gpu":%s,"failed":%d,"tests":[%s]}\n' "$gpu" "$failed" "$joined" >"$answer"
if ((usable != 0)); then
  printf 'nothing was tested; %s\n' "$answer"
  exit 77
fi
printf '%d failed; %s\n' "$failed" "$answer"
exit "$failed"
