{ pkgs }:
{
  name = "shell";
  description = "Bash with the usual text tools, jq, ripgrep and git";
  packages = [
    pkgs.bash
    pkgs.bc
    pkgs.coreutils
    pkgs.diffutils
    pkgs.file
    pkgs.findutils
    pkgs.gawk
    pkgs.gitMinimal
    pkgs.gnugrep
    pkgs.gnused
    pkgs.gnutar
    pkgs.gzip
    pkgs.jq
    pkgs.ripgrep
    pkgs.tree
  ];
}
