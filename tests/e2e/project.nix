# The environment `project` of testdata/project, whose nixpkgs is the one that
# is at hand.
{ nixpkgs }:
let
  pkgs = import nixpkgs { system = builtins.currentSystem; };
  sandboxes = import ../../nix { inherit pkgs; };
in
sandboxes.fromProject {
  project = (import ./testdata/project/flake.nix).outputs {
    nixpkgs.legacyPackages.${pkgs.stdenv.hostPlatform.system} = pkgs;
  };
}
