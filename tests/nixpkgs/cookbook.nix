# The pages of the cookbook whose environments nixpkgs refuses. What these pages name is too large
# or absent in Debian's packages, so it is evaluated here and built by nobody's tests.
{ pkgs }:
let
  inherit (pkgs) lib;
  library = import ../../nix { inherit pkgs; };
  folder = ../../docs/cookbook;

  blocks =
    page:
    map (part: lib.head (lib.splitString "\n```" part)) (
      lib.tail (lib.filter lib.isString (builtins.split "\n```toml config=nixpkgs\n" (builtins.readFile (folder + "/${page}"))))
    );
  evaluates =
    text:
    (builtins.tryEval (
      lib.all (sandbox: builtins.isString sandbox.drvPath) (
        lib.attrValues (library.fromToml (builtins.fromTOML text)).environments
      )
    )).value;
  pages = lib.filter (page: blocks page != [ ]) (lib.attrNames (builtins.readDir folder));
in
assert lib.length pages >= 3;
lib.filter (page: !(lib.all evaluates (blocks page))) pages
