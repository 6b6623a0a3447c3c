# The functions that come with makeWrapper and makeBinaryWrapper.
makeWrapper() { # PROGRAM WRAPPER OPTIONS...
	local program=$1 wrapper=$2 flags= argv0='"$0"' after=
	shift 2
	[ -x "$program" ] || { echo "makeWrapper: $program is not a program" >&2; return 1; }
	mkdir -p "$(dirname "$wrapper")"
	{
		echo "#!$SHELL -e"
		while [ $# -gt 0 ]; do
			case $1 in
			--set) printf 'export %s=%q\n' "$2" "$3"; shift 3 ;;
			--set-default) printf 'export %s=${%s-%q}\n' "$2" "$2" "$3"; shift 3 ;;
			--unset) echo "unset $2"; shift 2 ;;
			--prefix) printf 'export %s=%q${%s:+%q$%s}\n' "$2" "$4" "$2" "$3" "$2"; shift 4 ;;
			--suffix) printf 'export %s=${%s:+$%s%q}%q\n' "$2" "$2" "$2" "$3" "$4"; shift 4 ;;
			--run) echo "$2"; shift 2 ;;
			--chdir) printf 'cd %q\n' "$2"; shift 2 ;;
			--add-flags) flags="$flags $2"; shift 2 ;;
			--append-flags) after="$after $2"; shift 2 ;;
			--argv0) argv0=$(printf %q "$2"); shift 2 ;;
			--inherit-argv0) shift ;;
			*) echo "makeWrapper: unknown option $1" >&2; return 1 ;;
			esac
		done
		echo "exec -a $argv0 $(printf %q "$program")$flags \"\$@\"$after"
	} >"$wrapper"
	chmod +x "$wrapper"
}
wrapProgram() {
	local program=$1 hidden
	shift
	hidden=$(dirname "$program")/.$(basename "$program")-wrapped
	mv "$program" "$hidden"
	makeWrapper "$hidden" "$program" --inherit-argv0 "$@"
}
