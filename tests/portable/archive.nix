# The archive that the tests unpack: a server whose one environment is bash.
{ nixpkgs }:
let
  pkgs = import nixpkgs { system = builtins.currentSystem; };
  sandboxes = import ../../nix { inherit pkgs; };
in
sandboxes.mkPortable {
  environments = [
    (sandboxes.mkSandbox {
      name = "bash";
      packages = [
        pkgs.bash
        pkgs.coreutils
      ];
      interpreter_type = "bash";
    })
  ];
}
