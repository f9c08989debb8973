#!/usr/bin/env bash
# Make the file systems of the stand-ins for base images, from Debian's packages: roots.sh FOLDER.
#
# FOLDER/python.tar: Debian bookworm with its Python 3.11. FOLDER/valkey.tar: Debian trixie with valkey-cli.
# FOLDER/busybox: a static BusyBox. What is there already is kept.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
folder=$1
source "$here/apt.sh"
certificates=/etc/ssl/certs/ca-certificates.crt
mkdir -p "$folder"

# The stand-ins reach the package registries the way this machine does.
trust_as_this_machine() {  # root folder
  mkdir -p "$1${certificates%/*}" "$1/etc/apt/apt.conf.d"
  cp --remove-destination "$certificates" "$1$certificates"
  cp /etc/apt/apt.conf.d/* "$1/etc/apt/apt.conf.d/"
  printf '[global]\ncert = %s\n' "$certificates" >"$1/etc/pip.conf"
}

make_root() {  # name suite packages
  local tar=$folder/$1.tar root
  [[ -e $tar ]] && return
  echo ">>> debootstrap $2 for $1: this takes about 2 minutes, once."
  root=$(mktemp -d "$folder/$1.XXXXXX")
  chmod 755 "$root"
  if ! debootstrap --variant=minbase --include="$3" "$2" "$root" "$debian_mirror" >"$folder/$1.log" 2>&1; then
    tail -5 "$folder/$1.log" >&2
    rm -rf --one-file-system "$root"
    return 1
  fi
  rm -rf "$root"/var/cache/apt/archives/*.deb "$root"/var/lib/apt/lists/* "$root"/usr/share/{doc,man,info,locale}/*
  trust_as_this_machine "$root"
  # The image of Python has it under this name.
  [[ -e $root/usr/bin/python3 ]] && ln -s /usr/bin/python3 "$root/usr/local/bin/python"
  tar -C "$root" --numeric-owner --exclude='./dev/*' --exclude='./proc/*' --exclude='./sys/*' -cf "$tar.part" .
  mv "$tar.part" "$tar"
  rm -rf --one-file-system "$root"
}

make_root python bookworm ca-certificates,netbase,tzdata,python3,python3-venv
make_root valkey trixie valkey-tools
if [[ ! -e $folder/busybox ]]; then
  unpack_debs "$folder/busybox.root" bookworm busybox-static
  cp "$folder/busybox.root/bin/busybox" "$folder/busybox"
  rm -rf "$folder/busybox.root"
fi
