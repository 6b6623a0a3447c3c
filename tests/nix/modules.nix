# The modules, evaluated with stand-ins for what flake-parts, NixOS and
# home-manager declare. This takes nixpkgs' module system.
{
  pkgs,
  # nixpkgs.lib, with evalModules.
  moduleLib,
  choices,
  ...
}:
let
  # As the modules have it, with the programs.
  library = import ../../nix { inherit pkgs; };

  inherit (moduleLib) mkOption types;

  anything = mkOption {
    type = types.lazyAttrsOf types.raw;
    default = { };
  };
  list = mkOption {
    type = types.listOf types.raw;
    default = [ ];
  };

  evaluate = evaluateWith pkgs;
  evaluateWith =
    pkgs: modules:
    (moduleLib.evalModules {
      modules = [ { _module.args = { inherit pkgs; }; } ] ++ modules;
    }).config;

  # What NixOS declares of that which the module sets.
  nixosOptions = {
    assertions = list;
    environment = {
      systemPackages = list;
      etc = anything;
    };
    networking.firewall.allowedTCPPorts = list;
    services.haproxy = anything;
    users = {
      users = anything;
      groups = anything;
    };
    systemd = {
      services = anything;
      sockets = anything;
    };
  };
  nixos =
    settings:
    evaluate [
      ../../modules/nixos.nix
      {
        options = nixosOptions;
        config.services.nix-sandbox-mcp = settings;
      }
    ];

  home =
    settings:
    evaluate [
      ../../modules/home-manager.nix
      {
        options = {
          home.packages = list;
          xdg.configFile = anything;
          programs.mcp.servers = anything;
        };
        config.programs.nix-sandbox-mcp = settings;
      }
    ];

  # What flake-parts gives to a module, and one system of it.
  flake-parts-lib.mkPerSystemOption =
    module:
    mkOption {
      type = types.deferredModuleWith { staticModules = [ module ]; };
    };
  flakeParts = flakePartsWith pkgs;
  flakePartsWith =
    pkgs: settings: more:
    let
      top = moduleLib.evalModules {
        specialArgs = { inherit flake-parts-lib; };
        modules = [
          ../../modules/flake-parts.nix
          { perSystem.nix-sandbox-mcp = settings; }
        ];
      };
    in
    evaluateWith pkgs [
      top.config.perSystem
      {
        options = {
          packages = anything;
          apps = anything;
          checks = anything;
          devShells = anything;
        };
        config = more;
      }
    ];

  data = library.mkSandbox {
    name = "data";
    packages = [ pkgs.bash ];
    interpreter_type = "bash";
  };

  # An example of everything that all modules take.
  settings = {
    environments = {
      python.preset = "python";
      perl = {
        packages = [
          pkgs.perl
          "jq"
        ];
        interpreter = "perl -e";
        timeout_seconds = 5;
      };
      data.sandbox = data;
    };
    defaults.timeout_seconds = 60;
    session.idle_timeout_seconds = 9;
    project.mode = "overlay";
    flakeRefs = [ "github:me/sandboxes#x" ];
  };

  names = builtins.attrNames;
  wrong =
    evaluated: builtins.tryEval (builtins.deepSeq (map (p: p.outPath) evaluated) null);
  problems = values: library.problems.fromOptions {
    prefix = "services.nix-sandbox-mcp";
    inherit values;
  };
