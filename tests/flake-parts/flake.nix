# The flake-parts module in a flake as its users write one. A flake of its own,
# so that flake-parts is no input of those who only want sandboxes.
{
  inputs = {
    nix-sandbox-mcp.url = "path:../..";
    nixpkgs.follows = "nix-sandbox-mcp/nixpkgs";
    flake-parts.url = "github:hercules-ci/flake-parts";
  };

  outputs =
    inputs:
    inputs.flake-parts.lib.mkFlake { inherit inputs; } {
      systems = builtins.attrNames inputs.nix-sandbox-mcp.packages;
      # Twice, as it happens where two modules import it.
      imports = [
        inputs.nix-sandbox-mcp.flakeModules.default
        inputs.nix-sandbox-mcp.flakeModule
      ];
      perSystem =
        { pkgs, system, ... }:
        {
          # flake-parts finds it by itself from Nix 2.14 on.
          _module.args.pkgs = inputs.nixpkgs.legacyPackages.${system};

          devShells.default = pkgs.mkShell {
            packages = [ pkgs.jq ];
            GREETING = "hello";
          };
          nix-sandbox-mcp = {
            environments = {
              python.preset = "python";
              tools = {
                packages = [
                  pkgs.bash
                  "jq"
                ];
                interpreter = "bash -c";
                description = "Bash and jq";
              };
            };
            defaults.timeout_seconds = 20;
            project = {
              use_flake = true;
              mode = "overlay";
            };
            flakeRefs = [ "github:me/sandboxes#data" ];
          };
        };
    };
}
