# What `nix flake check` builds.
{ pkgs, server }:
let
  inherit (pkgs) lib;

  tests = import ./. { inherit pkgs; };
  failed = lib.filter (name: tests.${name}.expr != tests.${name}.expected) (lib.attrNames tests);
in
{
  inherit server;

  evaluation =
    if failed == [ ] then
      pkgs.runCommandLocal "evaluation-tests" { } "echo ${toString (lib.length (lib.attrNames tests))} passed > $out"
    else
      throw "these tests of tests/nix fail: ${lib.concatStringsSep ", " failed}";
}
# The artifacts run inside a build too, where that may make namespaces.
// lib.mapAttrs' (
  name: artifact: lib.nameValuePair "sandbox-${name}" ((import ../../nix { inherit pkgs; }).tryOut artifact)
) server.environments
