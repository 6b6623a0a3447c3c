# What a server is made of, for `nix eval .#debug.metadata --json` and
# `nix eval .#debug.environments --json`: it builds nothing.
{ server }:
{
  inherit (server) metadata;
  environments = builtins.mapAttrs (_: artifact: {
    sandbox = artifact.outPath;
    environment = artifact.environment.outPath;
    inherit (artifact.metadata) description;
  }) server.environments;
}
