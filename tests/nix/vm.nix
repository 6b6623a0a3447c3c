# Sandboxes in virtual machines: what they refuse, and what their metadata says.
{ pkgs, lib, library, ... }:
let
  toml = text: library.problems.fromToml (builtins.fromTOML text);

  mistakes = {
    "a device of the host in a virtual machine" = {
      read = toml "[environments.python]\npreset = \"python\"\nbackend = \"vm\"\ndevices = [\"/dev/dri/renderD128\"]\n";
      sentence = "config: [environments.python] devices is set, and a virtual machine has no device of the host: set backend = \"jail\", or leave it out";
    };
    "half a processor of a virtual machine" = {
      read = toml "[environments.python]\npreset = \"python\"\nbackend = \"vm\"\ncpus = 1.5\n";
      sentence = "config: [environments.python] cpus is 1.5, and a virtual machine has whole processors: set cpus = 2, or backend = \"jail\"";
    };
    "shared files of virtual machines" = {
      read = toml "[environments.python]\npreset = \"python\"\nbackend = \"vm\"\n[session]\nshared_files = true\n";
      sentence = "config: [session] shared_files is true, and the environment python has backend \"vm\", whose virtual machines share no files: set backend = \"jail\", or leave shared_files out";
    };
  };

  machineWith =
    options:
    library.mkSandbox (
      {
        name = "machine";
        interpreter_type = "bash";
        backend = "vm";
        packages = [ pkgs.bash ];
      }
      // options
    );
  machine = machineWith { };

  # The argument of an option of QEMU.
  argument =
    option: machine:
    let
      # The text refers to the store, which fromJSON does not allow.
      text = builtins.unsafeDiscardStringContext machine.bin.run;
      description = builtins.fromJSON (lib.last (lib.init (lib.splitString "\n" text)));
      after = words: if builtins.head words == option then builtins.elemAt words 1 else after (builtins.tail words);
    in
    after description.jail.command;
in
lib.mapAttrs' (
  what: case:
  lib.nameValuePair "testMachineMistake: ${what}" {
    expr = case.read;
    expected = [ case.sentence ];
  }
) mistakes
// {
  testMachineProcessorsAndMemory = {
    expr = map (options: [
      (argument "-smp" (machineWith options))
      (argument "-m" (machineWith options))
    ]) [ { } { cpus = 2; } { memory_mb = 1000; } ];
    # The machine has 128 MiB for its kernel and the agent.
    expected = [
      [ "1" "640" ]
      [ "2" "640" ]
      [ "1" "1128" ]
    ];
  };

  testMachineMetadata = {
    expr = lib.getAttrs [ "backend" "memory_mb" "overhead" "reports" "suspend" "branch" "reads" ] machine.metadata;
    expected = {
      backend = "vm";
      memory_mb = 512;
      overhead = {
        memory_mb = 384;
        pids = 128;
      };
      reports = true;
      suspend = true;
      branch = true;
      reads = [
        "HOME"
        "XDG_CACHE_HOME"
        "NIX_SANDBOX_VM_SNAPSHOTS"
      ];
    };
  };
}
