# The Go suites as NixOS tests, for `nix flake check` with nixpkgs: an attribute
# set of tests, one for each suite and mode. ./check runs the same suites in
# tests/vm, which needs no NixOS.
{
  pkgs,
  # What mkServer makes.
  server,
  # The Go programs' vendor tree (nix/lib/programs.nix).
  vendor,
}:
let
  inherit (pkgs) lib;

  modes = import ./modes.nix;

  # The suites, and whether they have tests of the mode in which a sandbox can
  # only refuse.
  suites = {
    selftest = {
      folder = "tests/vm/selftest";
      refusal = true;
    };
    jail.folder = "jail";
    e2e = {
      folder = "tests/e2e";
      refusal = true;
    };
    escape.folder = "tests/escape";
  };

  test =
    suite: mode:
    lib.nameValuePair "nixos-${suite}-${mode}" (
      import ./machine.nix {
        inherit pkgs server mode;
        inherit (modes.${mode}) run skip;
        suite = import ./suite.nix {
          inherit pkgs vendor;
          name = suite;
          inherit (suites.${suite}) folder;
        };
      }
    );
in
{
  nixos-service = import ./service.nix { inherit pkgs; };
}
// lib.listToAttrs (
  lib.concatMap (
    suite:
    map (test suite) (
      lib.filter (mode: mode != "no-userns" || suites.${suite}.refusal or false) (lib.attrNames modes)
    )
  ) (lib.attrNames suites)
)
