{ pkgs }:
{
  name = "python";
  description = "Python 3 with NumPy and PyYAML";
  packages = [
    (pkgs.python3.withPackages (ps: [
      ps.numpy
      ps.pyyaml
    ]))
    pkgs.bash
    pkgs.coreutils
  ];
}
