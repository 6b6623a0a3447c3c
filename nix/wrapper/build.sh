# shellcheck shell=bash
# Builds what start.sh found to build, beside the runtime: reports to it in
# $NIX_SANDBOX_BUILDS, and to the operator on standard error. A line of its input
# has it build again: what had failed is tried, and what leads elsewhere now is
# replaced. It ends when its input does, which is when the runtime has ended, and
# takes the folder with it.

# parallel: how many of Nix's commands run at once; each evaluates, which takes
# a processor and some hundred MiB.
parallel=4
# shown: how many lines of Nix's error are kept for whoever calls.
shown=20

# watched NAME COMMAND...: runs it with its output on standard error, and
# leaves the last lines in $private/.NAME.log.
watched() {
  local name=$1
  shift
  "$@" 2>&1 </dev/null | {
    local line last=()
    while IFS= read -r line; do
      # Of nixpkgs that would be thousands.
      [[ $line != 'evaluating file '* ]] || continue
      printf 'nix-sandbox-mcp: %s: %s\n' "$name" "$line" >&2
      # An error begins anew what is worth telling.
      [[ $line != error:* ]] || last=()
      last+=("$line")
      [ ${#last[@]} -le $shown ] || last=("${last[@]:1}")
    done
    [ ${#last[@]} = 0 ] || printf '%s\n' "${last[@]}" >"$private/.$name.log"
  }
  return "${PIPESTATUS[0]}"
}

# built NAME: whether there is one, of an earlier build.
built() { [ -L "$private/$1" ] || [ -L "$private/$1.named" ]; }

# failed NAME [REASON]: tells that it will not come, by default with what Nix
# said last.
failed() {
  if [ $# -gt 1 ]; then
    printf '%s\n' "$2" >"$private/.$1.log"
    printf 'nix-sandbox-mcp: %s: %s\n' "$1" "$2" >&2
  fi
  if built "$1"; then
    rm -f -- "$private/.$1.log"
    printf 'nix-sandbox-mcp: %s: the sandbox that was built before stays\n' "$1" >&2
    return
  fi
  [ -e "$private/.$1.log" ] || printf 'Nix ended without a word\n' >"$private/.$1.log"
  mv -- "$private/.$1.log" "$private/$1.failed"
  rm -f -- "$private/$1.building"
}

# ready NAME LINK ROOT: shows what a root leads to.
ready() {
  local artifact
  artifact=$(readlink -f -- "$3")
  if ! [ -e "$artifact/metadata.json" ]; then
    failed "$1" "$artifact is no sandbox: name an attribute that nix-sandbox-mcp.lib.mkSandbox made"
    return
  fi
  ln -sfT -- "$artifact" "$private/.$2.link"
  mv -T -- "$private/.$2.link" "$private/$2"
  rm -f -- "$private/$1.building" "$private/.$1.log"
}

# root KEY: makes a place for a GC root.
root() {
  root=$cache/roots/$(printf %s "$1" | digest)
  mkdir -p -- "$root"
  : >"$root/used"
  root+=/result
}

# What waits for a build waits longer, so that what runs does not.
nix_build() { nice -n 10 nix --extra-experimental-features 'nix-command flakes' build -v --no-write-lock-file "$@"; }

# one INDEX: builds one environment.
one() {
  local kind=${kinds[$1]} name=${names[$1]} value=${values[$1]} base=${bases[$1]:-/} root
  case $kind in
    reference | sandbox)
      root "$base $value"
      cd -- "$base" || return
      if watched "$name" nix_build --out-link "$root" -- "$value"; then
        case $kind in
          reference) ready "$name" "$name" "$root" ;;
          sandbox) ready "$name" "$name.named" "$root" ;;
        esac
      else
        failed "$name"
      fi
      ;;
    flake)
      root "$config_file $name"
      if watched "$name" nix_build --impure --out-link "$root" -f "$start_nix" --argstr config "$config_file" --argstr base "$config_base" "environments.$name"; then
        ready "$name" "$name" "$root"
      else
        failed "$name"
      fi
      ;;
    project)
      root "$value project"
      if watched "$name" nix_build --impure --out-link "$root" -f "$start_nix" --argstr folder "$value" project; then
        ready "$name" "$name" "$root"
      else
        failed "$name"
      fi
      ;;
  esac
}

# own NAME DERIVATION: builds an environment that the configuration describes.
own() {
  if [ -z "$2" ]; then
    watched "$1" ask "environments.$1.drvPath" --argstr config "$config_file" || true
    failed "$1"
  elif watched "$1" nice -n 10 nix-store --realise "$2" --add-root "$config/built/$1" --indirect; then
    ready "$1" "$1" "$config/built/$1"
  else
    failed "$1"
  fi
}

# room: waits until one more may run.
room() {
  running=$((running + 1))
  [ $running -le $parallel ] || { wait -n || true; running=$((running - 1)); }
}

# all: builds everything. What the configuration itself describes is the same
# for as long as the server runs.
all() {
  local i name derivation derivations='' asked=no running=0
  for i in "${!kinds[@]}"; do
    built "${names[i]}" || printf '%s\n' "$BASHPID" >"$private/${names[i]}.building"
    rm -f -- "$private/${names[i]}.failed"
  done
  for i in "${!kinds[@]}"; do
    if [ "${kinds[i]}" != own ]; then
      room
      one "$i" &
      continue
    fi
    ! built "${names[i]}" || continue
    # One evaluation serves all of these.
    if [ $asked = no ]; then
      asked=yes
      derivations=$(ask derivations --argstr config "$config_file" 2> >(tee "$private/.asked" >&2)) || derivations=
    fi
    name=${names[i]}
    if [ -z "$derivations" ]; then
      tail -n $shown -- "$private/.asked" >"$private/.$name.log"
      failed "$name"
      continue
    fi
    derivation=$'\n'$derivations$'\n' derivation=${derivation#*$'\n'"$name "} derivation=${derivation%%$'\n'*}
    room
    own "$name" "$derivation" &
  done
  wait
}

# begin: builds everything, in a group of its own, so that all of it can be ended.
begin() {
  set -m
  (
    set +m
    trap - INT HUP TERM
    all
  ) </dev/null &
  group=$!
  set +m
}

# busy: whether it is at that.
busy() { [ -n "$group" ] && kill -0 -- "-$group" 2>/dev/null; }

# The server's end is what ends this, and not what was meant for the server.
trap '' INT HUP TERM
group='' asked=no
[ ${#kinds[@]} = 0 ] || begin
while :; do
  # Asked while it builds, it looks once a second whether it has.
  patience=()
  if [ $asked = yes ]; then
    if busy; then patience=(-t 1); else asked=no; begin; fi
  fi
  if IFS= read -r "${patience[@]}" _; then
    [ ${#kinds[@]} = 0 ] || asked=yes
  elif [ $? -le 128 ]; then
    break
  fi
done
if busy && kill -TERM -- "-$group" 2>/dev/null; then
  # Nix takes a moment to end its own builds; it gets 2 s.
  for ((tenths = 0; tenths < 20; tenths++)); do
    busy || break
    sleep 0.1
  done
  kill -KILL -- "-$group" 2>/dev/null
fi
rm -rf -- "$private"
