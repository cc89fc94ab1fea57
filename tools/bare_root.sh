# SPDX-License-Identifier: Apache-2.0
# Sourced by what works in a bare Debian 12: makes a root and mounts what programs in it need.
# shellcheck shell=bash

# make_bare_root DIR [PACKAGE..]: a minimal Debian 12 with these packages. Package sources, proxy settings and
# CA certificates are this machine's. Needs root, and mmdebstrap or debootstrap.
make_bare_root() {
  local root=$1 mirror file include=()
  shift
  # The archive that this machine itself uses.
  mirror=$(sed -n 's/^URIs: *\([^ ]*\).*/\1/p; s/^deb \(\[[^]]*\] \)\{0,1\}\([^ ]*\).*/\2/p' \
    /etc/apt/sources.list /etc/apt/sources.list.d/*.sources /etc/apt/sources.list.d/*.list \
    2>/dev/null | head -n 1 || true)
  [[ $mirror ]] || { echo "bare_root: found no package source in /etc/apt" >&2; return 1; }
  (($# == 0)) || include=(--include="$(IFS=,; echo "$*")")
  if command -v mmdebstrap >/dev/null; then
    mmdebstrap --quiet --variant=minbase "${include[@]}" bookworm "$root" "$mirror"
  elif command -v debootstrap >/dev/null; then
    debootstrap --variant=minbase "${include[@]}" bookworm "$root" "$mirror" >/dev/null
  else
    echo "bare_root: needs mmdebstrap or debootstrap (apt-get install mmdebstrap)" >&2
    return 1
  fi
  # apt of the root reaches Debian as this machine's does. Other archives' keys may not be there.
  rm -rf "$root"/etc/apt/sources.list "$root"/etc/apt/sources.list.d/*
  for file in /etc/apt/sources.list /etc/apt/sources.list.d/*.sources /etc/apt/sources.list.d/*.list; do
    if [[ -e $file ]] && grep -qs debian "$file"; then
      cp "$file" "$root${file%/*}/"
    fi
  done
  for file in /etc/apt/apt.conf.d/* /etc/apt/trusted.gpg.d/* /etc/apt/keyrings/*; do
    # Hooks that call programs of this machine have no place in the root.
    if [[ -e $file ]] && ! grep -qs 'Invoke' "$file"; then
      mkdir -p "$root${file%/*}"
      cp "$file" "$root${file%/*}/"
    fi
  done
  if [[ -d /usr/local/share/ca-certificates ]]; then
    mkdir -p "$root/usr/local/share"
    cp -r /usr/local/share/ca-certificates "$root/usr/local/share/"
  fi
}

# mount_bare_root DIR: what programs expect of a machine.
mount_bare_root() {
  local root=$1 device
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
}

unmount_bare_root() {
  local root=$1 mount
  for mount in proc sys dev/shm dev/pts dev; do
    if mountpoint -q "$root/$mount"; then umount "$root/$mount" || umount -l "$root/$mount"; fi
  done
}

# in_bare_root DIR COMMAND..: without this machine's environment, but for the proxy.
in_bare_root() {
  local root=$1 name environment=(HOME=/root PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
    LANG=C.UTF-8 DEBIAN_FRONTEND=noninteractive)
  shift
  for name in http_proxy https_proxy no_proxy LOCKSTEP_JOBS; do
    [[ ${!name:-} ]] && environment+=("$name=${!name}")
  done
  chroot "$root" /usr/bin/env -i "${environment[@]}" "$@" </dev/null
}
