# shellcheck shell=bash
# Builds the environments that start.sh listed, while the runtime serves. It
# reports to the runtime in the folder $NIX_SANDBOX_BUILDS, and to the operator
# on standard error. Lines of its standard input say what to do:
#
#   an empty line           build again: failed builds are tried again, and results
#                           that changed are replaced
#   bounds B S M D K        bounds of environments with packages, as numbers: builds at
#                           once, seconds of one, bytes of one, days and bytes to keep
#   derive KEY              build the environment with packages of that key; see
#                           derive.sh
#
# Standard input ends with the runtime; then this ends too and removes the folder.

# parallel: how many Nix commands run at once. Each of them evaluates, which takes
# one processor and some hundred MiB.
parallel=4
# shown: how many lines of Nix's error are kept for the caller's answer.
shown=20

. "$confine"
. "$deriver"

# fail PROBLEM: what is wrong with a configuration that is read again ends nothing but that.
fail() {
  printf 'nix-sandbox-mcp: error: %s\n' "$1" >&2
  exit 1
}

# Nix before 2.20 asks git about checkouts, whose settings name programs to
# start: an unpacked archive can bring such settings.
n=${GIT_CONFIG_COUNT:-0}
export GIT_CONFIG_COUNT=$((n + 2)) \
  "GIT_CONFIG_KEY_$n=core.fsmonitor" "GIT_CONFIG_VALUE_$n=false" \
  "GIT_CONFIG_KEY_$((n + 1))=core.hooksPath" "GIT_CONFIG_VALUE_$((n + 1))=/dev/null"

# logged NAME COMMAND...: runs a command, copies its output to standard error,
# and leaves the last lines in $private/.NAME.log.
logged() {
  local name=$1
  shift
  "$@" 2>&1 </dev/null | {
    local line last=()
    # A project's flake can print what it likes.
    while IFS= read -r -n 4096 line || [ -n "$line" ]; do
      line=${line//[[:cntrl:]]/}
      # nixpkgs has thousands of these lines.
      [[ $line != 'evaluating file '* ]] || continue
      printf 'nix-sandbox-mcp: %s: %s\n' "$name" "$line" >&2
      # Lines before the last error do not explain it.
      [[ $line != error:* ]] || last=()
      last+=("$line")
      [ ${#last[@]} -le $shown ] || last=("${last[@]:1}")
    done
    [ ${#last[@]} = 0 ] || printf '%s\n' "${last[@]}" >"$private/.$name.log"
  }
  return "${PIPESTATUS[0]}"
}

# built NAME: whether an earlier build of this environment succeeded.
built() { [ -L "$private/$1" ] || [ -L "$private/$1.named" ]; }

# failed NAME [REASON]: reports that a build failed, by default with the last
# lines of Nix's output.
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

# ready NAME LINK ROOT: reports the target of a GC root as the environment NAME.
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
  case $2 in *.named) rm -f -- "$private/$1" ;; *) rm -f -- "$private/$1.named" ;; esac
}

# root KEY: sets $root to the path of a GC root, in a folder that it makes.
root() {
  root=$cache/roots/$(printf %s "$1" | digest)
  mkdir -p -- "$root"
  : >"$root/used"
  root+=/result
}

# Builds have a low priority, so that they do not slow down running calls.
nix_build() { nice -n 10 nix --extra-experimental-features 'nix-command flakes' build -v --no-write-lock-file "$@"; }

# one INDEX: builds one environment.
one() {
  local kind=${kinds[$1]} name=${names[$1]} value=${values[$1]} base=${bases[$1]:-/} root variables problem
  case $kind in
    reference | sandbox)
      root "$base $value"
      cd -- "$base" || return
      if logged "$name" nix_build --out-link "$root" -- "$value"; then
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
      if logged "$name" nix_build --impure --out-link "$root" -f "$start_nix" "${of_config[@]}" --argstr base "$config_base" "environments.$name"; then
        ready "$name" "$name" "$root"
      else
        failed "$name"
      fi
      ;;
    project)
      problem=
      if evaluate_project "$name" "$value"; then
        root "$value project"
        if logged "$name" confined_build --impure --out-link "$root" -f "$start_nix" --argstr variables "$variables" project; then
          ready "$name" "$name" "$root"
        else
          failed "$name"
        fi
      else
        failed "$name" ${problem:+"$problem"}
      fi
      ;;
  esac
}

# own NAME DERIVATION: builds an environment that the configuration describes.
own() {
  if [ -z "$2" ]; then
    logged "$1" ask "environments.$1.drvPath" "${of_config[@]}" || true
    failed "$1"
  elif logged "$1" nice -n 10 nix-store --realise "$2" --add-root "$config/built/$1" --indirect; then
    ready "$1" "$1" "$config/built/$1"
  else
    failed "$1"
  fi
}

