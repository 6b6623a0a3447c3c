# Packages by the names that configurations give them.
{ pkgs, lib }:
let
  inherit (builtins) isAttrs isString toJSON;
in
rec {
  # pkgs.a.b for "a.b", or null; a package is itself. A name that nixpkgs does not have may be one
  # of a module of Python: the names of modules are what people know.
  package =
    named:
    let
      path = lib.splitString "." named;
      module = lib.attrByPath ([ "python3Packages" ] ++ path) null pkgs;
      found = if isString named then lib.attrByPath path module pkgs else named;
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
      "${location} packages names ${toJSON name}, which nixpkgs does not have: use one that `nix search nixpkgs WORD` finds"
    ) (lib.filter (name: package name == null) names);
}
