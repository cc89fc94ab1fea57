#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# compile_with.sh COMPILER OTHER ARGS..: runs COMPILER where OTHER was to be run. As a target's compiler launcher it
# compiles that target with another compiler than the rest (LOCKSTEP_TEST_COMPILER).
compiler=$1
shift 2

# Clang reads precompiled headers that lie where it is to write some, and fails when they are OTHER's; it does not
# know how GCC is told to keep house.
precompiles=
before=
for argument; do
  shift
  case $argument in
    c++-header | c-header) precompiles=1 ;;
    --param=ggc-*) continue ;;
  esac
  if [ "$before" = -o ]; then output=$argument; fi
  before=$argument
  set -- "$@" "$argument"
done
if [ "$precompiles" ]; then rm -f "$output"; fi

exec "$compiler" "$@"
