# The names that setup/debpkgs has and nixpkgs has not, or in another sense: a list of sentences.
{ nixpkgs, debian }:
let
  ours = import debian { };
  theirs = import nixpkgs {
    inherit (ours.stdenv.hostPlatform) system;
    config.allowAliases = false;
    overlays = [ ];
  };
  inherit (theirs) lib;

  # Names that only explain why they are absent are no names.
  has = set: name: set ? ${name} && (builtins.tryEval set.${name}).success;
  absent =
    what: ours: theirs:
    map (name: "${what}.${name} is not in nixpkgs") (
      lib.filter (name: has ours name && !(has theirs name)) (lib.attrNames ours)
    );

  differs =
    name:
    let
      described = package: {
        pname = package.pname or null;
        mainProgram = package.meta.mainProgram or null;
      };
      our = described ours.${name};
      their = described theirs.${name};
    in
    lib.optional (our != their) "pkgs.${name} is ${builtins.toJSON our}, and ${builtins.toJSON their} in nixpkgs";
in
absent "pkgs" ours theirs
++ absent "lib" ours.lib lib
++ lib.concatMap (part: absent "lib.${part}" ours.lib.${part} lib.${part}) [
  "asserts"
  "attrsets"
  "filesystem"
  "generators"
  "licenses"
  "lists"
  "meta"
  "platforms"
  "sourceTypes"
  "strings"
  "systems"
  "trivial"
  "versions"
]
++ absent "python3.pkgs" ours.python3.pkgs theirs.python3.pkgs
++ lib.concatMap differs (lib.attrNames (import (debian + "/packages.nix")))
