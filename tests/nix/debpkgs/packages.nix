# What `run` builds from a staged folder: nix-build packages.nix --arg staged FOLDER
{ staged }:
let
  pkgs = import staged { };
  inherit (pkgs) lib;

  tree =
    name: files:
    pkgs.runCommandLocal name { } (
      lib.concatStrings (
        lib.mapAttrsToList (path: text: ''
          mkdir -p "$(dirname $out/${path})"
          printf %s ${lib.escapeShellArg text} > $out/${path}
        '') files
      )
    );
  one = tree "one" {
    "bin/same" = "first";
    "share/a/x" = "1";
    "share/only/y" = "1";
    "etc/left" = "1";
  };
  two = tree "two" {
    "bin/other" = "second";
    "share/a/z" = "2";
  };
  clash = tree "clash" { "bin/same" = "another"; };
  equal = tree "equal" { "bin/same" = "first"; };
in
rec {
  tools = pkgs.buildEnv {
    name = "tools";
    paths = builtins.attrValues {
      inherit (pkgs)
        bashInteractive
        bc
        bubblewrap
        bzip2
        cacert
        coreutils
        curl
        diffutils
        esbuild
        file
        findutils
        gawk
        git
        gnugrep
        gnumake
        gnupatch
        gnused
        gnutar
        gzip
        iproute2
        jq
        less
        lua5_4
        netcat-openbsd
        openssl
        perl
        procps
        ripgrep
        sqlite
        strace
        tree
        unzip
        util-linux
        wget
        which
        xxd
        xz
        zip
        zstd
        ;
    };
  };
  python = pkgs.python3.withPackages (
    ps: builtins.attrValues {
      inherit (ps)
        beautifulsoup4
        lxml
        matplotlib
        numpy
        pandas
        pillow
        pytest
        pyyaml
        requests
        rich
        scipy
        tabulate
        ;
    }
  );
  pythonSmall = pkgs.python3.withPackages (ps: [ ps.pyyaml ]);
  inherit (pkgs)
    python3
    nodejs
    bash
    ruby
    ;

  module = pkgs.buildGoModule (finalAttrs: {
    pname = "debpkgs-module";
    version = "0.1.0";
    src = ./module;
    vendorHash = "sha256-X2jVKj49nDlq2/na9+x0YauC4Ru9AveesSGArh68lDQ=";
    subPackages = [ "." ];
    env.CGO_ENABLED = 0;
    ldflags = [
      "-s"
      "-w"
      "-X main.version=${finalAttrs.version}"
    ];
    postInstall = "mv $out/bin/module $out/bin/renamed";
    meta.mainProgram = "renamed";
  });
  moduleOther = module.overrideAttrs (_: {
    postInstall = "mv $out/bin/module $out/bin/again";
  });

  application = pkgs.writeShellApplication {
    name = "application";
    runtimeInputs = [ pkgs.jq ];
    runtimeEnv.WORDS = "two words";
    text = ''
      jq -n --arg words "$WORDS" '{ words: $words }' --compact-output
    '';
  };
  closure = pkgs.closureInfo { rootPaths = [ application ]; };

  merged = pkgs.buildEnv {
    name = "merged";
    paths = [
      one
      two
      equal
    ];
    pathsToLink = [
      "/bin"
      "/share"
    ];
    postBuild = "echo built > $out/note";
  };
  clashing = pkgs.buildEnv {
    name = "clashing";
    paths = [
      one
      clash
    ];
  };
  ignoring = pkgs.buildEnv {
    name = "ignoring";
    paths = [
      one
      clash
    ];
    ignoreCollisions = true;
  };
  farm = pkgs.linkFarm "farm" {
    "deep/one" = one;
    two = two;
  };
  joined = pkgs.symlinkJoin {
    name = "joined";
    paths = [
      one
      two
    ];
  };

  derived = pkgs.stdenv.mkDerivation (finalAttrs: {
    pname = "derived";
    version = "1";
    src = ./module;
    nativeBuildInputs = [ pkgs.makeWrapper ];
    env.GREETING = "good day";
    postPatch = ''substituteInPlace main.go --replace-fail 'package main' 'package derived' '';
    buildPhase = ''
      runHook preBuild
      echo "$GREETING from ${finalAttrs.pname}" > note
      runHook postBuild
    '';
    doCheck = true;
    checkPhase = "grep -q good note";
    installPhase = ''
      runHook preInstall
      mkdir -p $out/bin
      cp note main.go $out/
      printf '#!/usr/bin/env bash\necho "$0 $WHO"\n' > $out/bin/script
      chmod +x $out/bin/script
      runHook postInstall
    '';
    postFixup = "wrapProgram $out/bin/script --set WHO 'you two'";
    passthru.answer = 42;
  });

  # nixpkgs' builder is a bash without readline
  builtinsOfReadline = pkgs.runCommandLocal "builtins-of-readline" { } ''
    for word in bind compgen complete compopt; do
      if type "$word" > /dev/null 2>&1; then echo "$word"; fi
    done > $out
  '';
  substituted = pkgs.runCommandLocal "substituted" {
    greeting = "good day";
    LOUD = "left";
  } ''
    echo '@greeting@ @LOUD@' > text
    substituteAll text $out
  '';

  # a jail inside a build
  nested = pkgs.runCommand "nested" { nativeBuildInputs = [ pkgs.bubblewrap ]; } ''
    binds=()
    while read -r path; do binds+=(--ro-bind "$path" "$path"); done < ${
      pkgs.closureInfo { rootPaths = [ tools ]; }
    }/store-paths
    bwrap --unshare-all --die-with-parent --proc /proc --dev /dev "''${binds[@]}" ${tools}/bin/ls / > $out
  '';
}
