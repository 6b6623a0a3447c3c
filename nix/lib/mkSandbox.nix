# mkSandbox makes an artifact: metadata.json, bin/run, bin/session-run and
# bin/attach. Presets and TOML environments go through it too; the server cannot
# tell them apart.
{
  pkgs,
  backends,
  options,
  validate,
  interpreter,
  interpreters,
}:
let
  inherit (pkgs) lib;

  pythonModules = import ./pythonModules.nix { inherit lib; };

  # The fields of metadata.json that are copied from the options.
  published = [
    "name"
    "backend"
    "timeout_seconds"
    "memory_mb"
    "cpus"
    "pids"
    "workspace_mb"
    "output_kb"
    "prewarm"
    "description"
  ];

  # timeoutSeconds -> timeout_seconds: names in Nix's own style are welcome too.
  snake =
    name:
    lib.concatMapStrings (part: if lib.isList part then "_${lib.toLower (lib.head part)}" else part) (
      builtins.split "([A-Z])" name
    );

  # The options as they are declared; a shell alone is a sandbox for bash.
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
      in
      given
      // lib.optionalAttrs (says "from_shell" && !(says "interpreter") && !(says "interpreter_type")) {
        interpreter_type = "bash";
      };

  # Takes the place to name in the sentences; callers that know better than
  # mkSandbox where the values were written say so.
  problemsAt =
    place: args:
    let
      given = normal args;
      typed = validate.table place options.mkSandbox given;
    in
    # The others expect values of the right type.
    if typed != [ ] then
      typed
    else
      backends.${(validate.complete options.mkSandbox given).backend}.problems place
      ++ interpreter.problems place given
      ++ pythonModules.problems place (given.packages or [ ]);

  placeOf = args: if lib.isString (args.name or null) then "mkSandbox ${args.name}:" else "mkSandbox:";

  problems = args: problemsAt (placeOf args) args;

  build =
    args:
    let
      given = validate.complete options.mkSandbox (normal args);
      run = interpreter.complete given;

      environment = pkgs.buildEnv {
        name = "sandbox-environment";
        paths = pythonModules.join given.packages ++ lib.optional (given.from_shell != null) pkgs.bash;
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

      shellVariables =
        if given.from_shell == null then
          null
        else
          import ./shellVariables.nix {
            shell = given.from_shell;
            programs = environment;
            except = lib.attrNames variables;
          };

      # A shell's variables come with the PATH.
      variables =
        lib.optionalAttrs (given.from_shell == null) { PATH = "${environment}/bin"; }
        // {
          HOME = "/workspace";
          TMPDIR = "/workspace";
          LANG = "C.UTF-8";
          USER = "sandbox";
        }
        // given.env;

      # A shell expression for where the programs are.
      path =
        if shellVariables == null then
          "${environment}/bin"
        else
          "$(tr '\\0' '\\n' < ${shellVariables} | sed -n 's/^PATH=//p')";

      # Null for a command: each of its calls starts it with the code.
      known = interpreters.${run.interpreter_type} or null;

      isolated = backends.${given.backend}.make {
        inherit (given)
          name
          memory_mb
          pids
          workspace_mb
          ;
        inherit environment variables shellVariables;
        binds = lib.mapAttrsToList (to: from: {
          inherit to;
          from = "${from}";
        }) given.extra_binds;
        inherit (run) command;
        driver =
          if known == null then
            null
          else
            known.driver {
              inherit (run) command;
              inherit path;
            };
        pipe = known == null && run.stdin_mode == "pipe";
      };

      metadata =
        lib.filterAttrs (_: v: v != null) (lib.genAttrs published (field: given.${field}))
        // {
          schema = 1;
          inherit (run) interpreter interpreter_type stdin_mode;
          network.mode = given.network;
          inherit (isolated) closure;
        }
        // lib.optionalAttrs (known != null) { inherit (known) language; };

      artifact =
        pkgs.runCommandLocal "sandbox-${given.name}"
          {
            # Texts of any length, as variables of the shell.
            __structuredAttrs = true;
            nativeBuildInputs = [ pkgs.jq ];
            metadata = builtins.toJSON metadata;
            inherit (isolated) run sessionRun attach contents;
            program = lib.head run.command;
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
            printf %s "$run" > $out/bin/run
            printf %s "$sessionRun" > $out/bin/session-run
            printf %s "$attach" > $out/bin/attach
            chmod +x $out/bin/run $out/bin/session-run $out/bin/attach
            # Only a build can tell the size.
            printf %s "$metadata" |
              jq --compact-output --argjson size "$(du -s --apparent-size --block-size=1 "$contents" | cut -f 1)" \
                '.closure_bytes = $size' > $out/metadata.json
          '';
    in
    artifact // { inherit metadata environment; };
in
{
  inherit problems problemsAt build;

  make = args: validate.orThrow (problems args) (build args);
}
