# To be sourced: packages of any Debian suite, unpacked beside this machine's own. Nothing is installed.
debian_mirror=$(awk '/^URIs:/ {print $2; exit} /^deb / {for (i = 2; i <= NF; i++) if ($i ~ /^http/) {print $i; exit}}' \
  /etc/apt/sources.list.d/debian.sources /etc/apt/sources.list 2>/dev/null) || true
debian_keyring=/usr/share/keyrings/debian-archive-keyring.gpg

unpack_debs() {  # target suite packages...
  local target=$1 suite=$2 state
  shift 2
  state=$(mktemp -d)
  mkdir -p "$state/lists/partial" "$state/cache/archives/partial" "$state/debs" "$target"
  echo "deb [signed-by=$debian_keyring] $debian_mirror $suite main" >"$state/sources.list"
  local options=(
    -qq -o "Dir::Etc::sourcelist=$state/sources.list" -o Dir::Etc::sourceparts=- -o "Dir::State::lists=$state/lists"
    -o "Dir::Cache=$state/cache" -o Dir::State::status=/dev/null -o APT::Sandbox::User=root
  )
  apt-get "${options[@]}" update
  (cd "$state/debs" && apt-get "${options[@]}" download "$@")
  local deb
  for deb in "$state"/debs/*.deb; do dpkg-deb -x "$deb" "$target"; done
  rm -rf "$state"
}
