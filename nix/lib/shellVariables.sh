# The builder of shellVariables.nix.

# Attributes come as a file where the shell has __structuredAttrs.
if [ -e "${NIX_ATTRS_SH_FILE:-}" ]; then . "$NIX_ATTRS_SH_FILE"; fi
programs=$sandboxPrograms except=" $sandboxExcept " result=${out:-${outputs[out]}}
. "$stdenv/setup"
set +eu

PATH=$programs:$PATH
: > "$result"
for name in $(compgen -e); do
  case $name in
    # Of the build, of the jail, and of the person's shell.
    _ | HOME | HOST_PATH | OLDPWD | PWD | SHELL | SHLVL | TERM | TMP | TMPDIR | TEMP | TEMPDIR) continue ;;
    NIX_ATTRS_* | NIX_BUILD_CORES | NIX_BUILD_TOP | NIX_ENFORCE_PURITY | NIX_LOG_FD | NIX_STORE | CONFIG_SHELL) continue ;;
    SOURCE_DATE_EPOCH) continue ;;
    # What stdenv acts on.
    allowSubstitutes | args | buildCommand* | builder | cmakeFlags | configureFlags | name | out | outputs) continue ;;
    passAsFile | patches | phases | pname | preferLocalBuild | sandboxExcept | sandboxPrograms | src | srcs | stdenv) continue ;;
    strictDeps | system | userHook | version | __*) continue ;;
    *Hook | *Inputs | *Phase | deps[A-Z]* | do*Check | dont[A-Z]* | enableParallel* | mesonFlags | output[A-Z]* | shellHook) continue ;;
  esac
  [[ $except != *" $name "* ]] || continue
  value=${!name}
  case $value in
    *"$NIX_BUILD_TOP"* | /no-cert-file.crt) continue ;;
  esac
  printf '%s=%s\0' "$name" "$value" >> "$result"
done
