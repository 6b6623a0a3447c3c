#!@shell@
# The server as Nix built it: the runtime, its metadata, and what has to be
# built first. mkServer fills in the words between at signs.

export NIX_SANDBOX_METADATA="${NIX_SANDBOX_METADATA-@out@/share/nix-sandbox-mcp/metadata.json}"

# What was said when this was built; what is said now is added, or counts more.
NIX_SANDBOX_ENVS=@flakeRefs@${NIX_SANDBOX_ENVS:+,$NIX_SANDBOX_ENVS}
if [ -z "${NIX_SANDBOX_CONFIG-}" ]; then
  PROJECT_USE_FLAKE=${PROJECT_USE_FLAKE-@useFlake@} project=@project@
fi

case "${1-} ${2-}" in
  'config check')
    case "${*:3}" in
      *--help*) ;;
      *)
        tools=@tools@ start_nix=@start@
        . @prepare@
        . @checker@
        check "${@:3}"
        ;;
    esac
    ;;
esac

needs_environments=yes
case "${1-} ${2-}" in
  # The completion of these commands lists the names of the environments.
  '__complete run' | '__complete shell' | '__complete escape-test') ;;
  -h* | --help* | --version* | help* | client-config* | completion* | __complete* | config* | manual*)
    needs_environments=no
    ;;
esac
case "$needs_environments$NIX_SANDBOX_ENVS${NIX_SANDBOX_CONFIG-}${PROJECT_USE_FLAKE#0}" in
  no* | yes) ;;
  *)
    out=@out@
    server=${out##*/} tools=@tools@ start_nix=@start@ builder=@builder@
    . @prepare@
    start
    ;;
esac
# Under the name that it was called by, so that it can tell others.
exec -a "$0" @runtime@ "$@"