# await_slot: waits until fewer than $parallel builds run.
await_slot() {
  running=$((running + 1))
  [ $running -le $parallel ] || { wait -n || true; running=$((running - 1)); }
}

# reconfigure: reads the configuration again, lists what has to be built for it, and removes the
# environments that it no longer has. If it has mistakes, everything stays as it is.
reconfigure() {
  local i name
  # What comes of references and of the project stays.
  for i in "${!kinds[@]}"; do
    case ${kinds[i]} in
      reference | project) ;;
      *) unset "kinds[i]" "names[i]" "values[i]" "bases[i]" ;;
    esac
  done
  config=''
  if [ -n "$user_config" ] && ! [ -e "$watched" ]; then
    config_file=
  else
    config_file=$watched
    # Its mistakes end a shell of their own.
    (configure) || return
    configure
    for i in "$config"/built/*; do
      if [ -L "$i" ]; then
        name=${i##*/}
        ready "${name%.named}" "$name" "$i"
      fi
    done
  fi
  for i in "$private"/*; do
    name=${i##*/} name=${name%.*}
    if [[ " ${names[*]} " != *" $name "* ]] && ! [ -L "$config/built/$name" ] && ! [ -L "$config/built/$name.named" ]; then
      rm -f -- "$i"
    fi
  done
}

# all: builds everything, but an environment that the configuration describes only once for
# each of its contents.
all() {
  local i name derivation derivations='' asked=no running=0
  if [ -n "$watched" ] && ! reconfigure; then return; fi
  for i in "${!kinds[@]}"; do
    built "${names[i]}" || printf '%s\n' "$BASHPID" >"$private/${names[i]}.building"
    rm -f -- "$private/${names[i]}.failed"
  done
  for i in "${!kinds[@]}"; do
    if [ "${kinds[i]}" != own ]; then
      await_slot
      one "$i" &
      continue
    fi
    # One evaluation serves all of these.
    if [ $asked = no ]; then
      asked=yes
      derivations=$(ask derivations "${of_config[@]}" 2> >(tee "$private/.asked" >&2)) || derivations=
    fi
    name=${names[i]}
    if [ -z "$derivations" ]; then
      tail -n $shown -- "$private/.asked" >"$private/.$name.log"
      failed "$name"
      continue
    fi
    derivation=$'\n'$derivations$'\n' derivation=${derivation#*$'\n'"$name "} derivation=${derivation%%$'\n'*}
    await_slot
    own "$name" "$derivation" &
  done
  wait
}

# begin: builds everything in a process group of its own, which can be ended
# as a whole.
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

# busy: whether that process group runs.
busy() { [ -n "$group" ] && kill -0 -- "-$group" 2>/dev/null; }

# end_group GROUP: ends a process group.
end_group() {
  local tenths
  kill -TERM -- "-$1" 2>/dev/null || return 0
  # Nix needs time to end its own builds: 2 s.
  for ((tenths = 0; tenths < 20; tenths++)); do
    kill -0 -- "-$1" 2>/dev/null || return 0
    sleep 0.1
  done
  kill -KILL -- "-$1" 2>/dev/null
}

# Signals may be meant for the server, in whose process group this is: only the
# end of standard input ends this.
trap '' INT HUP TERM
group='' asked=no begun=''
[ ${#kinds[@]} = 0 ] || begin
while :; do
  # It looks every 2 seconds whether the configuration has changed. If it is asked while it builds, it checks every
  # second whether it has ended.
  wait_option=()
  if [ -n "$watched" ]; then
    wait_option=(-t 2)
    if note_change; then asked=yes; fi
  fi
  if [ $asked = yes ]; then
    if busy; then wait_option=(-t 1); else asked=no; begin; fi
  fi
  derive_next
  if [ ${#queue[@]} != 0 ]; then wait_option=(-t 0.2); fi
  status=0
  IFS= read -r "${wait_option[@]}" line || status=$?
  # Where the time is up within a line, the rest comes with a later read.
  begun+=$line
  if [ $status = 0 ]; then
    line=$begun begun=''
    case $line in
      'bounds '*) set_bounds "${line#bounds }" ;;
      'derive '*) derive "${line#derive }" ;;
      *) [ ${#kinds[@]} = 0 ] && [ -z "$watched" ] || asked=yes ;;
    esac
  elif [ $status -le 128 ]; then
    break
  fi
done
for one in "${!deriving[@]}"; do end_group "${deriving[$one]}" & done
if busy; then end_group "$group"; fi
wait
rm -rf -- "$private"
