{ pkgs }:
{
  name = "python";
  description = "Python 3 with NumPy and PyYAML";
  packages = import ../tools.nix { inherit pkgs; } ++ [
    pkgs.python3.pkgs.numpy
    pkgs.python3.pkgs.pyyaml
  ];
}
