{
  pkgs,
  lib,
  library,
  choices,
  ...
}:
let
  inherit (library) mkServer mkSandbox problems;

  perl = mkSandbox {
    name = "perl";
    packages = [ pkgs.perl ];
    interpreter = "perl -e";
    description = "Perl 5";
  };
  config = builtins.fromTOML "[environments.python]\npreset = \"python\"\n[session]\nidle_timeout_seconds = 9\n";
  server = mkServer {
    inherit config;
    environments = [ perl ];
    project.mount_point = "/src";
  };

  # The file that the wrapper evaluates, of a server whose package set has this
  # folder.
  startOf = path: startWith { inherit path; };
  startWith =
    changes: ((import ../../nix { pkgs = pkgs // changes; }).mkServer { environments = [ ]; }).start.text;
  # A path of the store: the flake, where this is evaluated as one; an
  # evaluation that may not write to the store adds no other.
  input =
    let
      flake = builtins.match "(${builtins.storeDir}/[^/]+)/.*" (toString ./mkServer.nix);
    in
    if flake != null then
      lib.head flake
    else
      plain (
        builtins.path {
          name = "input";
          path = ../../dist/templates;
        }
      );
  plain = builtins.unsafeDiscardStringContext;
  mentions = word: text: builtins.length (lib.splitString (plain word) text) > 1;

  unindented =
    text: lib.concatMapStrings (line: "${lib.last (builtins.match "( *)(.*)" line)}\n") (lib.splitString "\n" (plain text));

  # Every file below a folder.
  filesIn =
    folder:
    lib.concatLists (
      lib.mapAttrsToList (
        name: type: if type == "directory" then filesIn (folder + "/${name}") else [ (folder + "/${name}") ]
      ) (builtins.readDir folder)
    );
in
{
  # The server keeps its package set, at the path that the flake's input has.
  testStartKeepsThePackageSet = {
    expr = map (path: [
      (mentions "import ${path} {" (plain (startOf path)))
      ((builtins.getContext (startOf path)) ? ${input})
    ]) [
      input
      "${input}/dist"
    ];
    expected = [
      [
        true
        true
      ]
      [
        true
        true
      ]
    ];
  };
  # So do its settings, and nothing is read from the home of who starts it.
  testStartHandsTheConfigurationOn = {
    expr =
      mentions
        ''
          config = builtins.fromJSON "{\"allowBroken\":false,\"allowUnfree\":true,\"permittedInsecurePackages\":[\"a-1\",\"\''${b}\"]}";
          overlays = [ ];
        ''
        (unindented (startWith {
          config = {
            allowBroken = false;
            allowUnfree = true;
            allowUnfreePredicate = _: true;
            permittedInsecurePackages = [
              "a-1"
              "\${b}"
            ];
          };
        }));
    expected = true;
  };
  testStartWithoutAConfiguration = {
    expr = mentions "config = builtins.fromJSON \"{}\";\noverlays = [ ];" (
      unindented (startWith { config = { }; })
    );
    expected = true;
  };
  # It fails for inputs that are only mounted; no evaluation in here has one.
  testNoPathIsTakenToBeInTheStore = {
    expr = map toString (lib.filter (file: mentions "appendContext" (builtins.readFile file)) (filesIn ../../nix));
    expected = [ ];
  };
  # A sentence, and not a build that fails.
  testOldGoIsNamed = {
    expr =
      let
        old = pkgs // {
          go = pkgs.go // {
            version = "1.20";
          };
        };
      in
      (builtins.tryEval (import ../../nix { pkgs = old; }).programs.runtime.outPath).success;
    expected = false;
  };
  testServerMetadata = {
    expr = removeAttrs server.metadata [
      "defaults"
      "environments"
      "interpreters"
    ];
    expected = {
      schema = 1;
      version = "0";
      serve = {
        audit_file = null;
        calls_at_once = null;
        drain_seconds = 30;
        hosts = [ ];
        lame_duck_seconds = 4;
        listen = "127.0.0.1:8080";
        metrics_listen = null;
        oauth = null;
        origins = [ ];
        proxy = null;
        quotas.default = {
          calls = 16;
          memory_mb = 8192;
          memory_used_mb = null;
          pids = null;
          sessions = 8;
          streams = 64;
        };
        token_file = null;
      };
      on_demand = {
        build_seconds = 600;
        keep_days = 30;
        flakes = false;
        keep_mb = 16384;
        max_builds = 1;
        max_closure_mb = 4096;
      };
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
        inherit_env = null;
        mount_point = "/src";
        mode = "readonly";
        modes = [
          "readonly"
          "overlay"
          "write"
        ];
        path = null;
        refused_modes.readwrite = "and code in a sandbox never changes files of the host";
        reserved = import ../../nix/lib/reserved.nix;
        use_flake = false;
      };
      inbox.mount_point = "/inbox";
    };
  };
  # What the runtime reads of an artifact of an earlier version is whole with these.
  testServerDefaultsCompleteAnArtifact = {
    expr = lib.filter (
      field: !(server.metadata.defaults ? ${field}) && !(lib.elem field [ "schema" "name" "backend" "network" "language" "programs" ])
    ) (lib.attrNames (mkSandbox { name = "x"; interpreter_type = "bash"; packages = [ pkgs.bash ]; }).metadata);
    expected = [ ];
  };
  testServerKnowsEveryInterpreter = {
    expr = server.metadata.interpreters;
    expected = lib.mapAttrs (_: known: known.language) library.interpreters;
  };
  testServerEnvironments = {
    expr = lib.attrNames server.metadata.environments;
    expected = [
      "perl"
      "python"
    ];
  };
  testServerEnvironmentIsItsArtifacts = {
    expr = server.metadata.environments.perl;
    expected = perl.metadata // {
      exec = "${perl}/bin/run";
      session_exec = "${perl}/bin/session-run";
    };
  };
  testServerTakesWhatFromTomlGives = {
    expr = (mkServer (library.fromToml config)).metadata == (mkServer { inherit config; }).metadata;
    expected = true;
  };
  # Of HTTP, a server has a program or nothing.
  testServerHasTheGatewayWithServe = {
    expr = map (args: mentions "program-gateway" (mkServer args).wrapper) [
      { inherit config; }
      { config = config // { serve = { }; }; }
      { inherit config; serve = { }; }
      (library.fromToml config)
      (library.fromToml (config // { serve.metrics_listen = "127.0.0.1:9464"; }))
    ];
    expected = [
      false
      true
      true
      false
      true
    ];
  };
  testServerMetadataIsJson = {
    expr = (builtins.fromJSON (builtins.unsafeDiscardStringContext (builtins.toJSON server.metadata))).environments.perl.stdin_mode;
    expected = "arg";
  };

  # Mistakes
  testServerNotASet = {
    expr = problems.mkServer ./mkServer.nix;
    expected = [ "mkServer is given a path: use mkServer { config = ./config.toml; }" ];
  };
  testServerOfNothing = {
    expr = problems.mkServer { };
    expected = [
      "mkServer: has no environment: set config = ./config.toml or environments = [ … ]"
    ];
  };
  testServerUnknownArgument = {
    expr = problems.mkServer { confg = ./x.toml; };
    expected = [
      "mkServer: has no argument \"confg\" (did you mean \"config\"?): use one of buildAtStart, config, environments, flakeRefs, on_demand, project, serve, session, tools"
    ];
  };
  testServerTwoOfOneName = {
    expr = problems.mkServer {
      environments = [
        perl
        perl
      ];
    };
    expected = [ "mkServer: two environments are called \"perl\": rename one of them" ];
  };
  testServerNameOfTheConfiguration = {
    expr = problems.mkServer {
      config = builtins.fromTOML "[environments.perl]\npreset = \"shell\"\n";
      environments = [ perl ];
    };
    expected = [ "mkServer: two environments are called \"perl\": rename one of them" ];
  };
  testServerStranger = {
    expr = problems.mkServer {
      environments = [
        pkgs.jq
        "perl"
      ];
    };
    expected = [
      "mkServer: environments has a package in it: use what mkSandbox gives"
      "mkServer: environments has \"perl\" in it: use what mkSandbox gives"
    ];
  };
  testServerEnvironmentsOfWrongType = {
    expr = problems.mkServer { environments = "perl"; };
    expected = [ "mkServer: environments is \"perl\": use a list of mkSandbox artifacts" ];
  };
  testServerMistakeInItsConfiguration = {
    expr = problems.mkServer { config = builtins.fromTOML "[environments.x]\npreset = \"y\"\n"; };
    expected = [
      "config: [environments.x] preset is \"y\": use ${choices.presets}"
    ];
  };
  testServerSession = {
    expr = problems.mkServer {
      environments = [ perl ];
      session.idle = 5;
    };
    expected = [
      "mkServer: session: has no option \"idle\" (did you mean \"idle_timeout_seconds\"?): use one of forward, idle_timeout_seconds, keep_files, keep_mb, max_lifetime_seconds, outputs, shared_files, suspend, suspend_mb"
    ];
  };
  testServerForFolders = {
    expr = (mkServer { environments = [ ]; }).metadata.environments;
    expected = { };
  };
  testServerReferences = {
    expr = map (flakeRefs: builtins.length (problems.mkServer { inherit flakeRefs; })) [
      [ ]
      [ ".#x" ]
      [
        "github:me/sandboxes/v1?dir=nix#a.b"
        "/srv/flake#x"
      ]
      [ "github:me/sandboxes" ]
      [ "a#b,c#d" ]
      [ "a #b" ]
      "a#b"
    ];
    expected = [
      0
      0
      0
      1
      1
      1
      1
    ];
  };
  testServerThatBuildsNothingAtStart = {
    expr = map (args: problems.mkServer ({ environments = [ ]; buildAtStart = false; } // args)) [
      { }
      { flakeRefs = [ ]; }
      { project.use_flake = false; }
      { flakeRefs = [ "github:me/sandboxes#data" ]; }
      { project.use_flake = true; }
      { config.project.use_flake = true; config.environments.python.preset = "python"; }
      { buildAtStart = "no"; }
    ];
    expected = [
      [ ]
      [ ]
      [ ]
      [ "mkServer: buildAtStart is false, and flakeRefs names what to build: set buildAtStart = true, or leave it out" ]
      [ "mkServer: buildAtStart is false, and project.use_flake is true: set buildAtStart = true, or leave it out" ]
      [ "mkServer: buildAtStart is false, and project.use_flake is true: set buildAtStart = true, or leave it out" ]
      [ "mkServer: buildAtStart is \"no\": use true or false" ]
    ];
  };
  testServerReferencesSayWhatToWrite = {
    expr = problems.mkServer { flakeRefs = [ "github:me/sandboxes" ]; };
    expected = [
      "mkServer: flakeRefs has \"github:me/sandboxes\" in it: use a list of flake references with what to build, such as [ \"github:me/sandboxes#data\" ]"
    ];
  };
  testServerMistakesThrow = {
    expr = (builtins.tryEval (mkServer { }).outPath).success;
    expected = false;
  };

  # For other flakes
  testFlakeFunctionsWantPkgs = {
    expr = (builtins.tryEval ((import ../../nix/flake-lib.nix { nixpkgs.legacyPackages.${pkgs.stdenv.hostPlatform.system} = pkgs; }).mkSandbox { name = "x"; })).success;
    expected = false;
  };
  testFlakeFunctionsHandPkgsOn = {
    expr =
      ((import ../../nix/flake-lib.nix { nixpkgs.legacyPackages.${pkgs.stdenv.hostPlatform.system} = pkgs; }).mkSandbox {
        inherit pkgs;
        name = "x";
        interpreter_type = "bash";
        packages = [ pkgs.bash ];
      }).metadata.name;
    expected = "x";
  };
}
