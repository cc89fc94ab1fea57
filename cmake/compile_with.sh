#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# compile_with.sh COMPILER OTHER ARGS..: runs COMPILER where OTHER was to be run. As a target's compiler launcher it
# compiles that target with another compiler than the rest (LOCKSTEP_TEST_COMPILER).
compiler=$1
shift 2
exec "$compiler" "$@"
