# nixpkgs' interface over Debian's packages, for machines that cannot reach nixpkgs.
#
# `stage` puts the packages into the store and their index beside a copy of these files; that folder is then the flake
# that takes the place of nixpkgs: nix build .#default --override-input nixpkgs path:FOLDER
#
#   source.nix   the staged files               groups.nix    a group of packages -> a store path
#   tweaks.nix   what single packages need      stdenv.nix    mkDerivation
#   builders.nix runCommand, buildEnv, ...      go.nix        buildGoModule
#   python.nix   python3.withPackages           packages.nix  nixpkgs' names
#   lib.nix      nixpkgs.lib                    missing.nix   what is not here and says so
#   npm.nix      importNpmLock              dockerTools.nix  images of containers
#   linux.nix    Debian's kernel for machines  processors.nix  what differs between processors
{
  system ? builtins.currentSystem,
  config ? { },
  overlays ? [ ],
  # For a folder that `stage --arm64` has made: the set of the processor that builds.
  native ? null,
}:
assert
  system == "x86_64-linux"
  || throw "debpkgs: only x86_64-linux is supported, not ${system}; use nixpkgs there";
let
  lib = import ./lib.nix;
  source = import ./source.nix;
  processor = (import ./processors.nix).${source.index.architecture};
  # Builds run the programs of these.
  tools =
    if native != null then
      native.debpkgs
    else
      {
        inherit (source) seed;
        inherit groups packages;
      };
  inherit (tools) seed;

  groups = import ./groups.nix {
    inherit
      lib
      processor
      seed
      source
      system
      ;
    native = if native == null then null else native.debpkgs.groups;
  };
  inherit (groups) group;

  named =
    name:
    {
      package ? name,
      pname ? name,
      mainProgram ? name,
      more ? [ ],
    }:
    (
      if more == [ ] then
        group package
      else
        builders.symlinkJoin {
          name = (group package).name;
          paths = map group ([ package ] ++ lib.filter groups.has more);
        }
    )
    // {
      inherit pname;
      # Without Debian's epoch, which only compares Debian's own versions.
      version = builtins.elemAt (builtins.match "([0-9]+:)?(.*)" (groups.version package)) 1;
      meta = lib.optionalAttrs (mainProgram != null) { inherit mainProgram; };
      passthru = { };
      outputSpecified = false;
    };
  packages = lib.mapAttrs named (import ./packages.nix);

  stdenv = import ./stdenv.nix {
    inherit
      config
      lib
      processor
      system
      ;
    shell = tools.groups.group "bash";
    tools = map tools.groups.group [
      "coreutils"
      "findutils"
      "diffutils"
      "sed"
      "grep"
      "gawk"
      "tar"
      "gzip"
      "bzip2"
      "xz-utils"
      "make"
      "bash"
      "patch"
      "file"
    ];
  };
  builders = import ./builders.nix {
    inherit lib stdenv seed;
    shell = tools.packages.bash;
    inherit (tools.packages) jq;
  };
  dockerTools = import ./dockerTools.nix {
    inherit lib builders;
    inherit (packages) jq;
  };
  go = import ./go.nix {
    inherit
      lib
      system
      source
      groups
      stdenv
      native
      processor
      ;
    inherit (packages) cacert;
  };
  python3 = import ./python.nix {
    inherit lib groups source;
    inherit (builders) buildEnv;
  };

  importNpmLock = import ./npm.nix {
    inherit lib;
    inherit (builders) runCommandLocal;
  };

  linux = import ./linux.nix {
    inherit
      builders
      groups
      processor
      source
      seed
      ;
  };

  absent = lib.genAttrs (import ./missing.nix).packages (
    name:
    throw "debpkgs: ${name} is not one of the packages of Debian that stand in for nixpkgs here: build the server with nixpkgs, or add it to setup/debpkgs/packages.list and packages.nix"
  );

  base =
    final:
    absent
    // packages
    // builders
    // go
    // {
      inherit
        config
        dockerTools
        importNpmLock
        lib
        linux
        stdenv
        python3
        ;
      linuxPackages.kernel = linux;
      pkgs = final;
      stdenvNoCC = stdenv;
      path = ./.;
      overlays = overlays;
      extend = overlay: lib.fix (lib.extends overlay fixed);
      appendOverlays = more: lib.fix (lib.extends (lib.composeManyExtensions more) fixed);
      callPackage = lib.callPackageWith final;
      newScope = extra: lib.callPackageWith (final // extra);
      inherit makeWrapper;
      makeBinaryWrapper = makeWrapper;
      installShellFiles = hook "installShellFiles" ./build/installShellFiles.sh;

      bashInteractive = packages.bash;
      bashNonInteractive = packages.bash;
      gitMinimal = packages.git;
      gitFull = packages.git;
      locale = builders.runCommandLocal "locale" { } "mkdir -p $out/bin; ln -s ${group "libc6"}/bin/locale $out/bin/";
      nodejs-slim = packages.nodejs;
      nodejs_20 = packages.nodejs;
      lua = packages.lua5_4;
      lua5 = packages.lua5_4;
      python3Minimal = python3;
      python3Packages = python3.pkgs;
      util-linuxMinimal = packages.util-linux;
      perl5 = packages.perl;
    }
    // {
      # For the set of another processor.
      debpkgs = tools;
    }
    # What builds run, and nothing else here.
    // lib.optionalAttrs (native != null) { inherit (native) erofs-utils jq xz; }
    // {
      ${lib.replaceStrings [ "." ] [ "" ] python3.executable} = python3;
    };
  # Functions that the builds which take this package have.
  hook =
    name: functions:
    builders.runCommandLocal name { } ''
      mkdir -p $out/nix-support
      cp ${functions} $out/nix-support/setup-hook
    '';
  makeWrapper = hook "makeWrapper" ./build/makeWrapper.sh;

  fixed = lib.extends (lib.composeManyExtensions overlays) base;
in
lib.fix fixed
