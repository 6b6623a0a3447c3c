# The side of a Mac: the server of macOS, with sandboxes that are virtual machines of Linux.
{ pkgs, lib, library, ... }:
let
  mac = pkgs // {
    stdenv = pkgs.stdenv // {
      hostPlatform = pkgs.stdenv.hostPlatform // {
        system = "aarch64-darwin";
        isLinux = false;
        isDarwin = true;
      };
    };
    qemu = pkgs.qemu_kvm;
  };
  onMac = import ../../nix {
    pkgs = mac;
    guest = pkgs;
    inherit (library) programs;
  };

  machine = onMac.mkSandbox {
    name = "machine";
    interpreter_type = "bash";
    backend = "vm";
    packages = [ pkgs.bash ];
  };
  description = builtins.fromJSON (
    lib.last (lib.init (lib.splitString "\n" (builtins.unsafeDiscardStringContext machine.bin.run)))
  );
  inherit (description.jail) command;

  seatbelt = import ../../nix/backends/seatbelt.nix { pkgs = mac; } {
    program = "/nix/store/00000000000000000000000000000000-qemu/bin/qemu-system-aarch64";
    roots = [ ];
    files = [ "/nix/store/11111111111111111111111111111111-kernel/Image" ];
  };
in
{
  testMacDescribesNoJail = {
    expr = {
      fields = lib.attrNames description.jail;
      hasFilter = lib.elem "-sandbox" command;
      drive = lib.any (lib.hasInfix "file=/nix/store/") command;
      kernel = lib.hasPrefix "/nix/store/" description.kernel;
      mkfs = lib.last description.project.mkfs.command;
      profile = lib.hasPrefix "/nix/store/" description.jail.seatbelt;
    };
    expected = {
      fields = [ "command" "schema" "seatbelt" ];
      hasFilter = false;
      drive = true;
      kernel = true;
      mkfs = "/dev/fd/3";
      profile = true;
    };
  };
  # A parser in jail/seatbelt_test.go reads this file too.
  testMacProfile = {
    expr = seatbelt.rules;
    expected = builtins.readFile ../../jail/testdata/machine.sb;
  };
  testMacRefusesJailsAndNetworks = {
    expr = map (options: onMac.problems.mkSandbox ({ name = "x"; interpreter_type = "bash"; } // options)) [
      { }
      {
        backend = "vm";
        network = {
          mode = "allow";
          domains = [ "files.example" ];
        };
      }
      { backend = "vm"; }
    ];
    expected = [
      [ "mkSandbox x: backend is \"jail\", which needs the namespaces of Linux, and aarch64-darwin does not have them: set backend = \"vm\"" ]
      [ "mkSandbox x: network is set, and the network of a virtual machine takes the namespaces of Linux, which aarch64-darwin does not have: leave it out" ]
      [ ]
    ];
  };
  testMacServer = {
    expr = {
      backends = lib.unique (lib.mapAttrsToList (_: e: e.backend) onMac.default.metadata.environments);
      problems = onMac.problems.mkServer { config = { environments.python = { preset = "python"; backend = "vm"; }; }; };
      builds = builtins.isString onMac.default.drvPath;
    };
    expected = {
      backends = [ "vm" ];
      problems = [ ];
      builds = true;
    };
  };
}
