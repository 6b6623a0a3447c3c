# What `nix flake check` builds.
{ pkgs, server }:
let
  inherit (pkgs) lib;

  library = import ../../nix { inherit pkgs; };
  tests = import ./. { inherit pkgs; };
  failed = lib.filter (name: tests.${name}.expr != tests.${name}.expected) (lib.attrNames tests);

  # A package set may lack NixOS, and rented ARM machines lack KVM.
  machines =
    pkgs.stdenv.hostPlatform.isx86_64 && (builtins.tryEval (pkgs ? testers.runNixOSTest)).value;

  # What evaluation does not show, because a build decides it.
  built = {
    shell = {
      artifact = library.mkSandbox {
        name = "shell";
        from_shell = pkgs.mkShell {
          packages = [ pkgs.jq ];
          GREETING = "hello\nyou";
        };
      };
      code = ''printf %s "$GREETING" | jq --raw-input --slurp .'';
      output = ''"hello\nyou"'';
    };
  };
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
  name: artifact: lib.nameValuePair "sandbox-${name}" (library.smokeTest artifact)
) server.environments
// lib.mapAttrs' (name: built: lib.nameValuePair "prints-${name}" (library.prints built)) built
# The suites that depend on the user and the kernel, in machines of their own.
// lib.optionalAttrs machines (
  import ../nixos {
    inherit pkgs server;
    inherit (library.programs) vendor;
  }
)
