# nixpkgs' trivial builders: files, scripts, link trees, closures, shells.
{
  lib,
  stdenv,
  seed,
  shell,
  jq,
}:
let
  inherit (lib)
    concatMapStringsSep
    concatStrings
    escapeShellArg
    isAttrs
    isList
    isString
    mapAttrsToList
    optionalString
    removeAttrs
    ;
  runtimeShell = "${shell}/bin/bash";

  runCommand = name: env: buildCommand: runCommandWith { inherit name; derivationArgs = env; } buildCommand;
  runCommandCC = runCommand;
  runCommandLocal =
    name: env:
    runCommandWith {
      inherit name;
      derivationArgs = env;
      runLocal = true;
    };
  runCommandWith =
    {
      name,
      derivationArgs ? { },
      runLocal ? false,
    }:
    buildCommand:
    stdenv.mkDerivation (
      {
        enableParallelBuilding = true;
      }
      // lib.optionalAttrs runLocal {
        preferLocalBuild = true;
        allowSubstitutes = false;
      }
      // derivationArgs
      // {
        inherit name buildCommand;
        passAsFile = [ "buildCommand" ] ++ derivationArgs.passAsFile or [ ];
      }
    );

  writeTextFile =
    {
      name,
      text,
      executable ? false,
      destination ? "",
      checkPhase ? "",
      meta ? { },
      passthru ? { },
      allowSubstitutes ? false,
      preferLocalBuild ? true,
      derivationArgs ? { },
    }:
    assert lib.assertMsg (
      destination == "" || lib.hasPrefix "/" destination && destination != "/"
    ) "writeTextFile: the destination '${destination}' must be a slash and the name of a file";
    runCommand name
      (
        {
          inherit
            text
            executable
            checkPhase
            allowSubstitutes
            preferLocalBuild
            passthru
            ;
          passAsFile = [ "text" ];
          meta = lib.optionalAttrs (executable && lib.hasPrefix "/bin/" destination) {
            mainProgram = lib.removePrefix "/bin/" destination;
          }
          // meta;
        }
        // derivationArgs
      )
      ''
        target=$out${escapeShellArg destination}
        mkdir -p "$(dirname "$target")"
        if [ -e "$textPath" ]; then mv "$textPath" "$target"; else printf '%s' "$text" > "$target"; fi
        if [ -n "$executable" ]; then chmod +x "$target"; fi
        eval "$checkPhase"
      '';
  writeText =
    name: text:
    # nixpkgs takes an empty name or any text
    writeTextFile { inherit name text; };
  writeTextDir =
    path: text:
    writeTextFile {
      inherit text;
      name = baseNameOf path;
      destination = "/${path}";
    };
  writeScript =
    name: text:
    writeTextFile {
      inherit name text;
      executable = true;
    };
  writeScriptBin =
    name: text:
    writeTextFile {
      inherit name text;
      executable = true;
      destination = "/bin/${name}";
    };
  checkShell = ''${runtimeShell} -n "$target"'';
  writeShellScript =
    name: text:
    writeTextFile {
      inherit name;
      executable = true;
      text = "#!${runtimeShell}\n${text}\n";
      checkPhase = checkShell;
    };
  writeShellScriptBin =
    name: text:
    writeTextFile {
      inherit name;
      executable = true;
      destination = "/bin/${name}";
      text = "#!${runtimeShell}\n${text}\n";
      checkPhase = checkShell;
    };
  # nixpkgs runs shellcheck too; here the shell reads the script without running it
  writeShellApplication =
    {
      name,
      text,
      runtimeInputs ? [ ],
      runtimeEnv ? null,
      meta ? { },
      passthru ? { },
      checkPhase ? null,
      excludeShellChecks ? [ ],
      extraShellCheckFlags ? [ ],
      bashOptions ? [
        "errexit"
        "nounset"
        "pipefail"
      ],
      derivationArgs ? { },
      inheritPath ? true,
    }:
    writeTextFile {
      inherit name passthru derivationArgs;
      executable = true;
      destination = "/bin/${name}";
      meta = {
        mainProgram = name;
      }
      // meta;
      text =
        "#!${runtimeShell}\n"
        + concatStrings (map (option: "set -o ${option}\n") bashOptions)
        + optionalString (runtimeEnv != null) (
          concatStrings (mapAttrsToList (n: v: "${lib.toShellVar n v}\nexport ${n}\n") runtimeEnv)
        )
        + optionalString (runtimeInputs != [ ] || !inheritPath) (
          "\nexport PATH=\"${lib.makeBinPath runtimeInputs}${optionalString inheritPath ":$PATH"}\"\n"
        )
        + "\n${text}\n";
      checkPhase = if checkPhase != null then checkPhase else checkShell;
    };

  writers = {
    writeBash = writeShellScript;
    writeBashBin = writeShellScriptBin;
  };
  writeClosure =
    paths:
    runCommand "runtime-deps" { info = closureInfo { rootPaths = paths; }; } "cp $info/store-paths $out";

  concatText = name: files: runCommandLocal name { } "cat ${lib.escapeShellArgs files} > $out";

  buildEnv = lib.makeOverridable (
    {
      name,
      paths,
      pathsToLink ? [ "/" ],
      extraOutputsToInstall ? [ ],
      extraPrefix ? "",
      ignoreCollisions ? false,
      checkCollisionContents ? true,
      ignoreSingleFileOutputs ? false,
      manifest ? "",
      postBuild ? "",
      nativeBuildInputs ? [ ],
      buildInputs ? [ ],
      passthru ? { },
      meta ? { },
      derivationArgs ? { },
      pname ? null,
      version ? null,
    }@args:
    runCommandLocal name
      (
        {
          inherit
            pathsToLink
            extraPrefix
            postBuild
            nativeBuildInputs
            buildInputs
            passthru
            meta
            seed
            ;
          paths = map (path: "${lib.getBin path}") (lib.filter (path: path != null) (lib.flatten paths));
          ignoreCollisions = if ignoreCollisions == true || ignoreCollisions == 1 then "1" else "";
          ignoreSingleFileOutputs = if ignoreSingleFileOutputs then "1" else "";
        }
        // lib.optionalAttrs (args ? pname) { inherit (args) pname; }
        // lib.optionalAttrs (args ? version) { inherit (args) version; }
        // derivationArgs
      )
      ''
        export out paths pathsToLink extraPrefix ignoreCollisions ignoreSingleFileOutputs
        $seed/lib/ld-linux-x86-64.so.2 --library-path $seed/lib $seed/bin/perl -I$seed/lib/perl-base ${./build/env.pl}
        eval "$postBuild"
      ''
  );
  symlinkJoin =
    {
      name ? "${args.pname}-${args.version}",
      paths,
      stripPrefix ? "",
      ...
    }@args:
    buildEnv (
      removeAttrs args [ "stripPrefix" ]
      // {
        inherit name;
        ignoreCollisions = true;
        paths = map (path: "${path}${stripPrefix}") (lib.flatten paths);
      }
    );
  linkFarm =
    name: entries:
    let
      list =
        if isAttrs entries then
          mapAttrsToList (name: path: { inherit name path; }) entries
        else if isList entries then
          entries
        else
          throw "linkFarm: the entries of ${name} must be a list of { name, path } or an attribute set";
    in
    runCommandLocal name { passthru.entries = lib.listToAttrs (map (e: lib.nameValuePair e.name e.path) list); } ''
      mkdir -p $out
      cd $out
      ${concatMapStringsSep "\n" (e: ''
        mkdir -p "$(dirname ${escapeShellArg e.name})"
        ln -s ${escapeShellArg "${e.path}"} ${escapeShellArg e.name}
      '') list}
    '';
  linkFarmFromDrvs = name: drvs: linkFarm name (map (drv: { inherit (drv) name; path = drv; }) drvs);

  # store-paths: the closure, sorted; registration: what `nix-store --load-db` reads
  closureInfo =
    { rootPaths }:
    runCommandLocal "closure-info"
      {
        __structuredAttrs = true;
        exportReferencesGraph.closure = lib.toList rootPaths;
        nativeBuildInputs = [ jq ];
      }
      ''
        mkdir $out
        attrs=$NIX_ATTRS_JSON_FILE
        jq -r '.closure | sort_by(.path) | .[] | [.path, .narHash, .narSize, "", (.references | length)] + .references | .[]' $attrs > $out/registration
        jq -r '.closure | map(.narSize) | add' $attrs > $out/total-nar-size
        jq -r '.closure[].path' $attrs | LC_ALL=C sort > $out/store-paths
      '';

  mkShell =
    {
      name ? "nix-shell",
      packages ? [ ],
      inputsFrom ? [ ],
      buildInputs ? [ ],
      nativeBuildInputs ? [ ],
      propagatedBuildInputs ? [ ],
      propagatedNativeBuildInputs ? [ ],
      ...
    }@args:
    let
      # what the packages of inputsFrom need, without those packages themselves
      merged =
        field:
        args.${field} or [ ]
        ++ lib.filter (input: !lib.elem input inputsFrom) (lib.concatMap (drv: drv.${field} or [ ]) inputsFrom);
      rest = removeAttrs args [
        "name"
        "packages"
        "inputsFrom"
        "buildInputs"
        "nativeBuildInputs"
        "propagatedBuildInputs"
        "propagatedNativeBuildInputs"
        "shellHook"
      ];
    in
    stdenv.mkDerivation (
      {
        inherit name;
        buildInputs = merged "buildInputs";
        nativeBuildInputs = packages ++ merged "nativeBuildInputs";
        propagatedBuildInputs = merged "propagatedBuildInputs";
        propagatedNativeBuildInputs = merged "propagatedNativeBuildInputs";
        shellHook = lib.concatStringsSep "\n" (
          lib.filter (hook: hook != "") (
            lib.concatMap (drv: [ (drv.shellHook or "") ]) (lib.reverseList inputsFrom) ++ [ (args.shellHook or "") ]
          )
        );
        phases = [ "buildPhase" ];
        preferLocalBuild = true;
        buildPhase = "export > $out";
      }
      // rest
    );
in
{
  inherit
    buildEnv
    closureInfo
    concatText
    linkFarm
    linkFarmFromDrvs
    mkShell
    runCommand
    runCommandCC
    runCommandLocal
    runCommandWith
    runtimeShell
    symlinkJoin
    writeClosure
    writeScript
    writeScriptBin
    writeShellApplication
    writeShellScript
    writeShellScriptBin
    writeText
    writeTextDir
    writeTextFile
    writers
    ;
  mkShellNoCC = mkShell;
}
