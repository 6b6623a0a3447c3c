# A copy of a closure in one folder: $out/nix/store holds every path that the
# roots need, and no other.
#
# A sandbox that binds store paths one by one goes through all earlier mounts for
# each of them (400 paths: 220 ms); this tree is one mount, whatever the number of
# paths. Times and modes stay as the store has them.
{ pkgs }:
{ name, roots }:
pkgs.runCommandLocal "${name}-tree" { closure = pkgs.closureInfo { rootPaths = roots; }; } ''
  mkdir -p $out/nix/store
  xargs cp --archive --reflink=auto --target-directory=$out/nix/store < $closure/store-paths
''
