# The default server with an environment of your own.
#
#   nix build             the server: ./result/bin/nix-sandbox-mcp
#   nix build .#data -o ~/.config/nix-sandbox-mcp/sandboxes/data
#                         the environment alone, for a server that you have
#   echo 'print("hello")' | nix run .#data
{
  inputs.nix-sandbox-mcp.url = "github:nix-sandbox-mcp/nix-sandbox-mcp";
  inputs.nixpkgs.follows = "nix-sandbox-mcp/nixpkgs";

  outputs =
    { nixpkgs, nix-sandbox-mcp, ... }:
    let
      eachSystem =
        f: builtins.mapAttrs (system: _: f nixpkgs.legacyPackages.${system}) nix-sandbox-mcp.packages;
    in
    {
      packages = eachSystem (pkgs: rec {
        default = nix-sandbox-mcp.lib.mkServer {
          inherit pkgs;
          config = {
            # Without this line, the server has your environments alone.
            extends = "default";
            # The name by which the model asks for it.
            environments.data = {
              preset = "python";
              packages = [
                "python3Packages.scikit-learn"
                "python3Packages.seaborn"
              ];
              timeout_seconds = 120;
              memory_mb = 4096;
            };
          };
        };

        inherit (default.environments) data;
      });
    };
}
