# stdenv: mkDerivation and what it promises, with bash and the usual tools; no compiler unless a package brings one.
{
  lib,
  system,
  config,
  processor,
  shell,
  tools,
}:
let
  inherit (lib)
    concatMap
    elem
    filter
    getOutput
    isAttrs
    isBool
    isFunction
    isList
    mapAttrs
    optionalAttrs
    removeAttrs
    ;

  initialPath = lib.makeBinPath tools;

  # $stdenv/setup, which the builder and `nix develop` source
  setup = derivation {
    name = "stdenv-debpkgs";
    inherit system shell;
    builder = "${shell}/bin/bash";
    path = initialPath;
    PATH = initialPath;
    args = [
      "-euc"
      ''
        mkdir $out
        sed -e "s|@shell@|$shell/bin/bash|g" -e "s|@path@|$path|g" ${./build/setup.sh} > $out/setup
      ''
    ];
    preferLocalBuild = true;
  };

  inputLists = [
    "depsBuildBuild"
    "nativeBuildInputs"
    "buildInputs"
    "propagatedBuildInputs"
    "propagatedNativeBuildInputs"
    "nativeCheckInputs"
    "checkInputs"
  ];
  flat =
    list:
    concatMap (
      x:
      if isList x then
        flat x
      else if x == null then
        [ ]
      else if lib.isStringLike x then
        [ (getOutput "dev" x) ]
      else
        throw "stdenv.mkDerivation: an input is of type ${builtins.typeOf x}, and not a package"
    ) list;

  # not part of the derivation
  evaluationOnly = [
    "env"
    "meta"
    "passthru"
    "pos"
    "nativeCheckInputs"
    "checkInputs"
    "strictDeps"
    "enableParallelBuilding"
    "hardeningDisable"
    "hardeningEnable"
  ];

  make =
    args:
    let
      name =
        if args ? name then
          args.name
        else if args ? pname then
          "${args.pname}-${args.version or (throw "stdenv.mkDerivation: ${args.pname} has no version")}"
        else
          throw "stdenv.mkDerivation: give a name, or a pname and a version";
      checks = lib.optionals (args.doCheck or false) (flat (args.nativeCheckInputs or [ ] ++ args.checkInputs or [ ]));
      inputs = mapAttrs (_: flat) (lib.filterAttrs (n: _: elem n inputLists) (removeAttrs args evaluationOnly));
      clash = filter (n: args ? ${n}) (lib.attrNames (args.env or { }));
      variable =
        n: v:
        if lib.isDerivation v || lib.isString v || isBool v || lib.isInt v then
          v
        else
          throw "stdenv.mkDerivation: env.${n} of ${name} is of type ${builtins.typeOf v}, and not a derivation, string, boolean or integer";
      meta = args.meta or { };
      refusals =
        lib.optional (meta.broken or false && !(config.allowBroken or false)) "is broken"
        ++ lib.optional (
          !(config.allowUnfree or false) && lib.any (license: !(license.free or true)) (lib.toList (meta.license or [ ]))
        ) "has an unfree license"
        ++ lib.optional (
          !(config.allowUnsupportedSystem or false) && !(elem system (meta.platforms or [ system ]))
        ) "is not for ${system}";
      drvArgs =
        removeAttrs args evaluationOnly
        // mapAttrs variable (args.env or { })
        // inputs
        // optionalAttrs (checks != [ ]) { nativeBuildInputs = inputs.nativeBuildInputs or [ ] ++ checks; }
        // {
          inherit name;
          system = lib.throwIf (refusals != [ ]) "stdenv.mkDerivation: ${name} ${lib.head refusals}" system;
          stdenv = setup;
          builder = args.builder or "${shell}/bin/bash";
          args =
            args.args or [
              "-e"
              ./build/builder.sh
            ];
          outputs = args.outputs or [ "out" ];
        }
        // optionalAttrs (!(args ? dontUnpack) && !(args ? src) && !(args ? srcs)) { dontUnpack = true; };
      drv = derivation (lib.filterAttrs (_: v: v != null) drvArgs);
      inputDerivation = derivation (
        removeAttrs drv.drvAttrs [
          "outputHash"
          "outputHashMode"
          "outputHashAlgo"
          "__structuredAttrs"
        ]
        // {
          name = "${name}-inputs";
          outputs = [ "out" ];
          args = [
            "-c"
            "export > $out"
          ];
        }
      );
    in
    if clash != [ ] then
      throw "stdenv.mkDerivation: ${name} gives ${lib.head clash} both in env and beside it; leave it in env"
    else
      drv
      // args.passthru or { }
      // optionalAttrs (args ? pname) { inherit (args) pname; }
      // optionalAttrs (args ? version) { inherit (args) version; }
      // {
        inherit stdenv inputDerivation;
        passthru = args.passthru or { };
        meta = {
          inherit name;
          available = true;
        }
        // meta;
        outputSpecified = false;
      };

  # mkDerivation { ... } and mkDerivation (finalAttrs: { ... }), with overrideAttrs
  mkDerivation =
    definition:
    let
      attrs = if isFunction definition then definition else _: definition;
      args = attrs final;
      # what a definition sees: its attributes, and the package that comes out
      final = args // {
        finalPackage = package;
      };
      package = make args // {
        overrideAttrs =
          change:
          mkDerivation (
            final':
            let
              previous = attrs final';
              applied = if isFunction change then change final' else change;
              new =
                if isFunction applied then
                  applied previous
                else if isFunction change then
                  change previous
                else
                  change;
            in
            previous // new
          );
      };
    in
    package;

  platform = {
    system = "${processor.name}-linux";
    config = "${processor.name}-unknown-linux-gnu";
    isLinux = true;
    isDarwin = false;
    isx86_64 = processor.name == "x86_64";
    isAarch64 = processor.name == "aarch64";
    is64bit = true;
    isUnix = true;
    isMusl = false;
    isStatic = false;
    libc = "glibc";
    parsed = {
      cpu.name = processor.name;
      kernel.name = "linux";
    };
    linuxArch = if processor.name == "aarch64" then "arm64" else processor.name;
    go.GOARCH = processor.go;
    go.GOOS = "linux";
    canExecute = _: true;
    extensions.sharedLibrary = ".so";
  };

  stdenv = {
    inherit mkDerivation system initialPath;
    shell = "${shell}/bin/bash";
    hostPlatform = platform;
    buildPlatform = platform;
    targetPlatform = platform;
    inherit (platform) isLinux isDarwin isx86_64;
    name = "stdenv-debpkgs";
    outPath = setup.outPath;
    inherit setup;
    cc = throw "debpkgs: stdenv has no C compiler; programs in C are Debian's own here, so take the package or use nixpkgs";
  };
in
stdenv
