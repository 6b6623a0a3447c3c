# mkSandbox makes an artifact (docs/contracts.md, C1): metadata.json and the
# programs of its backend. Presets and TOML environments go through it too; the
# server cannot tell them apart.
{
  pkgs,
  backends,
  options,
  validate,
  interpreter,
  interpreters,
  onDemand,
  presets,
  programs,
}:
let
  inherit (pkgs) lib;

  describe = import ./describe.nix { inherit lib; };
  npm = import ./npm.nix { inherit pkgs; };
  tools = map describe.nameOf (import ../interpreters/tools.nix { inherit pkgs; });
  pythonModules = import ./pythonModules.nix { inherit lib; };

  # timeoutSeconds -> timeout_seconds: names in Nix's own style are welcome too.
  snake =
    name:
    lib.concatMapStrings (part: if lib.isList part then "_${lib.toLower (lib.head part)}" else part) (
      builtins.split "([A-Z])" name
    );

  # The options as they are declared; packages or a shell alone are a sandbox for bash.
  normal =
    args:
    if !(lib.isAttrs args) then
      args
    else
      let
        given = lib.mapAttrs' (
          name: lib.nameValuePair (if options.mkSandbox ? ${snake name} then snake name else name)
        ) args;
        says = name: given.${name} or null != null;
        # A preset has an interpreter of its own.
        brings = says "from_shell" || says "packages" && given.packages != [ ] && !(says "preset");
      in
      given
      // lib.optionalAttrs (brings && !(says "interpreter") && !(says "interpreter_type")) {
        interpreter_type = "bash";
      };

  # The same with what its preset has. The values are of the right types.
  withPreset =
    given:
    let
      own = lib.filterAttrs (_: value: value != null) given;
      preset = presets.${own.preset};
      packages = own.packages or [ ];
    in
    if !(own ? preset) then
      given
    else
      # An environment's own interpreter is not the preset's.
      (if own ? interpreter || own ? interpreter_type then removeAttrs preset [ "interpreter" "interpreter_type" ] else preset)
      // {
        # A model does not look for packages that the preset's own words do not name.
        description = describe.with' preset.description (
          map describe.nameOf packages ++ lib.optionals (own ? npm) (npm.names own.npm)
        );
      }
      // removeAttrs own [ "preset" ]
      // {
        # Of two programs with one name, the first is taken.
        packages = packages ++ preset.packages;
      };

  # Takes the location that the sentences name: callers may know better than
  # mkSandbox where the values were written.
  problemsAt =
    location: args:
    let
      typed = validate.table location options.mkSandbox (normal args);
      given = withPreset (normal args);
      completed = validate.complete options.mkSandbox given;
    in
    # The others expect values of the right type.
    if typed != [ ] then
      typed
    else
      validate.together location options.mkSandbox given
      ++ backends.${completed.backend}.problems location completed
      ++ interpreter.problems location given
      ++ lib.optionals (interpreter.problems location given == [ ]) (interpreter.preloadProblems location completed)
      ++ pythonModules.problems location (given.packages or [ ])
      ++ lib.optionals (completed.npm != null) (npm.problems location completed.npm)
      ++ lib.optionals (given.packages_on_demand or null != null && interpreter.problems location given == [ ]) (
        onDemand.problems location (completed // { inherit (interpreter.complete completed) interpreter_type; })
      );

  placeOf = args: if lib.isString (args.name or null) then "mkSandbox ${args.name}:" else "mkSandbox:";

  problems = args: problemsAt (placeOf args) args;

  # The options with defaults, and what follows from them: who runs the code, and what the
  # model reads.
  resolve =
    args:
    let
      given = validate.complete options.mkSandbox (withPreset (normal args));
      run = interpreter.complete given;
      # Null for a command: each of its calls starts it with the code.
      known = interpreters.${run.interpreter_type} or null;
      # The names of these say nothing that the language does not.
      isUsual =
        package:
        package ? pythonVersion
        || lib.any (name: lib.elem name (tools ++ known.language.programs or [ ])) [
          (describe.nameOf package)
          (package.meta.mainProgram or null)
        ];
    in
    {
      inherit run known;
      given = given // {
        inherit (run) interpreter interpreter_type stdin_mode;
        # Without packages to add, there is no program for it.
        nix = given.nix && (onDemand.allows given || args.derived or false);
        description =
          if given.description != null then
            given.description
          else
            describe.with' (known.language.description or "") (
              map describe.nameOf (lib.filter (package: !(isUsual package)) given.packages)
              ++ lib.optionals (given.npm != null) (npm.names given.npm)
            );
        max_timeout_seconds =
          if given.max_timeout_seconds != null then given.max_timeout_seconds else given.timeout_seconds;
      };
    };

  # The package of a sandbox's programs.
  environmentOf =
    given: nodeModules:
    pkgs.buildEnv {
      name = "sandbox-environment";
      paths =
        pythonModules.join given.packages
        ++ lib.optional (given.npm != null) (
          pkgs.runCommandLocal "npm-programs" { } ''
            mkdir $out
            [ ! -e ${nodeModules}/node_modules/.bin ] || ln -s ${nodeModules}/node_modules/.bin $out/bin
          ''
        )
        ++ lib.optional given.nix nixClient
        # Every sandbox has it as /bin/bash, so that an environment of any packages can run it.
        ++ lib.optional (given.from_shell != null || given.interpreter_type == "bash") pkgs.bash;
      pathsToLink = [ "/bin" ];
      ignoreCollisions = true;
      # Of a single package, buildEnv links the folder itself. Python looks
      # for its library from where it was started, and follows the links of
      # programs only.
      postBuild = ''
        if [ -L $out/bin ]; then
          folder=$(readlink -f $out/bin)
          rm $out/bin
          mkdir $out/bin
          ln -s "$folder"/* $out/bin/
        fi
      '';
    };

  # What code knows of Nix: one program that goes by the names of several.
  nixClient = pkgs.runCommandLocal "sandbox-nix" { } ''
    mkdir -p $out/bin
    for name in nix nix-build nix-env nix-shell; do
      ln -s ${lib.getExe programs.nix} $out/bin/$name
    done
  '';

  # The environment variables. A shell's come with its PATH. The programs of `nix profile add` are in the last folder.
  variablesOf =
    given: environment:
    lib.optionalAttrs (given.network != "none") (
      lib.mapAttrs (name: _: import ./placeholder.nix name) given.network.credentials
    )
    // lib.optionalAttrs (given.from_shell == null) {
      PATH = "${environment}/bin" + lib.optionalString given.nix ":/tmp/.nix-profile/bin";
    }
    // {
      HOME = "/workspace";
      TMPDIR = "/workspace";
      LANG = "C.UTF-8";
      TERM = "dumb"; # a terminal of the user sets its own
      TZDIR = "/usr/share/zoneinfo"; # nixpkgs' C library has no place of its own
      USER = "sandbox";
    }
    // (import ./certificates.nix { inherit pkgs; }).variables given.network
    // given.env;

  # A file of the variables of from_shell, or of those that the wrapper found of a project's
  # shell, without those that the sandbox sets.
  shellVariablesOf =
    given: environment: variables:
    pkgs.runCommandLocal "sandbox-variables"
      {
        found =
          given.from_shell.sandboxVariables or (import ./shellVariables.nix {
            builder = builtins.readFile ./shellVariables.sh;
            shell = given.from_shell;
          });
        programs = "${environment}/bin";
        behind = lib.optionalString (given.from_shell ? behind) ":${given.from_shell.behind}/bin";
        except = lib.attrNames variables;
      }
      ''
        while IFS= read -r -d "" variable; do
          [[ " $except " != *" ''${variable%%=*} "* ]] || continue
          case $variable in PATH=*) variable=PATH=$programs:''${variable#PATH=}$behind ;; esac
          printf '%s\0' "$variable"
        done < $found > $out
      '';

  # What the runtime is told of a network.
  networkMetadata =
    network: isOfDefaults:
    if network == "none" then
      { mode = "none"; }
    else
      lib.getAttrs [ "connections" "domains" "megabytes" "mode" "names" "ports" "rate" ] network
      // {
        # The runtime gives them to the launcher, and starts sandboxes without any
        # other variable of its own.
        secrets = lib.filter (variable: variable != null) (
          lib.mapAttrsToList (_: credential: credential.variable) network.credentials
        );
      }
      // lib.optionalAttrs (network.ask != [ ]) { inherit (network) ask; }
      // lib.optionalAttrs isOfDefaults { of_defaults = true; };

  build =
    args:
    let
      inherit (resolve args) given run known;

      nodeModules = npm.modules given.npm;
      environment = environmentOf given nodeModules;
      variables = variablesOf given environment;
      shellVariables = if given.from_shell == null then null else shellVariablesOf given environment variables;

      # A shell expression for where the programs are.
      path =
        if shellVariables == null then
          "${environment}/bin"
        else
          "$(tr '\\0' '\\n' < ${shellVariables} | sed -n 's/^PATH=//p')";

      isolated = backends.${given.backend}.make {
        options = given;
        inherit environment variables shellVariables;
        # Node.js looks there from every folder.
        links = lib.optionalAttrs (given.npm != null) {
          "/node_modules" = "${nodeModules}/node_modules";
        };
        inherit (run) command;
        driver =
          if known == null then
            null
          else
            known.driver {
              inherit (run) command;
              inherit (given) preload;
              inherit path;
            };
        pipe = known == null && run.stdin_mode == "pipe";
      };

      metadata =
        lib.getAttrs (lib.attrNames options.published) given
        // {
          schema = 1;
          network = networkMetadata given.network (args.of_defaults or false);
          programs = "${environment}/bin";
          inherit (isolated) closure needs;
        }
        // lib.optionalAttrs (known != null) { inherit (known) language; }
        // isolated.metadata or { };

      artifact =
        pkgs.runCommandLocal "sandbox-${given.name}"
          {
            # Texts of any length, as variables of the shell.
            __structuredAttrs = true;
            nativeBuildInputs = [ pkgs.jq ];
            metadata = builtins.toJSON metadata;
            inherit (isolated) bin contents;
            program = lib.head run.command;
            files = lib.optionalAttrs (onDemand.allows given) {
              "recipe.json" = onDemand.recipe given;
              "packages.json" = builtins.toJSON (onDemand.table given);
            };
            meta = {
              description = given.description;
              mainProgram = "run";
              platforms = lib.platforms.linux;
            };
          }
          ''
            case $program in
              /*) ;;
              *)
                if ! PATH=${path} type -P "$program" > /dev/null; then
                  echo "sandbox ${given.name}: its packages have no program $program: add the package that has it" >&2
                  exit 1
                fi
                ;;
            esac
            mkdir -p $out/bin
            for name in "''${!bin[@]}"; do
              printf %s "''${bin[$name]}" > $out/bin/$name
              chmod +x $out/bin/$name
            done
            for name in "''${!files[@]}"; do
              printf %s "''${files[$name]}" > $out/$name
            done
            # Only a build can tell the size.
            printf %s "$metadata" |
              jq --compact-output --argjson size "$(du -s --apparent-size --block-size=1 "$contents" | cut -f 1)" \
                '.closure_bytes = $size' > $out/metadata.json
          '';
    in
    artifact // { inherit metadata environment; };
in
{
  inherit
    build
    problems
    problemsAt
    withPreset
    ;

  make = args: validate.orThrow (problems args) (build args);
}
