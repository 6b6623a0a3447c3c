# The files that programs expect outside of /nix/store: /bin/sh, /usr/bin/env,
# and an /etc with one user and the name of the host. They are one store path;
# the sandbox's /bin, /usr and /etc are links into it, which cost no mount.
{ pkgs }:
{ hostname }:
let
  inherit (import ./user.nix) name uid gid;
in
pkgs.runCommandLocal "sandbox-base" { } ''
  mkdir -p $out/bin $out/usr/bin $out/etc
  ln -s ${pkgs.bash}/bin/bash $out/bin/sh
  ln -s ${pkgs.coreutils}/bin/env $out/usr/bin/env
  echo '${name}:x:${toString uid}:${toString gid}:${name}:/workspace:/bin/sh' > $out/etc/passwd
  echo '${name}:x:${toString gid}:' > $out/etc/group
  printf '127.0.0.1 localhost ${hostname}\n::1 localhost\n' > $out/etc/hosts
  printf 'passwd: files\ngroup: files\nhosts: files\n' > $out/etc/nsswitch.conf
''
