# Tests of the Nix code by evaluation alone: { testX = { expr; expected; }; },
# the shape that lib.runTests and nix-unit read too.
#
# No Go program is needed, and nothing is built.
{ pkgs }:
let
  inherit (pkgs) lib;

  library = import ../../nix {
    inherit pkgs;
    programs = lib.genAttrs [ "agent" "jail" "runtime" "seccomp" ] (
      name:
      pkgs.writeTextFile {
        name = "program-${name}";
        text = "";
        meta.mainProgram = name;
      }
    ) // { version = "0"; };
  };

  arguments = { inherit pkgs lib library; };
in
import ./check.nix arguments
// import ./mkSandbox.nix arguments
// import ./fromToml.nix arguments
// import ./mkServer.nix arguments
// import ./fromProject.nix arguments
// import ./jail.nix arguments
