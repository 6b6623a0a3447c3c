# shellcheck shell=bash
# What Nix does with a configuration for a user: check is `nix-sandbox-mcp doctor FILE`, which only
# reads it, and add is `nix-sandbox-mcp add-env`. The wrapper sources this after start.sh.

# reading WHAT: tells a terminal, because Nix takes seconds to evaluate a package set for the first
# time. Without WHAT, that line goes.
reading() {
  [ -t 2 ] || return 0
  printf '\r\033[K' >&2
  [ $# = 0 ] || printf 'nix-sandbox-mcp: %s ...' "$1" >&2
}

# evaluated ATTRIBUTE: has Nix evaluate $config_file. Sets $rows to its environments, or prints its mistakes
# and sets $status to 1. Messages name $shown_file.
evaluated() {
  local text line wrong=
  status=0 rows=()
  reading "Nix is reading $shown_file"
  # The order is: standard output, exit status, standard error.
  text=$(
    { ask "$1" "${of_config[@]}" || status=$?; printf '\nstatus %s\n' "$status"; } 2> >(log=$(cat) && printf %s "$log")
  )
  reading
  while IFS= read -r line; do
    case $line in
      'wrong '*)
        line=${line#wrong }
        printf 'nix-sandbox-mcp: error: %s\n' "${line/"${config_file##*/}:"/"${shown_file##*/}:"}" >&2
        status=1
        ;;
      'status 0') ;;
      'status '*) status=1 wrong=${wrong:-it did not say why} ;;
      'own '* | 'path '* | 'flake '* | 'sandbox '*) rows+=("$line") ;;
      # The server's settings, whose texts may look like an error of Nix.
      '{'* | 'project '*) ;;
      *) explain "$line" ;;
    esac
  done <<<"$text"
  [ -z "$wrong" ] || printf 'nix-sandbox-mcp: error: %s could not be read: %s\n' "$shown_file" "$wrong" >&2
}

check() {
  local PATH=$tools:${PATH-} line text status rows private=''
  local shown_file=${1-} hint='use nix-sandbox-mcp doctor FILE'
  [ $# = 1 ] || usage "unknown argument \"$2\"" "$hint"
  config_file=$1
  [ -f "$1" ] && [ -r "$1" ] || fail "$1 is no file that can be read" "give the path of a TOML file"
  builds_at_start "doctor FILE has Nix read the file"
  have_nix || fail 'there is no nix on the PATH to read the file' 'install Nix, or check the file on a machine that has it'
  name_config
  [ "$config_file" = "$user_config" ] || of_config=("${of_config[@]:0:3}")
  evaluated checked
  for line in "${rows[@]}"; do missing "$line"; done
  if [ $status != 0 ]; then
    printf 'nix-sandbox-mcp: hint: correct what is named above\n' >&2
    exit 1
  fi
  printf '%s: no mistakes\n' "$1"
  for line in "${rows[@]}"; do
    text=${line#* }
    case $line in
      own*) printf '  %s\n' "${text%% *}" ;;
      *) printf '  %s, from %s\n' "${text%% *}" "${text#* }" ;;
    esac
  done
  exit 0
}

