# The interpreters that keep sessions, by name. Everything that the project
# knows of one is in its folder:
#
#   interpreter.json  what it is, for programs:
#     interpreter       the command line that its name alone stands for
#     driver            how the agent starts it with its driver: the fields of
#                       Driver in agent/driver/driver.go
#     compile           optional { program; arguments; }: arguments that have the
#                       interpreter compile its driver. The paths of the driver
#                       and of the result, which is then the driver's program,
#                       follow them
#     beside            optional: programs that the driver starts, as links in its
#                       folder: their names, and those of their packages
#     preload           optional { code; check; }: code that loads @module@, for what
#                       an environment preloads, and arguments with which a build finds
#                       out whether the interpreter can load it
#     language          what the runtime is told, in the metadata of every
#                       environment that runs it: the fields of Language in
#                       runtime/registry/language.go
#   driver.EXT        the driver, in the interpreter's own language
#   modules/          optional: what the driver has for code to load
#   preset.nix        { pkgs }: the ready-made environment: `name`, and the
#                       arguments of mkSandbox `packages` and `description`
#   testdata/         the calls that its tests make: see agent/driver
{ pkgs }:
let
  inherit (pkgs) lib;

  names = [
    "bash"
    "node"
    "python"
  ];

  interpreter =
    name:
    let
      folder = ./. + "/${name}";
      known = lib.importJSON (folder + "/interpreter.json");
      program = folder + "/${known.driver.program}";
    in
    {
      inherit (known) interpreter language;
      preloads = known ? preload;
      preset = import (folder + "/preset.nix") { inherit pkgs; };

      # The folder of the driver, as the agent reads it, for an environment in
      # which `path` has the interpreter under the name `command`: a shell
      # expression and a list. What it preloads is part of the code that an
      # interpreter runs while it waits.
      driver =
        {
          command,
          path,
          preload,
        }:
        let
          named = module: lib.replaceStrings [ "@module@" ] [ module ];
          warm = lib.concatMapStrings (module: named module known.preload.code + "; ") preload + known.driver.warm;
        in
        pkgs.runCommandLocal "sandbox-driver-${name}"
          {
            passAsFile = [ "description" ];
            description = builtins.toJSON (
              known.driver // { inherit warm; } // lib.optionalAttrs (known ? compile) { inherit (known.compile) program; }
            );
          }
          (
            ''
              mkdir $out
              cp "$descriptionPath" $out/driver.json
              cp ${program} $out/${known.driver.program}
            ''
            + lib.optionalString (lib.pathExists (folder + "/modules")) ''
              cp -r ${folder + "/modules"} $out/modules
              chmod -R u+w $out/modules
            ''
            + lib.concatStrings (
              lib.mapAttrsToList (program: package: "ln -s ${pkgs.${package}}/bin/${program} $out/${program}\n") (
                known.beside or { }
              )
            )
            # A build may not be able to run the interpreter: one for another
            # processor, or a program that is put together when it starts.
            + lib.optionalString (known ? compile) ''
              cd $out
              PATH=${path}:$PATH ${
                lib.escapeShellArgs (command ++ known.compile.arguments)
              } ${known.driver.program} ${known.compile.program} ||
                echo "sandbox-driver-${name}: it is not compiled here, and so each start compiles it" >&2
              [ -e ${known.compile.program} ] || cp ${known.driver.program} ${known.compile.program}
            ''
            # A build that cannot run the interpreter leaves this to the first call.
            + lib.concatMapStrings (module: ''
              if PATH=${path}:$PATH ${lib.escapeShellArgs command} --version &&
                ! (cd "$TMPDIR" && HOME=$TMPDIR PATH=${path}:$PATH ${lib.escapeShellArgs (command ++ map (named module) known.preload.check)}); then
                echo "preload: ${lib.head command} cannot load ${module}: add its package to packages, or correct the name" >&2
                exit 1
              fi
            '') preload
          );
    };
in
lib.genAttrs names interpreter
