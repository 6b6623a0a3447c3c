# A jail made by bubblewrap, out of Linux's namespaces.
#
# bin/run is not a script but a description, whose interpreter is
# nix-sandbox-jail: that adds the project's folder, if there is one, and
# becomes bubblewrap with these flags.
{ pkgs, programs }:
let
  inherit (pkgs) lib;
  inherit (pkgs.stdenv) hostPlatform;

  user = import ../lib/user.nix;
  rootfs = import ../lib/rootfs.nix { inherit pkgs; };
  closureTree = import ../lib/closureTree.nix { inherit pkgs; };

  mebibytes = n: toString (n * 1048576);

  # The system calls that are refused, compiled; the list is in jail/seccomp.
  filter = pkgs.runCommandLocal "sandbox-system-calls" { } ''
    ${lib.getExe programs.seccomp} ${hostPlatform.parsed.cpu.name} > $out
  '';

  # Shared memory of processes (Python's multiprocessing asks for it), in MiB.
  shm_mb = 64;

  # Of bubblewrap, for overlays.
  overlayWants = "0.11.0";
  overlays = lib.versionAtLeast (pkgs.bubblewrap.version or "0") overlayWants;

  make =
    {
      name,
      environment,
      variables,
      shellVariables,
      binds,
      command,
      driver,
      pipe,
      memory_mb,
      pids,
      workspace_mb,
    }:
    let
      # A variable may name a path in the store, which then is in the sandbox too.
      mentioned = pkgs.writeText "sandbox-variables" (builtins.toJSON variables);
      mentions = lib.any builtins.hasContext (lib.attrValues (removeAttrs variables [ "PATH" ]));

      tree = closureTree {
        name = "sandbox";
        roots = [
          environment
          rootfs
          programs.agent
        ]
        ++ lib.optional (driver != null) driver
        ++ lib.optional mentions mentioned
        ++ lib.optional (shellVariables != null) shellVariables
        # What lies in the store is there under its own name too, with all that it
        # needs.
        ++ map (bind: bind.from) (lib.filter (bind: builtins.hasContext bind.from) binds);
      };

      # Each tmpfs has a size; an unsized one may fill half of the host's memory.
      tmpfs = permissions: megabytes: place: [
        "--perms"
        permissions
        "--size"
        (mebibytes megabytes)
        "--tmpfs"
        place
      ];

      flags =
        # All namespaces by name: --unshare-all would go without a user or cgroup
        # namespace where it cannot have one.
        [
          "--unshare-user"
          "--unshare-ipc"
          "--unshare-pid"
          "--unshare-net"
          "--unshare-uts"
          "--unshare-cgroup"
          "--disable-userns"
          "--cap-drop"
          "ALL"
          "--uid"
          (toString user.uid)
          "--gid"
          (toString user.gid)
          "--hostname"
          "sandbox"
        ]
        # TIOCSTI cannot reach the caller's terminal; no end of bubblewrap or of
        # its parent leaves anything behind; the agent is the first process.
        ++ [
          "--new-session"
          "--die-with-parent"
          "--as-pid-1"
        ]
        ++ [ "--clearenv" ]
        ++ lib.concatLists (
          lib.mapAttrsToList (key: value: [
            "--setenv"
            key
            value
          ]) variables
        )
        ++ [
          "--ro-bind"
          "${tree}/nix"
          "/nix"
        ]
        # Where root starts the jail, its user is root to the host's files, and
        # /proc/sys of the whole machine would be open to it: no capability is
        # asked there, only the user. So nobody writes to /proc.
        ++ [
          "--proc"
          "/proc"
          "--remount-ro"
          "/proc"
        ]
        ++ [
          "--dev"
          "/dev"
        ]
        # /dev is itself an unsized tmpfs that the user could write to.
        ++ tmpfs "1777" shm_mb "/dev/shm"
        ++ [
          "--remount-ro"
          "/dev"
        ]
        ++ tmpfs "1777" workspace_mb "/tmp"
        ++ tmpfs "0755" workspace_mb "/workspace"
        ++ lib.concatMap (folder: [
          "--symlink"
          "${rootfs}/${folder}"
          "/${folder}"
        ]) [
          "bin"
          "etc"
          "usr"
        ]
        ++ [
          "--chdir"
          "/workspace"
        ];

      # The room in which a sandbox starts whose project is overlaid: see
      # jail/spec.go. bubblewrap wants /proc, /dev and /tmp in it, and the store
      # has the program and its libraries.
      overlay = {
        room = "/room";
        upper = "/layer/upper";
        work = "/layer/work";
        option = "--layer";
        flags = [
          "--unshare-user"
          "--cap-drop"
          "ALL"
          # Root's own number could not be given on to the sandbox's user.
          "--uid"
          (toString user.uid)
          "--gid"
          (toString user.gid)
          # A bubblewrap that is killed while it starts leaves a child that waits for
          # it for good. That of the sandbox ends with the room, whose first process
          # it is the child of.
          "--die-with-parent"
          "--unshare-pid"
          "--as-pid-1"
          "--dev-bind"
          "/dev"
          "/dev"
          # Of the room's processes: the second bubblewrap looks for its child there.
          "--proc"
          "/proc"
          "--ro-bind"
          builtins.storeDir
          builtins.storeDir
          "--dir"
          "/tmp"
        ]
        ++ tmpfs "0755" workspace_mb "/layer"
        ++ [
          "--dir"
          "/layer/upper"
          "--dir"
          "/layer/work"
        ];
      };

      describe =
        verb:
        "#!${lib.getExe programs.jail}\n"
        + builtins.toJSON {
          schema = 1;
          bubblewrap = lib.getExe' pkgs.bubblewrap "bwrap";
          inherit flags;
          seccomp = "${filter}";
          # The root too, once the project's mount point has been made in it.
          seal = [
            "--remount-ro"
            "/"
          ];
          project_mount = "/project";
          reserved = import ../lib/reserved.nix ++ map (bind: bind.to) binds;
          inherit binds;
          variables = if shellVariables == null then "" else "${shellVariables}";
          overlay = if overlays then overlay else null;
          no_overlay = lib.optionalString (
            !overlays
          ) "it was built with bubblewrap ${pkgs.bubblewrap.version or "of no version"}, and overlays take ${overlayWants}";
          command = [
            (lib.getExe programs.agent)
            verb
            "--memory-mb"
            (toString memory_mb)
            "--pids"
            (toString pids)
          ]
          ++ lib.optionals (driver != null) [
            "--driver"
            "${driver}"
          ]
          ++ lib.optional pipe "--pipe"
          ++ command;
        }
        + "\n";
    in
    {
      run = describe "run";
      sessionRun = describe "serve";
      attach = describe "attach";
      contents = tree;
      closure = builtins.unsafeDiscardStringContext (lib.substring 0 32 (baseNameOf tree.outPath));
    };
in
{
  inherit make;

  problems =
    place:
    lib.optional (!hostPlatform.isLinux)
      "${place} a jail needs the namespaces of Linux, which ${hostPlatform.system} does not have: build it for x86_64-linux or aarch64-linux, and run the server there";
}
