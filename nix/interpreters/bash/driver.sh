# Runs code in this shell for the agent. The loop that does so follows this
# text: the code is evaluated at the top level, so that what it declares is
# global.
#
# Code that ends the shell (exit, set -e, an unset variable under set -u) ends
# the process, as in any shell. The state is then written to descriptor 253 by
# the trap on EXIT, and the next shell starts with it.

# What an earlier shell left behind. Some of it cannot be set again (UID and
# its like are read-only): those errors are of no interest. It must be a plain
# eval: behind builtin, set -e counts again.
IFS= builtin read -r -d '' -u 253 __agent_code
[[ -z $__agent_code ]] || { eval "$__agent_code"; } >/dev/null 2>&1 || :

# Everything that the next shell needs, as commands. The options come from
# the trap itself: some are turned off here.
__agent_dump() {
  builtin shopt -p
  builtin declare -f
  builtin declare -F
  if [[ ${#FUNCNAME[@]} == 1 ]]; then
    builtin declare -p
  else
    (__agent_globals)
  fi
  builtin alias -p
  builtin umask -p
  builtin printf 'builtin cd -- %q\n' "$PWD"
  builtin printf '__agent_exit=\n'
}

# Code that ends the shell inside of a function leaves that function's local
# variables in the way of the global ones: each is unset as often as there are
# functions, until what is below all of them appears. Runs in a subshell.
__agent_globals() {
  builtin local __agent_line __agent_name __agent_i __agent_depth=${#FUNCNAME[@]}
  while builtin read -r __agent_line; do
    __agent_name=${__agent_line#declare * }
    __agent_name=${__agent_name%%=*}
    [[ $__agent_name != __agent_* && $__agent_name != _ ]] || builtin continue
    for ((__agent_i = 1; __agent_i < __agent_depth; __agent_i++)); do
      builtin unset -v "$__agent_name" || builtin break
      builtin declare -p "$__agent_name" >/proc/self/fd/252 || builtin break
      builtin read -r __agent_line </proc/self/fd/252
    done
    builtin printf '%s\n' "$__agent_line"
  done < <(builtin declare -p)
}

# Runs at the end of a shell. The agent waits for the shell itself, so that a
# trap on EXIT of the code's own may still print, and change the status.
__agent_on_exit='{ __agent_status=$?; builtin set +o >&253; builtin set +exuv; } 2>/dev/null
{ builtin trap -p; builtin printf "builtin trap - EXIT INT\n"; __agent_dump; [[ ${BASH_SOURCE-} ]] && builtin set -- "${__agent_arguments[@]}"; builtin printf "builtin set --"; builtin printf " %q" "$@"; builtin printf "\n"; } >&253 2>/dev/null
builtin printf "leave %s\n" "$__agent_nonce" >&251 2>/dev/null
[[ -z $__agent_exit ]] || { builtin unset -f trap; ( builtin exit "$__agent_status" ); builtin eval "$__agent_exit"; }'

# An interrupt ends the code that runs; between two calls it comes too late.
__agent_on_interrupt='[[ -z $__agent_nonce ]] || builtin exit 130'

# trap, with the trap on EXIT kept aside: the driver needs it for itself.
trap() {
  if [[ $BASHPID != "$__agent_pid" ]]; then
    builtin trap "$@"
    builtin return
  fi
  builtin local __agent_signal
  builtin local -a __agent_rest
  [[ ${1-} != -- ]] || builtin shift
  if [[ $# == 0 || $1 == -[lp]* ]]; then
    if [[ ${1-} == -*l* ]]; then
      builtin trap -l
      builtin return
    fi
    builtin shift $(($# > 0))
    [[ $# != 0 ]] || builtin set -- EXIT {1..64} DEBUG ERR RETURN
    for __agent_signal; do
      case ${__agent_signal^^} in
        EXIT | SIGEXIT | 0)
          [[ -z $__agent_exit ]] || builtin printf "trap -- '%s' EXIT\n" "${__agent_exit//\'/\'\\\'\'}"
          ;;
        INT | SIGINT | 2)
          [[ $__agent_int == '' ]] || builtin trap -p INT
          ;;
        *) builtin trap -p "$__agent_signal" 2>/dev/null ;;
      esac
    done
    builtin return 0
  fi
  if [[ $# == 1 ]]; then
    builtin set -- - "$1"
  fi
  for __agent_signal in "${@:2}"; do
    case ${__agent_signal^^} in
      EXIT | SIGEXIT | 0)
        __agent_exit=$1
        [[ $1 != - ]] || __agent_exit=
        ;;
      INT | SIGINT | 2)
        __agent_int=$1
        if [[ $1 == - ]]; then
          __agent_int=
          builtin trap "$__agent_on_interrupt" INT
        else
          builtin trap -- "$1" INT
        fi
        ;;
      DEBUG | ERR | RETURN)
        # A function cannot take these away for its caller.
        [[ $1 != - ]] || builtin set -- : "${@:2}"
        __agent_rest+=("$__agent_signal")
        ;;
      *) __agent_rest+=("$__agent_signal") ;;
    esac
  done
  [[ ${#__agent_rest[@]} == 0 ]] || builtin trap -- "$1" "${__agent_rest[@]}"
}

# A here-document that is not closed is only worth a warning to bash, which
# runs the command with what there is. Here it is an error: the end of a call
# is no end of anything. A function's body is parsed and not run; the brace
# that ends it becomes a part of an open here-document.
__agent_check() {
  builtin local __agent_message=
  { builtin eval "__agent_probe() {"$'\n'"$__agent_code"$'\n}'; } 2>/proc/self/fd/253
  builtin unset -f __agent_probe
  IFS= TMOUT= builtin read -r -d '' __agent_message </proc/self/fd/253
  : >/proc/self/fd/253
  [[ $__agent_message =~ here-document\ at\ line\ ([0-9]+)\ delimited\ by\ end-of-file\ \(wanted\ .(.*)\'\) ]] || builtin return 0
  builtin printf -v __agent_code 'builtin printf "bash: here-document is not closed (wanted %%s)\n" %q >&2; (builtin exit 2)' "${BASH_REMATCH[2]%%$'\n'*}"
}

# Says how the last code ended and waits for the next.
__agent_turn() {
  __agent_status=$? __agent_trace= __agent_arguments=("$@")
  # The loop gives it back as $?.
  __agent_failed=$__agent_status
  [[ $__agent_failed != 0 ]] || __agent_failed=
  case $- in
    *x*)
      builtin set +x
      __agent_trace='set -x; '
      ;;
  esac
  if [[ $__agent_nonce ]]; then
    builtin printf -v __agent_reply 'done %s %d' "$__agent_nonce" "$((__agent_status & 255))"
    __agent_nonce=
    builtin printf '%s\n' "$__agent_reply" >&251 || builtin exit 0
  fi
  IFS=' ' TMOUT= builtin read -r -u 251 __agent_word __agent_next __agent_number __agent_size || builtin exit 0
  IFS= TMOUT= builtin read -r -d '' -u 252 __agent_code
  [[ $__agent_code != *'<<'* ]] || __agent_check
  __agent_code=$__agent_trace$__agent_code
  if [[ $__agent_word == last ]]; then
    # From here on this is a shell like any other.
    builtin trap - EXIT INT
    builtin unset -f trap __agent_turn __agent_dump __agent_globals __agent_check
    __agent_next_turn= # no turn follows
    exec 251>&- 252<&- 253>&-
  else
    __agent_nonce=$__agent_next
  fi
  # A shell may have waited for its first code.
  [[ $__agent_number != 1 ]] || SECONDS=0
  # Under set -a the code would be part of every command's environment.
  [[ $- != *a* ]] || builtin export -n __agent_code
  builtin return 0
}

__agent_next_turn=__agent_turn
__agent_pid=$BASHPID __agent_nonce= __agent_exit= __agent_int= __agent_code=
builtin trap "$__agent_on_exit" EXIT
builtin trap "$__agent_on_interrupt" INT
builtin printf 'ready\n' >&251
