# The files that programs expect outside of /nix/store: /bin/sh, /usr/bin/env and,
# by the same two folders, the programs of the environment, which the first lines
# of scripts name there; the time zones, without which each would be taken for UTC;
# what terminals can do, which the shell's libraries bring along anyway; and an /etc
# with one user, who can commit, and the name of the host. They are one store path;
# the sandbox's /bin, /usr and /etc are links into it, which cost no mount.
#
# A sandbox with a network has a resolver, at every address, and finds public
# certificates where Debian, Fedora and NixOS have them.
{ pkgs }:
{
  environment,
  hostname,
  # The file of certificates, if there is a network.
  certificates ? null,
}:
let
  inherit (pkgs) lib;
  inherit (import ./user.nix) name uid gid;
in
pkgs.runCommandLocal "sandbox-base" { } (
  ''
    mkdir -p $out/bin $out/usr/share $out/etc
    ln -s ../bin $out/usr/bin
    ln -s ${pkgs.tzdata}/share/zoneinfo $out/usr/share/zoneinfo
    ln -s ${pkgs.ncurses}/share/terminfo $out/usr/share/terminfo
    ln -s ${pkgs.coreutils}/bin/env ${pkgs.bash}/bin/bash $out/bin/
    shopt -s nullglob
    for program in ${environment}/bin/*; do
      ln -sf "$program" $out/bin/
    done
    ln -sf ${pkgs.bash}/bin/bash $out/bin/sh
    echo '${name}:x:${toString uid}:${toString gid}:${name}:/workspace:/bin/sh' > $out/etc/passwd
    echo '${name}:x:${toString gid}:' > $out/etc/group
    printf 'NAME=sandbox\nID=sandbox\nPRETTY_NAME="a sandbox of nix-sandbox-mcp"\n' > $out/etc/os-release
    printf '127.0.0.1 localhost ${hostname}\n::1 localhost\n' > $out/etc/hosts
    printf 'passwd: files\ngroup: files\nhosts: files\n' > $out/etc/nsswitch.conf
    printf '[user]\n\tname = ${name}\n\temail = ${name}@localhost\n[init]\n\tdefaultBranch = main\n' > $out/etc/gitconfig
  ''
  + lib.optionalString (certificates != null) ''
    printf 'passwd: files\ngroup: files\nhosts: files dns\n' > $out/etc/nsswitch.conf
    printf 'nameserver 127.0.0.1\n' > $out/etc/resolv.conf
    mkdir -p $out/etc/ssl/certs $out/etc/pki/tls/certs
    for name in ssl/certs/ca-certificates.crt ssl/certs/ca-bundle.crt pki/tls/certs/ca-bundle.crt; do
      ln -s ${certificates} $out/etc/$name
    done
  ''
)
