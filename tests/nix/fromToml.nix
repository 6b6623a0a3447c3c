{
  lib,
  pkgs,
  library,
  choices,
  ...
}:
let
  inherit (library) fromToml problems;

  # What is wrong with this text of TOML, and what it makes.
  wrong = text: problems.fromToml (builtins.fromTOML text);
  made = text: (fromToml (builtins.fromTOML text)).environments;
  python = "[environments.python]\npreset = \"python\"\n";
in
{
  testExampleIsRight = {
    expr = problems.fromToml ../../config.example.toml;
    expected = [ ];
  };
  # A file may add to what the example says, and change it.
  testExtendsTheExample = {
    expr =
      let
        extended = made ''
          extends = "default"
          [environments.data]
          preset = "python"
          [environments.python]
          memory_mb = 2048
        '';
        example = (fromToml ../../config.example.toml).environments;
      in
      {
        names = lib.attrNames extended;
        memory = extended.python.metadata.memory_mb;
        closure = extended.python.metadata.closure == example.python.metadata.closure;
        others = extended.bash.metadata == example.bash.metadata;
        defaults = extended.data.metadata.max_timeout_seconds;
      };
    expected = {
      names = [
        "bash"
        "data"
        "node"
        "python"
      ];
      memory = 2048;
      closure = true;
      others = true;
      defaults = 600;
    };
  };
  testExampleEnvironments = {
    expr = lib.mapAttrs (_: e: [
      e.metadata.interpreter_type
      e.metadata.memory_mb
    ]) (fromToml ../../config.example.toml).environments;
    expected = {
      bash = [
        "bash"
        512
      ];
      node = [
        "node"
        1024
      ];
      python = [
        "python"
        1024
      ];
    };
  };
  # docs/options/toml.md, which is generated, has all options; of those that the
  # example shows, it shows the defaults.
  testExampleShowsTheDefaults = {
    expr =
      let
        text = builtins.readFile ../../config.example.toml;
        mentions = words: builtins.length (lib.splitString words text) > 1;
        # A `#` and what else stands before the name make no difference.
        shown = name: value: !(mentions "${name} = ") || mentions "${name} = ${builtins.toJSON value}";
        inherit (library) options;
      in
      lib.concatMap
        (
          table:
          lib.filter (name: table.${name} ? default && !(shown name table.${name}.default)) (
            lib.attrNames table
          )
        )
        [
          options.defaults
          options.session
          options.project
        ];
    expected = [ ];
  };
  # What the model reads grows by these lines; three of them must stay short.
  testDescriptionsAreShort = {
    expr =
      lib.filter (e: lib.stringLength e.metadata.description > 100)
        (lib.attrValues (fromToml ../../config.example.toml).environments);
    expected = [ ];
  };

  testDefaultsReachEnvironments = {
    expr =
      let
        both = made ''
          [defaults]
          timeout_seconds = 7
          [environments.python]
          preset = "python"
          [environments.slow]
          preset = "shell"
          timeout_seconds = 600
        '';
      in
      [
        both.python.metadata.timeout_seconds
        both.slow.metadata.timeout_seconds
        both.slow.metadata.memory_mb
      ];
    expected = [
      7
      600
      512
    ];
  };
  # A call may run as long as without the argument, unless one of the two says more.
  testMaxTimeout = {
    expr =
      lib.mapAttrs (_: environment: environment.metadata.max_timeout_seconds)
        (made ''
          [defaults]
          timeout_seconds = 10
          max_timeout_seconds = 20
          [environments.python]
          preset = "python"
          [environments.more]
          preset = "shell"
          max_timeout_seconds = 25
          [environments.less]
          preset = "shell"
          timeout_seconds = 5
          max_timeout_seconds = 5
        '');
    expected = {
      python = 20;
      more = 25;
      less = 5;
    };
  };
  testPackagesJoinThePreset = {
    expr =
      let
        closure = more: (made "[environments.bash]\npreset = \"shell\"\n${more}").bash.metadata.closure;
      in
      closure "" != closure "packages = [\"perl\"]";
    expected = true;
  };
  testPythonModulesJoinThePresets = {
    expr =
      (made "${python}packages = [\"sympy\", \"tree\"]\n").python.metadata.closure;
    expected =
      (library.mkSandbox {
        name = "other";
        interpreter_type = "python";
        packages = [
          (pkgs.python3.withPackages (
            ps:
            [ ps.sympy ]
            ++ lib.filter (package: package ? pythonModule) library.interpreters.python.preset.packages
          ))
          pkgs.tree
        ]
        ++ import ../../nix/interpreters/tools.nix { inherit pkgs; };
      }).metadata.closure;
  };
  # The model reads what an operator added, once.
  testDescriptionsNameAddedPackages = {
    expr =
      let
        added =
          preset: packages:
          (made ''
            [environments.x]
            preset = "${preset}"
            packages = ${builtins.toJSON packages}
          '').x.metadata.description;
        of = preset: (made "[environments.x]\npreset = \"${preset}\"\n").x.metadata.description;
        many = lib.genList (_: "python3Packages.statsmodels") 50;
      in
      {
        joined = lib.removePrefix (of "python") (added "python" [ "python3Packages.sympy" "python3Packages.pandas" "tree" ]);
        first = lib.removePrefix (of "node") (added "node" [ "tree" ]);
        bounded = lib.stringLength (added "python" many) <= 170 && lib.hasSuffix ", …" (added "python" many);
        own =
          (made ''
            [environments.x]
            preset = "python"
            packages = ["tree"]
            description = "mine"
          '').x.metadata.description;
        command =
          (made ''
            [environments.x]
            packages = ["lua5_4", "tree"]
            interpreter = "lua -"
          '').x.metadata.description;
        function =
          (library.mkSandbox {
            name = "x";
            interpreter_type = "python";
            packages = [
              pkgs.python3
              pkgs.python3.pkgs.numpy
              pkgs.tree
            ];
          }).metadata.description;
      };
    expected = {
      joined = ", sympy, tree";
      first = " with tree";
      bounded = true;
      own = "mine";
      command = "lua5_4, tree";
      function = "Python 3 with numpy, tree";
    };
  };
  testInterpreterOfItsOwn = {
    expr =
      let
        found =
          (made ''
            [environments.perl]
            packages = ["perl"]
            interpreter = "perl -e"
          '').perl.metadata;
      in
      [
        found.interpreter_type
        found.stdin_mode
      ];
    expected = [
      "command"
      "arg"
    ];
  };
  testInterpreterInAPreset = {
    expr =
      (made ''
        [environments.sh]
        preset = "python"
        interpreter = "bash -c"
      '').sh.metadata.interpreter_type;
    expected = "bash";
  };
  testSessionAndProject = {
    expr = removeAttrs (fromToml (builtins.fromTOML ''
      ${python}
      [session]
      idle_timeout_seconds = 10
      [project]
      path = "/home/me"
    '')) [
      "environments"
      "serve"
    ];
    expected = {
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
        idle_timeout_seconds = 10;
        keep_files = false;
        keep_mb = 4096;
        max_lifetime_seconds = 3600;
        outputs = null;
        shared_files = false;
        suspend = true;
        suspend_mb = 4096;
      };
      project = {
        path = "/home/me";
        mount_point = "/project";
        mode = "readonly";
        use_flake = false;
        inherit_env = null;
      };
    };
  };

  # Mistakes
  testTomlNotAFile = {
    expr = problems.fromToml 5;
    expected = [ "fromToml is given 5: use the path of a TOML file" ];
  };
  testTomlEmpty = {
    expr = wrong "";
    expected = [
      "config: has no environment: add [environments.python] and preset = \"python\" below it"
    ];
  };
  testTomlUnknownTable = {
    expr = wrong "${python}[enviroments.x]\n";
    expected = [
      "config: has no table \"enviroments\" (did you mean \"environments\"?): use one of defaults, environments, on_demand, project, serve, session, tools, tools_lock"
    ];
  };
  testTomlNotATable = {
    expr = wrong "environments = 1\n";
    expected = [ "config: [environments] is 1: use a table" ];
  };
  testTomlEnvironmentNotATable = {
    expr = wrong "[environments]\npython = \"python\"\n";
    expected = [ "config: [environments.python] is \"python\": use a table" ];
  };
  testTomlUnknownPreset = {
    expr = wrong "[environments.python]\npreset = \"pyton\"\n";
    expected = [
      "config: [environments.python] preset is \"pyton\" (did you mean \"python\"?): use ${choices.presets}"
    ];
  };
  testTomlUnknownKey = {
    expr = wrong "${python}timeout = 5\n";
    expected = [
      "config: [environments.python] has no option \"timeout\" (did you mean \"timeout_seconds\"?): use one of ask_seconds, backend, cpus, description, devices, env, extra_binds, flake, hostname, inherit_env, interpreter, interpreter_type, max_timeout_seconds, memory_mb, network, nix, npm, output_kb, packages, packages_ask, packages_on_demand, pids, preload, preset, prewarm, sandbox, stdin_mode, timeout_seconds, tools, unsafe_devices, workspace_mb"
    ];
  };
  testTomlWrongType = {
    expr = wrong "${python}timeout_seconds = true\n";
    expected = [
      "config: [environments.python] timeout_seconds is true: use a whole number from 1 to 86400"
    ];
  };
  testTomlBadName = {
    expr = wrong "[environments.\"my env\"]\npreset = \"python\"\n";
    expected = [
      "config: [environments.my env] name is \"my env\": use 1 to 64 of a-z, 0-9, _ and -, with a letter or a digit first"
    ];
  };
  testTomlNothingInIt = {
    expr = wrong "[environments.python]\n";
    expected = [
      "config: [environments.python] is empty: set preset = ${choices.presets}, or packages = [ … ]"
    ];
  };
  testTomlPackagesAlone = {
    expr = wrong "[environments.perl]\npackages = [\"perl\"]\n";
    expected = [ ]; # bash runs the code
  };
  testTomlUnknownPackage = {
    expr = wrong "${python}packages = [\"bash\", \"no-such-thing\"]\n";
    expected = [
      "config: [environments.python] packages names \"no-such-thing\", which nixpkgs does not have: use one that `nix search nixpkgs WORD` finds"
    ];
  };
  testTomlPackageIsNoPackage = {
    expr = wrong "${python}packages = [\"lib\"]\n";
    expected = [
      "config: [environments.python] packages names \"lib\", which nixpkgs does not have: use one that `nix search nixpkgs WORD` finds"
    ];
  };
  testTomlPackagesNotAList = {
    expr = wrong "${python}packages = \"perl\"\n";
    expected = [ "config: [environments.python] packages is \"perl\": use a list of names in quotes" ];
  };
  # Locked, so that pure evaluation follows them too.
  testTomlFlakeWithoutInterpreter = {
    expr = wrong "[environments.x]\nflake = \"github:me/project/0123456789012345678901234567890123456789\"\n";
    expected = [ ]; # bash runs the code
  };
  testTomlFlakeAndPreset = {
    expr = wrong "[environments.x]\nflake = \"github:me/project\"\npreset = \"python\"\n";
    expected = [ "config: [environments.x] has both flake and preset: keep one of them" ];
  };
  testTomlFlakeOfWrongType = {
    expr = wrong "[environments.x]\nflake = 1\ninterpreter = \"perl -e\"\n";
    expected = [ "config: [environments.x] flake is 1: use a line of 1 to 1000 bytes in quotes" ];
  };
  testTomlFlakeIsRight = {
    expr = wrong "[environments.x]\nflake = \"github:me/project/0123456789012345678901234567890123456789\"\ninterpreter = \"perl -e\"\n";
    expected = [ ];
  };
  testTomlSandboxByPath = {
    expr = wrong "[environments.x]\nsandbox = \"/nix/store/x\"\n";
    expected = [
      "config: [environments.x] sandbox is \"/nix/store/x\", and a build takes no artifact by its path: use a flake reference, or give this file to the server when it starts, in NIX_SANDBOX_CONFIG"
    ];
  };
  testTomlSandboxAndItsTime = {
    expr = wrong "[environments.x]\nsandbox = \"github:me/x/0123456789012345678901234567890123456789\"\ntimeout_seconds = 5\n";
    expected = [ ];
  };
  testTomlSandboxAndMore = {
    expr = wrong "[environments.x]\nsandbox = \"github:me/x\"\nmemory_mb = 64\n";
    expected = [
      "config: [environments.x] has memory_mb beside sandbox: set it where that sandbox is made"
    ];
  };
  # What a server that starts reads.
  testStartPlan = {
    expr =
      lib.tail (lib.splitString "\n" (library.start {
        config = builtins.fromTOML ''
          ${python}
          [environments.a]
          sandbox = "/nix/store/x"
          [environments.b]
          sandbox = "/srv/flake#b"
          [environments.c]
          flake = "nixpkgs#perl"
          interpreter = "perl -e"
          [project]
          path = "/home/me/my app"
          use_flake = true
        '';
      }).plan);
    expected = [
      "project 1 /home/me/my app"
      "path a /nix/store/x"
      "sandbox b /srv/flake#b"
      "flake c nixpkgs#perl"
      "own python "
      ""
    ];
  };
  testStartPlanOfMistakes = {
    expr = (library.start { config = builtins.fromTOML "[environments.x]\npreset = 1\n[session]\nidle = 1\n"; }).plan;
    expected = "wrong config: [session] has no option \"idle\" (did you mean \"idle_timeout_seconds\"?): use one of forward, idle_timeout_seconds, keep_files, keep_mb, max_lifetime_seconds, outputs, shared_files, suspend, suspend_mb\nwrong config: [environments.x] preset is 1: use ${choices.presets}\n";
  };
  testStartDerivations = {
    expr =
      lib.filter (line: builtins.match "python /nix/store/[^ ]*-sandbox-python.drv" line != null) (
        lib.splitString "\n" (library.start { config = builtins.fromTOML python; }).derivations
      ) != [ ];
    expected = true;
  };
  testTomlDefaults = {
    expr = wrong "${python}[defaults]\nmemory_mb = -1\npreset = \"python\"\n";
    expected = [
      "config: [defaults] has no option \"preset\": use one of ask_seconds, backend, cpus, hostname, max_timeout_seconds, memory_mb, network, output_kb, pids, prewarm, timeout_seconds, workspace_mb"
      "config: [defaults] memory_mb is -1: use a whole number from 16 to 16777216"
    ];
  };
  testTomlServe = {
    expr =
      (fromToml (builtins.fromTOML ''
        ${python}
        [serve]
        token_file = "/etc/tokens"
        hosts = ["sandbox.example"]
        [serve.proxy]
        header = "X-Remote-User"
        from = ["10.0.0.1/32", "unix"]
        [serve.oauth]
        resource = "https://sandbox.example/mcp"
        issuer = "https://login.example"
        jwks = "https://login.example/keys"
        [serve.quotas.large]
        calls = 100
      '')).serve;
    expected = {
      listen = "127.0.0.1:8080";
      hosts = [ "sandbox.example" ];
      origins = [ ];
      token_file = "/etc/tokens";
      proxy = {
        header = "X-Remote-User";
        from = [
          "10.0.0.1/32"
          "unix"
        ];
      };
      oauth = {
        resource = "https://sandbox.example/mcp";
        issuer = "https://login.example";
        jwks = "https://login.example/keys";
        claim = "sub";
        scope = null;
      };
      quotas.large = {
        calls = 100;
        sessions = 8;
        streams = 64;
        memory_mb = 8192;
        memory_used_mb = null;
        pids = null;
      };
      calls_at_once = null;
      audit_file = null;
      metrics_listen = null;
      lame_duck_seconds = 4;
      drain_seconds = 30;
    };
  };
  testTomlServeMistakes = {
    expr = wrong ''
      ${python}
      [serve]
      listen = "8080"
      token_file = "/nix/store/tokens"
      port = 80
      [serve.proxy]
      header = "X-Remote-User"
      from = ["10.0.0.1"]
      [serve.oauth]
      resource = "sandbox.example"
      issuer = "https://login.example"
      [serve.quotas.default]
      calls = 0
    '';
    expected = [
      "config: [serve] has no option \"port\": use one of audit_file, calls_at_once, drain_seconds, hosts, lame_duck_seconds, listen, metrics_listen, oauth, origins, proxy, quotas, token_file"
      "config: [serve] listen is \"8080\": use an address with a port, such as \"127.0.0.1:8080\", \"unix:/run/nix-sandbox-mcp/socket\", or \"systemd\""
      "config: [serve] oauth lacks jwks: set jwks = \"https://login.example\""
      "config: [serve] oauth.resource is \"sandbox.example\": use a URL, such as \"https://login.example\""
      "config: [serve] proxy.from has \"10.0.0.1\" in it: use addresses with the length of their prefix, such as [\"127.0.0.1/32\"], or [\"unix\"]"
      "config: [serve] quotas.default.calls is 0: use a whole number from 1 to 1024"
      "config: [serve] token_file is \"/nix/store/tokens\": use the absolute path of a file in quotes, outside of /nix/store, where everybody could read it"
    ];
  };
  testTomlSession = {
    expr = wrong "${python}[session]\nidle_timeout_seconds = 0\nidle = 1\n";
    expected = [
      "config: [session] has no option \"idle\" (did you mean \"idle_timeout_seconds\"?): use one of forward, idle_timeout_seconds, keep_files, keep_mb, max_lifetime_seconds, outputs, shared_files, suspend, suspend_mb"
      "config: [session] idle_timeout_seconds is 0: use a whole number from 1 to 2592000"
    ];
  };
  testTomlKeepsFiles = {
    expr = map (keys: wrong "${python}[session]\n${keys}\n") [
      "keep_files = true\nshared_files = true"
      "keep_files = true"
      "keep_mb = 0"
    ];
    expected = [
      [ ]
      [ ]
      [ "config: [session] keep_mb is 0: use a whole number from 1 to 1048576" ]
    ];
  };
  testTomlInheritedVariables = {
    expr =
      (fromToml (builtins.fromTOML "${python}[project.inherit_env]\nvars = [\"TZ\", \"API_KEY\"]\n"))
      .project.inherit_env;
    expected.vars = [
      "TZ"
      "API_KEY"
    ];
  };
  testTomlInheritedVariablesOfWrongType = {
    expr = map (value: wrong "${python}[project]\ninherit_env = ${value}\n") [
      "[\"TZ\"]"
      "{ vars = [1] }"
      "{ vars = [\"A=B\"] }"
      "{ vars = [], all = true }"
    ];
    expected = map (shown: [
      "config: [project] inherit_env is ${shown}: use the names of variables, such as { vars = [\"TZ\"] }"
    ]) [
      "a list"
      "a set of values"
      "a set of values"
      "a set of values"
    ];
  };
  testTomlUseFlake = {
    expr = map (value: wrong "${python}[project]\nuse_flake = ${value}\n") [
      "true"
      "1"
    ];
    expected = [
      [ ]
      [ "config: [project] use_flake is 1: use true or false" ]
    ];
  };
  testTomlProjectMode = {
    expr = map (mode: wrong "${python}[project]\nmode = \"${mode}\"\n") [
      "overlay"
      "rw"
      "readwrite"
    ];
    expected = [
      [ ]
      [ "config: [project] mode is \"rw\": use \"readonly\", \"overlay\" or \"write\"" ]
      [
        "config: [project] mode is \"readwrite\", and code in a sandbox never changes files of the host: use \"readonly\", \"overlay\" or \"write\""
      ]
    ];
  };
  testTomlMountPoints = {
    expr =
      lib.filter (mount: wrong "${python}[project]\nmount_point = ${builtins.toJSON mount}\n" == [ ])
        [
          "/"
          ""
          "project"
          "/nix"
          "/nix/store/x"
          "/proc"
          "/workspace/x"
          "/a/../b"
          "/a/."
          "/a/"
          "//a"
          "/project"
          "/src/my app"
          "/..a"
          "/nixos"
        ];
    expected = [
      "/project"
      "/src/my app"
      "/..a"
      "/nixos"
    ];
  };
  testTomlManyMistakesNameTheirPlaces = {
    expr = map (sentence: lib.head (lib.splitString "]" sentence)) (wrong ''
      [defaults]
      pids = 0
      [session]
      max_lifetime_seconds = "1h"
      [environments.a]
      preset = "a"
      [environments.b]
      preset = "python"
      memory_mb = 1
    '');
    expected = [
      "config: [defaults"
      "config: [session"
      "config: [environments.a"
      "config: [environments.b"
    ];
  };
}
