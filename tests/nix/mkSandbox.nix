{
  pkgs,
  lib,
  library,
  choices,
  ...
}:
let
  ps = pkgs.python3Packages;
  inherit (library) mkSandbox problems;

  # What is wrong with a sandbox that is right but for these values.
  wrong =
    values:
    problems.mkSandbox (
      {
        name = "data";
        interpreter_type = "python";
      }
      // values
    );
  metadata =
    values:
    (mkSandbox (
      {
        name = "data";
        packages = [ pkgs.bash ];
      }
      // values
    )).metadata;
  # Without what only a build or another test knows.
  known =
    metadata:
    removeAttrs metadata [
      "closure"
      "language"
      "needs"
      "programs"
    ];
  throws = value: !(builtins.tryEval (builtins.deepSeq value value)).success;
in
{
  # Metadata
  testMetadataDefaults = {
    expr = known (metadata { interpreter_type = "python"; });
    expected = {
      schema = 1;
      name = "data";
      ask_seconds = 300;
      inherit_env = [ ];
      backend = "jail";
      cpus = null;
      description = "Python 3";
      interpreter = "python3 -c";
      interpreter_type = "python";
      stdin_mode = "arg";
      timeout_seconds = 30;
      max_timeout_seconds = 30;
      memory_mb = 512;
      pids = 256;
      workspace_mb = 256;
      output_kb = 32;
      nix = false;
      packages_ask = false;
      packages_on_demand = [ ];
      prewarm = 1;
      network.mode = "none";
    };
  };
  testMetadataTellsTheLanguage = {
    expr = map (v: (metadata v).language.probe or null) [
      { interpreter = "python3 -u"; }
      { interpreter = "perl -e"; }
    ];
    expected = [
      "print(6 * 7)"
      null
    ];
  };
  # A preset is the same wherever it is named.
  testPresetIsThatOfConfigurations = {
    expr =
      (mkSandbox {
        name = "data";
        preset = "python";
        packages = [ ps.psutil ];
      }).metadata;
    expected =
      (library.fromToml {
        environments.data = {
          preset = "python";
          packages = [ "python3Packages.psutil" ];
        };
      }).environments.data.metadata;
  };
  testPresetHasAnInterpreterOfItsOwnReplaced = {
    expr =
      lib.getAttrs
        [ "interpreter_type" "description" ]
        (mkSandbox {
          name = "data";
          preset = "python";
          interpreter = "bash -c";
          description = "Bash beside Python";
        }).metadata;
    expected = {
      interpreter_type = "bash";
      description = "Bash beside Python";
    };
  };
  testPresetsHaveNames = {
    expr = problems.mkSandbox {
      name = "data";
      preset = "pyton";
      packages = "jq";
    };
    expected = [
      "mkSandbox data: packages is \"jq\": use a list of packages, such as [ pkgs.jq ]"
      "mkSandbox data: preset is \"pyton\" (did you mean \"python\"?): use ${choices.presets}"
    ];
  };
  # Modules are no packages with programs: they become a Python that imports them.
  testPythonModulesAreAPythonThatImportsThem = {
    expr =
      map (packages: (metadata { inherit packages; interpreter_type = "python"; }).closure)
        [
          [ ps.pyyaml ]
          [
            pkgs.python3
            ps.pyyaml
          ]
          # What was made an application of is none.
          [
            ps.pyyaml
            (ps.numpy // { pythonModule = false; })
          ]
        ];
    expected =
      map (packages: (metadata { inherit packages; interpreter_type = "python"; }).closure)
        [
          [ (pkgs.python3.withPackages (ps: [ ps.pyyaml ])) ]
          [ (pkgs.python3.withPackages (ps: [ ps.pyyaml ])) ]
          [
            (pkgs.python3.withPackages (ps: [ ps.pyyaml ]))
            (ps.numpy // { pythonModule = false; })
          ]
        ];
  };
  testPythonModulesOfTwoPythons = {
    expr = map (packages: wrong { inherit packages; }) [
      [
        ps.pyyaml
        (ps.numpy // { pythonModule = pkgs.python3 // { outPath = "/nix/store/another"; }; })
      ]
      [
        (pkgs.python3.withPackages (ps: [ ps.numpy ]))
        ps.pyyaml
      ]
      [
        pkgs.python3
        ps.pyyaml
      ]
    ];
    expected =
      let
        sentence = name: [
          "mkSandbox data: packages has ${lib.getName ps.pyyaml} and ${name}, which are of different Pythons: use all modules from one set, such as python3Packages"
        ];
      in
      [
        (sentence (lib.getName ps.numpy))
        (sentence (lib.getName (pkgs.python3.withPackages (ps: [ ps.numpy ]))))
        [ ]
      ];
  };
  testMetadataGiven = {
    expr = known (metadata {
      interpreter = "perl -e";
      timeout_seconds = 5;
      max_timeout_seconds = 60;
      memory_mb = 64;
      cpus = 0.5;
      pids = 16;
      workspace_mb = 8;
      output_kb = 4;
      packages_on_demand = [ ];
      prewarm = 0;
      description = "Perl 5";
    });
    expected = {
      schema = 1;
      name = "data";
      ask_seconds = 300;
      inherit_env = [ ];
      backend = "jail";
      interpreter = "perl -e";
      interpreter_type = "command";
      stdin_mode = "arg";
      timeout_seconds = 5;
      max_timeout_seconds = 60;
      memory_mb = 64;
      cpus = 0.5;
      pids = 16;
      workspace_mb = 8;
      output_kb = 4;
      nix = false;
      packages_ask = false;
      packages_on_demand = [ ];
      prewarm = 0;
      description = "Perl 5";
      network.mode = "none";
    };
  };
  testClosureFollowsThePackages = {
    expr =
      let
        closure = packages: (metadata {
          interpreter_type = "bash";
          inherit packages;
        }).closure;
      in
      closure [ pkgs.bash ] == closure [ pkgs.bash ]
      && closure [ pkgs.bash ] != closure [ pkgs.bash pkgs.jq ];
    expected = true;
  };
  testClosureIsBareText = {
    expr =
      let
        inherit (metadata { interpreter_type = "bash"; }) closure;
      in
      builtins.hasContext closure || builtins.match "[a-z0-9]{32}" closure == null;
    expected = false;
  };

  # Interpreters
  testInterpreters = {
    expr =
      map
        (
          interpreter:
          let
            found = metadata { inherit interpreter; };
          in
          "${found.interpreter_type} ${found.stdin_mode}"
        )
        [
          "python3 -c"
          "python3"
          "python3.11 -u -c"
          "bash -c"
          "bash"
          "node -e"
          "/bin/sh -c"
          "/some/where/python -c"
          "perl -e"
          "lua -"
          "python-build"
          "bashful -c"
        ];
    expected = [
      "python arg"
      "python pipe"
      "python arg"
      "bash arg"
      "bash pipe"
      "node arg"
      "command arg"
      "python arg"
      "command arg"
      "command pipe"
      "command pipe"
      "command arg"
    ];
  };
  testInterpreterTypeWins = {
    expr =
      (metadata {
        interpreter = "bash -c";
        interpreter_type = "command";
      }).interpreter_type;
    expected = "command";
  };
  testStdinModeWins = {
    expr = [
      (metadata {
        interpreter = "mytool --eval";
        stdin_mode = "arg";
      }).stdin_mode
      (metadata {
        interpreter = "mytool -c";
        stdinMode = "pipe";
      }).stdin_mode
    ];
    expected = [
      "arg"
      "pipe"
    ];
  };
  testInterpreterSpacesAreOne = {
    expr = (metadata { interpreter = " python3  -c "; }).interpreter;
    expected = "python3 -c";
  };

  # Mistakes
  testRight = {
    expr = wrong { };
    expected = [ ];
  };
  testNullIsLeftOut = {
    expr = wrong {
      timeout_seconds = null;
      description = null;
    };
    expected = [ ];
  };
  testNotASet = {
    expr = problems.mkSandbox "python";
    expected = [ "mkSandbox: is \"python\": use a set of values" ];
  };
  testNoName = {
    expr = problems.mkSandbox { interpreter_type = "bash"; };
    expected = [
      "mkSandbox: lacks name: set name = \"data\""
    ];
  };
  testPackagesAlone = {
    expr = (mkSandbox { name = "data"; packages = [ pkgs.perl ]; }).metadata.interpreter_type;
    expected = "bash";
  };
  testNoInterpreter = {
    expr = problems.mkSandbox { name = "data"; };
    expected = [
      "mkSandbox data: does not say what runs the code: set interpreter_type = ${choices.interpreters}, or interpreter = \"perl -e\" or the like"
    ];
  };
  testCommandWithoutInterpreter = {
    expr = wrong { interpreter_type = "command"; };
    expected = [
      "mkSandbox data: interpreter_type is \"command\" without an interpreter: set interpreter = \"perl -e\" or the like"
    ];
  };
  testInterpreterWithQuotes = {
    expr = wrong { interpreter = "sh -c 'x'"; };
    expected = [
      "mkSandbox data: interpreter is \"sh -c 'x'\": leave out quotes and backslashes, because it is split at spaces"
    ];
  };
  testInterpreterBlank = {
    expr = wrong { interpreter = " "; };
    expected = [ "mkSandbox data: interpreter is blank: use a program such as \"perl -e\"" ];
  };
  testUnknownOption = {
    expr = wrong { timeout_second = 5; };
    expected = [
      "mkSandbox data: has no option \"timeout_second\" (did you mean \"timeout_seconds\"?): use one of ask_seconds, backend, cpus, description, devices, env, extra_binds, from_shell, hostname, inherit_env, interpreter, interpreter_type, max_timeout_seconds, memory_mb, name, network, nix, npm, output_kb, packages, packages_ask, packages_on_demand, pids, preload, preset, prewarm, stdin_mode, timeout_seconds, unsafe_devices, workspace_mb"
    ];
  };
  testWrongTypeOfNumber = {
    expr = wrong { timeout_seconds = "30"; };
    expected = [
      "mkSandbox data: timeout_seconds is \"30\": use a whole number from 1 to 86400"
    ];
  };
  testNumbersOutOfRange = {
    expr = wrong {
      timeout_seconds = 0;
      memory_mb = 15;
      cpus = 0;
      prewarm = -1;
      output_kb = 1.5;
    };
    expected = [
      "mkSandbox data: cpus is 0: use a number from 0.01 to 1024"
      "mkSandbox data: memory_mb is 15: use a whole number from 16 to 16777216"
      "mkSandbox data: output_kb is 1.5: use a whole number from 1 to 1024"
      "mkSandbox data: prewarm is -1: use a whole number from 0 to 64"
      "mkSandbox data: timeout_seconds is 0: use a whole number from 1 to 86400"
    ];
  };
  testBadNames = {
    expr = map (name: builtins.length (wrong { inherit name; })) [
      ""
      "Data"
      "-x"
      "_x"
      "a b"
      "a/b"
      "a\nb"
      "é"
      1
      "0123456789012345678901234567890123456789012345678901234567890123x"
    ];
    expected = [
      1
      1
      1
      1
      1
      1
      1
      1
      1
      1
    ];
  };
  testGoodNames = {
    expr = builtins.concatMap (name: wrong { inherit name; }) [
      "a"
      "0"
      "data-science_2"
      "0123456789012345678901234567890123456789012345678901234567890123"
    ];
    expected = [ ];
  };
  testHostnames = {
    expr = map (hostname: wrong { inherit hostname; } == [ ]) [
      "a"
      "data-1"
      (lib.concatStrings (lib.genList (_: "a") 63))
      ""
      "-a"
      "a-"
      "a_b"
      "a.b"
      "A"
      (lib.concatStrings (lib.genList (_: "a") 64))
    ];
    expected = [
      true
      true
      true
      false
      false
      false
      false
      false
      false
      false
    ];
  };
  testUnknownBackend = {
    expr = wrong { backend = "docker"; };
    expected = [ "mkSandbox data: backend is \"docker\": use \"jail\" or \"vm\"" ];
  };
  testUnknownInterpreterType = {
    expr = wrong { interpreter_type = "pyton"; };
    expected = [
      "mkSandbox data: interpreter_type is \"pyton\" (did you mean \"python\"?): use ${choices.types}"
    ];
  };
  testUnknownNetwork = {
    expr = map (network: wrong { inherit network; }) [
      "host"
      "non"
    ];
    expected = [
      [ "mkSandbox data: network is \"host\", and a sandbox reaches hosts that are named: use \"none\", or a table such as { mode = \"allow\", domains = [\"files.example\"] }" ]
      [ "mkSandbox data: network is \"non\" (did you mean \"none\"?): use \"none\", or a table such as { mode = \"allow\", domains = [\"files.example\"] }" ]
    ];
  };
  testPackagesOfWrongType = {
    expr = [
      (wrong { packages = [ "jq" ]; })
      (wrong { packages = pkgs.jq; })
      (wrong { packages = ps: [ ps.jq ]; })
    ];
    expected = [
      [ "mkSandbox data: packages has \"jq\" in it: use a list of packages, such as [ pkgs.jq ]" ]
      [ "mkSandbox data: packages is a package: use a list of packages, such as [ pkgs.jq ]" ]
      [ "mkSandbox data: packages is a function: use a list of packages, such as [ pkgs.jq ]" ]
    ];
  };
  testDescriptionOfTwoLines = {
    expr = wrong { description = "one\ntwo"; };
    expected = [
      "mkSandbox data: description is \"one\\ntwo\": use a line of 1 to 200 bytes in quotes"
    ];
  };
  testVariables = {
    expr = [
      (wrong { env.PORT = 80; })
      (wrong { env."A=B" = "x"; })
      (wrong { env = [ "A=B" ]; })
      (wrong { env._A1 = "several\nlines = fine"; })
    ];
    expected = [
      [
        "mkSandbox data: env has \"PORT\" = 80 in it: use variables and their values in quotes, such as { TZ = \"UTC\" }"
      ]
      [
        "mkSandbox data: env has \"A=B\" = \"x\" in it: use variables and their values in quotes, such as { TZ = \"UTC\" }"
      ]
      [
        "mkSandbox data: env is a list: use variables and their values in quotes, such as { TZ = \"UTC\" }"
      ]
      [ ]
    ];
  };
  testBinds = {
    expr = map (extra_binds: builtins.length (wrong { inherit extra_binds; })) [
      { "/data" = "/srv/data"; }
      { "/data" = ./.; }
      { "/data" = pkgs.jq; }
      { "/data" = "${pkgs.jq}/share"; }
      {
        "/data" = "/a";
        "/data2" = "/a";
      }
      { "/data" = "srv/data"; }
      { "/data" = "/srv/../etc"; }
      { "/data" = "/"; }
      { "/data" = "/proc/1"; }
      { "/data" = "/dev"; }
      { "/data" = 1; }
      { "data" = "/srv"; }
      { "/" = "/srv"; }
      { "/nix" = "/srv"; }
      { "/workspace/data" = "/srv"; }
      { "/project" = "/srv"; }
      {
        "/data" = "/a";
        "/data/b" = "/b";
      }
      [ "/data" ]
    ];
    expected = [ 0 0 0 0 0 ] ++ builtins.genList (_: 1) 13;
  };
  testBindsSayWhatToWrite = {
    expr = wrong { extraBinds."/nix" = "/srv"; };
    expected = [
      "mkSandbox data: extra_binds has \"/nix\" = \"/srv\" in it: use paths in the sandbox and what is shown there, such as { \"/data\" = \"/srv/data\" }: plain absolute paths, those in the sandbox apart from each other and from /bin, /dev, /etc, /inbox, /nix, /proc, /sys, /tmp, /usr, /workspace, /project, the sources outside of /dev, /proc, /sys"
    ];
  };
  testShellOfWrongType = {
    expr = wrong { fromShell = [ pkgs.jq ]; };
    expected = [
      "mkSandbox data: from_shell is a list: use a shell that mkShell made, such as devShells.x86_64-linux.default"
    ];
  };
  # A shell is enough: bash runs in it.
  testShellAlone = {
    expr =
      (mkSandbox {
        name = "data";
        fromShell = pkgs.mkShell { };
      }).metadata.interpreter_type;
    expected = "bash";
  };
  testShellAndInterpreter = {
    expr =
      (mkSandbox {
        name = "data";
        fromShell = pkgs.mkShell { };
        interpreter = "python3 -c";
      }).metadata.interpreter_type;
    expected = "python";
  };
  testNamesInNixStyle = {
    expr = (metadata {
      interpreterType = "bash";
      timeoutSeconds = 5;
    }).timeout_seconds;
    expected = 5;
  };

  testMistakesThrow = {
    expr = [
      (throws (mkSandbox { name = "x"; }).outPath)
      (throws (mkSandbox { interpreter_type = "bash"; }).outPath)
    ];
    expected = [
      true
      true
    ];
  };

  # Presets
  testPresets = {
    # One for each interpreter, which alone says what it is called, and Ruby, which any command could be.
    expr = map (name: (library.fromToml { environments.x.preset = name; }).environments.x.metadata.interpreter_type) (
      builtins.attrNames library.presets
    );
    expected = map (preset: preset.type) (
      builtins.sort (a: b: a.name < b.name) (
        [ { name = "ruby"; type = "command"; } ] ++
        builtins.attrValues (builtins.mapAttrs (type: known: known.preset // { inherit type; }) library.interpreters)
      )
    );
  };
}
