#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Proves that the README's commands work on a bare machine: makes a minimal Debian 12 root in a
# temporary folder, copies the repository's files into it (no history), enters it by chroot and runs
# one ./dev command there.
#
#   tools/bare_root_test.sh [--keep] [--root DIR] demo
#   tools/bare_root_test.sh test -L unit
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

mounts=(proc sys dev/shm dev/pts dev)
leave() {
  local mount
  for mount in "${mounts[@]}"; do
    if mountpoint -q "$root/$mount"; then umount "$root/$mount" || umount -l "$root/$mount"; fi
  done
  # Never delete through something that is still mounted.
  if [[ -z $keep ]] && ! grep -q " $root/" /proc/self/mounts; then rm -rf --one-file-system "$root"; fi
}
trap leave EXIT

start=$SECONDS
if [[ ! -e $root/etc/debian_version ]]; then
  # The archive that this machine itself uses.
  mirror=$(sed -n 's/^URIs: *\([^ ]*\).*/\1/p; s/^deb \(\[[^]]*\] \)\{0,1\}\([^ ]*\).*/\2/p' \
    /etc/apt/sources.list /etc/apt/sources.list.d/*.sources /etc/apt/sources.list.d/*.list \
    2>/dev/null | head -n 1 || true)
  [[ $mirror ]] || { echo "$0: found no package source in /etc/apt" >&2; exit 1; }
  if command -v mmdebstrap >/dev/null; then
    mmdebstrap --quiet --variant=minbase bookworm "$root" "$mirror"
  elif command -v debootstrap >/dev/null; then
    debootstrap --variant=minbase bookworm "$root" "$mirror" >/dev/null
  else
    echo "$0: needs mmdebstrap or debootstrap (apt-get install mmdebstrap)" >&2
    exit 1
  fi
  # apt of the root reaches the network as this machine's does.
  rm -rf "$root"/etc/apt/sources.list "$root"/etc/apt/sources.list.d/*
  for file in /etc/apt/sources.list /etc/apt/sources.list.d/*.sources /etc/apt/sources.list.d/*.list; do
    if [[ -e $file ]]; then cp "$file" "$root${file%/*}/"; fi
  done
  for file in /etc/apt/apt.conf.d/* /etc/apt/trusted.gpg.d/* /etc/apt/keyrings/*; do
    # Hooks that call programs of this machine have no place in the root.
    if [[ -e $file ]] && ! grep -qs 'Invoke' "$file"; then cp "$file" "$root${file%/*}/"; fi
  done
  if [[ -d /usr/local/share/ca-certificates ]]; then
    mkdir -p "$root/usr/local/share"
    cp -r /usr/local/share/ca-certificates "$root/usr/local/share/"
  fi
  printf 'bare root                    %4d s  (%d packages, %s)\n' $((SECONDS - start)) \
    "$(grep -c '^Status: install ok' "$root/var/lib/dpkg/status")" \
    "$(du -sh --one-file-system "$root" | cut -f1)"
fi
cp -L /etc/resolv.conf /etc/hosts "$root/etc/"
mountpoint -q "$root/proc" || mount -t proc proc "$root/proc"
mountpoint -q "$root/sys" || mount -t sysfs -o ro sysfs "$root/sys"
mountpoint -q "$root/dev" || mount -t tmpfs -o mode=755,size=1m tmpfs "$root/dev"
for device in null zero full random urandom tty; do
  [[ -e $root/dev/$device ]] || cp -a "/dev/$device" "$root/dev/$device"
done
mkdir -p "$root/dev/shm" "$root/dev/pts"
ln -sfn /proc/self/fd "$root/dev/fd"
mountpoint -q "$root/dev/shm" || mount -t tmpfs tmpfs "$root/dev/shm"

# The repository's files as a release archive would hold them: no .git, no build folder.
mkdir -p "$root/lockstep"
if git rev-parse --is-inside-work-tree >/dev/null 2>&1; then
  git ls-files -z --cached --others --exclude-standard |
    while IFS= read -r -d '' file; do if [[ -e $file ]]; then printf '%s\0' "$file"; fi; done |
    tar --null -T - -cf - | tar -xf - -C "$root/lockstep"
else
  tar --exclude ./build --exclude ./runs -cf - . | tar -xf - -C "$root/lockstep"
fi
echo "+ ./dev $*   (in the bare root)"
environment=(HOME=/root PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8)
for name in http_proxy https_proxy no_proxy LOCKSTEP_JOBS; do
  [[ ${!name:-} ]] && environment+=("$name=${!name}")
done
rc=0
chroot "$root" /usr/bin/env -i "${environment[@]}" /bin/bash -c 'cd /lockstep && exec ./dev "$@"' \
  dev "$@" </dev/null || rc=$?
printf 'bare root, all               %4d s  (exit code %d)\n' $((SECONDS - start)) "$rc"
exit "$rc"
