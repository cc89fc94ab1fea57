#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The engine on aarch64: its tests, and the hash of shortened examples, beside those of this machine. All is built by
# Debian's cross compiler and run under qemu-user; the programs but the worker are this machine's.
#
#   tools/aarch64.sh [tests|hashes [EXAMPLE..]]     both without an argument; fashion-mnist without an example
#
# Needs the programs of `./dev build` and, from Debian, g++-aarch64-linux-gnu, qemu-user and mmdebstrap, which unpacks the
# libraries of arm64 into build/aarch64-root; nothing of this machine is changed. Takes minutes.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

root=build/aarch64-root tree=build/aarch64
for program in aarch64-linux-gnu-g++ qemu-aarch64 mmdebstrap; do
  command -v "$program" >/dev/null ||
    { echo "$0: no $program: apt-get install g++-aarch64-linux-gnu qemu-user mmdebstrap" >&2; exit 1; }
done
[[ -x build/release/bin/launcher ]] || { echo "$0: first ./dev build" >&2; exit 1; }

# The libraries that ./dev names for building and testing.
libraries() {
  sed -n '/^packages_build=(/,/)/p; /^packages_test=(/,/)/p' dev | grep -oE '(lib[a-z0-9+-]+|zlib1g|nlohmann-json3)-dev'
}
if [[ ! -e $root/done ]]; then
  rm -rf "$root"
  # Unpacked, not installed: nothing of arm64 runs for it.
  mmdebstrap --quiet --variant=extract --architectures=arm64 \
    --include="$(echo libc6-dev libstdc++-12-dev protobuf-compiler-grpc $(libraries) | tr ' ' ,)" bookworm "$root"
  for plugin in /usr/bin/grpc_*_plugin; do ln -sf "$plugin" "$root/usr/bin/"; done
  touch "$root/done"
fi

# Tests of what has bits, and of what the architecture has a part in.
tests=(engine_{gemm,math,normal,half_kernels,self_check,thread_pool,update,decode,image_models,transformer,precision}_test
       engine_same_bits_test conformance_ops_test)
cmake -G Ninja -B "$tree" -S . -DCMAKE_TOOLCHAIN_FILE="$PWD/cmake/aarch64.cmake" -DCMAKE_BUILD_TYPE=Release \
  -DLOCKSTEP_CUDA=OFF -DLOCKSTEP_STATIC_GRPC=ON -DLOCKSTEP_BENCH=OFF >"$tree.log"
what=${1:-all}
if [[ $what != hashes ]]; then
  ninja -C "$tree" "${tests[@]}" >>"$tree.log"
  for test in "${tests[@]}"; do
    start=$SECONDS rc=0
    qemu-aarch64 -L "$root" "$tree/tests/$test" >"$tree/$test.log" 2>&1 || rc=$?
    if ((rc == 0)); then result=passed; else result="FAILED ($tree/$test.log)"; fi
    printf '%-28s %4d s  %s\n' "$test" $((SECONDS - start)) "$result"
    ((rc == 0)) || failed=1
  done
fi
if [[ $what != tests ]]; then
  ninja -C "$tree" lockstep_bin_worker lockstep_aarch64_syscall >>"$tree.log"
  mkdir -p "$tree/aarch64/bin"
  cp build/release/bin/{launcher,coordinator} "$tree/aarch64/bin/"
  printf '#!/bin/sh\nexec qemu-aarch64 -E LD_PRELOAD="%s/liblockstep_aarch64_syscall.so" -L "%s" "%s/bin/worker" "$@"\n' \
    "$PWD/$tree" "$PWD/$root" "$PWD/$tree" >"$tree/aarch64/bin/worker"
  chmod +x "$tree/aarch64/bin/worker"
  names=("${@:2}")
  python3 tools/same_bits.py --steps 3 --other "$tree/aarch64/bin" "${names[@]:-fashion-mnist}" || failed=1
fi
exit "${failed:-0}"
