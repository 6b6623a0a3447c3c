# Packages by the names that configurations give them.
{ pkgs, lib }:
let
  inherit (builtins) isAttrs isString toJSON;
in
rec {
  # pkgs.a.b for "a.b", or null; a package is itself.
  package =
    named:
    let
      found = if isString named then lib.attrByPath (lib.splitString "." named) null pkgs else named;
    in
    if !(isAttrs found && found ? outPath) then
      null
    else if isString named then
      # Its own name may be another one; onDemand.nix looks it up by this one.
      found // { attributeName = lib.last (lib.splitString "." named); }
    else
      found;

  problems =
    location: names:
    map (
      name:
      "${location} packages names ${toJSON name}, which nixpkgs does not have: use ${
        # The names of modules are what people know.
        if (builtins.tryEval (isString name && package "python3Packages.${name}" != null)).value then
          toJSON "python3Packages.${name}"
        else
          "one that `nix search nixpkgs WORD` finds"
      }"
    ) (lib.filter (name: package name == null) names);
}
