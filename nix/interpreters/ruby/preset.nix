{ pkgs }:
{
  name = "ruby";
  description = "Ruby with its standard library";
  packages = import ../tools.nix { inherit pkgs; } ++ [ pkgs.ruby ];
}
