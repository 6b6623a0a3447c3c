# The programs that code of any language starts, in the ready-made environments.
{ pkgs }:
[
  pkgs.bash
  pkgs.coreutils
  pkgs.diffutils
  pkgs.findutils
  pkgs.gawk
  pkgs.gitMinimal
  pkgs.gnugrep
  pkgs.gnumake
  pkgs.gnused
  pkgs.gnutar
  pkgs.gzip
  pkgs.jq
  pkgs.which
]
