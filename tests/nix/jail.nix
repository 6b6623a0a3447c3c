{
  pkgs,
  lib,
  library,
  ...
}:
let
  described =
    values:
    let
      artifact = library.mkSandbox (
        {
          name = "x";
          packages = [ pkgs.bash ];
          interpreter = "bash -c";
        }
        // values
      );
      parse =
        text:
        builtins.fromJSON (
          builtins.unsafeDiscardStringContext (
            lib.concatStringsSep "\n" (lib.tail (lib.splitString "\n" text))
          )
        );
    in
    {
      run = parse artifact.bin.run;
      sessionRun = parse artifact.bin.session-run;
      text = artifact.bin.run;
    };

  plain = described { };

  network = {
    mode = "allow";
    domains = [
      "files.example"
      "git.example:22"
      "files.example:443"
    ];
  };
  networked = described { inherit network; };
  flags = (described { env.GREETING = "a b"; }).run.flags;

  # The words after a flag.
  after =
    flag: words:
    let
      at = lib.filter (n: lib.elemAt words n == flag) (lib.genList (n: n) (lib.length words));
    in
    map (n: lib.elemAt words (n + 1)) at;
in
{
  testFirstLineNamesAnInterpreter = {
    expr = builtins.match "#!/nix/store/[^ ]*/bin/[a-z-]+" (lib.head (lib.splitString "\n" plain.text)) != null;
    expected = true;
  };
  testHostnameIsTheSandboxs = {
    expr = map (values: after "--hostname" (described values).run.flags) [
      { }
      { hostname = "data-1"; }
    ];
    expected = [
      [ "sandbox" ]
      [ "data-1" ]
    ];
  };
  # On other systems it is a sentence of ours, not nixpkgs' about bubblewrap.
  testOnlyForLinux = {
    expr =
      let
        elsewhere = pkgs // {
          stdenv.hostPlatform = {
            isLinux = false;
            system = "aarch64-darwin";
          };
        };
        artifact = (import ../../nix { pkgs = elsewhere; }).mkSandbox {
          name = "x";
          packages = [ pkgs.bash ];
          interpreter = "bash -c";
        };
      in
      (builtins.tryEval artifact.bin.run).success;
    expected = false;
  };
  # The kernel reads 255 bytes of it, older ones 127.
  testFirstLineIsShort = {
    expr = lib.stringLength (lib.head (lib.splitString "\n" plain.text)) < 127;
    expected = true;
  };
  # The launcher refuses a jail without a filter of system calls.
  testFilterIsInTheStore = {
    expr = lib.hasPrefix "/nix/store/" plain.run.seccomp;
    expected = true;
  };
  testRunAndSessionRunDifferInOneWord = {
    expr = [
      (lib.elemAt plain.run.command 1)
      (lib.elemAt plain.sessionRun.command 1)
      (removeAttrs plain.run [ "command" ] == removeAttrs plain.sessionRun [ "command" ])
    ];
    expected = [
      "run"
      "serve"
      true
    ];
  };
  # Another launcher, whose description has what it needs; everything else is as without.
  testDevicesAreTheLaunchersToFind = {
    expr =
      let
        with' = described {
          devices = [
            "vendor.example/gpu=all"
            "/dev/dri/renderD128"
          ];
        };
      in
      [
        (lib.head (lib.splitString "\n" with'.text) != lib.head (lib.splitString "\n" plain.text))
        (plain.run ? devices)
        with'.run.devices.names
        (with'.run.devices ? unsafe)
        (removeAttrs with'.run [
          "apparmor"
          "devices"
          "flags"
        ] == removeAttrs plain.run [
          "apparmor"
          "flags"
        ])
        # Each launcher has a profile of its own.
        (with'.run.apparmor != plain.run.apparmor)
        (lib.subtractLists with'.run.flags plain.run.flags)
        (lib.subtractLists plain.run.flags with'.run.flags)
        (map (file: with'.run.devices.${file}) [
          "host_dir"
          "store_dir"
        ])
      ];
    expected = [
      true
      false
      [
        "vendor.example/gpu=all"
        "/dev/dri/renderD128"
      ]
      false
      true
      true
      (
        let
          base = lib.removeSuffix "/bin" (lib.head (lib.filter (lib.hasSuffix "-sandbox-base/bin") plain.run.flags));
        in
        [
          "--symlink"
          "${base}/bin"
          "/bin"
          "--symlink"
          "${base}/etc"
          "/etc"
          "--symlink"
          "${base}/usr"
          "/usr"
        ]
      )
      [ ]
      [
        "/host"
        builtins.storeDir
      ]
    ];
  };
  testUnsafeDevicesSaySo = {
    expr =
      (described {
        devices = [ "/dev/kvm" ];
        unsafe_devices = true;
      }).run.devices.unsafe;
    expected = true;
  };
  testUnsafeDevicesByName = {
    expr = lib.filter (
      device:
      library.problems.mkSandbox {
        name = "x";
        packages = [ pkgs.bash ];
        interpreter = "bash -c";
        devices = [ device ];
      } == [ ]
    ) (map (name: "/dev/${name}") [
      "accel/accel0"
      "dma_heap/system"
      "dri/card0"
      "dri/renderD128"
      "dxg"
      "fuse"
      "kfd"
      "kmem"
      "kmsg"
      "kvm"
      "loop0"
      "loop-control"
      "mapper/root"
      "mem"
      "net/tun"
      "nvidia0"
      "nvidia-caps/nvidia-cap1"
      "nvidia-uvm"
      "nvidiactl"
      "nvme0n1p1"
      "port"
      "sda1"
      "sg0"
      "tty0"
      "ttyS0"
      "ttyUSB0"
      "uinput"
      "vfio/vfio"
      "vhost-net"
      "video0"
    ]);
    expected = map (name: "/dev/${name}") [
      "accel/accel0"
      "dma_heap/system"
      "dri/card0"
      "dri/renderD128"
      "dxg"
      "kfd"
      "nvidia0"
      "nvidia-caps/nvidia-cap1"
      "nvidia-uvm"
      "nvidiactl"
      "video0"
    ];
  };
  testLimitsAreInBoth = {
    expr =
      let
        limited = described {
          memory_mb = 100;
          pids = 20;
        };
      in
      map (spec: lib.sublist 2 4 spec.command) [
        plain.run
        limited.run
        limited.sessionRun
      ];
    expected = [
      [
        "--memory-mb"
        "512"
        "--pids"
        "256"
      ]
      [
        "--memory-mb"
        "100"
        "--pids"
        "20"
      ]
      [
        "--memory-mb"
        "100"
        "--pids"
        "20"
      ]
    ];
  };
  # An interpreter with a driver is not given the flag for code.
  testAgentStartsTheInterpreter = {
    expr =
      let
        # Without the hashes of store paths.
        plain = word: if lib.hasPrefix "/" word then lib.substring 33 (-1) (baseNameOf word) else word;
      in
      map (v: lib.concatMapStringsSep " " plain (lib.drop 6 (described v).run.command)) [
        { interpreter = "python3 -u -c"; }
        { interpreter = "node -e"; }
        { interpreter = "perl -e"; }
        { interpreter = "lua -"; }
      ];
    expected = [
      "--driver sandbox-driver-python python3 -u"
      "--driver sandbox-driver-node node"
      "perl -e"
      "--pipe lua -"
    ];
  };
  # A jail never goes without a namespace, capabilities or environment of the
  # host reach no code, and no end of a parent leaves it behind.
  testNothingIsLeftOut = {
    expr =
      lib.filter (flag: !(lib.elem flag plain.run.flags))
        [
          "--as-pid-1"
          "--cap-drop"
          "--clearenv"
          "--die-with-parent"
          "--disable-userns"
          "--new-session"
          "--unshare-cgroup"
          "--unshare-ipc"
          "--unshare-net"
          "--unshare-pid"
          "--unshare-user"
          "--unshare-uts"
        ];
    expected = [ ];
  };
  # Nor does the outer namespace of a sandbox whose project is an overlay.
  testNothingIsLeftOutOfTheRoom = {
    expr =
      lib.filter (flag: !(lib.elem flag plain.run.overlay.flags))
        [
          "--as-pid-1"
          "--cap-drop"
          "--die-with-parent"
          "--unshare-pid"
          "--unshare-user"
        ];
    expected = [ ];
  };
  # An environment without a network has nothing of one: its flags are those of an
  # environment with one but for these, and its description has no other fields.
  testNoNetworkAddsNothing = {
    expr = {
      flags =
        lib.filter (flag: !(lib.elem flag networked.run.flags)) plain.run.flags
        ++ lib.filter (flag: !(lib.elem flag plain.run.flags)) networked.run.flags;
      overlay = lib.filter (flag: !(lib.elem flag plain.run.overlay.flags)) networked.run.overlay.flags;
      fields = lib.filter (field: !(plain.run ? ${field})) (lib.attrNames networked.run);
      none = (described { network = "none"; }).text == plain.text;
      names = lib.hasInfix "network" plain.text || lib.hasInfix "certificates" plain.text;
    };
    expected = {
      flags = [
        "--unshare-net"
        # The closure has certificates and another /etc.
        (lib.head (after "--ro-bind" plain.run.flags))
        (lib.elemAt (after "--symlink" plain.run.flags) 0)
        (lib.elemAt (after "--symlink" plain.run.flags) 1)
        (lib.elemAt (after "--symlink" plain.run.flags) 2)
        "NIX_SSL_CERT_FILE"
        "${pkgs.cacert}/etc/ssl/certs/ca-bundle.crt"
        "SSL_CERT_FILE"
        "${pkgs.cacert}/etc/ssl/certs/ca-bundle.crt"
        (lib.head (after "--ro-bind" networked.run.flags))
        (lib.elemAt (after "--symlink" networked.run.flags) 0)
        (lib.elemAt (after "--symlink" networked.run.flags) 1)
        (lib.elemAt (after "--symlink" networked.run.flags) 2)
      ];
      overlay = [
        "--unshare-net"
        "--cap-add"
        "CAP_NET_ADMIN"
        "--cap-add"
        "CAP_NET_BIND_SERVICE"
      ];
      fields = [ "network" ];
      none = true;
      names = false;
    };
  };
  # One outer namespace serves overlay, shared workspace and network.
  testNetworkIsInTheOuterNamespace = {
    expr = [
      (lib.take (lib.length networked.run.workspace.flags) networked.run.overlay.flags == networked.run.workspace.flags)
      networked.run.network.ports
      (after "--cap-add" networked.run.workspace.flags)
    ];
    expected = [
      true
      [
        443
        80
        22
      ]
      [
        "CAP_NET_ADMIN"
        "CAP_NET_BIND_SERVICE"
      ]
    ];
  };
  # What needs the same of a machine as another one, and what needs more.
  testNeedsOfANetwork = {
    expr =
      let
        needs = values: (library.mkSandbox ({ name = "x"; interpreter_type = "bash"; packages = [ pkgs.bash ]; } // values)).metadata.needs;
      in
      [
        (needs { } == needs { memory_mb = 100; })
        (needs { inherit network; } == needs { })
        (needs { inherit network; } == needs { network = network // { ports = [ 8443 ]; }; })
        # bin/check looks for the secret.
        (
          needs { inherit network; } == needs {
            network = network // {
              credentials.A = {
                domain = "files.example";
                header = "X-Key: {}";
                file = "/run/secrets/a";
              };
            };
          }
        )
      ];
    expected = [
      true
      false
      true
      false
    ];
  };
  testMetadataOfANetwork = {
    expr = map (network: (library.mkSandbox { name = "x"; interpreter_type = "bash"; packages = [ pkgs.bash ]; inherit network; }).metadata.network) [
      "none"
      (
        network
        // {
          private = [ "10.1.0.0/16" ];
          rate = 5;
          credentials = {
            A = {
              domain = "files.example";
              header = "X-A: {}";
              variable = "TOKEN";
            };
            B = {
              domain = "files.example";
              header = "X-B: {}";
              file = "/run/secrets/b";
            };
          };
        }
      )
    ];
    expected = [
      { mode = "none"; }
      {
        mode = "allow";
        inherit (network) domains;
        ports = [
          443
          80
        ];
        connections = 64;
        rate = 5;
        megabytes = 1024;
        names = 1000;
        secrets = [ "TOKEN" ];
      }
    ];
  };
  # Where secrets are is known to the launcher alone, and what they are to nobody here.
  testCredentials = {
    expr =
      let
        spec =
          (described {
            network = network // {
              credentials = {
                B = {
                  domain = "files.example";
                  header = "X-Key: {}";
                  file = "/run/secrets/b";
                };
                A = {
                  domain = "files.example";
                  header = "Authorization: Bearer {}";
                  variable = "TOKEN";
                };
                # The sandbox's own variables come before placeholders.
                HOME = {
                  domain = "files.example";
                  header = "X-Home: {}";
                  variable = "HOME";
                };
              };
            };
            env.B = "own";
          }).run;
      in
      {
        inherit (spec.network) secrets certificates;
        reserved = lib.elem "/certificates.crt" spec.reserved;
        # Each variable's value follows its name.
        file = lib.unique (
          lib.concatMap (name: after name spec.flags) [
            "CURL_CA_BUNDLE"
            "GIT_SSL_CAINFO"
            "NIX_SSL_CERT_FILE"
            "NODE_EXTRA_CA_CERTS"
            "PIP_CERT"
            "REQUESTS_CA_BUNDLE"
            "SSL_CERT_FILE"
          ]
        );
        placeholders = map (name: after name spec.flags) [
          "A"
          "B"
          "HOME"
        ];
        # The server's variables, by which its launchers find them.
        variables =
          (library.mkSandbox {
            name = "x";
            interpreter_type = "bash";
            packages = [ pkgs.bash ];
            network = network // {
              credentials.A = {
                domain = "files.example";
                header = "X-Key: {}";
                variable = "TOKEN";
              };
            };
          }).metadata.network.secrets;
        withoutThem = networked.run.network ? secrets || networked.run.network ? authorities;
      };
    expected = {
      secrets = [
        {
          name = "A";
          variable = "TOKEN";
        }
        {
          name = "B";
          file = "/run/secrets/b";
        }
        {
          name = "HOME";
          variable = "HOME";
        }
      ];
      placeholders = [
        [ "credential-A-placeholder" ]
        [ "own" ]
        [ "/workspace" ]
      ];
      certificates = "/certificates.crt";
      reserved = true;
      file = [ "/certificates.crt" ];
      variables = [ "TOKEN" ];
      withoutThem = false;
    };
  };
  # A table replaces that of the defaults as a whole, and "none" does too.
  testNetworkOfTheDefaults = {
    expr =
      let
        of =
          own:
          (library.fromToml {
            defaults = { inherit network; };
            environments.x = { preset = "shell"; } // own;
          }).environments.x.metadata.network;
      in
      [
        (of { }).domains
        (of { network = "none"; })
        (of { network = { mode = "allow"; domains = [ "a.example" ]; }; }).domains
        (of { }).of_defaults
        ((of { network = { mode = "allow"; domains = [ "a.example" ]; }; }) ? of_defaults)
      ];
    expected = [
      network.domains
      { mode = "none"; }
      [ "a.example" ]
      true
      false
    ];
  };

  # Nor does that of one whose workspace others have, or the holder's.
  testNothingIsLeftOutOfTheHolder = {
    expr =
      map
        (
          flags:
          lib.filter (flag: !(lib.elem flag flags)) [
            "--as-pid-1"
            "--cap-drop"
            "--die-with-parent"
            "--unshare-pid"
            "--unshare-user"
          ]
        )
        [
          plain.run.workspace.flags
          plain.run.workspace.holder
        ];
    expected = [
      [ ]
      [ ]
    ];
  };
  # One capability more, for mounting; the holder has it as long as it lives, and a
  # sandbox before its code is there.
  testHolderMounts = {
    expr = map (after "--cap-add") [
      plain.run.workspace.holder
      plain.run.workspace.join
      plain.run.workspace.flags
      plain.run.flags
    ];
    expected = [
      [ "CAP_SYS_ADMIN" ]
      [ "CAP_SYS_ADMIN" ]
      [ ]
      [ ]
    ];
  };
  testSharedWorkspaceIsSized = {
    expr = map (flag: after flag (described { workspace_mb = 3; }).run.workspace.holder) [
      "--size"
      "--tmpfs"
    ];
    expected = [
      [ "3145728" ]
      [ "/workspace" ]
    ];
  };
  # What is dropped, and who the code is.
  testWhoRuns = {
    expr =
      map
        (flags: [
          (after "--cap-drop" flags)
          (after "--uid" flags)
          (after "--gid" flags)
        ])
        [
          plain.run.flags
          plain.run.overlay.flags
        ];
    expected =
      let
        ordinary = [
          [ "ALL" ]
          [ "1000" ]
          [ "1000" ]
        ];
      in
      [
        ordinary
        ordinary
      ];
  };
  testNothingGoesWithout = {
    expr = lib.filter (flag: lib.hasSuffix "-try" flag || lib.hasPrefix "--share" flag) plain.run.flags;
    expected = [ ];
  };
  # A project cannot be mounted over what is shown of the host.
  testBindsAreListedAndReserved = {
    expr =
      let
        spec = (described { extraBinds."/data" = "/srv/data"; }).run;
      in
      [
        spec.binds
        (lib.elem "/data" spec.reserved)
        (lib.elem "/data" plain.run.reserved)
      ];
    expected = [
      [
        {
          from = "/srv/data";
          to = "/data";
        }
      ]
      true
      false
    ];
  };
  # Of the store, with all that it needs.
  testBindsOfTheStoreAreInTheClosure = {
    expr =
      (described { extraBinds."/data" = pkgs.jq; }).run.flags == (described { extraBinds."/data" = "/srv"; }).run.flags;
    expected = false;
  };
  testLayerIsSized = {
    expr = map (flag: after flag (described { workspace_mb = 3; }).run.overlay.flags) [
      "--size"
      "--tmpfs"
    ];
    expected = [
      [ "3145728" ]
      [ "/layer" ]
    ];
  };
  testLayerNeedsItsBubblewrap = {
    expr =
      let
        old = import ../../nix {
          pkgs = pkgs // {
            bubblewrap = pkgs.bubblewrap // {
              version = "0.8.0";
            };
          };
          inherit (library) programs;
        };
        spec =
          (old.mkSandbox {
            name = "x";
            interpreter_type = "bash";
            packages = [ pkgs.bash ];
          }).bin.run;
      in
      [
        (lib.hasInfix "\"overlay\":null" spec)
        (lib.hasInfix "bubblewrap 0.8.0, and overlays need 0.11.0" spec)
      ];
    expected = [
      true
      true
    ];
  };
  # A shell's PATH comes with its variables, and bwrap's last word wins.
  testShellBringsThePath = {
    expr =
      let
        spec = (described {
          fromShell = pkgs.mkShell { };
          env.TZ = "UTC";
        }).run;
      in
      [
        (after "--setenv" spec.flags)
        (builtins.match "/nix/store/.*-sandbox-variables" spec.variables != null)
        plain.run.variables
      ];
    expected = [
      [
        "HOME"
        "LANG"
        "TERM"
        "TMPDIR"
        "TZ"
        "TZDIR"
        "USER"
      ]
      true
      ""
    ];
  };

  # One mount for the store, whatever the number of packages.
  testOneBind = {
    expr = [
      (lib.length (after "--ro-bind" plain.run.flags))
      (lib.filter (flag: builtins.match "--.*bind.*" flag != null && flag != "--ro-bind") plain.run.flags)
    ];
    expected = [
      1
      [ ]
    ];
  };
  testReadOnly = {
    expr = [
      (after "--remount-ro" plain.run.flags)
      plain.run.seal
    ];
    expected = [
      [
        "/proc"
        "/dev"
      ]
      [
        "--remount-ro"
        "/"
      ]
    ];
  };
  testEachTmpfsIsSized = {
    expr =
      let
        sized = (described { workspace_mb = 3; }).run.flags;
      in
      [
        (after "--size" sized)
        (after "--tmpfs" sized)
      ];
    expected = [
      [
        "67108864"
        "3145728"
        "3145728"
      ]
      [
        "/dev/shm"
        "/tmp"
        "/workspace"
      ]
    ];
  };
  testVariablesAreSet = {
    expr = after "--setenv" flags;
    expected = [
      "GREETING"
      "HOME"
      "LANG"
      "PATH"
      "TERM"
      "TMPDIR"
      "TZDIR"
      "USER"
    ];
  };
  testVariablesMayNameStorePaths = {
    expr =
      (described { env.DATA = "${pkgs.jq}/share"; }).run.flags == (described { env.DATA = "x"; }).run.flags;
    expected = false;
  };
  testReservedHoldsEveryPlaceOfTheJail = {
    expr =
      let
        made = lib.concatMap (flag: after flag plain.run.flags) [
          "--proc"
          "--dev"
          "--tmpfs"
        ];
        within = path: lib.any (r: path == r || lib.hasPrefix "${r}/" path) plain.run.reserved;
      in
      lib.filter (path: !(within path)) made;
    expected = [ ];
  };
}
