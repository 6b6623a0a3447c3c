# What every attempt in bash may use. The suite puts its variables before this
# text and the attempt's code after it. A refused command goes on with the next.
set -u

note() { printf '%s %s %s\n' "$1" "$TOKEN" "${2-}" >&2; }

# The attempt has succeeded.
escaped() { note escaped "$*"; }

# This machine lacks what the attempt is about, so that it would show nothing.
lacking() { note lacking "$*"; }

# Where a control does not find this, this machine lacks what it is about.
expect() { if [ "$CONTROL" = 1 ] && ! [ -e "$1" ]; then lacking "no $1"; fi; }

# Frames that only an agent may send.
forged() {
  local rest=$FORGED
  while [ -n "$rest" ]; do
    printf '%b' "\\x${rest:0:2}"
    rest=${rest:2}
  done
}

# A misspelt or missing command must not pass for a refusal.
command_not_found_handle() {
  note missing "$1"
  kill -KILL $$
}

for need in $NEEDS; do
  if ! type -t "$need" >/dev/null; then
    lacking "bash has no command $need"
    exit 0
  fi
done
note started
