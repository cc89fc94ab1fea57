#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Proves that the README's commands work on a bare machine: makes a minimal Debian 12 root in a
# temporary folder, copies the repository's files into it (no history), enters it by chroot and runs
# one ./dev command there.
#
#   tools/bare_root_test.sh [--keep] [--root DIR] demo
#   tools/bare_root_test.sh test -L unit
#   tools/bare_root_test.sh walk     the demo, then README.md's commands as they stand (tools/run_docs.py)
#
# --root DIR goes on with (or leaves behind) the root in DIR, so that a second command is quicker;
# --keep leaves a temporary root behind. Run as root, with mmdebstrap or debootstrap installed. The
# package sources, proxy settings, name servers and CA certificates are this machine's.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

keep='' root=''
while (($# > 0)); do
  case $1 in
    --keep) keep=1 ;;
    --root) root=$2; keep=1; shift ;;
    *) break ;;
  esac
  shift
done
(($# > 0)) || { echo "usage: $0 [--keep] [--root DIR] DEV-COMMAND [ARGS..]" >&2; exit 2; }
((EUID == 0)) || { echo "$0: must be root (it mounts and enters a chroot)" >&2; exit 1; }
if [[ -z $root ]]; then
  root=$(mktemp -d "${TMPDIR:-/var/tmp}/lockstep-bare-XXXXXX")
fi
mkdir -p "$root"

# shellcheck source=tools/bare_root.sh
source tools/bare_root.sh
leave() {
  unmount_bare_root "$root"
  # Never delete through something that is still mounted.
  if [[ -z $keep ]] && ! grep -q " $root/" /proc/self/mounts; then rm -rf --one-file-system "$root"; fi
}
trap leave EXIT

start=$SECONDS
if [[ ! -e $root/etc/debian_version ]]; then
  make_bare_root "$root"
  printf 'bare root                    %4d s  (%d packages, %s)\n' $((SECONDS - start)) \
    "$(grep -c '^Status: install ok' "$root/var/lib/dpkg/status")" \
    "$(du -sh --one-file-system "$root" | cut -f1)"
fi
mount_bare_root "$root"

# The repository's files as a release archive would hold them: no .git, no build folder.
mkdir -p "$root/lockstep"
if git rev-parse --is-inside-work-tree >/dev/null 2>&1; then
  git ls-files -z --cached --others --exclude-standard |
    while IFS= read -r -d '' file; do if [[ -e $file ]]; then printf '%s\0' "$file"; fi; done |
    tar --null -T - -cf - | tar -xf - -C "$root/lockstep"
else
  tar --exclude ./build --exclude ./runs -cf - . | tar -xf - -C "$root/lockstep"
fi
rc=0
if [[ $1 == walk ]]; then
  echo '+ ./dev demo, then the commands of README.md   (in the bare root)'
  # Python is what types them; nothing that they run needs it.
  in_bare_root "$root" /bin/bash -c 'cd /lockstep && ./dev demo &&
    DEBIAN_FRONTEND=noninteractive apt-get -y -qq install --no-install-recommends python3 >/dev/null &&
    python3 tools/run_docs.py --bin build/release/bin README.md' || rc=$?
else
  echo "+ ./dev $*   (in the bare root)"
  in_bare_root "$root" /bin/bash -c 'cd /lockstep && exec ./dev "$@"' dev "$@" || rc=$?
fi
printf 'bare root, all               %4d s  (exit code %d)\n' $((SECONDS - start)) "$rc"
exit "$rc"
