# Runs code in this shell for the agent. The shell's own command line evaluates
# this file and then loops: it evaluates each call's code at the top level, so that
# what the code declares is global.
#
# Code that ends the shell (exit, set -e, an unset variable under set -u) ends the
# process, as in any shell. The trap on EXIT then writes the state to descriptor
# 253, and the agent starts another shell, which reads it.

# As in a shell that somebody types into. The state of an earlier shell may have it
# otherwise.
builtin shopt -s expand_aliases

# Restore the state of an earlier shell. Some variables are read-only, such as UID,
# and the errors about them mean nothing. This has to be a plain eval: after
# `builtin eval`, set -e would apply.
IFS= builtin read -r -d '' -u 253 __agent_code
[[ -z $__agent_code ]] || { eval "$__agent_code"; } >/dev/null 2>&1 || :

# Print the state as commands for the next shell. The trap on EXIT prints the
# options itself, because it turns some of them off.
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

# Print the global variables where code ended the shell inside a function, whose
# local variables hide them. Each variable is unset once for each function on the
# stack, until the global one appears; this runs in a subshell.
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

# Runs when the shell ends. The agent waits for the shell's process, so the code's
# own trap on EXIT may still print and change the status.
__agent_on_exit='{ __agent_status=$?; builtin set +o >&253; builtin set +exuv; } 2>/dev/null
{ builtin trap -p; builtin printf "builtin trap - EXIT INT\n"; __agent_dump; [[ ${BASH_SOURCE-} ]] && builtin set -- "${__agent_arguments[@]}"; builtin printf "builtin set --"; builtin printf " %q" "$@"; builtin printf "\n"; } >&253 2>/dev/null
builtin printf "leave %s\n" "$__agent_nonce" >&251 2>/dev/null
[[ -z $__agent_exit ]] || { builtin unset -f trap; ( builtin exit "$__agent_status" ); builtin eval "$__agent_exit"; }'

# SIGINT ends the code that runs. Between two calls it arrives too late, and is
# ignored.
__agent_on_interrupt='[[ -z $__agent_nonce ]] || builtin exit 130'

# Replaces the builtin trap: the driver needs the traps on EXIT and INT for itself,
# and so stores those of the code.
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
        # A function cannot remove these traps of its caller.
        [[ $1 != - ]] || builtin set -- : "${@:2}"
        __agent_rest+=("$__agent_signal")
        ;;
      *) __agent_rest+=("$__agent_signal") ;;
    esac
  done
  [[ ${#__agent_rest[@]} == 0 ]] || builtin trap -- "$1" "${__agent_rest[@]}"
}

# Makes a here-document that is not closed an error. bash only warns, and runs the
# command with the text up to the end of the code, which here is just the end of a
# call. The code is parsed as the body of a function, without being run; the brace
# that ends the function becomes a part of an open here-document.
__agent_check() {
  builtin local __agent_message=
  { builtin eval "__agent_probe() {"$'\n'"$__agent_code"$'\n}'; } 2>/proc/self/fd/253
  builtin unset -f __agent_probe
  IFS= TMOUT= builtin read -r -d '' __agent_message </proc/self/fd/253
  : >/proc/self/fd/253
  [[ $__agent_message =~ here-document\ at\ line\ ([0-9]+)\ delimited\ by\ end-of-file\ \(wanted\ .(.*)\'\) ]] || builtin return 0
  builtin printf -v __agent_code 'builtin printf "bash: here-document is not closed (wanted %%s)\n" %q >&2; (builtin exit 2)' "${BASH_REMATCH[2]%%$'\n'*}"
}

# Removes prompts from code that was copied from a terminal, and the output between
# the commands. Each line keeps its number.
__agent_unprompt() {
  builtin local __agent_line __agent_kept= __agent_inside=
  while IFS= builtin read -r __agent_line; do
    case $__agent_line in
      '$ '*) __agent_line=${__agent_line#??} __agent_inside=1 ;;
      '> '*) __agent_line=${__agent_line#??} ;;
      *) __agent_inside= ;;
    esac
    __agent_kept+=${__agent_inside:+$__agent_line}$'\n'
  done <<<"$__agent_code"
  __agent_code=$__agent_kept
}

# Reports how the last code ended and waits for the next.
__agent_turn() {
  __agent_status=$? __agent_trace= __agent_arguments=("$@")
  # The loop restores it as $?.
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
  [[ $__agent_code != '$ '* ]] || __agent_unprompt
  [[ $__agent_code != *'<<'* ]] || __agent_check
  __agent_code=$__agent_trace$__agent_code
  if [[ $__agent_word == last ]]; then
    # No call follows: this is an ordinary shell from here on.
    builtin trap - EXIT INT
    builtin unset -f trap __agent_turn __agent_dump __agent_globals __agent_check __agent_unprompt
    __agent_next_turn= # no turn follows
    exec 251>&- 252<&- 253>&-
    # eval would begin each line of set -x with one more +. What is longer may not fit into
    # an argument.
    if [[ $__agent_code =~ (^|[^[:alnum:]_-])set\ +-[a-z]*x|xtrace && ${#__agent_code} -lt 30000 ]]; then
      __agent_program=$__agent_code __agent_code='builtin exec "$BASH" -O expand_aliases -c "$__agent_program" bash'
    fi
  else
    __agent_nonce=$__agent_next
  fi
  # The time before the first call does not count.
  [[ $__agent_number != 1 ]] || SECONDS=0
  # set -a would put the code into the environment of every command.
  [[ $- != *a* ]] || builtin export -n __agent_code
  builtin return 0
}

__agent_next_turn=__agent_turn
__agent_pid=$BASHPID __agent_nonce= __agent_exit= __agent_int= __agent_code=
builtin trap "$__agent_on_exit" EXIT
builtin trap "$__agent_on_interrupt" INT
builtin printf 'ready\n' >&251
