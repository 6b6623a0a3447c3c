# The module for NixOS:
#
#   imports = [ inputs.nix-sandbox-mcp.nixosModules.default ];
#   services.nix-sandbox-mcp = {
#     enable = true;
#     environments.python.preset = "python";
#   };
#
# puts the command nix-sandbox-mcp on everybody's PATH and the environments
# where every server of the machine looks for sandboxes, so that those that
# run take up what a rebuild of the system changes.
{
  config,
  lib,
  pkgs,
  ...
}:
let
  declared = import ./options.nix { inherit lib; };
  cfg = config.services.nix-sandbox-mcp;
  library = import ../nix { inherit pkgs; };
  installed = library.installation {
    prefix = "services.nix-sandbox-mcp";
    values = declared.values cfg;
    start = declared.start cfg;
  };
in
{
  options.services.nix-sandbox-mcp = declared.options // {
    inherit (declared) enable;
    package = declared.package installed.server;
  };

  config = lib.mkIf cfg.enable {
    environment.systemPackages = [ cfg.package ];
    environment.etc = lib.mapAttrs' (
      name: artifact: lib.nameValuePair "nix-sandbox-mcp/sandboxes/${name}" { source = artifact; }
    ) installed.environments;
  };
}
