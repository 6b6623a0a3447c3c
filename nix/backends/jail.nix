# A jail made by bubblewrap, out of Linux's namespaces.
#
# bin/run is not a script but a description, whose interpreter is
# nix-sandbox-jail: the launcher adds the project's folder, if there is one, and
# becomes bubblewrap with these flags. By its name it knows bin/check, with which
# it checks the machine and starts nothing.
{ pkgs, host, programs }:
let
  inherit (pkgs) lib;
  inherit (pkgs.stdenv) hostPlatform;

  user = import ../lib/user.nix;
  rootfsOf = import ../lib/rootfs.nix { inherit pkgs; };
  certificates = import ../lib/certificates.nix { inherit pkgs; };
  placeholderOf = import ../lib/placeholder.nix;
  closureTree = import ../lib/closureTree.nix { inherit pkgs; };

  # The system calls that are refused, compiled; the list is in jail/seccomp.
  filter = pkgs.runCommandLocal "sandbox-system-calls" { } ''
    ${lib.getExe programs.seccomp} ${hostPlatform.parsed.cpu.name} > $out
  '';

  # Of the proxy, which is a program that is known, those that are allowed.
  proxyFilter = pkgs.runCommandLocal "sandbox-network-system-calls" { } ''
    ${lib.getExe programs.seccomp} ${hostPlatform.parsed.cpu.name} proxy > $out
  '';

  bubblewrap = lib.getExe' pkgs.bubblewrap "bwrap";
  launcher = lib.getExe programs.jail;
  devicesLauncher = lib.getExe programs.jailDevices;

  # The AppArmor profile with which a launcher may make user namespaces; jail/apparmor_linux.go says how it is
  # loaded. Each has a name of its own, so that servers of several versions work beside each other.
  profileOf =
    launcher:
    let
      name = "nix-sandbox-${
        lib.substring 0 8 (
          builtins.hashString "sha256" (builtins.unsafeDiscardStringContext "${launcher} ${bubblewrap}")
        )
      }";
    in
    "${pkgs.writeText name (
      lib.replaceStrings [ "@name@" "@launcher@" "@bubblewrap@" ] [ name launcher bubblewrap ] (
        lib.readFile ./apparmor.profile
      )
    )}";

  # Shared memory of processes (Python's multiprocessing asks for it), in MiB.
  shm_mb = 64;

  # What of /proc names the host, and what the sandbox sees in its place: the
  # names of the user's keys, how the machine was started, the number by which
  # one start is told from another, and which build of its distribution's kernel
  # it runs. The launcher leaves out what the kernel does not have.
  masks =
    let
      nothing = pkgs.writeText "sandbox-nothing" "";
      anyStart = pkgs.writeText "sandbox-boot-id" "00000000-0000-4000-8000-000000000000\n";
    in
    lib.mapAttrsToList (to: from: { inherit from to; }) {
      "/proc/bootconfig" = nothing;
      "/proc/cmdline" = nothing;
      "/proc/key-users" = nothing;
      "/proc/keys" = nothing;
      "/proc/sys/kernel/random/boot_id" = anyStart;
      "/proc/version_signature" = nothing;
    };

  # The first version of bubblewrap with overlays.
  overlayWants = "0.11.0";
  overlays = lib.versionAtLeast (pkgs.bubblewrap.version or "0") overlayWants;

  # Flags of bubblewrap.
  asUser = [
    "--uid"
    (toString user.uid)
    "--gid"
    (toString user.gid)
  ];
  flagsFor = flags: set: lib.concatLists (lib.mapAttrsToList flags set);
  setenv = flagsFor (
    name: value: [
      "--setenv"
      name
      value
    ]
  );
  # { PATH = TARGET; }
  symlinks = flagsFor (
    path: target: [
      "--symlink"
      target
      path
    ]
  );
  # Without a size, a tmpfs may fill half of the host's memory.
  tmpfs = permissions: megabytes: path: [
    "--perms"
    permissions
    "--size"
    (toString (megabytes * 1048576))
    "--tmpfs"
    path
  ];
  readOnly = path: [
    "--remount-ro"
    path
  ];

  # What every jail is without. Each namespace stands there by name, because --unshare-all
  # does without a user or cgroup namespace if the system has none.
  namespaces = [
    "--unshare-user"
    "--unshare-ipc"
    "--unshare-pid"
    "--unshare-uts"
    "--unshare-cgroup"
  ];
  confined =
    hostname:
    namespaces
    ++ [
      "--disable-userns"
      "--cap-drop"
      "ALL"
    ]
    ++ asUser
    ++ [
      "--hostname"
      hostname
    ];

  # The jail's flags, but for the mounts and variables that the launcher adds.
  flagsOf =
    {
      hostname,
      workspace_mb,
      isNetworked,
      hasDevices,
      variables,
      # The copy of the closure.
      tree,
      # Flags.
      links,
    }:
    confined hostname
    # With a network of named hosts, the outer namespace has it.
    ++ lib.optional (!isNetworked) "--unshare-net"
    # TIOCSTI cannot reach the caller's terminal; the sandbox ends with
    # bubblewrap, and bubblewrap with its parent; the agent is PID 1.
    ++ [
      "--new-session"
      "--die-with-parent"
      "--as-pid-1"
      "--clearenv"
    ]
    ++ setenv variables
    ++ [
      "--ro-bind"
      "${tree}/nix"
      "/nix"
    ]
    # If root starts the jail, the sandbox's user is root to the host's
    # files. /proc/sys, which is the whole machine's, checks the user and no
    # capability, so /proc is read-only.
    ++ [
      "--proc"
      "/proc"
    ]
    ++ readOnly "/proc"
    ++ [
      "--dev"
      "/dev"
    ]
    ++ tmpfs "1777" shm_mb "/dev/shm"
    # /dev is a tmpfs without a size, so it is read-only. With devices, the launcher
    # does so when they are there.
    ++ lib.optionals (!hasDevices) (readOnly "/dev")
    ++ tmpfs "1777" workspace_mb "/tmp"
    ++ tmpfs "0755" workspace_mb "/workspace"
    ++ links
    ++ [
      "--chdir"
      "/workspace"
    ];

  # The outer namespace of a sandbox whose project is an overlay, which has a
  # network, or whose workspace others have too: see jail/spec.go. The second
  # bubblewrap needs /proc, /dev and /tmp in it, and the store, where its own
  # libraries are.
  outerOf =
    isNetworked:
    [
      "--unshare-user"
      "--cap-drop"
      "ALL"
    ]
    # The inner namespace cannot map the user to root's own number.
    ++ asUser
    ++ [
      # A bubblewrap that is killed while it starts leaves a child that waits
      # for it for ever. The inner one's child ends with the outer PID
      # namespace.
      "--die-with-parent"
      "--unshare-pid"
      "--as-pid-1"
      "--dev-bind"
      "/dev"
      "/dev"
      # The inner bubblewrap finds its child by this namespace's /proc.
      "--proc"
      "/proc"
      "--ro-bind"
      builtins.storeDir
      builtins.storeDir
      "--dir"
      "/tmp"
    ]
    # The launcher adds a route and listens at ports below 1024, and then gives up
    # both capabilities. It would not have them over this network with --dev, for
    # which bubblewrap makes a second user namespace.
    ++ lib.optionals isNetworked [
      "--unshare-net"
      "--cap-add"
      "CAP_NET_ADMIN"
      "--cap-add"
      "CAP_NET_BIND_SERVICE"
    ];

  # Where the outer namespace shows the host's folders.
  host_dir = "/host";

  # What code writes to an overlay.
  layerOf =
    workspace_mb:
    tmpfs "0755" workspace_mb "/layer"
    ++ [
      "--dir"
      "/layer/upper"
      "--dir"
      "/layer/work"
    ];

  overlayOf =
    { outer, workspace_mb }:
    {
      inherit host_dir;
      upper = "/layer/upper";
      work = "/layer/work";
      option = "--layer";
      flags = outer ++ layerOf workspace_mb;
    };

  # A workspace that several sandboxes have: see jail/workspace_linux.go. The
  # program that mounts it, here and in the outer namespace, is the launcher.
  workspaceOf =
    { outer, workspace_mb }:
    {
      inherit host_dir;
      flags = outer;
      mount = "/workspace";
      at = "/shared";
      project = "/project";
      join = [
        "--cap-add"
        "CAP_SYS_ADMIN"
        "--dir"
        "/shared"
      ];
      holder =
        namespaces
        ++ [
          "--unshare-net"
          "--cap-drop"
          "ALL"
          "--cap-add"
          "CAP_SYS_ADMIN"
        ]
        ++ asUser
        ++ [
          "--new-session"
          "--die-with-parent"
          "--as-pid-1"
          "--clearenv"
          "--ro-bind"
          builtins.storeDir
          builtins.storeDir
        ]
        ++ tmpfs "0755" workspace_mb "/workspace";
      # The kernel does what an overlay does, such as copying a file up, with the
      # capabilities of the process that mounted it.
      layer = [
        "--cap-add"
        "ALL"
      ]
      ++ layerOf workspace_mb;
    };

  # The description of the jail of a program of the project's own beside a sandbox, such
  # as its proxy: everything but its flags for the network and the file systems.
  describeProgram =
    {
      flags,
      binds,
      no_overlay,
      command,
    }:
    {
      schema = 1;
      inherit
        bubblewrap
        binds
        no_overlay
        command
        ;
      seccomp = "${filter}";
      flags =
        confined "sandbox"
        ++ [
          "--die-with-parent"
          "--as-pid-1"
          "--clearenv"
        ]
        ++ flags;
      seal = readOnly "/";
      project_mount = "/project";
      reserved = import ../lib/reserved.nix;
      masks = [ ];
      variables = "";
      overlay = null;
    };

  # What a sandbox with a network needs beside its flags: the description of its proxy,
  # which is a jail too, and the ports.
  networkOf =
    given:
    let
      # What the proxy reads (network/policy). Where the secrets are is not in it. The proxy
      # checks it here too, because a sandbox whose policy it refuses cannot start.
      policy = pkgs.writeTextFile {
        name = "sandbox-network-policy";
        text = builtins.toJSON (
          removeAttrs given [
            "ask"
            "credentials"
            "mode"
            "rules"
          ]
          // {
            schema = 1;
          }
          // lib.optionalAttrs (given.ask != [ ]) { inherit (given) ask; }
          // lib.optionalAttrs (given.rules != { }) { inherit (given) rules; }
          // lib.optionalAttrs (given.credentials != { }) {
            credentials = lib.mapAttrsToList (name: credential: {
              inherit name;
              inherit (credential) domain header;
              placeholder = placeholderOf name;
            }) given.credentials;
          }
        );
        checkPhase = ''
          ${lib.getExe programs.network} --check --policy "$target"
        '';
      };
      secrets = lib.mapAttrsToList (
        name: credential:
        {
          inherit name;
        }
        // lib.filterAttrs (_: v: v != null) { inherit (credential) file variable; }
      ) given.credentials;
      portOf = entry: builtins.match "[^:]*:([0-9]+)" entry;
      show = from: to: {
        inherit to;
        from = "${from}";
      };
      # The host's network, and none of its files but those of the resolver.
      description =
        describeProgram {
          flags = [
            # Go starts fewer threads.
            "--setenv"
            "GOMAXPROCS"
            "1"
          ]
          ++ lib.concatMap (file: [
            "--ro-bind-try"
            file
            file
          ]) [
            "/etc/hosts"
            "/etc/resolv.conf"
          ];
          binds = [
            (show (lib.getExe programs.network) "/nix-sandbox-net")
            (show policy "/policy.json")
            (show certificates.public "/etc/ssl/certs/ca-certificates.crt")
          ];
          no_overlay = "it is the proxy of a network";
          command = [
            "/nix-sandbox-net"
            "--policy"
            "/policy.json"
          ];
        }
        // {
          seccomp = "${proxyFilter}";
          # Of one control group, the kernel ends the code first.
          oom_score = 900;
        };
    in
    lib.optionalAttrs (secrets != [ ]) { inherit secrets; }
    // lib.optionalAttrs (certificates.endsTLS given) {
      authorities = certificates.public;
      certificates = certificates.own;
    }
    // {
      proxy = "${pkgs.writeText "sandbox-network-proxy" "#!${launcher}\n${builtins.toJSON description}\n"}";
      ports = lib.unique (
        given.ports
        ++ map (entry: builtins.fromJSON (lib.head (portOf entry))) (
          lib.filter (entry: portOf entry != null) (given.domains ++ given.ask)
        )
      );
    };

  make =
    {
      options,
      environment,
      variables,
      shellVariables,
      links,
      command,
      driver,
      pipe,
      # Whether it is a jail in a virtual machine, whose first process takes the place of a proxy.
      inMachine ? false,
    }:
    let
      isNetworked = options.network != "none";
      # The toolbox sets this variable (parts/toolbox/nix).
      hasTools = variables ? NIX_SANDBOX_TOOLS;
      inherit (programs) agent;
      hasDevices = options.devices != [ ];

      rootfs = rootfsOf (
        {
          inherit environment;
          inherit (options) hostname;
        }
        // lib.optionalAttrs isNetworked { certificates = certificates.file options.network; }
      );

      binds = lib.mapAttrsToList (to: from: {
        inherit to;
        from = "${from}";
      }) options.extra_binds;

      # A variable may name a path in the store, which then is in the sandbox too.
      mentioned = pkgs.writeText "sandbox-variables" (builtins.toJSON variables);
      mentions = lib.any builtins.hasContext (lib.attrValues (removeAttrs variables [ "PATH" ]));

      tree = closureTree {
        name = "sandbox";
        roots = [
          environment
          rootfs
          agent
        ]
        ++ lib.optional (driver != null) driver
        ++ lib.optional mentions mentioned
        ++ lib.optional (links != { }) (pkgs.writeText "sandbox-links" (builtins.toJSON links))
        ++ lib.optional (shellVariables != null) shellVariables
        # A bind from the store is there under its own path too, with its closure.
        ++ map (bind: bind.from) (lib.filter (bind: builtins.hasContext bind.from) binds);
      };

      outer = outerOf isNetworked;

      network =
        let
          found = networkOf options.network;
        in
        {
          inherit (found) ports;
        }
        // lib.optionalAttrs (!inMachine) found;

      devices = {
        inherit host_dir;
        names = options.devices;
        base = "${rootfs}";
        store = "${tree}/nix";
        store_dir = builtins.storeDir;
        flags = outer;
      }
      // lib.optionalAttrs options.unsafe_devices { unsafe = true; };

      own = if hasDevices then devicesLauncher else launcher;

      description = {
        schema = 1;
        apparmor = profileOf own;
        inherit bubblewrap masks;
        # What is in the store is in a machine's as a part of the tree alone.
        binds =
          if inMachine then
            map (bind: bind // lib.optionalAttrs (builtins.hasContext bind.from) { from = "${tree}${bind.from}"; }) binds
          else
            binds;
        flags = flagsOf {
          inherit (options) hostname workspace_mb;
          inherit
            isNetworked
            hasDevices
            variables
            tree
            ;
          links =
            # With devices, the launcher makes these, because a driver has files in the
            # same folders.
            lib.optionals (!hasDevices) (symlinks {
              "/bin" = "${rootfs}/bin";
              "/etc" = "${rootfs}/etc";
              "/usr" = "${rootfs}/usr";
            })
            ++ lib.optionals hasTools (symlinks { "/tools" = variables.NIX_SANDBOX_TOOLS; })
            ++ symlinks links;
        };
        seccomp = "${filter}";
        # The root is made read-only once it has the project's mount point.
        seal = readOnly "/";
        project_mount = "/project";
        inbox_mount = import ../lib/inbox.nix;
        reserved =
          import ../lib/reserved.nix
          ++ map (bind: bind.to) binds
          ++ lib.attrNames links
          ++ lib.optional (certificates.endsTLS options.network) certificates.own;
        variables = if shellVariables == null then "" else "${shellVariables}";
        overlay =
          if overlays then
            overlayOf {
              inherit outer;
              inherit (options) workspace_mb;
            }
          else
            null;
        workspace = workspaceOf {
          inherit outer;
          inherit (options) workspace_mb;
        };
        no_overlay = lib.optionalString (
          !overlays
        ) "it was built with bubblewrap ${pkgs.bubblewrap.version or "of no version"}, and overlays need ${overlayWants}";
      }
      // lib.optionalAttrs isNetworked { inherit network; }
      // lib.optionalAttrs hasDevices { inherit devices; };

      describe =
        verb:
        "#!${own}\n"
        + builtins.toJSON (
          description
          // {
            command = [
              (lib.getExe agent)
              verb
              "--memory-mb"
              (toString options.memory_mb)
              "--pids"
              (toString options.pids)
            ]
            ++ lib.optionals (driver != null) [
              "--driver"
              "${driver}"
            ]
            ++ lib.optional pipe "--pipe"
            # Code may ask the server for tools or packages.
            ++ lib.optional (hasTools || options.nix) "--asks"
            ++ command;
          }
        )
        + "\n";
    in
    {
      bin = {
        run = describe "run";
        session-run = describe "serve";
        check = describe "serve";
        grow = describe "serve";
        workspace = describe "serve";
      };
      contents = tree;
      # What the launcher itself reads: its closure, and the tree without its own, are all
      # that a machine needs to start this jail.
      parts = [
        programs.jail
        pkgs.bubblewrap
        filter
      ]
      ++ map (mask: mask.from) masks
      ++ lib.optional (shellVariables != null) shellVariables;
      needs = builtins.hashString "sha256" "${launcher} ${bubblewrap}${
        lib.optionalString isNetworked " network ${builtins.toJSON (network.secrets or [ ])}"
      }${
        lib.optionalString hasDevices " devices ${
          builtins.toJSON [
            options.devices
            options.unsafe_devices
          ]
        }"
      }";
      closure = builtins.unsafeDiscardStringContext (lib.substring 0 32 (baseNameOf tree.outPath));
    };

  # The program that adds packages, { name; paths; program; }, to a sandbox that runs. It is described as a jail is, of
  # which the store alone counts (jail/grow_linux.go).
  addition =
    packages:
    let
      tree = closureTree {
        name = "sandbox-addition";
        roots = lib.concatMap (package: package.paths) packages;
      };
      description = {
        schema = 1;
        inherit bubblewrap;
        seccomp = "${filter}";
        flags = [
          "--ro-bind"
          "${tree}/nix"
          "/nix"
        ];
        seal = readOnly "/";
        project_mount = "/project";
        reserved = import ../lib/reserved.nix;
        command = [ (lib.getExe programs.agent) ];
      };
    in
    pkgs.runCommandLocal "sandbox-addition"
      {
        # Texts of any length, as variables of the shell.
        __structuredAttrs = true;
        nativeBuildInputs = [ pkgs.jq ];
        grow = "#!${launcher}\n${builtins.toJSON description}\n";
        metadata = builtins.toJSON {
          schema = 1;
          inherit packages;
        };
        inherit tree;
      }
      ''
        mkdir -p $out/bin
        printf %s "$grow" > $out/bin/grow
        chmod +x $out/bin/grow
        # Only a build can tell the size.
        printf %s "$metadata" |
          jq --compact-output --argjson size "$(du -s --apparent-size --block-size=1 "$tree" | cut -f 1)" \
            '.closure_bytes = $size' > $out/metadata.json
      '';
in
{
  inherit
    addition
    make
    describeProgram
    networkOf
    profileOf
    ;

  problems =
    location: _:
    lib.optional (!host.stdenv.hostPlatform.isLinux)
      "${location} backend is \"jail\", which needs the namespaces of Linux, and ${host.stdenv.hostPlatform.system} does not have them: set backend = \"vm\"";
}
