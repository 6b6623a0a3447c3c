# The variables sandbox, code, version, jq and path are set by gpuCheck.nix.
# shellcheck shell=bash disable=SC2154
set -euo pipefail
PATH=$path:$PATH

usage() {
  cat <<'TXT'
usage: nix-sandbox-gpu-check [NAME]...

Tries devices in a sandbox, and prints what a report about it needs: the
versions, the device nodes of this machine, and what code can do with them in a
sandbox. NAME is a CDI name, such as nvidia.com/gpu=0, or a device node, such as
/dev/dri/renderD128. Without names it tries every CDI name that ends with =all,
or the first render node.

The output has no name of the machine or of a user. Exit status: 1 where
something failed, 77 where there is no device to try.
TXT
}

case ${1:-} in
  -h | --help) usage; exit ;;
esac

echo "nix-sandbox-mcp $version, $(uname -srm), $(sed -n 's/^PRETTY_NAME=//p' /etc/os-release 2>/dev/null | tr -d '"' || true)"
if [ "$(id -u)" = 0 ]; then echo 'started by root'; else echo 'started by an ordinary user'; fi
for module in nvidia amdgpu i915 xe; do
  if [ -e "/sys/module/$module" ]; then
    echo "kernel module $module $(cat "/sys/module/$module/version" 2>/dev/null || true)"
  fi
done
for node in /dev/nvidia* /dev/dri/* /dev/kfd /dev/dxg /dev/accel/*; do
  if [ -c "$node" ]; then stat --format '%A %G %t:%T %n' "$node"; fi
done

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# describe NAME PROGRAM: a program of the sandbox, with this device.
describe() {
  head -n 1 "$sandbox/bin/$2"
  sed 1d "$sandbox/bin/$2" | "$jq" --compact-output --arg name "$1" '.devices.names = [$name]'
}

# written NAME PROGRAM: its path.
written() {
  mkdir -p "$work/bin"
  describe "$1" "$2" >"$work/bin/$2"
  chmod +x "$work/bin/$2"
  printf '%s\n' "$work/bin/$2"
}

names=("$@")
if [ $# = 0 ]; then
  found=$("$(written none.example/none=none check)" | "$jq" --raw-output '.findings[] | select(.name == "CDI names") | .found')
  echo "CDI names: $found"
  while IFS= read -r name; do
    case $name in *=all) names+=("$name") ;; esac
  done < <(printf '%s\n' "${found%%;*}" | sed 's/, /\n/g')
  if [ ${#names[@]} = 0 ] && [ -c /dev/dri/renderD128 ]; then names=(/dev/dri/renderD128); fi
fi
if [ ${#names[@]} = 0 ]; then
  echo 'SKIP: there is no CDI name that ends with =all, and no /dev/dri/renderD128: name a device'
  exit 77
fi

status=0
for name in "${names[@]}"; do
  echo "in a sandbox with $name:"
  "$(written "$name" check)" | "$jq" --raw-output '.findings[] | select(.name | startswith("devices ")) | (if .ok then "ok " else "FAIL " end) + .name + ": " + .found + (if .fix then "\n  " + .fix else "" end)'
  "$(written "$name" run)" <"$code" || status=1
done
exit $status
