# shellcheck shell=bash
# Evaluates a flake, whose author is not trusted. The builder starts it, with the variables of the wrapper:
#
#   project.sh project FOLDER HOME                  the shell of a project, for PROJECT_USE_FLAKE (builder/start.go)
#   project.sh flake FOLDER HOME WANT ATTRIBUTE     what code wants of a flake of its own files (builder/flake.go):
#                                                   to build, run or develop, "" is the default
#
# HOME is a folder for this flake alone, which it makes. It writes "found", with the derivation of the shell's
# variables or a line of JSON (packageOf.nix), or "problem SENTENCE", and what Nix says to standard error.
#
# Two things keep the author from the user's files, variables and network:
#
# 1. Nix evaluates the flake purely: it reads the flake and its locked inputs,
#    and fetches only what has a hash. It builds nothing for the evaluation
#    (import from derivation), takes no settings from the flake (nixConfig), and
#    updates no lock file.
# 2. That Nix, and the git that it starts, run in a jail: they see the checkout
#    read-only, the store, their own programs and settings, and a home of this
#    project alone. Of the checkout's git settings they see those that no program
#    is started for.
#
# What comes out is the path of a derivation. Nix builds it like any other, in
# its own sandbox, which is required here.

# The folders and settings of the host that the jail shows, if they exist.
shown_folders=(/usr /bin /lib /lib32 /lib64 /sbin)
shown_settings=(
  /etc/alternatives /etc/ca-certificates /etc/crypto-policies /etc/gai.conf /etc/host.conf /etc/hosts
  /etc/ld.so.cache /etc/ld.so.conf /etc/ld.so.conf.d /etc/nix /etc/nsswitch.conf /etc/pki /etc/protocols
  /etc/resolv.conf /etc/services /etc/ssl /etc/static
)
# passed: the variables that Nix acts on (builder/nix.go).
passed=' PATH HOME USER LOGNAME LANG LC_ALL TMPDIR XDG_CACHE_HOME XDG_CONFIG_DIRS XDG_CONFIG_HOME XDG_DATA_HOME
 XDG_STATE_HOME NIX_CONF_DIR NIX_REMOTE NIX_SSL_CERT_FILE NIX_USER_CONF_FILES SSL_CERT_FILE SSH_AUTH_SOCK
 http_proxy https_proxy ftp_proxy all_proxy no_proxy HTTP_PROXY HTTPS_PROXY FTP_PROXY ALL_PROXY NO_PROXY '

# forget: removes all other variables from those of this shell's programs.
forget() {
  local entry
  while IFS= read -r -d '' entry; do
    entry=${entry%%=*}
    [[ $passed =~ [[:space:]]"$entry"[[:space:]] || ! $entry =~ ^[A-Za-z_][A-Za-z0-9_]*$ ]] || export -n "$entry"
  done < <(env -0)
}

