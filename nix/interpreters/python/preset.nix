{ pkgs }:
{
  name = "python";
  description = "Python 3 with NumPy and PyYAML";
  packages = [
    pkgs.python3.pkgs.numpy
    pkgs.python3.pkgs.pyyaml
    pkgs.bash
    pkgs.coreutils
  ];
}
