# The module for home-manager:
#
#   imports = [ inputs.nix-sandbox-mcp.homeModules.default ];
#   programs.nix-sandbox-mcp = {
#     enable = true;
#     environments.python.preset = "python";
#   };
#
# gives every MCP client that home-manager configures the server
# (programs.mcp.servers.nix-sandbox; programs.mcp.enable stays the user's to
# set), and puts the environments into the user's sandbox folder.
{
  config,
  lib,
  pkgs,
  ...
}:
let
  declared = import ./options.nix { inherit lib; };
  cfg = config.programs.nix-sandbox-mcp;
  library = import ../nix { inherit pkgs; };
  installed = library.installation {
    prefix = "programs.nix-sandbox-mcp";
    values = declared.values cfg;
    start = declared.start cfg;
  };
in
{
  options.programs.nix-sandbox-mcp = declared.options // {
    inherit (declared) enable;
    package = declared.package installed.server;
    env = lib.mkOption {
      type = lib.types.attrsOf lib.types.str;
      default = { };
      example = {
        PROJECT_DIR = "/home/me/project";
      };
      description = declared.rows.modules.home-manager.env.doc;
    };
  };

  config = lib.mkIf cfg.enable {
    home.packages = [ cfg.package ];
    programs.mcp.servers.nix-sandbox = {
      command = lib.getExe cfg.package;
      args = [ "--stdio" ];
      inherit (cfg) env;
    };
    xdg.configFile = lib.mapAttrs' (
      name: artifact: lib.nameValuePair "nix-sandbox-mcp/sandboxes/${name}" { source = artifact; }
    ) installed.environments;
  };
}
