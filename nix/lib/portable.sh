#!/bin/sh
# Starts nix-sandbox-mcp from an archive that was unpacked in any folder of a machine without
# Nix. The server's files name each other by their paths in /nix/store, so it runs in a mount
# namespace, where this folder's store is shown there, and else the whole machine as it is.
# The namespace shields nothing: the jails of the sandboxes do, inside of it.
set -eu

fail() {
  printf 'nix-sandbox-mcp: error: %s\nnix-sandbox-mcp: hint: %s\n' "$1" "$2" >&2
  exit 1
}

case $0 in
  */*) self=$0 ;;
  *) self=$(command -v -- "$0") ;;
esac
# The path that a client is given stays a link if it is one.
case $self in /*) ;; *) self=$PWD/$self ;; esac
program=$(readlink -f -- "$self")
store=${program%/bin/*}/store lib=${program%/bin/*}/lib
# The loader takes both as the end of a folder's name.
case $lib in
  *[:\;]*) fail "the folder $lib has a colon or semicolon in its path" "unpack the archive elsewhere" ;;
esac

# Root keeps its user and privileges, and gives each sandbox a user of its own. The effective user is
# the second of four.
user=--user
while read -r key _ id _; do
  [ "$key $id" != 'Uid: 0' ] || user=''
done </proc/self/status

# hold: makes the namespace, with all of the machine but its own /nix, and prints the number of
# a process in it. A program that is started here would make each start of the server slower.
hold() {
  set --
  for entry in /* /.[!.]*; do
    [ "$entry" != /nix ] || continue
    if [ -L "$entry" ] && [ "$entry" -ef "/usr$entry" ]; then
      set -- "$@" --symlink "usr$entry" "$entry"
    elif [ -L "$entry" ]; then
      set -- "$@" --symlink "$(readlink -- "$entry")" "$entry"
    elif [ -d "$entry" ]; then
      set -- "$@" --dev-bind "$entry" "$entry"
    elif [ -e "$entry" ]; then
      set -- "$@" --bind "$entry" "$entry"
    fi
  done
  if [ "$user" ]; then set -- --unshare-user "$@"; else set -- --cap-add ALL "$@"; fi
  # shellcheck disable=SC2016 # expanded in the namespace
  "$lib/loader" --library-path "$lib" "$lib/bwrap" "$@" \
    --perms 0755 --dir /nix --ro-bind "$store" /nix/store --remount-ro / -- \
    /bin/sh -c 'echo $$ >&3; exec sleep 60 3>&-' 3>&1 >/dev/null </dev/null &
}

holder=$(hold)
if [ -z "$holder" ]; then
  for setting in kernel/unprivileged_userns_clone=0 user/max_user_namespaces=0 kernel/apparmor_restrict_unprivileged_userns=1; do
    value= name=${setting%=*} hint='see https://github.com/nix-sandbox-mcp/nix-sandbox-mcp/blob/main/docs/troubleshooting.md#this-system-forbids-user-namespaces'
    [ ! -r "/proc/sys/$name" ] || read -r value <"/proc/sys/$name" || true
    [ "$name" = "${name#*apparmor}" ] ||
      hint="an administrator allows them to this archive's programs with: sed 's,FOLDER,${lib%/lib},' '${lib%/lib}/apparmor' | sudo tee /etc/apparmor.d/nix-sandbox-archive >/dev/null && sudo apparmor_parser --replace /etc/apparmor.d/nix-sandbox-archive"
    [ "$value" != "${setting#*=}" ] ||
      fail "this system forbids user namespaces, with which sandboxes are made: ${name%%/*}.${name#*/} is $value" "$hint"
  done
  fail "no mount namespace could be made" "bubblewrap says why above; a container must allow user namespaces"
fi

# bubblewrap would stay as the parent of the server and pass no signal on. This process enters
# the namespace and becomes the server, so that a client ends what it started. The server is
# sourced, so that it knows by which name it was called.
# shellcheck disable=SC2016 # expanded in the namespace
# shellcheck disable=SC2086 # no word if empty
exec "$lib/loader" --library-path "$lib" "$lib/nsenter" --target "$holder" $user --mount --preserve-credentials \
  @shell@ -c 'kill "$1"; cd -- "$2" 2>/dev/null || cd /; shift 2; . @server@/bin/nix-sandbox-mcp' "$self" "$holder" "$PWD" "$@"
