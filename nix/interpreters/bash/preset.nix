{ pkgs }:
{
  name = "shell";
  description = "Bash with command-line tools, jq, ripgrep, git and Python 3";
  packages = import ../tools.nix { inherit pkgs; } ++ [
    pkgs.bc
    pkgs.bzip2
    pkgs.curl
    pkgs.file
    pkgs.gnupatch
    pkgs.hostname
    pkgs.iproute2
    pkgs.less
    pkgs.locale
    pkgs.ncurses
    pkgs.netcat-openbsd
    pkgs.openssl
    pkgs.perl
    pkgs.procps
    pkgs.python3
    pkgs.ripgrep
    pkgs.sqlite
    pkgs.tree
    pkgs.unzip
    pkgs.util-linux
    pkgs.wget
    pkgs.xxd
    pkgs.xz
    pkgs.zip
    pkgs.zstd
  ];
}
