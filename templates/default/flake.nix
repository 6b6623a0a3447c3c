# A sandbox of your own, and a server for it.
#
#   nix run .#server          the server, on standard input and output
#   nix build .#data -o ~/.config/nix-sandbox-mcp/sandboxes/data
#                             the sandbox alone, for a server that you have
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
        data = nix-sandbox-mcp.lib.mkSandbox {
          inherit pkgs;
          # The name by which the model asks for it.
          name = "data";
          description = "Python with NumPy, pandas and matplotlib";
          interpreter_type = "python";
          packages = [
            (pkgs.python3.withPackages (ps: [
              ps.numpy
              ps.pandas
              ps.matplotlib
            ]))
          ];
          timeout_seconds = 120;
          memory_mb = 1024;
        };

        server = nix-sandbox-mcp.lib.mkServer {
          inherit pkgs;
          environments = [ data ];
        };

        default = server;
      });
    };
}
