# What a build finds: the variables and functions of nixpkgs' stdenv that packages of everyday use call.
# Sourced by every builder and by `nix develop`.
set -eu
set -o pipefail
shopt -s nullglob inherit_errexit 2>/dev/null || true
# nixpkgs' builder is a bash without readline, which lacks these.
[[ $- == *i* ]] || enable -n bind compgen complete compopt

: "${outputs:=out}" "${NIX_BUILD_TOP:=$PWD}"
export HOME=${HOME:-/homeless-shelter} TZ=UTC
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-1}
export SHELL=@shell@ CONFIG_SHELL=@shell@ PATH=@path@${PATH_AFTER:+:$PATH_AFTER}

# a list attribute, whether it came as a string or (structured attributes) as an array
_words() {
	local -n _list=$1 2>/dev/null || return 0
	[ -n "${!1+set}${_list+set}" ] || return 0
	printf '%s\n' ${_list[@]+"${_list[@]}"}
}

addToSearchPath() {
	local variable=$1 folder=$2
	if [ -d "$folder" ]; then export "$variable=$folder${!variable:+:${!variable}}"; fi
}
prependToVar() { local -n _v=$1; shift; _v="$* ${_v-}"; }
appendToVar() { local -n _v=$1; shift; _v="${_v-} $*"; }

_inputs=
for _variable in depsBuildBuild nativeBuildInputs buildInputs propagatedBuildInputs; do
	for _input in $(_words "$_variable"); do _inputs="$_inputs $_input"; done
done
_path=
for _input in $_inputs; do
	if [ -d "$_input/bin" ]; then _path=$_path${_path:+:}$_input/bin; fi
	addToSearchPath PKG_CONFIG_PATH "$_input/lib/pkgconfig"
	addToSearchPath XDG_DATA_DIRS "$_input/share"
done
PATH=$_path${_path:+:}$PATH
export HOST_PATH=$PATH
for _input in $_inputs; do
	if [ -f "$_input" ]; then source "$_input"
	elif [ -f "$_input/nix-support/setup-hook" ]; then source "$_input/nix-support/setup-hook"; fi
