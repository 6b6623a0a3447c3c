# The image that the tests run: a server whose one environment is bash.
{ nixpkgs }:
let
  pkgs = import nixpkgs { system = builtins.currentSystem; };
  sandboxes = import ../../nix { inherit pkgs; };
in
sandboxes.mkImage {
  name = "nix-sandbox-mcp-test";
  tag = "test";
  serve = { };
  environments = [
    (sandboxes.mkSandbox {
      name = "bash";
      packages = [
        pkgs.bash
        pkgs.coreutils
      ];
      interpreter = "bash -c";
    })
  ];
}
