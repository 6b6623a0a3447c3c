#!@shell@
# The server as Nix built it: starts one of its programs with the server's metadata, and with
# what has to be built at start. mkServer replaces the names between at signs.

given=${NIX_SANDBOX_METADATA-}
export NIX_SANDBOX_METADATA="${NIX_SANDBOX_METADATA-@out@/share/nix-sandbox-mcp/metadata.json}"

# The references of the build come before those of the environment. For the
# other settings the environment overrides the build.
NIX_SANDBOX_ENVS=@flakeRefs@${NIX_SANDBOX_ENVS:+,$NIX_SANDBOX_ENVS}
NIX_SANDBOX_ENVS=${NIX_SANDBOX_ENVS#,}
# A server that was built without a configuration of its own reads that of its user.
config_file=${NIX_SANDBOX_CONFIG-} user_config=
if [ -n "@ofUser@" ] && [ -z "$config_file$given" ]; then
  user_config=${XDG_CONFIG_HOME:-${HOME:+$HOME/.config}}/nix-sandbox-mcp/config.toml
  case $user_config in /nix-sandbox-mcp/* | [!/]*) user_config= ;; esac
  [ ! -e "$user_config" ] || config_file=$user_config
fi
if [ -z "$config_file" ]; then
  PROJECT_USE_FLAKE=${PROJECT_USE_FLAKE-@useFlake@} project=@project@
fi

# Nix does these.
case "${1-} ${2-}" in
  'add-env '* | 'doctor '[!-]*)
    case $* in
      *--help*) ;;
      *)
        tools=@tools@ start_nix=@start@ out=@out@
        server=${out##*/}
        . @scripts@/start.sh
        . @scripts@/config.sh
        case $1 in
          doctor) check "${@:2}" ;;
          *) add "${@:2}" ;;
        esac
        ;;
    esac
    ;;
esac

needs_environments=yes
case "${1-} ${2-}" in
  # The completion of these commands lists the names of the environments.
  '__complete run' | '__complete shell') ;;
  -h* | --help* | variables* | changes* | --version* | version* | help* | client-config* | completion* | __complete* | add-env* | manual* | token* | top* | approve* | page | page\ * | sessions* | get* | exec* | hook* | forward*)
    needs_environments=no
    ;;
esac
# Whether a call may add packages to an environment: to one that the server was
# built with, or to one of a sandbox folder.
on_demand=@onDemand@
recipes() {
  local folder artifact IFS=:
  for folder in ${NIX_SANDBOX_DIR:-${XDG_CONFIG_HOME:-${HOME-}/.config}/nix-sandbox-mcp/sandboxes:/etc/nix-sandbox-mcp/sandboxes}; do
    for artifact in "$folder"/*/recipe.json; do
      [ ! -e "$artifact" ] || on_demand=1
    done
  done
}
recipes
case "$needs_environments$NIX_SANDBOX_ENVS$config_file${PROJECT_USE_FLAKE#0}${on_demand#0}" in
  no* | yes) ;;
  *)
    out=@out@
    server=${out##*/} tools=@tools@ start_nix=@start@ builder=@builder@ scripts=@scripts@
    bubblewrap=@bubblewrap@ variables_of=@variablesOf@ package_of=@packageOf@ nixpkgs=@nixpkgs@ system=@system@
    . "$scripts/start.sh"
    start "$@"
    ;;
esac
# The runtime serves one client, with these flags alone; a client has no terminal. All other
# commands, and mistakes, are for the operator's program. It starts the gateway, which is empty
# if the server was built without [serve], and reads what it prints for MCP clients.
export NIX_SANDBOX_GATEWAY=@gateway@ NIX_SANDBOX_CLIENTS=@clients@
program=@operator@
flag='(--stdio|--log-format[ =](text|json))'
if [[ $* =~ ^(serve|$flag)?( $flag)*$ ]] && { [[ $* == *--stdio* ]] || { [ "${1-}" != serve ] && [ ! -t 0 ]; }; }; then
  program=@runtime@
  [ "${1-}" != serve ] || shift
fi
# The name by which this was called: `client-config` prints it.
exec -a "$0" "$program" "$@"
