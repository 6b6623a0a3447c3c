# Tests of the Nix code by evaluation alone: { testX = { expr; expected; }; },
# the shape that lib.runTests and nix-unit read too.
#
# No Go program is needed, and nothing is built. The modules want nixpkgs'
# module system, which a package set may lack: then `moduleLib` is null, and
# their tests are not among these.
{
  pkgs,
  # Whether these are the tests for another system, which test no further one.
  other ? false,
  moduleLib ? if (builtins.tryEval (pkgs.lib ? evalModules && builtins.isFunction pkgs.lib.evalModules)).value or false then pkgs.lib else null,
}:
let
  inherit (pkgs) lib;

  library = import ../../nix {
    inherit pkgs;
    programs = lib.genAttrs [ "agent" "builder" "gateway" "jail" "jailDevices" "network" "nix" "operator" "runtime" "seccomp" "vm" "vmGuest" "vmImage" ] (
      name:
      pkgs.writeTextFile {
        name = "program-${name}";
        text = "";
        meta.mainProgram = name;
      }
    ) // { version = "0"; startFolders = [ ]; };
  };

  # What sentences list: every interpreter and preset that the project has.
  choices =
    let
      sentence =
        words:
        "${lib.concatMapStringsSep ", " builtins.toJSON (lib.init words)} or ${builtins.toJSON (lib.last words)}";
      inherit (library) interpreters presets;
    in
    {
      interpreters = sentence (lib.attrNames interpreters);
      types = sentence (lib.attrNames (interpreters // { command = null; }));
      presets = sentence (lib.attrNames presets);
    };

  arguments = {
    inherit
      pkgs
      lib
      library
      choices
      ;
  };
  # The package set of the other system, as far as the library asks it: nothing
  # of it is built.
  otherPkgs = pkgs // {
    stdenv = pkgs.stdenv // {
      hostPlatform = pkgs.stdenv.hostPlatform // {
        system = "aarch64-linux";
        isx86_64 = false;
        isAarch64 = true;
        parsed = pkgs.stdenv.hostPlatform.parsed // {
          cpu.name = "aarch64";
        };
      };
    };
  };
  failing =
    tests: lib.filter (name: tests.${name}.expr != tests.${name}.expected) (lib.attrNames tests);
in
import ./validate.nix arguments
// import ./mkSandbox.nix arguments
// import ./fromToml.nix arguments
// import ./mkServer.nix arguments
// import ./fromProject.nix arguments
// import ./optionPages.nix arguments
// import ./mistakes.nix arguments
// import ./onDemand.nix arguments
// import ./jail.nix arguments
// import ./flakeChecks.nix arguments
// import ./vm.nix arguments
// import ./macos.nix arguments
// lib.optionalAttrs (!other) {
  testTestsPassOnAnotherSystem = {
    expr = failing (
      import ./. {
        pkgs = otherPkgs;
        other = true;
        moduleLib = null;
      }
    );
    expected = [ ];
  };
}
// lib.optionalAttrs (moduleLib != null) (import ./modules.nix (arguments // { inherit moduleLib; }))
