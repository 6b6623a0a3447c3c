# What a server is made of, for `nix eval .#debug.metadata --json` and
# `nix eval .#debug.environments --json`: it builds nothing.
{ server, library }:
{
  inherit (library) fromToml presets;
  inherit (server) metadata;
  environments = builtins.mapAttrs (_: artifact: {
    sandbox = artifact.outPath;
    environment = artifact.environment.outPath;
    drv = artifact.drvPath;
    inherit (artifact.metadata) description;
  }) server.environments;
}
