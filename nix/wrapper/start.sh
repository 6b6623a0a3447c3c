# shellcheck shell=bash
# Prepares the runtime where environments have to be built at start: the
# wrapper, bin/nix-sandbox-mcp, sources this if NIX_SANDBOX_ENVS or PROJECT_USE_FLAKE
# is set, if there is a configuration, or if calls may add packages.
#
# The wrapper sets these variables: $server (a name that no other server has), $config_file
# (a configuration, or empty), $user_config (where the user's is or would be, or empty if it does not count),
# $tools (a folder of programs), $start_nix (default.nix with its package set, or
# empty if the server was made with buildAtStart = false), $builder (nix-sandbox-builder), $scripts (the folder
# of these scripts), $project (the project's folder, if PROJECT_DIR is unset), $on_demand (1 if calls may
# add packages), and what project.sh needs: $bubblewrap, $variables_of,
# $package_of, $nixpkgs and $system.
#
# This sets for the runtime, which the wrapper then executes:
#
#   NIX_SANDBOX_METADATA   the server's metadata
#   NIX_SANDBOX_BUILDS     a folder of build results; see runtime/registry/folder.go
#   NIX_SANDBOX_PACKAGES   a folder of environments to which calls added packages; see
#                          parts/packages/folder.go
#   NIX_SANDBOX_BUILDER    the socket of the process that builds (builder/); it ends with the
#                          last process that has this shell's descriptors
#
# Nothing here waits for a build. Nix evaluates each new content of a
# configuration file in the foreground, because the server needs its settings.
# The result is in the cache:
#
#   configs/SERVER-CONTENT/plan            the lines that default.nix documents
#   configs/SERVER-CONTENT/metadata.json   the first of them
#   configs/SERVER-CONTENT/built/NAME      links to artifacts; GC roots
#   roots/REFERENCE/result                 the GC root of a reference's artifact
#   packages/KEY/                          environments with packages; builder/results.go
#                                          says how long they are kept
#   …/used                                 its time is that of the last use; after
#                                          30 days without use the folder is removed

fail() {
  printf 'nix-sandbox-mcp: error: %s\n' "$1" >&2
  [ $# -lt 2 ] || printf 'nix-sandbox-mcp: hint: %s\n' "$2" >&2
  [ -z "$private" ] || rm -rf -- "$private"
  exit 1
}

# have_nix: whether nix is installed.
have_nix() { type -P nix >/dev/null; }
no_nix='there is no nix on the PATH of the server: install Nix, or give the path of a sandbox that was built elsewhere'

# ask ATTRIBUTE [ARGUMENT]...: evaluates an attribute of default.nix.
ask() {
  nix --extra-experimental-features 'nix-command flakes' eval --impure --raw -f "$start_nix" "$@" </dev/null
}

# explain LINE: takes a line of Nix's standard error, and sets $wrong to the last
# error. Of a TOML file, the last source line that Nix shows has the mistake.
explain() {
  local shown='^ +([0-9]+) \| '
  case $1 in
    *error:*)
      wrong=${1#*error: }
      # The words of Nix's library for TOML.
      wrong=${wrong#while parsing a TOML string: } wrong=${wrong#*toml::*: }
      ;;
    *) if [[ $wrong && $1 =~ $shown ]]; then wrong="${wrong% (line *)} (line ${BASH_REMATCH[1]})"; fi ;;
  esac
}

# digest: prints the SHA-256 of standard input.
digest() {
  local sum
  sum=$(sha256sum)
  printf %s "${sum%% *}"
}

# own_folder: sets $private to a folder of this start alone, and makes it once. Where
# none can be made, it fails if nothing but packages on demand needs one.
own_folder() {
  local base=${XDG_RUNTIME_DIR-}
  [ -z "$private" ] || return 0
  [ -n "$base" ] && [ -d "$base" ] && [ -w "$base" ] || base=${TMPDIR:-/tmp}
  private=$(mktemp -d -- "$base/nix-sandbox-mcp.XXXXXXXXXX" 2>/dev/null) || {
    private=
    [ $required = no ] || fail "no folder can be made in $base" "set TMPDIR to a folder that the server may write"
    return 1
  }
}

# find_cache: sets $cache to the user's cache, or to a folder that is removed
# with this start if no cache can be written.
find_cache() {
  cache=${XDG_CACHE_HOME:-${HOME:+$HOME/.cache}}/nix-sandbox-mcp
  case $cache in /nix-sandbox-mcp | [!/]*) cache= ;; esac
  if [ -z "$cache" ] || ! { [ -d "$cache" ] || mkdir -p -- "$cache" 2>/dev/null; } || ! [ -w "$cache" ]; then
    if own_folder; then cache=$private/.cache; fi
  fi
}

