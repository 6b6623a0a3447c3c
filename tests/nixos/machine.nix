# One suite in one machine, as a service of an ordinary user: the layout of
# cgroups, the accounts and the variables are those of tests/vm.
{
  pkgs,
  server,
  # What suite.nix makes.
  suite,
  # delegate, no-delegate or no-userns.
  mode,
  # Patterns of the names of its tests.
  run,
  skip,
}:
let
  inherit (pkgs) lib;

  # Seconds for the whole suite; its own limit comes first, because it says
  # where it hung.
  seconds = 600;
  delegated = mode == "delegate";
in
pkgs.testers.runNixOSTest {
  name = "${suite.pname}-${mode}";

  nodes.machine = {
    virtualisation = {
      cores = 2;
      memorySize = 2048; # MB
    };

    users.users.user = {
      isNormalUser = true;
      uid = 1000;
      group = "user";
    };
    users.groups.user.gid = 1000;

    boot.kernel.sysctl = lib.mkIf (mode == "no-userns") {
      "user.max_user_namespaces" = lib.mkForce 0;
    };

    systemd.services.suite = {
      path = [
        pkgs.bubblewrap
      ]
      ++ lib.mapAttrsToList (_: artifact: artifact.environment) server.environments;
      environment = {
        HOME = "/home/user";
        NIX_SANDBOX_MCP_SERVER = lib.getExe server;
        NIX_SANDBOX_TEST_ARTIFACTS = lib.concatStringsSep ":" (
          map toString (lib.attrValues server.environments)
        );
        NIX_SANDBOX_TEST_MACHINE = mode;
      };
      # systemd hands the subtree over and leaves it to its owner to switch the
      # controllers on.
      script = lib.optionalString delegated ''
        group=/sys/fs/cgroup$(dirname "$(cut -d : -f 3 /proc/self/cgroup)")
        echo '+cpu +memory +pids' > "$group/cgroup.subtree_control"
      '' + ''
        exec ${lib.getExe suite} -test.v -test.run ${lib.escapeShellArg run} \
          -test.skip ${lib.escapeShellArg skip} -test.timeout ${toString (seconds - 15)}s
      '';
      serviceConfig = {
        Type = "oneshot";
        User = "user";
        WorkingDirectory = "${suite}/share/suite";
        TimeoutStartSec = seconds;
        # Every line of the suite is wanted in the journal.
        LogRateLimitIntervalSec = 0;
      }
      // lib.optionalAttrs delegated {
        Delegate = "cpu memory pids";
        DelegateSubgroup = "supervisor";
      };
    };
  };

  testScript = ''
    machine.wait_for_unit("multi-user.target")
    status, _ = machine.execute("systemctl start suite.service", timeout=${toString (seconds + 30)})
    print(machine.succeed("journalctl --unit suite.service --output cat"))
    assert status == 0, "the suite failed"
  '';
}
