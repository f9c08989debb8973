# To be sourced: a container engine of our own, below $engine_folder, with no service installed and nothing enabled.
#
# The engine, its client, Compose and BuildKit come from Debian trixie: bookworm's engine is too old for
# `start_interval`. runc comes from this machine's own suite, whose C library it needs.
engine_programs=$engine_folder/programs

fetch_engine() {
  [[ -e $engine_programs/.complete ]] && return
  echo ">>> fetching a container engine from Debian's packages"
  rm -rf "$engine_programs"
  unpack_debs "$engine_programs" trixie docker.io docker-cli docker-compose docker-buildx containerd
  unpack_debs "$engine_programs" "$(. /etc/os-release && echo "$VERSION_CODENAME")" runc
  touch "$engine_programs/.complete"
}

# From here on `docker` is the client of this engine, with Compose v2.
use_engine() {
  export PATH=$engine_programs/usr/bin:$engine_programs/usr/sbin:$PATH
  export DOCKER_HOST=unix://$engine_folder/docker.sock DOCKER_CONFIG=$engine_folder/client
  mkdir -p "$DOCKER_CONFIG"
  ln -sfn "$engine_programs/usr/libexec/docker/cli-plugins" "$DOCKER_CONFIG/cli-plugins"
}

start_engine() {
  nice -n 5 setsid dockerd --data-root "$engine_folder/data" --exec-root "$engine_folder/exec" \
    --pidfile "$engine_folder/pid" --host "$DOCKER_HOST" >"$engine_folder/log" 2>&1 </dev/null 9>&- &
  local tries
  for ((tries = 0; tries < 150; tries++)); do
    docker info >/dev/null 2>&1 && return
    sleep 0.2
  done
  echo "the container engine did not start:" >&2
  tail -5 "$engine_folder/log" >&2
  return 1
}

stop_engine() {
  local pid
  pid=$(cat "$engine_folder/pid" 2>/dev/null) || return 0
  kill "$pid" 2>/dev/null || return 0
  while kill -0 "$pid" 2>/dev/null; do sleep 0.2; done
}
