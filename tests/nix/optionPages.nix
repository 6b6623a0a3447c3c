{ lib, library, ... }:
let
  pages = library.optionPages;
  folder = ../../docs/options;
  written = name: builtins.readFile (folder + "/${name}.md");
  wanted = lib.mapAttrs (_: row: row.type.wanted);
in
{
  # docs/options/write brings them up to date.
  testOptionPagesAreCurrent = {
    expr = lib.filter (name: pages.${name} != written name) (lib.attrNames pages);
    expected = [ ];
  };
  testOptionPagesAreAll = {
    expr = lib.filter (lib.hasSuffix ".md") (lib.attrNames (builtins.readDir folder));
    expected = map (name: "${name}.md") (lib.attrNames pages);
  };
  # The modules know the options without a package set, and without nixpkgs'
  # module system as far as here.
  testModulesKnowTheOptions = {
    expr = wanted (import ../../modules/options.nix { inherit lib; }).rows.module;
    expected = wanted library.options.module;
  };
  testEveryOptionIsDescribed = {
    expr =
      let
        inherit (library) options;
        tables = {
          inherit (options)
            defaults
            mkSandbox
            module
            project
            session
            toml
            ;
        }
        // options.modules;
      in
      lib.concatLists (
        lib.mapAttrsToList (
          table: rows:
          lib.filter (name: rows.${name}.doc or "" == "" || rows.${name}.type.wanted or "" == "") (
            lib.attrNames rows
          )
        ) tables
      );
    expected = [ ];
  };
}