done
# as nixpkgs' hook reproducible-builds.sh, which comes after those of the inputs
outbase=${out-}
outbase=${outbase##*/}
export NIX_CFLAGS_COMPILE="${NIX_CFLAGS_COMPILE:-} -frandom-seed=${outbase:0:10}"

# ---- hooks
runHook() {
	local name=$1 hook
	shift
	local -n _hooks=${name}Hooks 2>/dev/null || true
	for hook in ${_hooks[@]+"${_hooks[@]}"}; do _run "$hook" "$@"; done
	_run "$name" "$@"
}
_run() {
	local what=$1
	shift
	if declare -F "$what" >/dev/null; then "$what" "$@"
	elif [ -n "${!what-}" ]; then eval "${!what}"
	elif [[ $what == *[[:space:]]* ]]; then eval "$what"; fi
}

# ---- functions for builders
substituteStream() { # TEXT-VARIABLE NAME OPTIONS...
	local -n _text=$1
	local file=$2
	shift 2
	while [ $# -gt 0 ]; do
		case $1 in
		--replace | --replace-warn | --replace-fail | --replace-quiet)
			if [[ $_text != *"$2"* ]]; then
				case $1 in
				--replace-fail) echo "substitute: $file does not contain '$2'" >&2; return 1 ;;
				--replace-quiet) ;;
				*) echo "substitute: warning: $file does not contain '$2'" >&2 ;;
				esac
			fi
			_text=${_text//"$2"/"$3"}
			shift 3
			;;
		--subst-var) _text=${_text//"@$2@"/"${!2}"}; shift 2 ;;
		--subst-var-by) _text=${_text//"@$2@"/"$3"}; shift 3 ;;
		*) echo "substitute: unknown option $1" >&2; return 1 ;;
		esac
	done
}
substitute() {
	local from=$1 to=$2 content
	shift 2
	[ -f "$from" ] || { echo "substitute: $from does not exist" >&2; return 1; }
	IFS= read -r -d '' content <"$from" || true
	substituteStream content "$from" "$@"
	printf '%s' "$content" >"$to"
}
substituteInPlace() {
	local files=() file
	while [ $# -gt 0 ] && [[ $1 != --* ]]; do files+=("$1"); shift; done
	for file in "${files[@]}"; do substitute "$file" "$file" "$@"; done
}
substituteAll() { # every lower-case variable of the environment
	local names=() name
	while IFS= read -r -d '' name; do
		name=${name%%=*}
		if [[ $name =~ ^[a-z][A-Za-z0-9_]*$ ]]; then names+=(--subst-var "$name"); fi
	done < <(env -0)
	substitute "$1" "$2" "${names[@]}"
}
patchShebangs() {
	local file line program
	while [ $# -gt 0 ] && [[ $1 == --* ]]; do shift; done
	while IFS= read -r -d '' file; do
		IFS= read -r line <"$file" 2>/dev/null || continue
		[[ $line == '#!'* && $line != '#!/nix/store/'* && $line != '#! /nix/store/'* ]] || continue
		read -r -a words <<<"${line#'#!'}"
		program=${words[0]}
		unset 'words[0]'
		if [[ $program == */env ]]; then
			program=${words[1]-}
			unset 'words[1]'
		fi
		program=$(type -P "${program##*/}") || continue
		sed -i "1s|.*|#!$program ${words[*]}|;1s| *$||" "$file"
	done < <(find "$@" -type f -perm -0100 -print0)
}
nixErrorLog() { echo "error: $*" >&2; }
nixLog() { echo "$*" >&2; }

# ---- phases
unpackPhase() {
	runHook preUnpack
	local source before
	before=$(ls)
	for source in $(_words srcs) ${src-}; do
		if [ -d "$source" ]; then
			cp -r --no-preserve=mode,ownership "$source" "$(basename "${source#/nix/store/????????????????????????????????-}")"
			# programs stay programs
			(cd "$source" && find . -type f -perm -0100) | while IFS= read -r file; do
				chmod +x "$(basename "${source#/nix/store/????????????????????????????????-}")/$file"
			done
		else
			case $source in
			*.tar) tar xf "$source" ;;
			*.tar.gz | *.tgz) gzip -dc "$source" | tar x ;;
			*.tar.bz2 | *.tbz2) bzip2 -dc "$source" | tar x ;;
			*.tar.xz | *.txz) xz -dc "$source" | tar x ;;
			*.zip) unzip -qq "$source" ;;
			*) cp "$source" "${source#/nix/store/????????????????????????????????-}" ;;
			esac
		fi
	done
	if [ -z "${sourceRoot-}" ]; then
		local entry
		for entry in *; do
			if [ -d "$entry" ] && ! grep -qxF "$entry" <<<"$before"; then sourceRoot=$entry; fi
		done
	fi
	chmod -R u+w .
	cd "${sourceRoot:-.}"
	runHook postUnpack
}
patchPhase() {
	runHook prePatch
	local file
	for file in $(_words patches); do patch -p1 <"$file"; done
	runHook postPatch
}
configurePhase() {
	runHook preConfigure
	if [ -x ./configure ]; then ./configure --prefix="${prefix:-$out}" ${configureFlags-}; fi
	runHook postConfigure
}
buildPhase() {
	runHook preBuild
	if [ -e Makefile ] || [ -e makefile ] || [ -e GNUmakefile ] || [ -n "${makefile-}" ]; then
		make ${makefile:+-f "$makefile"} SHELL="$SHELL" ${makeFlags-} ${buildFlags-}
	fi
	runHook postBuild
}
checkPhase() {
	runHook preCheck
	if [ -e Makefile ] && [ -n "${checkTarget-}" ]; then make ${makeFlags-} "$checkTarget"; fi
	runHook postCheck
}
installPhase() {
	runHook preInstall
	if [ -e Makefile ] || [ -e makefile ] || [ -e GNUmakefile ] || [ -n "${makefile-}" ]; then
		make ${makefile:+-f "$makefile"} SHELL="$SHELL" PREFIX="$out" prefix="$out" ${makeFlags-} ${installFlags-} ${installTargets:-install}
	fi
	runHook postInstall
}
fixupPhase() {
	runHook preFixup
	local output
	for output in $(_words outputs); do
		output=${!output-}
		[ -n "$output" ] || continue
		if [ -d "$output/bin" ] && [ -z "${dontPatchShebangs-}" ]; then patchShebangs "$output/bin"; fi
	done
	if [ -n "${setupHook-}" ]; then
		mkdir -p "$out/nix-support"
		cp "$setupHook" "$out/nix-support/setup-hook"
	fi
	runHook postFixup
	# as nixpkgs' hook no-broken-symlinks.sh
	local link broken=
	[ -n "${dontCheckForBrokenSymlinks-}" ] || while IFS= read -r link; do
		if [[ $(readlink -m "$link") == /nix/store/* ]]; then
			echo "the link $link leads to nothing" >&2
			broken=yes
		fi
	done < <(for output in $(_words outputs); do find "${!output}" -xtype l; done)
	[ -z "$broken" ]
}
installCheckPhase() { runHook preInstallCheck; runHook postInstallCheck; }
distPhase() { :; }

genericBuild() {
	if [ -n "${buildCommandPath-}" ]; then source "$buildCommandPath"; return; fi
	if [ -n "${buildCommand-}" ]; then eval "$buildCommand"; return; fi
	local phase
	for phase in ${phases:-unpackPhase patchPhase ${preConfigurePhases-} configurePhase ${preBuildPhases-} buildPhase checkPhase ${preInstallPhases-} installPhase ${preFixupPhases-} fixupPhase installCheckPhase}; do
		case $phase in
		unpackPhase) [ -z "${dontUnpack-}" ] || continue ;;
		patchPhase) [ -z "${dontPatch-}" ] || continue ;;
		configurePhase) [ -z "${dontConfigure-}" ] || continue ;;
		buildPhase) [ -z "${dontBuild-}" ] || continue ;;
		checkPhase) [ -n "${doCheck-}" ] || continue ;;
		installPhase) [ -z "${dontInstall-}" ] || continue ;;
		fixupPhase) [ -z "${dontFixup-}" ] || continue ;;
		installCheckPhase) [ -n "${doInstallCheck-}" ] || continue ;;
		esac
		echo "Running phase: $phase"
		if [ -n "${!phase-}" ]; then eval "${!phase}"; else "$phase"; fi
	done
}

# as nixpkgs' own: a variable that is not set is empty in what a package writes
set +u
