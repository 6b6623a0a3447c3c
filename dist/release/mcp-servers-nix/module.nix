# modules/servers/nix-sandbox.nix
{ mkServerModule, ... }:
{
  imports = [
    (mkServerModule {
      name = "nix-sandbox";
      packageName = "nix-sandbox-mcp";
    })
  ];
}
