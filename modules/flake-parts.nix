# The module for flake-parts:
#
#   imports = [ inputs.nix-sandbox-mcp.flakeModules.default ];
#   perSystem.nix-sandbox-mcp.environments.python.preset = "python";
#
# gives packages.nix-sandbox-mcp (the server), packages.sandbox-NAME, an app,
# and for each environment two checks: one runs code in it, one tries to get
# out of it.
# `nix eval .#nix-sandbox-mcp.metadata --json` shows what the server is made of.
{ lib, flake-parts-lib, ... }:
let
  declared = import ./options.nix { inherit lib; };
in
{
  options.perSystem = flake-parts-lib.mkPerSystemOption (
    { config, pkgs, ... }:
    let
      cfg = config.nix-sandbox-mcp;
      library = import ../nix { inherit pkgs; };
      values = declared.values cfg;

      # The project of a flake is the flake: its shell is known here.
      shell = config.devShells.default or (throw "perSystem.nix-sandbox-mcp.project: use_flake is true and there is no devShells.default: define one with mkShell, or leave use_flake out");
      useFlake = values.project.use_flake or false == true;

      written = library.fromOptions {
        prefix = "perSystem.nix-sandbox-mcp";
        values = values // {
          project = if useFlake then removeAttrs values.project [ "use_flake" ] else values.project;
          environments =
            lib.optionalAttrs useFlake {
              project = {
                from_shell = shell;
                description = "The project's own development shell, in bash";
              };
            }
            // values.environments;
        };
      };
      server = library.mkServer (written // declared.start cfg);
    in
    {
      options.nix-sandbox-mcp = declared.options // {
        enable = lib.mkOption {
          type = lib.types.bool;
          # A flake for many systems has its other outputs on those without jails.
          default =
            pkgs.stdenv.hostPlatform.isLinux
            && (cfg.environments != { } || cfg.flakeRefs != [ ] || useFlake);
          defaultText = lib.literalExpression "the system is Linux, and environments, flakeRefs or project.use_flake is set";
          description = declared.rows.modules.flake-parts.enable.doc;
        };
      };

      config = lib.mkIf cfg.enable {
        packages = {
          nix-sandbox-mcp = server;
        }
        // lib.mapAttrs' (name: lib.nameValuePair "sandbox-${name}") server.environments;

        apps.nix-sandbox-mcp = {
          type = "app";
          program = lib.getExe server;
          meta.description = "Serve this flake's sandboxes to a language model";
        };

        checks =
          lib.mapAttrs' (
            name: artifact: lib.nameValuePair "sandbox-${name}" (library.smokeTest artifact)
          ) server.environments
          # There are attempts in some languages.
          // lib.mapAttrs' (name: artifact: lib.nameValuePair "escape-${name}" (library.escapeTest artifact)) (
            lib.filterAttrs (
              _: artifact: lib.elem artifact.metadata.interpreter_type library.escapeTest.languages
            ) server.environments
          );
      };
    }
  );
}
