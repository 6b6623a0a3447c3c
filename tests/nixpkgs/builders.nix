# nixpkgs with its own builders (stdenv, buildGoModule, buildEnv, closureInfo, mkShell, ...) over
# Debian's programs, because nixpkgs' own would have to be compiled: { nixpkgs; debian; } are
# folders of nixpkgs and of setup/debpkgs/stage.
{ nixpkgs, debian }:
let
  programs = import debian { };
  inherit (programs) lib;

  # nixpkgs' packages can be overridden, and Debian's have nothing to override.
  package =
    program:
    program
    // {
      override = _: package program;
      overrideAttrs = _: package program;
    };
  packages = lib.mapAttrs (name: _: package programs.${name}) (import (debian + "/packages.nix")) // {
    inherit (programs) linuxPackages python3 runtimeShell;
    locale = package programs.locale;
    bashInteractive = package programs.bash;
    bashNonInteractive = package programs.bash // {
      shellPath = "/bin/bash";
    };
    gitMinimal = package programs.git;
    python3Packages = programs.python3.pkgs;
    go = programs.go // {
      GOOS = "linux";
      GOARCH = "amd64";
      CGO_ENABLED = 0;
    };
  };
in
import nixpkgs {
  inherit (programs.stdenv.hostPlatform) system;
  config = { };
  overlays = [
    (
      final: _:
      packages
      // {
        # What a server imports when it builds at its start.
        path = debian;
        buildGoModule = final.callPackage (nixpkgs + "/pkgs/build-support/go/module.nix") { };
        # NixOS tests would build a NixOS.
        testers = { };
      }
    )
  ];
  stdenvStages =
    { localSystem, config, ... }@arguments:
    let
      stdenv = import (nixpkgs + "/pkgs/stdenv/generic") { defaultConfig = config; } {
        buildPlatform = localSystem;
        hostPlatform = localSystem;
        targetPlatform = localSystem;
        cc = null;
        fetchurlBoot = throw "tests/nixpkgs: nothing is fetched";
        inherit (programs.stdenv) shell;
        initialPath = map (name: programs.${name}) [
          "coreutils"
          "findutils"
          "diffutils"
          "gnused"
          "gnugrep"
          "gawk"
          "gnutar"
          "gzip"
          "bzip2"
          "gnumake"
          "bash"
          "gnupatch"
          "xz"
          "file"
        ];
        # nixpkgs' bash for builds has no readline.
        preHook = "enable -n bind compgen complete compopt";
      };
    in
    [
      (_: { __raw = true; })
      (_: {
        inherit (arguments) config overlays;
        inherit stdenv;
      })
    ];
}
