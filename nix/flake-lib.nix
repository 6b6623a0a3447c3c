# The library's functions for other flakes, which say for which packages:
#
#   nix-sandbox-mcp.lib.mkSandbox { inherit pkgs; name = "perl"; … }
#
# On a Mac, guest is the package set of Linux. Without pkgs, mkSandbox takes the flake's own nixpkgs for the system of its first package.
{ nixpkgs }:
let
  withPkgs =
    name: use: args:
    if builtins.isAttrs args && args ? pkgs then
      use (import ./. (
        builtins.intersectAttrs {
          pkgs = null;
          guest = null;
        } args
      )) (removeAttrs args [ "guest" "pkgs" ])
    else
      throw "${name} lacks pkgs: use ${name} { inherit pkgs; … }";
  ofPackage =
    use: args:
    let
      packages = args.packages or null;
      first = if builtins.isList packages && packages != [ ] then builtins.head packages else { };
    in
    if builtins.isAttrs args && !(args ? pkgs) && first ? system then
      use (args // { pkgs = nixpkgs.legacyPackages.${first.system}; })
    else
      use args;
in
{
  escapeTest = withPkgs "escapeTest" (library: args: library.escapeTest args.sandbox);
  mkSandbox = ofPackage (withPkgs "mkSandbox" (library: library.mkSandbox));
  fromProject = withPkgs "fromProject" (library: library.fromProject);
  mkServer = withPkgs "mkServer" (library: library.mkServer);
  mkImage = withPkgs "mkImage" (library: library.mkImage);
  mkPortable = withPkgs "mkPortable" (library: library.mkPortable);
  fromToml = withPkgs "fromToml" (library: args: library.fromToml args.config);
}
