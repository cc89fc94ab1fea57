#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# compile_with.sh COMPILER OTHER ARGS..: runs COMPILER where OTHER was to be run. As a target's compiler launcher it
# compiles that target with another compiler than the rest (LOCKSTEP_TEST_COMPILER).
compiler=$1
shift 2

# Clang reads precompiled headers that lie where it is to write some, and fails when they are OTHER's.
precompiles=
before=
for argument; do
  case $argument in c++-header | c-header) precompiles=1 ;; esac
  if [ "$before" = -o ]; then output=$argument; fi
  before=$argument
done
if [ "$precompiles" ]; then rm -f "$output"; fi

exec "$compiler" "$@"
