# shellcheck shell=bash
# What ./demo and ./check need before their own work: Nix on this machine, a
# package set that can be reached, and the built server. Sourced by both;
# nothing here knows what they do with it.
#
# After `prepare`, $nixpkgs is `nixpkgs` or `debpkgs`, "${nix_flags[@]}" makes
# any `nix` command use it, and $NIX_CONFIG holds this project's settings.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
cache=$root/.cache
# A checkout is read through git, which leaves build products out; an unpacked
# archive as it is.
if [ -e "$root/.git" ]; then flake=$root; else flake=path:$root; fi
install=yes        # --no-install says what it would install, and stops
nixpkgs=${NIX_SANDBOX_NIXPKGS:-}
nix_flags=()

# nixpkgs of this age evaluates only from this version of Nix on.
nixpkgs_wants=2.18
# A network that does not answer within this many seconds is taken as absent.
probe_seconds=5

if [ -t 1 ]; then
  bold=$'\e[1m' dim=$'\e[2m' red=$'\e[31m' green=$'\e[32m' yellow=$'\e[33m' plain=$'\e[0m'
else
  bold='' dim='' red='' green='' yellow='' plain=''
fi

title() { printf '\n%s%s%s\n' "$bold" "$*" "$plain"; }
say() { printf '  %s\n' "$*"; }
fail() {
  printf '%s%s: error: %s%s\n' "$red" "${0##*/}" "$1" "$plain" >&2
  [ $# -lt 2 ] || printf '%s: hint: %s\n' "${0##*/}" "$2" >&2
  exit 1
}

# now: milliseconds, for differences.
now() { local t=${EPOCHREALTIME/[.,]/}; echo $((t / 1000)); }

# took START: the seconds since then, with one digit.
took() { local ms=$(($(now) - $1)); printf '%d.%d s' $((ms / 1000)) $((ms % 1000 / 100)); }

# watched LOG COMMAND...: runs the command with its output in LOG, and says
# every 5 s that it still runs and the last thing that it wrote.
watched() {
  local log=$1 pid start status=0 beat=0 last
  shift
  start=$(now)
  "$@" >"$log" 2>&1 &
  pid=$!
  # A signal to this script must not leave the command behind.
  trap 'kill "$pid" 2>/dev/null; exit 130' INT TERM
  while kill -0 "$pid" 2>/dev/null; do
    sleep 0.1
    if (($(now) - start >= (beat + 1) * 5000)); then
      beat=$((($(now) - start) / 5000))
      last=$(tail -n 1 "$log" | tr -cd '[:print:]' | cut -c 1-100)
      printf '  %s… %d s%s%s\n' "$dim" $((beat * 5)) "${last:+: $last}" "$plain"
    fi
  done
  wait "$pid" || status=$?
  trap - INT TERM
  return $status
}

have() { command -v "$1" >/dev/null 2>&1; }

# version_at_least WANTED ACTUAL
version_at_least() { [ "$(printf '%s\n%s\n' "$1" "$2" | sort -V | head -n 1)" = "$1" ]; }

# install_missing PROGRAM=PACKAGE...: installs the packages whose program is
# not on the PATH (a path is looked up as it is), with apt, as root.
install_missing() {
  local pair missing=() os=''
  for pair; do
    case $pair in
      /*) [ -e "${pair%%=*}" ] || missing+=("${pair#*=}") ;;
      *) have "${pair%%=*}" || missing+=("${pair#*=}") ;;
    esac
  done
  [ ${#missing[@]} -gt 0 ] || return 0
  [ ! -r /etc/os-release ] || os=$(. /etc/os-release && echo "${ID:-} ${ID_LIKE:-}")
  if ! [[ $os == *debian* && $(uname -m) == x86_64 ]]; then
    fail "these are missing: ${missing[*]}, and only Debian and Ubuntu on amd64 can be set up from here" \
      "install Nix (nixos.org/download) and bubblewrap with your system's package manager, then run this again"
  fi
  say "to install with apt-get: ${missing[*]}"
  [ $install = yes ] || fail "--no-install: nothing was installed" "run: apt-get install --no-install-recommends ${missing[*]}"
  [ "$(id -u)" = 0 ] || fail "installing takes root" "run: sudo apt-get install --no-install-recommends ${missing[*]}"
  local log=$cache/install.log start
  start=$(now)
  export DEBIAN_FRONTEND=noninteractive
  watched "$log" apt-get -q update || say "${yellow}apt-get update failed; going on with the lists that are here${plain}"
  watched "$log" apt-get -q install -y --no-install-recommends "${missing[@]}" || {
    tail -n 20 "$log" >&2
    fail "apt-get could not install ${missing[*]}" "the whole log is in $log"
  }
  say "installed in $(took "$start")"
}

# reachable URL: whether Nix itself can fetch it in time.
reachable() {
  timeout "$probe_seconds" nix-instantiate --eval --option download-attempts 1 --option tarball-ttl 0 \
    --expr "builtins.readFile (builtins.fetchurl $1)" >/dev/null 2>&1
}

# choose_nixpkgs: sets $nixpkgs, and says why.
choose_nixpkgs() {
  local version rev why
  version=$(nix --version | sed 's/.* //')
  rev=$(sed -n 's/.*"rev": *"\([0-9a-f]*\)".*/\1/p' "$root/flake.lock" | head -n 1)
  case $nixpkgs in
    nixpkgs | debpkgs) why='as NIX_SANDBOX_NIXPKGS says' ;;
    '')
      if ! version_at_least "$nixpkgs_wants" "$version"; then
        nixpkgs=debpkgs why="nixpkgs wants Nix $nixpkgs_wants or later, this is $version"
      elif reachable https://cache.nixos.org/nix-cache-info &&
        reachable "https://raw.githubusercontent.com/NixOS/nixpkgs/$rev/.version"; then
        nixpkgs=nixpkgs why='it can be reached'
      else
        nixpkgs=debpkgs why="nixpkgs did not answer within $probe_seconds s"
      fi
      ;;
    *) fail "NIX_SANDBOX_NIXPKGS is '$nixpkgs'" "set it to nixpkgs or debpkgs, or leave it out" ;;
  esac
  case $nixpkgs in
    nixpkgs) say "packages: nixpkgs ($why)" ;;
    debpkgs) say "packages: Debian's, through setup/debpkgs ($why)" ;;
  esac
}

