# The files that programs expect outside of /nix/store and that every jail
# has: /bin/sh, /usr/bin/env, and an /etc with one user. It is one store path;
# the jail's /bin, /usr and /etc are links into it, and so cost no mount.
{ pkgs }:
let
  inherit (import ./user.nix) name uid gid;
in
pkgs.runCommandLocal "sandbox-base" { } ''
  mkdir -p $out/bin $out/usr/bin $out/etc
  ln -s ${pkgs.bash}/bin/bash $out/bin/sh
  ln -s ${pkgs.coreutils}/bin/env $out/usr/bin/env
  echo '${name}:x:${toString uid}:${toString gid}:${name}:/workspace:/bin/sh' > $out/etc/passwd
  echo '${name}:x:${toString gid}:' > $out/etc/group
  printf '127.0.0.1 localhost ${name}\n::1 localhost\n' > $out/etc/hosts
  printf 'passwd: files\ngroup: files\nhosts: files\n' > $out/etc/nsswitch.conf
''
