# The builder of shellVariables.nix.

# A shell with __structuredAttrs has its attributes in a file, which Nix before
# 2.9 names by its path outside of the build.
[ -e "${NIX_ATTRS_SH_FILE:-}" ] || NIX_ATTRS_SH_FILE=$PWD/.attrs.sh
if [ -e "$NIX_ATTRS_SH_FILE" ]; then . "$NIX_ATTRS_SH_FILE"; fi
result=${out:-${outputs[out]}}
# stdenv would have programs search for libraries in the folder of this file.
NIX_NO_SELF_RPATH=1
. "$stdenv/setup"
set +eu

# These come from stdenv, whatever the shell's packages bring.
env=$(type -P env) sort=$(type -P sort)
: > "$result"
# Not `compgen -e`: nixpkgs builds with a bash that has no readline, and hence
# no compgen.
while IFS= read -r -d '' variable; do
  name=${variable%%=*} value=${variable#*=}
  [[ $name =~ ^[A-Za-z_][A-Za-z0-9_]*$ ]] || continue
  case $name in
    # The build, the sandbox and the operator's own shell set these.
    _ | shell | HOME | HOST_PATH | OLDPWD | PWD | SHELL | SHLVL | TERM | TMP | TMPDIR | TEMP | TEMPDIR) continue ;;
    NIX_ATTRS_* | NIX_BUILD_CORES | NIX_BUILD_TOP | NIX_ENFORCE_PURITY | NIX_LOG_FD | NIX_STORE | CONFIG_SHELL) continue ;;
    SOURCE_DATE_EPOCH) continue ;;
    # stdenv acts on these.
    allowSubstitutes | args | buildCommand* | builder | cmakeFlags | configureFlags | name | out | outputs) continue ;;
    passAsFile | patches | phases | pname | preferLocalBuild | src | srcs | stdenv) continue ;;
    strictDeps | system | userHook | version | __*) continue ;;
    *Hook | *Inputs | *Phase | deps[A-Z]* | do*Check | dont[A-Z]* | enableParallel* | mesonFlags | output[A-Z]* | shellHook) continue ;;
  esac
  # stdenv sets these, whatever the shell says.
  case $name=$value in
    *"$NIX_BUILD_TOP"* | *=/no-cert-file.crt | TZ=UTC) continue ;;
  esac
  # The seeds are made of this file's own path.
  if [ "$name" = NIX_CFLAGS_COMPILE ]; then
    while [[ $value =~ ^(.*)\ -frandom-seed=[^\ ]*(.*)$ ]]; do
      value=${BASH_REMATCH[1]}${BASH_REMATCH[2]}
    done
    [ -n "$value" ] || continue
  fi
  printf '%s=%s\0' "$name" "$value" >> "$result"
done < <("$env" -0 | LC_ALL=C "$sort" -z)
