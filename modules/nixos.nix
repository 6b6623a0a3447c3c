# The module for NixOS:
#
#   imports = [ inputs.nix-sandbox-mcp.nixosModules.default ];
#   services.nix-sandbox-mcp = {
#     enable = true;
#     environments.python.preset = "python";
#     service.enable = true;
#   };
#
# puts the command nix-sandbox-mcp on everybody's PATH and the environments
# where every server of the machine looks for sandboxes, so that those that
# run take up what a rebuild of the system changes. With service.enable it also serves
# everybody who has a token, over HTTP.
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
  row = name: declared.rows.modules.nixos."service.${name}";
  described =
    type: name:
    lib.mkOption {
      inherit type;
      inherit (row name) default;
      description = (row name).doc;
    };
  service = import ./service.nix {
    inherit lib;
    program = lib.getExe cfg.package;
    inherit (installed.server.metadata) serve;
    inherit (cfg) service;
  };
in
{
  options.services.nix-sandbox-mcp = declared.options // {
    inherit (declared) enable;
    package = declared.package installed.server;
    service = {
      enable = described lib.types.bool "enable";
      instances = described (lib.types.ints.between 1 64) "instances";
      openFirewall = described lib.types.bool "openFirewall";
    };
  };

  config = lib.mkIf cfg.enable (
    lib.mkMerge [
      {
        environment.systemPackages = [ cfg.package ];
        environment.etc = lib.mapAttrs' (
          name: artifact: lib.nameValuePair "nix-sandbox-mcp/sandboxes/${name}" { source = artifact; }
        ) installed.environments;
      }
      (lib.mkIf cfg.service.enable service)
    ]
  );
}
