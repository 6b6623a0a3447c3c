# A sandbox such as an operator adds beside those of the server: Python for
# data. Its attribute `environment`, what is on its PATH, is built by ./check too.
{ nixpkgs }:
let
  pkgs = import nixpkgs { system = builtins.currentSystem; };
  sandboxes = import ../../nix { inherit pkgs; };
in
sandboxes.mkSandbox {
  name = "data";
  packages = [
    (pkgs.python3.withPackages (ps: [
      ps.matplotlib
      ps.numpy
      ps.pandas
      ps.pyyaml
    ]))
  ];
  preload = [
    "pandas"
    "numpy.random"
  ];
  interpreter = "python3 -c";
  timeout_seconds = 120;
  memory_mb = 1024;
  description = "Python with NumPy, pandas and matplotlib";
}
