# shellcheck shell=bash
# Defines check, which does `nix-sandbox-mcp config check FILE`: Nix evaluates
# the file and builds nothing. The wrapper sources this after start.sh.

check() {
  local PATH=$tools:${PATH-} file line text wrong='' status=0 rows=() private=''
  local hint='use nix-sandbox-mcp config check FILE'
  case ${1-} in
    '') usage "no configuration was named" "$hint" ;;
    -*) usage "unknown flag $1" "$hint" ;;
  esac
  [ $# = 1 ] || usage "unknown argument \"$2\"" "$hint"
  file=$1
  case $file in /*) ;; *) file=$PWD/$file ;; esac
  [ -f "$file" ] && [ -r "$file" ] || fail "$1 is no file that can be read" "give the path of a TOML file"
  builds_at_start "config check has Nix read the file"
  have_nix || fail 'there is no nix on the PATH to read the file' 'install Nix, or check the file on a machine that has it'
  # Nix takes seconds to evaluate a package set for the first time.
  [ ! -t 2 ] || printf 'nix-sandbox-mcp: Nix is reading %s ...' "$1" >&2
  # The order is: standard output, exit status, standard error.
  text=$(
    { ask plan --argstr config "$file" || status=$?; printf '\nstatus %s\n' "$status"; } 2> >(log=$(cat) && printf %s "$log")
  )
  [ ! -t 2 ] || printf '\r\033[K' >&2
  while IFS= read -r line; do
    case $line in
      'wrong '*) printf 'nix-sandbox-mcp: error: %s\n' "${line#wrong }" >&2; status=1 ;;
      'status 0') ;;
      'status '*) status=1 wrong=${wrong:-it did not say why} ;;
      # The server's metadata, whose texts may look like an error of Nix.
      '{'*) ;;
      'own '*) rows+=("$line") ;;
      'path '* | 'flake '* | 'sandbox '*) rows+=("$line"); missing "$line" ;;
      *) explain "$line" ;;
    esac
  done <<<"$text"
  [ -z "$wrong" ] || fail "$1 could not be read: $wrong" "correct the file"
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