# vendor LOG: puts the Go modules where the build, which has no network, finds
# them. They are fetched for the files that the build takes, and no others: a
# file too many or too few fails here as it does with nixpkgs.
vendor() {
  local wanted hash source
  source=$(nix eval --impure --raw --expr "(import $root/nix { pkgs = import $cache/debpkgs { }; }).programs.vendor.src") ||
    fail "the source of the Go modules could not be evaluated"
  wanted=$(sed -n 's/.*"\(sha256-.*\)".*/\1/p' "$root/nix/lib/vendorHash.nix")
  watched "$1" "$root/setup/debpkgs/stage" --vendor "$source" nix-sandbox-mcp "$(cat "$root/VERSION")" "$cache/debpkgs" || {
    tail -n 20 "$1" >&2
    fail "the Go modules could not be fetched" "the whole log is in $1"
  }
  hash=$(grep '^sha256-' "$1" | tail -n 1 || true)
  [ "$hash" = "$wanted" ] || fail "nix/lib/vendorHash.nix is of other Go modules" "write \"$hash\" into it"
}

# prepare: Nix, its settings and the package set.
prepare() {
  local settings log start
  mkdir -p "$cache"
  case $(uname -s) in
    Linux) ;;
    *) fail "sandboxes need Linux, this is $(uname -s)" "run this on a Linux machine or in a virtual machine" ;;
  esac
  # Root of a machine without Nix's build users has to say so.
  settings='experimental-features = nix-command flakes'
  if [ "$(id -u)" = 0 ] && ! getent group nixbld >/dev/null; then
    settings+=$'\nbuild-users-group ='
  fi
  install_missing nix=nix-bin git=git /etc/ssl/certs/ca-certificates.crt=ca-certificates
  export NIX_CONFIG=${NIX_CONFIG:+$NIX_CONFIG$'\n'}$settings
  choose_nixpkgs
  if [ "$nixpkgs" = debpkgs ]; then
    # A cache that cannot be reached costs seconds for every command, and
    # Debian's default sandbox-paths name a file that may be absent.
    NIX_CONFIG+=$'\nsubstituters =\nsandbox-paths ='
    start=$(now)
    log=$cache/stage.log
    watched "$log" "$root/setup/debpkgs/stage" "$cache/debpkgs" || {
      tail -n 20 "$log" >&2
      fail "Debian's packages could not be staged" "the whole log is in $log"
    }
    vendor "$log"
    say "staged in $(took "$start")"
    nix_flags=(--override-input nixpkgs "path:$cache/debpkgs" --no-write-lock-file)
  fi
}

# build ATTRIBUTE LINK: builds an output of the flake to a link, and says how
# long it took.
build() {
  local log=$cache/build-${1//[^a-z0-9-]/-}.log start
  start=$(now)
  watched "$log" nix build -v "$flake#$1" "${nix_flags[@]}" -o "$2" || {
    tail -n 40 "$log" >&2
    fail "nix build .#$1 failed" "the whole log is in $log"
  }
  say "$1 built in $(took "$start")"
}

# build_from_nixpkgs ATTRIBUTE LINK: the same for something of the package set.
build_from_nixpkgs() {
  local packages=path:$cache/debpkgs options=()
  [ "$nixpkgs" = debpkgs ] || packages=nixpkgs options=(--inputs-from "$flake")
  nix build "${options[@]}" "$packages#$1" -o "$2" || fail "nix build $packages#$1 failed"
}

# nixpkgs_path: the folder of the package set.
nixpkgs_path() {
  if [ "$nixpkgs" = debpkgs ]; then
    echo "$cache/debpkgs"
  else
    nix eval --impure --raw --expr "(builtins.getFlake \"$flake\").inputs.nixpkgs.outPath"
  fi
}
