#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes a folder that runs on another Linux with a driver and CUDA's libraries, and OUT.tar.xz of it:
# make_bundle.sh BUILD OUT. BUILD is a built preset with the CUDA module and the GPU tests. OUT may be
# there when it is a bundle, or empty, OUT.tar.xz beside a bundle; make_bundle.sh --check OUT says whether. Of shared
# libraries everything comes along but the C library; the C++ library, which wants the C library of
# the machine where it was made, lies apart and is taken where there is none that is new enough.
set -euo pipefail

die() {
  printf 'make_bundle.sh: %s\n' "$1" >&2
  exit 1
}

(($# == 2)) || die 'usage: make_bundle.sh BUILD OUT, or make_bundle.sh --check OUT'
build=$1
target=$(realpath --canonicalize-missing --no-symlinks "$2")
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
if [[ ! -e $target/run-gpu-tests ]]; then
  if [[ -e $target || -L $target ]]; then
    [[ -d $target && -z $(ls -A "$target") ]] || die "$target is there and is no bundle; name another folder, or empty it"
  fi
  [[ ! -e $target.tar.xz && ! -L $target.tar.xz ]] ||
    die "$target.tar.xz is there and is of no bundle beside it; name another folder, or remove it"
fi
[[ $build != --check ]] || exit 0
[[ -e $build/bin/liblockstep_cuda.so ]] || die "$build has no GPU module: ./dev build cuda makes one where nvcc is"

# Made beside the target, which keeps what it has until all is there.
mkdir -p "$(dirname "$target")"
work=$(mktemp -d "$target.XXXXXX")
trap 'rm -rf "$work"' EXIT
stage=$work/stage
out=$work/$(basename "$target")
mkdir -p "$out"/{bin,lib/fallback,tests,examples,bench/peers}

# The programs as the Debian packages have them.
cmake --install "$build" --component lockstep --prefix "$stage" --strip >/dev/null
cp "$stage"/lib/lockstep/{launcher,coordinator,worker} "$out/bin/"
cp "$build/bin/liblockstep_cuda.so" "$out/bin/"
for test in conformance_cuda_ops_test engine_cuda_executor_test; do
  strip -o "$out/tests/$test" "$build/tests/$test"
done
strip -o "$out/bench/bench_device" "$build/bin/bench_device"
cp "$root/bench/gpu.py" "$out/bench/"
cp "$root"/bench/peers/{models,gpu_models}.py "$out/bench/peers/"
cp "$root"/examples/*.yaml "$out/examples/"
cp "$root/tools/run_gpu_tests.py" "$out/run-gpu-tests"
cp "$root/docs/gpu.md" "$root/LICENSE" "$out/" 2>/dev/null || cp "$root/docs/gpu.md" "$out/"
# What results of the bundle are told from those of another by. What no commit names has the time.
# A checkout that this tree merely lies in names another one.
commit='of no git checkout'
if [[ $(git -C "$root" rev-parse --show-toplevel 2>/dev/null) == "$(cd "$root" && pwd -P)" ]]; then
  commit=$(git -C "$root" describe --always --dirty --abbrev=12)
fi
case $commit in
  *-dirty | *' '*) commit="$commit, made $(date -u +%Y-%m-%dT%H:%M:%SZ)" ;;
esac
printf '%s\n' "$commit" >"$out/commit"

# The programs' libraries, by the names that the loader asks for.
ldd "$build"/bin/{launcher,coordinator,worker} "$build"/tests/{conformance_cuda_ops_test,engine_cuda_executor_test} |
  awk '$2 == "=>" && $3 ~ /^\// {print $3}' | sort -u |
  while read -r library; do
    case $(basename "$library") in
      libc.so.* | libm.so.* | libpthread.so.* | libdl.so.* | librt.so.* | ld-linux*) ;;
      libstdc++.so.* | libgcc_s.so.*) cp -L "$library" "$out/lib/fallback/" ;;
      *) cp -L "$library" "$out/lib/" ;;
    esac
  done

cat >"$out/launcher" <<'END'
#!/bin/sh
here=$(cd "$(dirname "$0")" && pwd)
rest=${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export LD_LIBRARY_PATH="$here/lib$rest"
"$here/bin/launcher" --version >/dev/null 2>&1 || LD_LIBRARY_PATH="$here/lib:$here/lib/fallback$rest"
exec "$here/bin/launcher" "$@"
END
chmod +x "$out/launcher" "$out/run-gpu-tests"
tar -C "$work" -cJf "$work/archive" "$(basename "$out")"
mkdir -p "$target"
find "$target/" -mindepth 1 -delete
mv "$out"/* "$target/"
mv "$work/archive" "$target.tar.xz"
du -sh "$target" "$target.tar.xz" | awk '{print $2 ": " $1}'
