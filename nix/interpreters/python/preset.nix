{ pkgs }:
{
  name = "python";
  description = "Python 3 with NumPy, pandas, SciPy, matplotlib, Pillow, requests, bs4, openpyxl, pytest";
  packages = import ../tools.nix { inherit pkgs; } ++ [
    pkgs.python3.pkgs.beautifulsoup4
    pkgs.python3.pkgs.matplotlib
    pkgs.python3.pkgs.numpy
    pkgs.python3.pkgs.openpyxl
    pkgs.python3.pkgs.pandas
    pkgs.python3.pkgs.pillow
    pkgs.python3.pkgs.pytest
    pkgs.python3.pkgs.pyyaml
    pkgs.python3.pkgs.requests
    pkgs.python3.pkgs.scipy
  ];
}