# add NAME PRESET [PACKAGE]...: builds an environment, and adds it to the user's configuration.
add() {
  local PATH=$tools:${PATH-} name=${1-} preset=${2-} packages='' one table file shown_file status rows private='' config='' cache
  local hint='use nix-sandbox-mcp add-env NAME PRESET PACKAGE..., such as add-env stats python seaborn'
  case ${1-} in -*) usage "unknown flag $1" "$hint" ;; esac
  [ $# -ge 2 ] || usage "an environment needs a name and a preset" "$hint"
  [ -z "${NIX_SANDBOX_CONFIG-}" ] || fail "NIX_SANDBOX_CONFIG is $NIX_SANDBOX_CONFIG, which counts in place of your own configuration" "add the environment there, or unset it"
  [ -n "$user_config" ] || fail "this server reads no configuration of yours: it was built with its own, or given its metadata, or HOME is not set" "add the environment where the server is built, or set HOME"
  have_nix || fail 'there is no nix on the PATH to build with' 'install Nix'
  for one in "$@"; do
    [[ $one =~ ^[A-Za-z0-9_+.-]+$ ]] || usage "\"$one\" is no name of an environment, preset or package" "$hint"
  done
  shift 2
  for one in "$@"; do packages+=", \"$one\""; done
  table="[environments.\"$name\"]"$'\n'"preset = \"$preset\""
  [[ ! $name =~ ^[A-Za-z0-9_-]+$ ]] || table=${table//"\"$name\""/$name}
  [ -z "$packages" ] || table+=$'\n'"packages = [${packages#, }]"
  # What a link leads to is written, not the link.
  file=$(readlink -m -- "$user_config") shown_file=$user_config
  config_file=${file%/*}/.${file##*/}.new
  if [ -e "$file" ] && has_table "$name" <"$file"; then
    fail "$user_config has the environment \"$name\" already" "change it there: servers that run take it"
  fi
  trap 'rm -rf -- "$config_file" ${private:+"$private"}' EXIT
  trap 'exit 130' INT TERM HUP
  mkdir -p -- "${file%/*}" 2>/dev/null && with_table >"$config_file" 2>/dev/null ||
    fail "$user_config cannot be written" "make its folder one that you may write"
  name_config
  evaluated plan
  if [ $status != 0 ]; then
    printf 'nix-sandbox-mcp: hint: nothing was written: correct what is named above\n' >&2
    exit 1
  fi
  required=yes
  find_cache
  configure
  reading "Nix is building $name"
  if ! nix --extra-experimental-features 'nix-command flakes' build --impure --out-link "$config/built/$name" -f "$start_nix" "${of_config[@]}" "environments.$name"; then
    reading
    fail "$name could not be built: Nix says why above" "nothing was written: use other packages, or look for their names with nix search nixpkgs WORD"
  fi
  reading
  mv -T -- "$config_file" "$file"
  printf 'wrote %s:\n\n%s\n\n%s is built: new servers have it, and those that run have it in some seconds\n' "$user_config" "$table" "$name"
  exit 0
}

# with_table: prints the configuration with the new table.
with_table() {
  if [ -e "$file" ]; then
    cat -- "$file" || return
    echo
  fi
  printf '%s\n' "$table"
}

# has_table NAME: whether standard input, a TOML file, has the table of that environment.
has_table() {
  local line
  while IFS= read -r line; do
    line=${line//[[:space:]\"\']/}
    [[ $line != "[environments.$1]"* ]] || return 0
  done
  return 1
}

# missing ROW: says so, and sets $status, if the folder that an environment comes
# from does not exist. Whether a flake has what is asked of it, its build tells.
missing() {
  local kind name from
  IFS=' ' read -r kind name from <<<"$1"
  from=${from%%'#'*} from=${from%%'?'*} from=${from#path:} from=${from#git+file:} from=${from#//}
  case $from in
    /*) ;;
    *) return 0 ;;
  esac
  if [ ! -d "$from" ]; then
    printf 'nix-sandbox-mcp: error: [environments.%s] is of %s, which is no folder: correct its path\n' "$name" "$from" >&2
  elif [ "$kind" != flake ] && [ ! -f "$from/metadata.json" ]; then
    printf 'nix-sandbox-mcp: error: [environments.%s] sandbox is %s, which is no sandbox: give the folder that nix build made of one\n' "$name" "$from" >&2
  else
    return 0
  fi
  status=1
}

# usage PROBLEM HINT: ends with an error about the command line.
usage() {
  printf 'nix-sandbox-mcp: error: %s\nnix-sandbox-mcp: hint: %s\n' "$1" "$2" >&2
  exit 2
}
