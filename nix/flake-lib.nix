# The library's functions for other flakes, which say for which packages:
#
#   nix-sandbox-mcp.lib.mkSandbox { inherit pkgs; name = "perl"; … }
let
  withPkgs =
    name: use: args:
    if builtins.isAttrs args && args ? pkgs then
      use (import ./. { inherit (args) pkgs; }) (removeAttrs args [ "pkgs" ])
    else
      throw "${name} lacks pkgs: use ${name} { inherit pkgs; … }";
in
{
  escapeTest = withPkgs "escapeTest" (library: args: library.escapeTest args.sandbox);
  mkSandbox = withPkgs "mkSandbox" (library: library.mkSandbox);
  fromProject = withPkgs "fromProject" (library: library.fromProject);
  mkServer = withPkgs "mkServer" (library: library.mkServer);
  mkImage = withPkgs "mkImage" (library: library.mkImage);
  mkPortable = withPkgs "mkPortable" (library: library.mkPortable);
  fromToml = withPkgs "fromToml" (library: args: library.fromToml args.config);
}
