{
  description = "An MCP server that runs a model's code in sandboxes built by Nix";

  inputs.nixpkgs.url = "github:NixOS/nixpkgs/nixos-unstable";

  outputs =
    { self, nixpkgs }:
    let
      inherit (nixpkgs) lib;

      # Of these, the ones that the package set has.
      systems = {
        x86_64-linux = null;
        aarch64-linux = null;
      };
      eachSystem = f: lib.mapAttrs (_: f) (builtins.intersectAttrs systems nixpkgs.legacyPackages);

      library = eachSystem (pkgs: import ./nix { inherit pkgs; });
      libraryFor = pkgs: library.${pkgs.stdenv.hostPlatform.system};

      example = pkgs: (libraryFor pkgs).mkServer { config = ./config.example.toml; };
    in
    {
      lib = import ./nix/flake-lib.nix;

      packages = eachSystem (
        pkgs:
        {
          inherit ((libraryFor pkgs).programs) agent jail runtime;
          default = example pkgs;
        }
        // lib.mapAttrs' (name: lib.nameValuePair "sandbox-${name}") (example pkgs).environments
      );

      legacyPackages = eachSystem (pkgs: {
        inherit (libraryFor pkgs) presets;
        debug = import ./nix/debug.nix { server = example pkgs; };
      });
    };
}
