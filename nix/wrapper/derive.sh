# shellcheck shell=bash
# Builds environments to which calls added packages, one after the other or as many
# at once as the bounds say. build.sh sources this.
#
# The runtime made a folder $NIX_SANDBOX_PACKAGES/KEY with what it asks for in
# request.json (parts/packages/folder.go), which Nix reads: nothing here reads the
# names that a call brought. KEY is 64 hexadecimal digits.

# max_waiting: how many environments wait at most; of more, the newest is refused.
max_waiting=64

# The keys that wait, and the process groups of those that are built, by key.
queue=()
declare -A deriving=()
# The bounds that set_bounds documents, until the runtime sends its own.
bounds=(1 600 4294967296 30 17179869184)

# set_bounds NUMBERS: takes builds at once, seconds and bytes of one, and days and
# bytes of those that are kept.
set_bounds() {
  local one list
  read -r -a list <<<"$1"
  [ ${#list[@]} = 5 ] || return 0
  for one in "${list[@]}"; do [[ $one =~ ^[1-9][0-9]{0,17}$ ]] || return 0; done
  bounds=("${list[@]}")
  expire &
}

# derive KEY: has an environment built, unless it waits already. One that is being
# built waits too, because that build may have ended before it was asked for.
derive() {
  local one
  [[ $1 =~ ^[0-9a-f]{64}$ ]] && [ -d "$NIX_SANDBOX_PACKAGES/$1" ] || return 0
  for one in "${queue[@]}"; do [ "$one" != "$1" ] || return 0; done
  if [ ${#queue[@]} -ge $max_waiting ]; then
    not_derived "$NIX_SANDBOX_PACKAGES/$1" crowded
    return
  fi
  queue+=("$1")
}

# derive_next: begins as many of the builds that wait as there may be at once.
derive_next() {
  local key keys=("${queue[@]}")
  for key in "${!deriving[@]}"; do
    kill -0 -- "-${deriving[$key]}" 2>/dev/null || unset "deriving[$key]"
  done
  queue=()
  for key in "${keys[@]}"; do
    if [ -n "${deriving[$key]-}" ] || [ ${#deriving[@]} -ge "${bounds[0]}" ]; then
      queue+=("$key")
      continue
    fi
    # Who asks removes the report of an earlier failure: this one is of a build that
    # ended since then.
    if [ -e "$NIX_SANDBOX_PACKAGES/$key/failed" ]; then continue; fi
    # In a process group of its own, which can be ended as a whole.
    set -m
    (
      set +m
      trap - INT HUP TERM
      derived "$key" "${bounds[1]}" "${bounds[2]}"
      expire
    ) </dev/null &
    deriving[$key]=$!
    set +m
  done
}

# not_derived FOLDER LINE [FILE]: reports why there is no result: a line, and what a
# file has.
not_derived() {
  {
    printf '%s\n' "$2"
    [ $# -lt 3 ] || cat -- "$3"
  } >"$1/.failed"
  mv -T -- "$1/.failed" "$1/failed"
}

# progress FOLDER DONE TOTAL
progress() {
  printf '%s %s %s\n' "$BASHPID" "$2" "$3" >"$1/.building"
  mv -T -- "$1/.building" "$1/building"
}

# in_bytes NUMBER UNIT: sets $bytes.
in_bytes() {
  local unit=1
  case $2 in KiB) unit=1024 ;; MiB) unit=1048576 ;; GiB) unit=1073741824 ;; TiB) unit=1099511627776 ;; esac
  bytes=$((${1%.*} * unit))
}

# size_of FOLDER: sets $bytes to the size that an artifact states of itself.
size_of() {
  bytes=0
  [ ! -r "$1/metadata.json" ] || [[ $(<"$1/metadata.json") =~ [,{]\"closure_bytes\":([0-9]{1,18}) ]] || return 0
  bytes=${BASH_REMATCH[1]:-0}
}

# evaluate_derived FOLDER FILE SECONDS: has Nix read a request, and writes what it says.
evaluate_derived() {
  timeout --foreground -k 5 "$3" nix --extra-experimental-features 'nix-command flakes' \
    eval --impure --raw -f "$start_nix" derived --argstr request "$1/request.json" >"$2"
}

# realise FOLDER DERIVATION SECONDS TOTAL: builds, and counts what is there.
realise() {
  local line count=0 status
  timeout --foreground -k 5 "$3" nice -n 10 nix-store --realise "$2" --add-root "$1/.result" --indirect 2>&1 </dev/null |
    while IFS= read -r -n 4096 line || [ -n "$line" ]; do
      case $line in
        "building '"* | "copying path '"*)
          progress "$1" "$count" "$4"
          [ $count -ge "$4" ] || count=$((count + 1))
          ;;
      esac
      printf '%s\n' "$line"
    done
  status=${PIPESTATUS[0]}
  return "$status"
}

# derived KEY SECONDS BYTES: builds one.
derived() {
  local folder=$NIX_SANDBOX_PACKAGES/$1 name="packages ${1:0:12}" seconds=$2 most=$3
  local plan=$private/.$1.plan log line derivation='' total=0 status bytes ends
  [ ! -e "$folder/result/metadata.json" ] || return 0
  ends=$((SECONDS + seconds))
  progress "$folder" 0 0
  log="$private/.$name.log"
  rm -f -- "$log"
  logged "$name" evaluate_derived "$folder" "$plan" "$seconds"
  status=$?
  if [ $status = 124 ]; then
    not_derived "$folder" slow
  elif [ $status != 0 ]; then
    not_derived "$folder" failed "$log"
  else
    read -r line derivation <"$plan"
    if [ "$line" != build ]; then
      not_derived "$folder" "$line $derivation"
      derivation=
    fi
  fi
  rm -f -- "$plan" "$log"
  if [ -n "$derivation" ]; then
    # What is not there yet, and how much of it is fetched.
    while IFS= read -r line; do
      case $line in
        *'/nix/store/'*) total=$((total + 1)) ;;
        *'MiB unpacked'* | *'KiB unpacked'* | *'GiB unpacked'* | *'TiB unpacked'*)
          if [[ $line =~ ([0-9.]+)\ ([KMGT]iB)\ unpacked ]]; then
            in_bytes "${BASH_REMATCH[1]}" "${BASH_REMATCH[2]}"
            if [ "$bytes" -gt "$most" ]; then
              not_derived "$folder" "large $bytes"
              derivation=
            fi
          fi
          ;;
      esac
    done < <(nix-store --realise --dry-run "$derivation" 2>&1)
  fi
  if [ -n "$derivation" ]; then
    progress "$folder" 0 "$total"
    logged "$name" realise "$folder" "$derivation" $((ends > SECONDS ? ends - SECONDS : 1)) "$total"
    status=$?
    size_of "$folder/.result"
    if [ $status = 124 ]; then
      not_derived "$folder" slow
    elif [ $status != 0 ]; then
      [ -e "$log" ] || printf 'Nix ended without a word\n' >"$log"
      not_derived "$folder" failed "$log"
    elif [ "$bytes" -gt "$most" ]; then
      not_derived "$folder" "large $bytes"
    else
      : >"$folder/used"
      nix-store --realise "$derivation" --add-root "$folder/result" --indirect >/dev/null || {
        printf 'the result could not be written to %s\n' "$folder" >"$log"
        not_derived "$folder" failed "$log"
      }
    fi
    rm -f -- "$log" "$folder/.result"
  fi
  rm -f -- "$folder/building"
}

# give_up FOLDER: removes one.
give_up() {
  local gone=$NIX_SANDBOX_PACKAGES/.gone-${1##*/}-$BASHPID
  mv -T -- "$1" "$gone" && rm -rf -- "$gone"
}

# expire: gives up environments that no call has used for as long as the bounds say. If all
# of them take too much, whoever has most loses those that were used longest ago, but not the
# one used last; an environment counts for the principal whose call used it last. Nix's
# garbage collection then may take them. A folder without a result is there for a day. A folder
# disappears as a whole (give_up), because the runtime may make it again at any moment.
expire() {
  local folder used now who loser most i bytes total=0 folders=() kept=() sizes=() owners=()
  local -A each=()
  printf -v now '%(%s)T' -1
  rm -rf -- "$NIX_SANDBOX_PACKAGES"/.gone-* # of builders that were killed
  for folder in "$NIX_SANDBOX_PACKAGES"/*; do
    [[ ${folder##*/} =~ ^[0-9a-f]{64}$ ]] || continue
    if [ -L "$folder/result" ]; then
      # To the nanosecond: two environments may be used within a second.
      used=$(stat -c %.9Y -- "$folder/used" 2>/dev/null) || used=0
    else
      # It may be about to be built.
      used=$(stat -c %Y -- "$folder" 2>/dev/null) || continue
      if [ $((now - used)) -gt 86400 ]; then give_up "$folder"; fi
      continue
    fi
    if [ $((now - ${used%%[.,]*})) -gt $((bounds[3] * 86400)) ]; then
      give_up "$folder"
    else
      folders+=("$used $folder")
    fi
  done
  [ ${#folders[@]} != 0 ] || return 0
  while read -r used folder; do
    size_of "$folder/result"
    who=
    read -r -N 16 who 2>/dev/null <"$folder/used" || true
    [[ $who =~ ^[0-9a-f]{16}$ ]] || who=-
    kept+=("$folder") sizes+=("$bytes") owners+=("$who")
    total=$((total + bytes)) each[$who]=$((${each[$who]-0} + bytes))
  done < <(printf '%s\n' "${folders[@]}" | sort -rn)
  while [ $total -gt "${bounds[4]}" ]; do
    most=0 loser=
    for who in "${!each[@]}"; do
      if [ "${each[$who]}" -gt $most ]; then most=${each[$who]} loser=$who; fi
    done
    [ -n "$loser" ] || return 0
    for ((i = ${#kept[@]} - 1; i > 0; i--)); do [ "${owners[i]}" != "$loser" ] || break; done
    if [ $i = 0 ]; then
      each[$loser]=0 # only the one used last is left
      continue
    fi
    give_up "${kept[i]}"
    total=$((total - sizes[i])) each[$loser]=$((${each[$loser]} - sizes[i])) owners[i]=
  done
}