# prune: removes what no start has used for 30 days.
prune() {
  local folder
  touch -d '30 days ago' "$private/.month"
  for folder in "$cache"/configs/* "$cache"/roots/*; do
    if [ -e "$folder/used" ] && [ "$folder/used" -ot "$private/.month" ]; then rm -rf -- "$folder"; fi
  done
}

# todo KIND NAME VALUE BASE: adds an environment that has to be built.
todo() {
  kinds+=("$1") names+=("$2") values+=("$3") bases+=("$4")
}

# reference REFERENCE: adds a flake reference of NIX_SANDBOX_ENVS. The name of its
# sandbox is not known until it is built: until then the last word of the
# reference is its name.
reference() {
  local name=${1%%[?]*} count=2 taken IFS=' '
  case $1 in
    *'#'*) name=${1##*#} name=${name##*.} ;;
    . | ./) name=${PWD##*/} ;;
    *) name=${name%/} name=${name##*[/:]} ;;
  esac
  name=${name,,} name=${name#sandbox-} name=${name//[!a-z0-9_-]/-}
  while [[ $name == [_-]* ]]; do name=${name:1}; done
  name=${name:0:60}
  name=${name:-environment} taken=$name
  while [[ " ${names[*]} " == *" $taken "* ]] || [ -e "${config:-/nowhere}/built/$taken" ]; do taken=$name-$count count=$((count + 1)); done
  todo reference "$taken" "$1" "$PWD"
}

# references LIST: adds all references of a list that is separated by commas.
references() {
  local one
  local IFS=,
  set -f
  for one in $1; do
    one=${one#"${one%%[![:space:]]*}"} one=${one%"${one##*[![:space:]]}"}
    [ -z "$one" ] || reference "$one"
  done
  set +f
}

# evaluate: makes Nix evaluate the configuration, into the folder $config.
evaluate() {
  local text line wrong=
  own_folder
  if ! text=$(ask plan "${of_config[@]}" 2> >(tee "$private/.log" >&2)); then
    while IFS= read -r line; do explain "$line"; done <"$private/.log"
    fail "$says, which Nix could not read: ${wrong:-it did not say why}" "correct the file"
  fi
  case $text in
    'wrong '*)
      while IFS= read -r line; do printf 'nix-sandbox-mcp: error: %s\n' "${line#wrong }" >&2; done <<<"$text"
      fail "$says, which has mistakes" "correct what is named above"
      ;;
  esac
  # A rename is atomic: other servers may start at the same time.
  mkdir -p -- "$private/.config/built" "$cache/configs"
  printf '%s\n' "$text" >"$private/.config/plan"
  printf '%s\n' "${text%%$'\n'*}" >"$private/.config/metadata.json"
  mv -T -- "$private/.config" "$config" 2>/dev/null || [ -e "$config/plan" ] ||
    fail "the cache $cache cannot be written" "set XDG_CACHE_HOME to a folder that the server may write"
  prune
}

# contents FILE: prints a configuration file, and the locks of npm that it names, for the
# digest by which its result is kept.
contents() {
  local line folder named='npm *= *["'"'"']([^"'"'"']+)'
  printf '%s\n' "${of_config[@]:2}"
  cat -- "$1"
  while IFS= read -r line; do
    if [[ $line =~ $named ]]; then
      folder=${BASH_REMATCH[1]}
      case $folder in /*) ;; *) folder=${1%/*}/$folder ;; esac
      cat -- "$folder"/package.json "$folder"/package-lock.json 2>/dev/null
    fi
  done <"$1"
}

# name_config: sets $says to words that name the configuration, and $of_config to what Nix is
# told of it. What the user's own does not say is as in the default server.
name_config() {
  says="NIX_SANDBOX_CONFIG is $config_file"
  case $config_file in /*) ;; *) config_file=$PWD/$config_file ;; esac
  config_base=${config_file%/*} config_base=${config_base:-/}
  of_config=(--argstr config "$config_file")
  if [ -n "$user_config" ]; then
    says="your configuration is $config_file"
    of_config+=(--argstr extends default)
  fi
}

# configure: evaluates the configuration, or takes its result from the cache.
configure() {
  local line kind name value base
  name_config
  base=$config_base
  [ -f "$config_file" ] && [ -r "$config_file" ] ||
    fail "$says, which is no file that can be read" "a configuration is a TOML file"
  config=$cache/configs/$server-$(contents "$config_file" | digest)
  if ! [ -e "$config/plan" ]; then
    have_nix || fail "$says, and there is no nix on the PATH of the server to read it" \
      "install Nix, or do without it and set NIX_SANDBOX_DIR to a folder of sandboxes that were built elsewhere"
    evaluate
  fi
  : >"$config/used"
  export NIX_SANDBOX_METADATA=$config/metadata.json
  {
    read -r line
    while IFS= read -r line; do
      kind=${line%% *} value=${line#* } name=${value%% *} value=${value#* }
      case $kind in
        project)
          : "${use_flake:=$name}" "${project:=$value}"
          ;;
        own)
          [ -e "$config/built/$name" ] || todo own "$name" '' "$base"
          ;;
        path)
          # A folder may be an artifact, or a flake that has to be built.
          if [ -e "$value/flake.nix" ] && ! [ -e "$value/metadata.json" ]; then
            todo sandbox "$name" "$value" "$base"
          else
            [ -L "$config/built/$name.named" ] || ln -sfT -- "$value" "$config/built/$name.named"
          fi
          ;;
        flake | sandbox) todo "$kind" "$name" "$value" "$base" ;;
      esac
    done
  } <"$config/plan"
}

# write_plan: writes what is to be built, as the builder reads it (builder/start.go).
write_plan() {
  local i extends=
  [ -z "$user_config" ] || extends=default
  printf '%s\0' "$config" "$config_file" "${config_base-}" "$extends" "${#kinds[@]}"
  for i in "${!kinds[@]}"; do printf '%s\0' "${kinds[i]}" "${names[i]}" "${values[i]}" "${bases[i]}"; done
}

# replan: reads the configuration $watched again, for the builder, and writes the plan of it alone. What is wrong with
# it ends nothing but this.
replan() {
  fail() {
    printf 'nix-sandbox-mcp: error: %s\n' "$1" >&2
    exit 1
  }
  local config='' config_file=$watched kinds=() names=() values=() bases=() use_flake=0 project=
  if [ -n "$user_config" ] && ! [ -e "$watched" ]; then config_file=; else configure; fi
  write_plan
}

# builds_at_start WHAT: ends with an error if the server was made to build nothing
# at start.
builds_at_start() {
  [ -n "$start_nix" ] ||
    fail "$1, and this server builds nothing when it starts" "build the environment beforehand, or make the server with buildAtStart = true"
}

# start_builder: starts the builder, whose standard input ends with the runtime, even if that is killed. It has no
# descriptor of the client's, and is no child of the runtime.
start_builder() {
  # The child ends when bash, which has sent it a line, knows of it. Bash loses the status of
  # one that ends before, and waits. As process 1 it waits for ever: the builder has become
  # its child, and ends after the runtime.
  exec {alive}> >(
    read -r
    exec {input}<&0 >&2
    # The scripts that it starts read these variables.
    export bubblewrap cache nixpkgs package_of private server start_nix system tools user_config variables_of watched
    "$builder" -folder "$private" -cache "$cache" -start "$start_nix" -shell "$BASH" -scripts "$scripts" -watch "$watched" <&"$input" &
  )
  echo >&"$alive"
  wait $!
  (write_plan >&"$alive" 2>/dev/null) || true # it may have failed to start, which its orders say
  export NIX_SANDBOX_BUILDER=$private/.orders
}

# start COMMAND...: prepares the runtime for a command, or for serving.
start() {
  local i serving=no PATH=$tools:${PATH-}
  # These commands build the packages that they are given.
  case "${1-} ${2-}" in
    ' '* | -* | 'serve '* | 'packages '* | 'run '*+* | 'shell '*+*) serving=yes ;;
  esac
  unset NIX_SANDBOX_BUILDER
  private='' config='' kinds=() names=() values=() bases=()
  use_flake=${PROJECT_USE_FLAKE-} project=${PROJECT_DIR:-$project}
  case $use_flake in '' | 0 | 1) ;; *) fail "PROJECT_USE_FLAKE is \"$use_flake\"" "set it to 1 or 0, or leave it unset" ;; esac
  [ -z "$config_file" ] || builds_at_start "NIX_SANDBOX_CONFIG is $config_file"
  [ -z "$NIX_SANDBOX_ENVS" ] || builds_at_start "NIX_SANDBOX_ENVS is ${NIX_SANDBOX_ENVS#,}"
  [ "${use_flake:-0}" = 0 ] || builds_at_start "PROJECT_USE_FLAKE is 1"
  required=no
  [ -z "$config_file${NIX_SANDBOX_ENVS#,}${use_flake#0}" ] || required=yes
  find_cache
  watched=${config_file:-$user_config}
  [ -z "$config_file" ] || configure
  references "${NIX_SANDBOX_ENVS-}"
  if [ "${use_flake:-0}" = 1 ]; then
    [ -n "$project" ] || fail "PROJECT_USE_FLAKE is 1, and there is no project" "set PROJECT_DIR to its folder"
    case $project in /*) ;; *) project=$PWD/$project ;; esac
    todo project project "$project" "$project"
  fi
  for i in "${config:-/nowhere}"/built/*/recipe.json; do
    [ ! -e "$i" ] || on_demand=1
  done
  export NIX_SANDBOX_PACKAGES=${cache:+$cache/packages}
  # What builds the packages of calls, and takes changes of the configuration, is there before they come.
  if [ $serving = no ] || [ -z "$start_nix" ] || ! have_nix; then on_demand=0 watched=; fi
  if [ ${#kinds[@]} = 0 ] && [ -z "$private" ] && [ $on_demand = 0 ] && [ -z "$watched" ]; then
    # Everything has been built before.
    export NIX_SANDBOX_BUILDS=${config:+$config/built}
    return
  fi
  own_folder || return 0
  export NIX_SANDBOX_BUILDS=$private
  if [ -n "$config" ]; then
    for i in "$config"/built/*; do
      # The links are copied, not their targets.
      if [ -L "$i" ]; then cp -P -t "$private" -- "$config"/built/*; break; fi
    done
  fi
  if ! have_nix; then
    for i in "${!names[@]}"; do printf '%s\n' "$no_nix" >"$private/${names[i]}.failed"; done
    kinds=()
  fi
  for i in "${!kinds[@]}"; do : >"$private/${names[i]}.building"; done
  start_builder
}
