# What `nix flake check` builds.
{
  pkgs,
  server,
  tests ? import ./. { inherit pkgs; },
}:
let
  inherit (pkgs) lib;

  library = import ../../nix { inherit pkgs; };

  names = lib.attrNames tests;
  passes = name: (builtins.tryEval (tests.${name}.expr == tests.${name}.expected)).value;
  failed = lib.filter (name: !(passes name)) names;

  # A package set may lack NixOS, and rented ARM machines lack KVM.
  machines =
    pkgs.stdenv.hostPlatform.isx86_64 && (builtins.tryEval (pkgs ? testers.runNixOSTest)).value;

  # What hooks of nixpkgs' stdenv leave behind.
  setupHook = pkgs.writeTextFile {
    name = "setup-hook";
    destination = "/nix-support/setup-hook";
    text = ''
      export shell=$SHELL
      export NIX_CFLAGS_COMPILE="-O2 -frandom-seed=abc -g"
    '';
  };

  # What evaluation does not show, because a build decides it.
  built = {
    shell = {
      artifact = library.mkSandbox {
        name = "shell";
        from_shell = pkgs.mkShell {
          packages = [
            pkgs.jq
            setupHook
          ];
          GREETING = "hello\nyou";
          # As buildGoModule has it; the variables name jq.
          disallowedReferences = [ pkgs.jq ];
        };
      };
      code = ''
        printf %s "$GREETING" | jq --raw-input --slurp .
        echo "$NIX_CFLAGS_COMPILE"
        env | grep -e frandom -e sandbox-variables -e ^TZ= -e ^shell= || true
      '';
      output = "\"hello\\nyou\"\n-O2 -g";
    };
    # Bash runs the code of any packages.
    bash = {
      artifact = library.mkSandbox {
        name = "bash";
        packages = [ pkgs.jq ];
        interpreter = "bash -s";
      };
      code = "jq --null-input 1; type -P bash > /dev/null && echo $0";
      output = "1\nbash";
    };
    # A program of the operator's own wins over that of the preset.
    own = {
      artifact = library.mkSandbox {
        name = "own";
        preset = "shell";
        packages = [
          (pkgs.writeTextFile {
            name = "own-jq";
            destination = "/bin/jq";
            executable = true;
            text = "#!${pkgs.bash}/bin/bash\necho own\n";
          })
        ];
      };
      code = "jq --version; rg --version | head -n 1 | cut -d ' ' -f 1";
      output = "own\nripgrep";
    };
    modules = {
      artifact =
        (library.fromToml {
          environments.python = {
            preset = "python";
            packages = [ "python3Packages.pandas" ];
            hostname = "data-1";
          };
        }).environments.python;
      code = ''
        import curses, numpy, pandas, socket, yaml
        print(pandas.Series([1, 2]).sum())
        curses.setupterm("tmux-256color", 1)
        print(curses.tigetnum("colors"))
        print(socket.gethostname(), socket.gethostbyname(socket.gethostname()))
      '';
      output = "3\n256\ndata-1 127.0.0.1";
    };
  };

  # Servers with and without what it takes to build at a start.
  builds = library.mkServer { environments = [ ]; };
  quiet = library.mkServer {
    environments = [ ];
    buildAtStart = false;
  };
  serving = library.mkServer {
    environments = [ ];
    serve = { };
  };
in
{
  inherit server;

  # What a server that builds nothing at its start keeps and answers.
  buildAtStart =
    pkgs.runCommandLocal "build-at-start"
      {
        building = pkgs.closureInfo { rootPaths = [ builds ]; };
        quiet = pkgs.closureInfo { rootPaths = [ quiet ]; };
        server = lib.getExe quiet;
      }
      ''
        grep -e -nix-sandbox-mcp-start $building/store-paths
        if grep -e -nix-sandbox-mcp-start -e '${baseNameOf (toString pkgs.path)}' $quiet/store-paths; then
          exit 1
        fi
        $server list
        refuses() {
          if "$@" 2> error; then exit 1; fi
          cat error
          grep 'error: .* and this server builds nothing when it starts' error
          grep 'hint: .*buildAtStart = true' error
        }
        echo > file.toml
        refuses env NIX_SANDBOX_ENVS=.#x $server list
        refuses env NIX_SANDBOX_CONFIG=file.toml $server list
        refuses env PROJECT_USE_FLAKE=1 $server list
        refuses $server doctor file.toml
        PROJECT_USE_FLAKE=0 $server list
        touch $out
      '';

  # What a server without [serve] leaves out, and answers.
  gateway =
    pkgs.runCommandLocal "gateway"
      {
        small = pkgs.closureInfo { rootPaths = [ builds ]; };
        serving = pkgs.closureInfo { rootPaths = [ serving ]; };
        server = lib.getExe builds;
      }
      ''
        grep -e -nix-sandbox-gateway- $serving/store-paths
        if grep -e -nix-sandbox-gateway- $small/store-paths; then
          exit 1
        fi
        export HOME=$TMPDIR
        refuses() {
          if "$@" < /dev/null 2> error; then exit 1; fi
          cat error
          grep 'error: .* and this server was built without \[serve\]' error
          grep 'hint: add the line \[serve\] ' error
        }
        refuses $server serve
        refuses $server serve --http 127.0.0.1:0
        refuses env NIX_SANDBOX_AUDIT=$PWD/audit $server --stdio
        refuses env NIX_SANDBOX_METRICS=127.0.0.1:0 $server
        $server --stdio < /dev/null
        $server serve --stdio < /dev/null
        $server serve --log-format json --stdio < /dev/null
        touch $out
      '';

  # A test that fails is a build that fails: `nix flake show`, and the checks of
  # other systems, have to evaluate.
  evaluation = pkgs.runCommandLocal "evaluation-tests" { failed = lib.concatStringsSep "\n" failed; } ''
    if [ -n "$failed" ]; then
      printf '%s\n' "These tests fail; tests/nix/run NIXPKGS shows what they expect:" "$failed"
      exit 1
    fi
    echo ${toString (lib.length names)} passed > $out
  '';
}
# The artifacts run inside a build too, where that may make namespaces.
// lib.mapAttrs' (
  name: artifact: lib.nameValuePair "sandbox-${name}" (library.smokeTest artifact)
) server.environments
// lib.mapAttrs' (name: built: lib.nameValuePair "prints-${name}" (library.prints built)) built
# The suites that depend on the user and the kernel, in machines of their own.
// lib.optionalAttrs machines (
  import ../nixos {
    inherit pkgs server;
    inherit (library.programs) vendor;
  }
)