# above NAME FOLDER: prints FOLDER, or the nearest folder above it that has NAME.
# It passes over a NAME of anybody but root, this user and FOLDER's owner, which
# somebody else may have put above the project, as git does since 2.35.2.
above() {
  local folder=$2 owner project
  project=$(stat -c %u -- "$2") || return
  while :; do
    owner=$(stat -c %u -- "${folder%/}/$1" 2>/dev/null) || owner=
    case $owner in 0 | "$EUID" | "$project") break ;; esac
    [ "$folder" != / ] || return 1
    folder=${folder%/*} folder=${folder:-/}
  done
  printf %s "$folder"
}

# escaped PATH: prints a path as flake references have it.
escaped() {
  local path=$1
  path=${path//'%'/%25} path=${path//'?'/%3F} path=${path//'#'/%23} path=${path// /%20}
  printf %s "$path"
}

# show FOLDER...: adds folders of programs to what the jail shows.
show() {
  local folder
  for folder; do
    case $folder/ in
      /nix/* | /usr/*) ;;
      *) flags+=(--ro-bind "$folder" "$folder") ;;
    esac
  done
}

# jailed COMMAND...: runs a command in the jail of $flags.
jailed() {
  local memory
  # 600 s of processor time, and half of the machine's memory, but 4 GiB at least.
  read -r _ memory _ </proc/meminfo
  memory=$((memory / 2 > 4194304 ? memory / 2 : 4194304))
  (
    forget
    ulimit -c 0 -t 600 -v $memory
    exec "$bubblewrap" --args 3 "$@" 3< <(printf '%s\0' "${flags[@]}")
  )
}

# repository CHECKOUT: adds git's own folder of a checkout to the jail, with
# settings that start no program. Fails with a sentence in $problem.
repository() {
  local root=$1 git own common key value settings=$home/git-config
  own=$(readlink -e -- "$root/.git") common=$own
  problem="the git repository of $root"
  if [ -f "$own" ]; then
    # A working tree or a submodule: the folder that is named has to name this
    # one, so that no project can have another repository shown.
    IFS= read -r -n 4096 git <"$own"
    case $git in 'gitdir: '*) git=${git#gitdir: } ;; *) problem+=" has no folder: .git is no file of git's"; return 1 ;; esac
    case $git in /*) ;; *) git=$root/$git ;; esac
    own=$(readlink -e -- "$git") && [ -d "$own" ] || { problem+=" is missing: $git does not exist"; return 1; }
    if [ -f "$own/commondir" ]; then
      IFS= read -r -n 4096 common <"$own/commondir"
      case $common in /*) ;; *) common=$own/$common ;; esac
      common=$(readlink -e -- "$common") && IFS= read -r -n 4096 value <"$own/gitdir" || value=
      case $value in /*) ;; *) value=$own/$value ;; esac
      [ "${own%/*}" = "$common/worktrees" ] && [ "$(readlink -e -- "$value")" = "$root/.git" ] || common=
    else
      common=$own
      value=$(git_setting "$own/config" core.worktree)
      [ "$(cd -- "$own" && readlink -e -- "$value")" = "$root" ] || common=
    fi
    [ -n "$common" ] || { problem+=" is $own, which is that of another folder"; return 1; }
    flags+=(--ro-bind "$common" "$common")
    case $own/ in "$common"/*) ;; *) flags+=(--ro-bind "$own" "$own") ;; esac
  elif [[ $own/ != "$root"/* ]] || [ -e "$own/commondir" ]; then
    problem+=" is another folder's: clone it"
    return 1
  fi
  # Only these are read by a git that starts nothing.
  : >"$settings"
  if [ -e "$common/config" ]; then
    [ -f "$common/config" ] && [ ! -L "$common/config" ] || { problem+=" has settings that are no file"; return 1; }
    for key in core.{repositoryFormatVersion,bare,worktree,fileMode,symlinks,ignoreCase,autocrlf,eol,sparseCheckout,precomposeUnicode} \
      extensions.{objectFormat,refStorage,relativeWorktrees}; do
      value=$(git_setting "$common/config" $key) || continue
      git_setting "$settings" $key "$value"
    done
    flags+=(--ro-bind "$settings" "$common/config")
  fi
  if [ -f "$common/objects/info/alternates" ]; then
    # The objects of a clone with --reference or --shared.
    while IFS= read -r value; do
      case $value in /*/objects) flags+=(--ro-bind-try "$value" "$value") ;; esac
    done < <(head -n 16 -- "$common/objects/info/alternates")
  fi
  problem=
}

# git_setting FILE KEY [VALUE]: prints or writes a setting of a file of git's.
git_setting() {
  type -P git >/dev/null || return
  (cd / && forget && exec git config --file "$1" --no-includes "${@:2}") 2>/dev/null
}

# show_machine: begins $flags with a jail that shows what Nix and git need of the machine.
show_machine() {
  local entry target
  flags=(
    --die-with-parent --new-session --unshare-ipc --unshare-pid --unshare-uts --unshare-cgroup-try
    --cap-drop ALL --clearenv --proc /proc --dev /dev --size 67108864 --tmpfs /tmp --dir /run
  )
  if [ $EUID = 0 ]; then
    # The project may be another user's, and readable by that user alone.
    if "$bubblewrap" --bind / / "$tools/true" 2>/dev/null; then
      flags+=(--cap-add CAP_DAC_READ_SEARCH)
    else
      flags+=(--unshare-user)
    fi
  fi
  for entry in "${shown_folders[@]}"; do
    if [ -L "$entry" ]; then
      flags+=(--symlink "$(readlink -- "$entry")" "$entry")
    elif [ -d "$entry" ]; then
      flags+=(--ro-bind "$entry" "$entry")
    fi
  done
  for entry in "${shown_settings[@]}"; do
    target=$(readlink -e -- "$entry") && flags+=(--ro-bind "$target" "$entry")
  done
  show "${nix%/*}" ${git:+"${git%/*}"}
  if [ -S "${NIX_REMOTE#unix://}" ]; then
    flags+=(--ro-bind /nix /nix --ro-bind "${NIX_REMOTE#unix://}" "${NIX_REMOTE#unix://}")
  elif [ "${NIX_REMOTE:-daemon}" = daemon ] && [ -S /nix/var/nix/daemon-socket/socket ]; then
    flags+=(--ro-bind /nix /nix --setenv NIX_REMOTE daemon)
  else
    # Without a daemon, Nix itself writes what it fetches and the derivations.
    flags+=(--bind /nix /nix)
  fi
}

