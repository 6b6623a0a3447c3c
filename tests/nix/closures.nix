# Sandboxes that differ in nothing but the number of store paths in them, for
# tests/nix/bench: { small; large; } has 10 and 400 more than bash alone.
{
  pkgs,
  library ? import ../../nix { inherit pkgs; },
}:
let
  inherit (pkgs) lib;

  # A variable that names store paths brings them into the sandbox.
  withPaths =
    count:
    library.mkSandbox {
      name = "paths-${toString count}";
      packages = [ pkgs.bash ];
      interpreter = "bash -c";
      env.PATHS = lib.concatMapStringsSep ":" (n: "${builtins.toFile "path-${toString n}" (toString n)}") (
        lib.genList (n: n) count
      );
    };
in
{
  small = withPaths 10;
  large = withPaths 400;
}
