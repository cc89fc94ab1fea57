#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds the programs of an earlier commit and has them and those of this tree speak with each other
# (tests/integration/programs/two_versions.py).
#
#   tools/two_versions.sh COMMIT
#
# The programs of this tree are those of build/release. The earlier ones are built in a clone under build/, which is
# kept: the next run with the same commit takes no time.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
(($# == 1)) || { echo "usage: $0 COMMIT" >&2; exit 2; }
commit=$(git rev-parse --verify --quiet "$1^{commit}") || { echo "$0: no commit '$1'" >&2; exit 2; }
[[ -x build/release/bin/launcher ]] || { echo "$0: ./dev build first" >&2; exit 2; }

old=build/versions/${commit:0:12}
if [[ ! -x $old/build/release/bin/launcher ]]; then
  rm -rf "$old"
  git clone --quiet --shared --no-checkout . "$old"
  git -C "$old" checkout --quiet "$commit"
  "$old/dev" build release
fi
LOCKSTEP_BIN=$PWD/build/release/bin LOCKSTEP_OLD_BIN=$PWD/$old/build/release/bin \
  exec python3 tests/integration/programs/two_versions.py -v
