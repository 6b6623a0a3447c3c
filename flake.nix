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
      eachSystem = f: lib.mapAttrs f (builtins.intersectAttrs systems nixpkgs.legacyPackages);

      # Nix tells it of a clean checkout, and later versions of any.
      revision = self.rev or self.dirtyRev or null;

      library = eachSystem (_: pkgs: import ./nix { inherit pkgs revision; });
      server = eachSystem (system: _: library.${system}.default);

      # The server for a Mac, whose sandboxes are virtual machines with Linux.
      onMac = lib.mapAttrs (
        system: pkgs:
        (import ./nix {
          inherit pkgs revision;
          guest = nixpkgs.legacyPackages.${lib.replaceStrings [ "darwin" ] [ "linux" ] system};
        }).default
      ) (builtins.intersectAttrs { aarch64-darwin = null; } nixpkgs.legacyPackages);

      # The default server for places without Nix, with which packages could be added.
      complete = {
        extends = "default";
        environments = nixpkgs.lib.genAttrs [ "bash" "node" "python" ] (_: {
          packages_on_demand = [ ];
        });
      };
    in
    {
      lib = import ./nix/flake-lib.nix { inherit nixpkgs; };

      # By their paths: imported twice, a module counts once.
      flakeModules.default = ./modules/flake-parts.nix;
      flakeModule = self.flakeModules.default; # convention
      # Nix knows these outputs and wants a set or a function, not a path.
      nixosModules.default.imports = [ ./modules/nixos.nix ];
      homeModules.default.imports = [ ./modules/home-manager.nix ];

      templates.default = {
        path = ./dist/templates/default;
        description = "A flake with a sandbox of its own and a server for it";
      };

      overlays.default = final: _: { nix-sandbox-mcp = import ./nix { pkgs = final; }; };

      packages = eachSystem (
        system: pkgs:
        {
          inherit (library.${system}.programs)
            agent
            demo
            jail
            network
            runtime
            ;
          default = server.${system};
          image = library.${system}.mkImage { config = complete; };
          portable = library.${system}.mkPortable { config = complete; };
          escape-test = library.${system}.programs.escapeTest;
          gpu-check = library.${system}.gpuCheck;
          python-client = import ./nix/lib/pythonClient.nix { inherit pkgs; } { };
        }
        // lib.mapAttrs' (name: lib.nameValuePair "sandbox-${name}") server.${system}.environments
      )
      // lib.mapAttrs (_: default: { inherit default; }) onMac;

      legacyPackages = eachSystem (
        system: _: {
          inherit (library.${system}) presets optionPages;
          debug = self.debug.${system};
        }
      )
      # `nix build` and `nix run` look here last, and `nix flake check` does not evaluate it.
      // {
        x86_64-darwin.default = throw "nix-sandbox-mcp: virtual machines on a Mac are those of Apple's processors, and this is x86_64-darwin: run the server on a Linux machine";
      };

      debug = eachSystem (
        system: _:
        import ./nix/debug.nix {
          server = server.${system};
          library = library.${system};
        }
      );

      apps = lib.mapAttrs (_: server: {
        default = {
          type = "app";
          program = lib.getExe server;
          meta.description = "Serve the sandboxes of config.example.toml";
        };
      }) (server // onMac);

      checks = eachSystem (
        system: pkgs:
        import ./tests/nix/checks.nix {
          inherit pkgs;
          server = server.${system};
        }
      );

      devShells = eachSystem (
        _: pkgs: {
          default = pkgs.mkShell {
            packages = [
              pkgs.bubblewrap
              pkgs.esbuild
              pkgs.go
              pkgs.jq
              pkgs.nodejs
              pkgs.python3
            ];
          };
        }
      );

      # A package set may lack it, and say so when asked.
      formatter = lib.filterAttrs (_: formatter: (builtins.tryEval formatter).success) (
        eachSystem (_: pkgs: pkgs.nixfmt-tree or (throw "this package set has no nixfmt-tree"))
      );
    };
}
