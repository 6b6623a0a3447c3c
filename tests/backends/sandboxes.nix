# Sandboxes that are virtual machines, for the tests: { python; bash; node; command; }, and the
# server of config.example.toml with this backend for all environments, { server; }.
{
  nixpkgs,
  # A folder of setup/debpkgs/stage --arm64: machines with that processor, which QEMU emulates,
  # and in them what that folder has.
  arm64 ? null,
}:
let
  isForeign = arm64 != null;
  host = import nixpkgs { };
  inherit (host) lib;
  pkgs = if isForeign then import arm64 { native = host; } else host;
  library = import ../../nix (
    if isForeign then
      {
        pkgs = host // {
          qemu_kvm = host.qemu;
        };
        guest = pkgs;
        programs =
          import ../../nix/lib/programs.nix {
            pkgs = host;
            guest = pkgs;
          }
          # What a build runs, where a builder with that processor would be.
          // {
            inherit (import ../../nix/lib/programs.nix { pkgs = host; }) seccomp vmImage;
          };
      }
    else
      { inherit pkgs; }
  );

  presets =
    lib.mapAttrs (
      type: interpreter:
      if isForeign then
        {
          packages = [
            pkgs.bash
            pkgs.coreutils
            pkgs.findutils
            pkgs.gawk
            pkgs.gnugrep
            pkgs.gnused
            pkgs.procps
            pkgs.python3
          ]
          ++ lib.optional (type == "node") pkgs.nodejs;
        }
      else
        removeAttrs interpreter.preset [ "name" ]
    ) library.interpreters
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
