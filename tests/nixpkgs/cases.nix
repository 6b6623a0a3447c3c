# What tests/nixpkgs/run builds: the checks of the flake that need no NixOS and no evaluation of
# packages in C, and what users build beside them.
{ pkgs }:
let
  library = import ../../nix { inherit pkgs; };
  server = library.mkServer { config = ../../config.example.toml; };
  shell = pkgs.mkShell {
    packages = [ pkgs.jq ];
    GREETING = "hello";
  };
in
removeAttrs (import ../nix/checks.nix { inherit pkgs server; }) [ "evaluation" ]
// {
  inherit (library.programs) vendor;
  shell = library.mkSandbox {
    name = "shell";
    from_shell = shell;
  };
  project = library.fromProject { project.devShells.${pkgs.stdenv.hostPlatform.system}.default = shell; };
}
