# Sandboxes that are virtual machines, for the tests: { python; bash; node; command; }, and the
# server of config.example.toml with this backend for all environments, { server; }.
{ nixpkgs }:
let
  pkgs = import nixpkgs { };
  inherit (pkgs) lib;
  library = import ../../nix { inherit pkgs; };

  presets =
    lib.mapAttrs (_: interpreter: removeAttrs interpreter.preset [ "name" ]) library.interpreters
    // {
      # A program that has no driver: each call starts it, and there are no sessions.
      command = {
        interpreter = "bash -c";
        packages = [
          pkgs.bash
          pkgs.coreutils
        ];
        extra_binds = {
          "/data" = toString ./.;
          "/hello" = pkgs.writeTextDir "file" "of the store\n";
        };
      };
    };

  sandbox =
    type:
    library.mkSandbox (
      presets.${type}
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
lib.genAttrs [ "python" "bash" "node" "command" ] sandbox
// {
  server = library.mkServer {
    config = example // {
      defaults = example.defaults or { } // {
        backend = "vm";
      };
      # Machines share no files.
      session = example.session // {
        shared_files = false;
      };
    };
  };
}
