# The ready-made environments, by name: the arguments that mkSandbox is given for
# each. Those of the interpreters that keep sessions are in their folders.
{ pkgs, interpreters }:
let
  inherit (pkgs) lib;
in
lib.mapAttrs' (
  type: known:
  lib.nameValuePair known.preset.name (
    removeAttrs known.preset [ "name" ] // { interpreter_type = type; }
  )
) interpreters
// {
  ruby = {
    description = "Ruby with its standard library";
    interpreter = "ruby -e";
    packages = import ./interpreters/tools.nix { inherit pkgs; } ++ [ pkgs.ruby ];
  };
}