# show_project FOLDER: adds a flake's folder to the jail, and sets $reference to it. Fails
# with a sentence in $problem.
#
# Of a checkout, git's files alone go into the store, and not what lies beside
# them untracked, such as secrets; so do Nix's commands.
show_project() {
  local checkout
  if checkout=$(above .git "$1") && [ "$checkout" != / ]; then
    flags+=(--ro-bind "$checkout" "$checkout")
    repository "$checkout" || return
    reference=git+file://$(escaped "$checkout")
    [ "$checkout" = "$1" ] || reference+="?dir=$(escaped "${1#"$checkout"/}")"
  else
    flags+=(--ro-bind "$1" "$1")
    reference=path:$(escaped "$1")
  fi
}

# show_settings HOME: completes the jail with a home of the project's own and the user's
# settings of Nix.
show_settings() {
  local name config=${XDG_CONFIG_HOME:-$HOME/.config}/nix
  flags+=(--bind "$1" "$1" --ro-bind-try "$config" "$1/.config/nix")
  for name in $passed; do
    case $name in
      HOME | PATH | TMPDIR | USER | LOGNAME | XDG_* | SSH_AUTH_SOCK | NIX_CONF_DIR | NIX_USER_CONF_FILES) ;;
      *) [ -z "${!name+set}" ] || flags+=(--setenv "$name" "${!name}") ;;
    esac
  done
  for name in NIX_CONF_DIR NIX_SSL_CERT_FILE SSL_CERT_FILE; do
    case ${!name-} in /*) flags+=(--ro-bind-try "${!name}" "${!name}" --setenv "$name" "${!name}") ;; esac
  done
  flags+=(
    --setenv HOME "$1" --setenv TMPDIR "$1/tmp" --setenv PATH "${nix%/*}${git:+:${git%/*}}:/usr/bin:/bin"
    --setenv NIX_CONFIG "${NIX_CONFIG-}"
    # The checkout may be another user's; its settings are not read.
    --setenv GIT_CONFIG_COUNT 3
    --setenv GIT_CONFIG_KEY_0 safe.directory --setenv GIT_CONFIG_VALUE_0 '*'
    --setenv GIT_CONFIG_KEY_1 core.fsmonitor --setenv GIT_CONFIG_VALUE_1 false
    --setenv GIT_CONFIG_KEY_2 core.hooksPath --setenv GIT_CONFIG_VALUE_2 /dev/null
    --remount-ro / --chdir "$1"
  )
}

# evaluate_project FOLDER HOME: evaluates the shell of the project's flake and sets
# $variables to the derivation of its variables. Fails with a sentence in $problem.
evaluate_project() {
  local folder nix git home=$2 flags=() reference
  local place="PROJECT_USE_FLAKE: the flake of $1"
  folder=$(readlink -e -- "$1") || { problem="PROJECT_USE_FLAKE: $1 does not exist: set it to the project's folder"; return 1; }
  folder=$(above flake.nix "$folder") || {
    problem="PROJECT_USE_FLAKE: $1 has no flake.nix in it or above it: add one with devShells.$system.default, or leave PROJECT_USE_FLAKE unset"
    return 1
  }
  prepare_home || { problem="$place: $problem"; return 1; }
  show_machine
  show_project "$folder" || { problem="$place: $problem"; return 1; }
  show_settings "$home"
  evaluate_shell
}

# prepare_home: makes $home, and sets $nix and $git to these programs.
prepare_home() {
  # Fails with a sentence in $problem.
  [ -n "$bubblewrap" ] || { problem="a flake is evaluated in a jail, which macOS does not have: leave it out"; return 1; }
  mkdir -p -- "$home/tmp" "$home/.config/nix"
  nix=$(readlink -e -- "$(type -P nix)") git=$(type -P git) && git=$(readlink -e -- "$git")
}

# evaluate_flake FOLDER HOME WANT ATTRIBUTE: evaluates a flake of code's own files, and sets $found to what it says.
# Its inputs come from the store, and nixpkgs is that of the server where its own is not there. Fails with a sentence
# in $problem.
evaluate_flake() {
  local nix git home=$2 flags=() reference=path:/source attribute=${4:-default} candidates lock lacks out said apply
  prepare_home || return 1
  show_machine
  flags+=(--ro-bind "$1" /source)
  show "$nixpkgs"
  show_settings "$home"
  if [[ ! $attribute =~ ^[A-Za-z0-9_][A-Za-z0-9_.+-]{0,127}$ ]]; then
    problem="$attribute is no attribute of a flake: use one such as .#default"
    return 1
  fi
  apply=$(<"$package_of")
  case $3 in
    build) candidates=("packages.$system.$attribute" "legacyPackages.$system.$attribute" "$attribute") ;;
    run) candidates=("apps.$system.$attribute" "packages.$system.$attribute" "legacyPackages.$system.$attribute" "$attribute") ;;
    develop) candidates=("devShells.$system.$attribute" "packages.$system.$attribute") apply=$(<"$variables_of") ;;
    *) problem="\"$3\" is none of build, run and develop"; return 1 ;;
  esac
  if [ "$attribute" = default ]; then
    case $3 in
      build | run) candidates+=("defaultPackage.$system") ;;
      develop) candidates+=("devShell.$system") ;;
    esac
  fi
  for lock in --no-update-lock-file "--no-write-lock-file --override-input nixpkgs path:$nixpkgs"; do
    lacks=
    for attribute in "${candidates[@]}"; do
      problem=
      # shellcheck disable=SC2086
      if jailed_nix --unshare-net eval --offline $lock --raw --apply "$apply" "$reference#$attribute"; then
        found=$out
        [ "$3" != develop ] || found="{\"drv\":\"$out\",\"outputs\":[\"out\"],\"name\":\"shell\",\"program\":\"\"}"
        return
      fi
      case $said in
        *"pure eval"*) return 1 ;;
        *"does not provide attribute"*) problem="the flake has no ${candidates[*]}: name another attribute" ;;
        *"--no-update-lock-file"* | *"unable to download"* | *"fetch"* | *"registries"* | *"program 'git' failed"* | *"cannot find flake"* | *"flake registry"*)
          lacks=yes problem="the flake wants inputs that this server's store lacks, and it is evaluated without a network: have the user run nix flake archive in the project, or leave out all inputs but nixpkgs"
          break
          ;;
        *"mport-from-derivation"* | *"not allowed to build"*)
          problem="the flake needs a build for its evaluation (import from derivation), which is refused to code"
          return 1
          ;;
        *) return 1 ;;
      esac
    done
    [ -n "$lacks" ] || return 1
  done
  return 1
}

# evaluate_shell: does so in the jail of $flags, for the flake $reference.
evaluate_shell() {
  local attribute said out
  # Nix would fetch an input that is not locked before it refuses it, so this is
  # found out without a network.
  if ! jailed_nix --unshare-net flake metadata --offline --no-update-lock-file "$reference"; then
    case $said in
      *"--no-update-lock-file"* | *"unable to download"* | *"fetch"* | *"registries"* | *"program 'git' failed"*)
        problem="$place has inputs that its flake.lock lacks: lock them with \`nix flake lock\` and \`git add\`"
        ;;
      # Nix sees only the files that git knows.
      *"is not tracked by Git"* | *"/flake.nix': No such file"* | *"does not contain a "*"flake.nix"*)
        problem="$place has a flake.nix that git does not know: \`git add flake.nix\`"
        ;;
    esac
    return 1
  fi
  # An older flake has devShell.
  for attribute in "devShells.$system.default" "devShell.$system"; do
    problem=
    if jailed_nix --share-net eval --no-update-lock-file --raw --apply "$(<"$variables_of")" "$reference#$attribute"; then
      variables=$out
      [[ $variables =~ ^/nix/store/[0-9a-z]{32}-sandbox-shell-variables\.drv$ ]] && return
      problem="$place has a $attribute that is no shell: define one with mkShell"
      return 1
    fi
    case $said in
      *"does not provide attribute"*)
        problem="$place has no devShells.$system.default: define one with mkShell, or leave PROJECT_USE_FLAKE unset"
        continue
        ;;
      *"mport-from-derivation"*)
        problem="$place needs a build for its evaluation (import from derivation), which is refused to projects: use a flake without that"
        ;;
    esac
    return 1
  done
  return 1
}

# jailed_nix NETWORK COMMAND...: runs Nix on the project's flake, with a network or
# without. Sets $out to its output, and $said to the end of its standard error, which is shown.
jailed_nix() {
  local network=() status files=$private/.$BASHPID
  [ "$1" = --share-net ] || network=("$1")
  {
    jailed "${network[@]}" nice -n 10 "$nix" --extra-experimental-features 'nix-command flakes' \
      --option pure-eval true --option allow-import-from-derivation false --option accept-flake-config false \
      --option eval-cache false "${@:2}" | head -c 4096 >"$files.out"
    exit "${PIPESTATUS[0]}"
  } 2>&1 | { tee /dev/fd/3 | tail -c 16384 >"$files.said"; } 3>&2
  status=${PIPESTATUS[0]}
  out=$(<"$files.out") said=$(<"$files.said")
  rm -f -- "$files.out" "$files.said"
  return "$status"
}

problem=
case $1 in
  project) evaluate_project "$2" "$3" && found=$variables ;;
  flake) evaluate_flake "${@:2}" ;;
esac
if [ -n "${found-}" ]; then
  printf 'found %s\n' "$found"
else
  [ -z "$problem" ] || printf 'problem %s\n' "$problem"
  exit 1
fi
