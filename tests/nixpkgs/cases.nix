# What tests/nixpkgs/run builds: the checks of the flake that need no NixOS and no evaluation of
# packages in C, and what users build beside them.
{ pkgs }:
let
  inherit (pkgs) lib;
  library = import ../../nix { inherit pkgs; };
  server = library.mkServer { config = ../../config.example.toml; };
  shell = pkgs.mkShell {
    packages = [ pkgs.jq ];
    GREETING = "hello";
  };

  # What dist/release/files proposes to others, with this checkout in place of what a tag gives.
  source = builtins.path {
    name = "source";
    path = ../..;
    filter = path: _: !(lib.elem (baseNameOf path) [ ".cache" ".git" "result" ]);
  };
  proposed =
    file:
    builtins.toFile "package.nix" (
      builtins.replaceStrings
        [ "@version@" "@hash@" "@vendorHash@" ]
        [ library.programs.version lib.fakeHash (import ../../nix/lib/vendorHash.nix) ]
        (builtins.readFile file)
    );
in
removeAttrs (import ../nix/checks.nix { inherit pkgs server; }) [ "evaluation" ]
// {
  inherit (library.programs) vendor;
  shell = library.mkSandbox {
    name = "shell";
    from_shell = shell;
  };
  nixpkgs-package = pkgs.callPackage (proposed ../../dist/release/nixpkgs/package.nix.in) {
    fetchFromGitHub = _: source;
  };
  mcp-servers-nix-package = pkgs.callPackage (builtins.scopedImport { fetchTarball = _: source; } (
    proposed ../../dist/release/mcp-servers-nix/package.nix.in
  )) { };
  project = library.fromProject { project.devShells.${pkgs.stdenv.hostPlatform.system}.default = shell; };
}
