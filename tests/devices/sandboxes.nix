# The sandboxes of the tests of devices. Which devices theirs are the tests write into their
# descriptions, so that one artifact is enough: python.
{ nixpkgs }:
let
  pkgs = import nixpkgs { system = builtins.currentSystem; };
  sandboxes = import ../../nix { inherit pkgs; };
in
{
  python = sandboxes.mkSandbox {
    name = "devices-python";
    packages = [
      pkgs.coreutils
      pkgs.python3
    ];
    interpreter = "python3 -c";
    devices = [ "vendor.example/gpu=all" ];
  };
}