in
{
  testNixosOff = {
    expr = (nixos { environments.x.preset = "none"; }).environment;
    expected = {
      systemPackages = [ ];
      etc = { };
    };
  };
  testNixosInstalls = {
    expr =
      let
        system = (nixos (settings // { enable = true; })).environment;
      in
      [
        (names system.etc)
        (map (p: p.meta.mainProgram) system.systemPackages)
        (map (p: {
          inherit (p.metadata) environments session;
          project = { inherit (p.metadata.project) mode mount_point use_flake; };
        }) system.systemPackages)
      ];
    expected = [
      [
        "nix-sandbox-mcp/sandboxes/data"
        "nix-sandbox-mcp/sandboxes/perl"
        "nix-sandbox-mcp/sandboxes/python"
      ]
      [ "nix-sandbox-mcp" ]
      [
        {
          environments = { };
          session = {
            forward = false;
            idle_timeout_seconds = 9;
            keep_files = false;
            keep_mb = 4096;
            max_lifetime_seconds = 3600;
            outputs = null;
            shared_files = false;
            suspend = true;
            suspend_mb = 4096;
          };
          project = {
            mode = "overlay";
            mount_point = "/project";
            use_flake = false;
          };
        }
      ]
    ];
  };
  testNixosHasNoServiceUnlessAsked = {
    expr =
      let
        system = nixos (settings // { enable = true; });
      in
      [
        system.systemd.services
        system.systemd.sockets
        system.services.haproxy
        system.networking.firewall.allowedTCPPorts
      ];
    expected = [
      { }
      { }
      { }
      [ ]
    ];
  };
  # The unit is the one in deploy/, which the tests run.
  testNixosServes = {
    expr =
      let
        system = nixos (
          settings
          // {
            enable = true;
            serve.token_file = "/var/lib/secrets/tokens";
            service = {
              enable = true;
              openFirewall = true;
            };
          }
        );
        unit = system.systemd.services.nix-sandbox-mcp.serviceConfig;
      in
      [
        system.systemd.sockets.nix-sandbox-mcp.listenStreams
        system.networking.firewall.allowedTCPPorts
        (map (a: a.assertion) system.assertions)
        system.services.haproxy
        {
          inherit (unit)
            Delegate
            DelegateSubgroup
            Environment
            LoadCredential
            ProtectSystem
            TimeoutStopSec
            Type
            User
            ;
        }
        (names system.users.users)
        (builtins.match ".*/bin/nix-sandbox-mcp serve --http systemd" unit.ExecStart != null)
        # As in the unit: these keep sandboxes from starting.
        (unit ? ProtectHostname || unit ? RestrictNamespaces || unit ? RestrictSUIDSGID)
      ];
    expected = [
      [ "127.0.0.1:8080" ]
      [ 8080 ]
      [
        true
        true
        true
        true
      ]
      { }
      {
        Delegate = "cpu memory pids";
        DelegateSubgroup = "supervisor";
        Environment = [
          "NIX_SANDBOX_TOKENS=%d/tokens"
          "HOME=%S/nix-sandbox-mcp XDG_STATE_HOME=%S/nix-sandbox-mcp XDG_RUNTIME_DIR=%t/nix-sandbox-mcp XDG_CACHE_HOME=%T/cache"
        ];
        LoadCredential = "tokens:/var/lib/secrets/tokens";
        ProtectSystem = "strict";
        TimeoutStopSec = 49;
        Type = "notify";
        User = "nix-sandbox-mcp";
      }
      [ "nix-sandbox-mcp" ]
      true
      false
    ];
  };
  testNixosServesWithSeveralServers = {
    expr =
      let
        system = nixos (
          settings
          // {
            enable = true;
            serve = {
              listen = "0.0.0.0:443";
              audit_file = "/var/log/audit";
            };
            service = {
              enable = true;
              instances = 2;
            };
          }
        );
        lines = moduleLib.splitString "\n" system.services.haproxy.config;
      in
      [
        (names system.systemd.services)
        system.systemd.sockets.nix-sandbox-mcp-2.listenStreams
        (moduleLib.filter (line: moduleLib.hasPrefix "    server " line || moduleLib.hasPrefix "    bind " line) lines)
        (map (a: a.assertion) system.assertions)
      ];
    expected = [
      [
        "nix-sandbox-mcp-1"
        "nix-sandbox-mcp-2"
      ]
      [ "/run/nix-sandbox-mcp-2.socket" ]
      [
        # The first two are for those who set MCP_CERTIFICATE.
        "    bind 0.0.0.0:443 ssl crt \"\${MCP_CERTIFICATE}\" ca-file \"\${MCP_CLIENTS}\" verify optional alpn h2,http/1.1"
        "    bind 0.0.0.0:443 ssl crt \"\${MCP_CERTIFICATE}\" alpn h2,http/1.1"
        "    bind 0.0.0.0:443"
        "    server nix-sandbox-mcp-1 unix@/run/nix-sandbox-mcp-1.socket check"
        "    server nix-sandbox-mcp-2 unix@/run/nix-sandbox-mcp-2.socket check"
      ]
      [
        false
        true
        true
        true
      ]
    ];
  };
  # Each of several servers has its own folders and tokens, and a socket for HAProxy alone,
  # which listens where clients are told to, as dist/deploy/haproxy.cfg does otherwise.
  testNixosSeveralServersHaveTheirOwn = {
    expr =
      let
        system = nixos (
          settings
          // {
            enable = true;
            serve = {
              listen = "unix:/run/mcp.socket";
              token_file = "/var/lib/secrets/tokens";
              lame_duck_seconds = 10;
              drain_seconds = 100;
            };
            service = {
              enable = true;
              instances = 3;
            };
          }
        );
        third = system.systemd.services.nix-sandbox-mcp-3;
        linesOf = text: moduleLib.filter (line: !moduleLib.hasPrefix "    server " line) (moduleLib.splitString "\n" text);
      in
      [
        (names system.systemd.sockets)
        system.systemd.sockets.nix-sandbox-mcp-3
        third.requires
        {
          inherit (third.serviceConfig)
            Environment
            LoadCredential
            RuntimeDirectory
            StateDirectory
            TimeoutStopSec
            ;
        }
        (
          linesOf system.services.haproxy.config == linesOf (
            builtins.replaceStrings [ "\"\${MCP_ADDRESS}\"" ] [ "unix@/run/mcp.socket mode 0660" ] (builtins.readFile ../../dist/deploy/haproxy.cfg)
          )
        )
        system.services.haproxy.enable
        system.networking.firewall.allowedTCPPorts
      ];
    expected = [
      [
        "nix-sandbox-mcp-1"
        "nix-sandbox-mcp-2"
        "nix-sandbox-mcp-3"
      ]
      {
        wantedBy = [ "sockets.target" ];
        listenStreams = [ "/run/nix-sandbox-mcp-3.socket" ];
        socketConfig = {
          SocketUser = "haproxy";
          SocketMode = "0600";
        };
      }
      [ "nix-sandbox-mcp-3.socket" ]
      {
        Environment = [
          "NIX_SANDBOX_TOKENS=%d/tokens"
          "HOME=%S/nix-sandbox-mcp-3 XDG_STATE_HOME=%S/nix-sandbox-mcp-3 XDG_RUNTIME_DIR=%t/nix-sandbox-mcp-3 XDG_CACHE_HOME=%T/cache"
        ];
        LoadCredential = "tokens:/var/lib/secrets/tokens";
        RuntimeDirectory = "nix-sandbox-mcp-3";
        StateDirectory = "nix-sandbox-mcp-3";
        TimeoutStopSec = 125;
      }
      true
      true
      [ ]
    ];
  };
  # What systemd or a second server could not use is refused when the system is built.
  testNixosRefusesServices = {
    expr =
      let
        refused =
          serve: service:
          map (a: a.message) (
            moduleLib.filter (a: !a.assertion)
              (nixos (
                settings
                // {
                  enable = true;
                  inherit serve;
                  service = service // {
                    enable = true;
                  };
                }
              )).assertions
          );
      in
      [
        (refused { audit_file = "/var/log/audit"; } { instances = 2; })
        (refused { metrics_listen = "127.0.0.1:9464"; } { instances = 2; })
        (refused { metrics_listen = "127.0.0.1:9464"; } { })
        (refused { listen = "unix:/run/mcp.socket"; } { openFirewall = true; })
        (refused { listen = "systemd"; } { })
      ];
    expected = [
      [
        "services.nix-sandbox-mcp: serve.audit_file is one file, and service.instances is 2: leave one of them out"
      ]
      [
        "services.nix-sandbox-mcp: serve.metrics_listen is one address, and service.instances is 2: leave one of them out"
      ]
      [ ]
      [
        "services.nix-sandbox-mcp: service.openFirewall opens a port, and serve.listen is unix:/run/mcp.socket: leave it out"
      ]
      [
        "services.nix-sandbox-mcp: serve.listen is systemd, and service.enable makes the socket: set it to an address, such as 127.0.0.1:8080"
      ]
    ];
  };
  # One implementation: what a module makes is what mkSandbox makes.
  testNixosArtifactsAreMkSandboxs = {
    expr =
      let
        inherit ((nixos (settings // { enable = true; })).environment) etc;
        source = name: etc."nix-sandbox-mcp/sandboxes/${name}".source.outPath;
      in
      [
        (source "data" == data.outPath)
        (
          source "perl"
          == (library.mkSandbox {
            name = "perl";
            packages = [
              pkgs.perl
              pkgs.jq
            ];
            interpreter = "perl -e";
            timeout_seconds = 5;
          }).outPath
        )
      ];
    expected = [
      true
      true
    ];
  };
  testNixosDefaultsReachEnvironments = {
    expr =
      let
        inherit ((nixos (settings // { enable = true; })).environment) etc;
      in
      map (name: etc."nix-sandbox-mcp/sandboxes/${name}".source.metadata.timeout_seconds) [
        "python"
        "perl"
        "data"
      ];
    expected = [
      60
      5
      30
    ];
  };
  testNixosPackageOfOnesOwn = {
    expr =
      (nixos {
        enable = true;
        package = pkgs.jq;
      }).environment.systemPackages == [ pkgs.jq ];
    expected = true;
  };
  # Several files of a configuration may say parts of one environment.
  testDefinitionsMerge = {
    expr =
      (evaluate [
        ../../modules/nixos.nix
        {
          options = nixosOptions;
          config.services.nix-sandbox-mcp = {
            enable = true;
            environments.x.packages = [ "bash" ];
            environments.x.env.A = "1";
          };
        }
        {
          services.nix-sandbox-mcp.environments.x = {
            packages = [ "jq" ];
            env.B = "2";
            interpreter_type = "bash";
          };
        }
      ]).environment.etc."nix-sandbox-mcp/sandboxes/x".source.outPath;
    expected =
      (library.mkSandbox {
        name = "x";
        packages = [
          pkgs.bash
          pkgs.jq
        ];
        env = {
          A = "1";
          B = "2";
        };
        interpreter_type = "bash";
      }).outPath;
  };

  testHomeServesClients = {
    expr =
      let
        user = home (
          settings
          // {
            enable = true;
            env.PROJECT_DIR = "/home/me/project";
          }
        );
        server = user.programs.mcp.servers.nix-sandbox;
      in
      [
        (names user.xdg.configFile)
        (removeAttrs server [ "command" ])
        (server.command == "${builtins.head user.home.packages}/bin/nix-sandbox-mcp")
      ];
    expected = [
      [
        "nix-sandbox-mcp/sandboxes/data"
        "nix-sandbox-mcp/sandboxes/perl"
        "nix-sandbox-mcp/sandboxes/python"
      ]
      {
        args = [ "--stdio" ];
        env.PROJECT_DIR = "/home/me/project";
      }
      true
    ];
  };

  testFlakePartsOff = {
    expr = names (flakeParts { } { }).packages;
    expected = [ ];
  };
  testFlakePartsOffWithoutLinux = {
    expr =
      names
        (flakePartsWith (
          pkgs
          // {
            stdenv = pkgs.stdenv // {
              hostPlatform = pkgs.stdenv.hostPlatform // {
                isLinux = false;
              };
            };
          }
        ) settings { }).packages;
    expected = [ ];
  };
  testFlakePartsOutputs = {
    expr =
      let
        system = flakeParts settings { };
      in
      {
        packages = names system.packages;
        checks = names system.checks;
        app = system.apps.nix-sandbox-mcp.program;
        served = names system.packages.nix-sandbox-mcp.metadata.environments;
      };
    expected = {
      packages = [
        "nix-sandbox-mcp"
        "sandbox-data"
        "sandbox-perl"
        "sandbox-python"
      ];
      checks = [
        "escape-data"
        "escape-python"
        "sandbox-data"
        "sandbox-perl"
        "sandbox-python"
      ];
      app = "${(flakeParts settings { }).packages.nix-sandbox-mcp}/bin/nix-sandbox-mcp";
      served = [
        "data"
        "perl"
        "python"
      ];
    };
  };
  testFlakePartsProject = {
    expr =
      let
        shell = pkgs.mkShell { GREETING = "hello"; };
        system = flakeParts { project.use_flake = true; } { devShells.default = shell; };
        environment = system.packages.nix-sandbox-mcp.environments.project;
      in
      [
        environment.metadata.interpreter_type
        (
          environment.outPath == (library.fromProject {
            project.devShells.${pkgs.stdenv.hostPlatform.system}.default = shell;
          }).outPath
        )
        # It is built already.
        system.packages.nix-sandbox-mcp.metadata.project.use_flake
      ];
    expected = [
      "bash"
      true
      false
    ];
  };

  # Each option of the table, at every depth, is one of the module system: what two modules define
  # joins or conflicts, and mkForce, mkIf, mkDefault and mkBefore mean what they mean elsewhere.
  testOptionsMergeAtEveryDepth =
    let
      inherit (moduleLib) setAttrByPath attrByPath;
      declared = import ../../modules/options.nix { lib = moduleLib; };
      below =
        path: rows:
        builtins.concatMap (
          name:
          let
            inherit (rows.${name}) type;
            at = path ++ [ name ];
          in
          [ at ]
          ++ below at (type.rows or { })
          # Tables by name, such as the rules of a host.
          ++ below (at ++ [ "x.example" ]) (type.each or { })
        ) (builtins.attrNames rows);
      paths = builtins.concatLists [
        (below [ "environments" "a" ] declared.rows.module)
        (below [ "defaults" ] declared.rows.defaults)
        (below [ "tools" "t" ] declared.rows.toolServer)
        (below [ "session" ] declared.rows.session)
        (below [ "on_demand" ] declared.rows.on_demand)
        (below [ "project" ] declared.rows.project)
        (below [ "serve" ] declared.rows.serve)
      ];
      merged =
        path: one: other:
        builtins.tryEval (
          builtins.toJSON (
            attrByPath path null
              (moduleLib.evalModules {
                modules = [
                  { inherit (declared) options; }
                  {
                    _file = "one.nix";
                    config = setAttrByPath path one;
                  }
                  {
                    _file = "other.nix";
                    config = setAttrByPath path other;
                  }
                ];
              }).config
          )
        );
      is =
        path: one: other: expected:
        let
          got = merged path one other;
        in
        if expected == null then !got.success else got.success && got.value == builtins.toJSON expected;
      wrongs = builtins.filter (
        path:
        !builtins.all (right: right) [
          (is path [ "a" ] [ "b" ] [ "b" "a" ] || is path [ "a" ] [ "b" ] [ "a" "b" ])
          (is path [ "a" ] (moduleLib.mkBefore [ "b" ]) [ "b" "a" ])
          (is path [ "a" ] (moduleLib.mkAfter [ "b" ]) [ "a" "b" ])
          (is path { a = 1; } { b.c = [ 1 ]; } { a = 1; b.c = [ 1 ]; })
          (is path { a.b = [ 1 ]; } { a.b = moduleLib.mkForce [ 2 ]; } { a.b = [ 2 ]; })
          (is path 4 4 4)
          (is path 4 8 null)
          (is path { a.b = 4; } { a.b = 8; } null)
          (is path 4 (moduleLib.mkForce 8) 8)
          (is path (moduleLib.mkDefault 4) 8 8)
          (is path 4 (moduleLib.mkIf false 8) 4)
          (is path { a = moduleLib.mkIf false 1; } { b = moduleLib.mkIf true 2; } { b = 2; })
          (is path (moduleLib.mkMerge [ { a = 1; } { b = 2; } ]) { c = 3; } { a = 1; b = 2; c = 3; })
        ]
      ) paths;
      # The options by the names that nixos-option and the manual show.
      shown = map (option: option.name) (
        moduleLib.optionAttrSetToDocList
          (moduleLib.evalModules { modules = [ { inherit (declared) options; } ]; }).options
      );
      hidden = builtins.filter (
        path:
        !builtins.elem (builtins.replaceStrings
          [ "environments.a" "tools.t" "x.example" ]
          [ "environments.<name>" "tools.<name>" "<name>" ]
          (builtins.concatStringsSep "." path)
        ) shown
      ) paths;
    in
    {
      expr = {
        inherit hidden wrongs;
        enough = builtins.length paths > 90;
        rules = builtins.elem [ "environments" "a" "network" "rules" "x.example" "methods" ] paths;
      };
      expected = {
        hidden = [ ];
        wrongs = [ ];
        enough = true;
        rules = true;
      };
    };

  # A rule of one module does not take away that of another, nor does a host or a variable.
  testModulesAddToANetwork = {
    expr =
      let
        add = host: {
          services.nix-sandbox-mcp = {
            enable = true;
            environments.a = {
              preset = "shell";
              env.${if host == "a.example" then "A" else "B"} = moduleLib.mkForce host;
              network = {
                mode = "allow";
                domains = [ host ];
                rules.${host}.methods = [ "GET" ];
              };
            };
          };
        };
        both = evaluate [
          ../../modules/nixos.nix
          { options = nixosOptions; }
          (add "a.example")
          (add "b.example")
        ];
        inherit (both.services.nix-sandbox-mcp.environments) a;
      in
      [
        (builtins.sort (x: y: x < y) a.network.domains)
        a.network.rules
        a.env
        (wrong both.environment.systemPackages).success
      ];
    expected = [
      [
        "a.example"
        "b.example"
      ]
      {
        "a.example".methods = [ "GET" ];
        "b.example".methods = [ "GET" ];
      }
      {
        A = "a.example";
        B = "b.example";
      }
      true
    ];
  };

  # What a host switches off is not there.
  testAnEnvironmentThatIsOffIsNone = {
    expr =
      let
        off = {
          enable = true;
          environments = {
            python.preset = "python";
            none = moduleLib.mkIf false { preset = "shell"; };
            broken = moduleLib.mkIf false { preset = "none"; };
          };
        };
      in
      [
        (names (nixos off).environment.etc)
        (names (home off).xdg.configFile)
        (names (flakeParts off { }).packages)
      ];
    expected = [
      [ "nix-sandbox-mcp/sandboxes/python" ]
      [ "nix-sandbox-mcp/sandboxes/python" ]
      [
        "nix-sandbox-mcp"
        "sandbox-python"
      ]
    ];
  };

  # Mistakes reach our sentences, and nothing is made.
  testModuleMistakesThrow = {
    expr = map (values: (wrong (nixos (values // { enable = true; })).environment.systemPackages).success) [
      { environments.x.preset = "pyton"; }
      { environments.x.presset = "python"; }
      { session.idle = 5; }
      { flakeRefs = [ "github:me/x" ]; }
      { environments.python.preset = "python"; }
    ];
    expected = [
      false
      false
      false
      false
      true
    ];
  };
  testModuleMistakesNameTheOption = {
    expr = problems {
      environments = {
        data.sandbox = data;
        empty = { };
        other.sandbox = data;
        python.presset = "python";
        twice = {
          sandbox = data;
          preset = "python";
        };
      };
      defaults.timeout_seconds = "60";
      project.mode = "readwrite";
    };
    expected = [
      "services.nix-sandbox-mcp.defaults: timeout_seconds is \"60\": use a whole number from 1 to 86400"
      "services.nix-sandbox-mcp.project: mode is \"readwrite\", and code in a sandbox never changes files of the host: use \"readonly\", \"overlay\" or \"write\""
      "services.nix-sandbox-mcp.environments.empty: is empty: set preset = ${choices.presets}, or packages = [ … ]"
      "services.nix-sandbox-mcp.environments.other: sandbox is called \"data\": rename the environment to data, or give the sandbox this name where it is made"
      "services.nix-sandbox-mcp.environments.python: has no option \"presset\" (did you mean \"preset\"?): use one of ask_seconds, backend, cpus, description, devices, env, extra_binds, from_shell, hostname, inherit_env, interpreter, interpreter_type, max_timeout_seconds, memory_mb, network, nix, npm, output_kb, packages, packages_ask, packages_on_demand, pids, preload, preset, prewarm, sandbox, stdin_mode, timeout_seconds, tools, unsafe_devices, workspace_mb"
      "services.nix-sandbox-mcp.environments.twice: has preset beside sandbox: set it where that sandbox is made"
    ];
  };
}
