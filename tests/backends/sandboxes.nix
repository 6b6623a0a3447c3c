# Sandboxes that are virtual machines, for the tests: { python; bash; node; }, and the
# server of config.example.toml with this backend for all environments, { server; }.
{ nixpkgs }:
let
  pkgs = import nixpkgs { };
  inherit (pkgs) lib;
  library = import ../../nix { inherit pkgs; };

  sandbox =
    type:
    library.mkSandbox (
      removeAttrs library.interpreters.${type}.preset [ "name" ]
      // {
        name = "machine-${type}";
        interpreter_type = type;
        backend = "vm";
        memory_mb = 256;
        pids = 64;
        # A full workspace is less than all memory.
        workspace_mb = 128;
      }
    );

  example = builtins.fromTOML (builtins.readFile ../../config.example.toml);
in
lib.genAttrs [ "python" "bash" "node" ] sandbox
// {
  server = library.mkServer {
    config = example // {
      defaults = example.defaults or { } // {
        backend = "vm";
      };
    };
  };
}
