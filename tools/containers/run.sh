#!/usr/bin/env bash
# Run a command with a container engine and our base images at hand: run.sh PYTHON COMMAND...
#
# An engine that runs already is used. Where none runs, one is fetched from Debian's packages and started with a
# data folder of its own; it is stopped at the end. INFERFLUX_CONTAINERS_DIR says where all of that is kept.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
python=$1
shift
folder=${INFERFLUX_CONTAINERS_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/inferflux/containers}
engine_folder=$folder/engine
source "$here/apt.sh"
source "$here/engine.sh"
source "$here/bases.sh"

refuse() {
  echo "make compose-test cannot run here: $1" >&2
  exit 2
}

engine_is_at_hand() { docker info >/dev/null 2>&1 && docker compose version >/dev/null 2>&1; }

install_what_is_missing() {
  local program missing=()
  for program in iptables debootstrap; do command -v "$program" >/dev/null || missing+=("$program"); done
  ((${#missing[@]})) || return 0
  echo ">>> installing ${missing[*]}"
  { apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends "${missing[@]}"; } \
    >/dev/null || refuse "apt-get does not install ${missing[*]}"
}

[[ $(uname -s) == Linux ]] || refuse "it needs Linux"
((EUID == 0)) || refuse "it needs root, for network faults and for an engine of its own"
for program in nsenter ip; do command -v "$program" >/dev/null || refuse "it needs the program $program"; done
if engine_is_at_hand; then
  echo ">>> using the container engine that runs"
else
  command -v apt-get >/dev/null && [[ -n $debian_mirror && -e $debian_keyring ]] ||
    refuse "no container engine with Compose v2 runs, and without Debian's apt none can be fetched"
  mkdir -p "$engine_folder"
  exec 9>"$folder/lock"
  flock -n 9 || refuse "another run uses $folder"
  install_what_is_missing
  fetch_engine
  use_engine
  trap stop_engine EXIT
  start_engine
fi
ensure_bases "$folder/bases" "$python"
INFERFLUX_CONTAINERS_READY=1 "$@"
