# mkServer makes the server: bin/nix-sandbox-mcp, which starts one of three programs, with
# the metadata of its environments and, unless buildAtStart is false, the sources
# of this library and of the package set, with which the wrapper builds further
# environments when the server starts (nix/wrapper).
{
  pkgs,
  # The package set of the server itself, on a Mac that of macOS.
  host,
  programs,
  revision,
  options,
  validate,
  toml,
  serverMetadata,
}:
let
  inherit (pkgs) lib;
  inherit (builtins) attrNames isAttrs toJSON;

  arguments = attrNames (
    options.start
    // {
      config = null;
      environments = null;
      on_demand = null;
      project = null;
      session = null;
      serve = null;
      tools = null;
    }
  );

  # A list of artifacts, or a set of them by name as fromToml gives it.
  artifactsIn = environments: if isAttrs environments then lib.attrValues environments else environments;

  # What follows from arguments without problems. However much is asked of it, the configuration
  # is evaluated once.
  read =
    args:
    let
      configured = if args.config or null == null then { } else toml.build args.config;
      settings = table: validate.complete options.${table} (configured.${table} or { } // args.${table} or { });
    in
    rec {
      artifacts = artifactsIn (configured.environments or { }) ++ artifactsIn (args.environments or [ ]);

      # The names of the environments to which a call may add packages.
      onDemand = map nameOf (lib.filter (a: a.metadata.packages_on_demand or [ ] != [ ]) artifacts);

      start = validate.complete options.start args;

      # What code may call, or null.
      tools = args.tools or configured.tools or null;

      # Whether the server has the program that serves HTTP.
      hasGateway = args ? serve || configured ? serve;

      # What a server is told to build while it runs.
      toBuild =
        lib.optional (start.flakeRefs != [ ]) "flakeRefs names what to build"
        ++ map (name: "packages_on_demand of ${name} is given") onDemand
        ++ lib.optional (
          configured.project.use_flake or false || args.project.use_flake or false == true
        ) "project.use_flake is true";

      metadata =
        serverMetadata {
          on_demand = settings "on_demand";
          session = settings "session";
          project = settings "project";
          serve = settings "serve";
        }
        // {
          environments = lib.listToAttrs (
            map (
              artifact:
              lib.nameValuePair (nameOf artifact) (
                artifact.metadata
                // {
                  exec = "${artifact}/bin/run";
                  session_exec = "${artifact}/bin/session-run";
                }
              )
            ) artifacts
          );
        }
        // lib.optionalAttrs (tools != null) { tools = "${tools}"; }
        // {
          inherit (programs) version;
        }
        // lib.optionalAttrs (revision != null) { inherit revision; };
    };

  # What makes sandboxes: Nix code, and the programs inside of them from just
  # the files that they are built from here, so that they need not be again.
  source = builtins.path {
    name = "nix-sandbox-mcp-start";
    path = ../..;
    filter =
      path: type:
      let
        relative = lib.removePrefix "${toString ../..}/" (toString path);
        folder = lib.head (lib.splitString "/" relative);
      in
      lib.elem folder (
        programs.startFolders
        ++ [
          "VERSION"
          "config.example.toml"
          "go.mod"
          "go.sum"
          "nix"
        ]
      )
      && baseNameOf relative != "testdata"
      && !(lib.hasSuffix "_test.go" relative)
      # Of the toolbox, what says whether its tables are right.
      || lib.elem relative [
        "parts"
        "parts/toolbox"
        "parts/toolbox/nix"
        "parts/toolbox/nix/default.nix"
      ];
  };

  # The package set's folder as a path of the store that the server keeps. An
  # input of a flake may only be mounted there until a derivation needs it
  # (Nix 2.35 and lazy trees), so it is copied, under its own name and hence to
  # the very path that it is mounted at.
  packages =
    let
      path = toString pkgs.path;
      inStore = builtins.match "(${builtins.storeDir}/[^/]{32}-([^/]+))(/.*)?" path;
      inside = lib.elemAt inStore 2;
    in
    if inStore == null then
      path
    else
      builtins.path {
        name = lib.elemAt inStore 1;
        path = /. + lib.head inStore;
      }
      + (if inside == null then "" else inside);

  # What of the package set's configuration a file can say. Functions, such as
  # allowUnfreePredicate, and overlays cannot be handed on.
  packagesConfig = lib.filterAttrs (_: isPlain) (
    lib.getAttrs (lib.filter (name: pkgs.config ? ${name}) [
      "allowAliases"
      "allowBroken"
      "allowUnfree"
      "allowUnfreePackages"
      "allowUnsupportedSystem"
      "allowVariants"
      "checkMeta"
      "cudaCapabilities"
      "cudaSupport"
      "permittedInsecurePackages"
      "rocmSupport"
    ]) pkgs.config
  );
  isPlain =
    value:
    builtins.isBool value || builtins.isString value || lib.isList value && lib.all builtins.isString value;

  # With a config and overlays given, nixpkgs reads neither from the home of who
  # starts the server.
  start = host.writeText "start.nix" ''
    { config ? null, base ? "/", extends ? null, variables ? null, request ? null, seed ? null }@args:
    let
      packages =
        system:
        import ${packages} {
          inherit system;
          config = builtins.fromJSON ${lib.strings.escapeNixString (toJSON packagesConfig)};
          overlays = [ ];
        };
      pkgs = packages "${host.stdenv.hostPlatform.system}";
    in
    (import ${source}/nix {
      inherit pkgs;
      guest = ${
        if pkgs.stdenv.hostPlatform.system == host.stdenv.hostPlatform.system then
          "pkgs"
        else
          "packages \"${pkgs.stdenv.hostPlatform.system}\""
      };
    }).start args
  '';

  # The scripts of the wrapper, which name each other by this folder.
  scripts = builtins.path {
    name = "nix-sandbox-mcp-scripts";
    path = ../wrapper;
    filter = path: _: lib.hasSuffix ".sh" path && baseNameOf path != "wrapper.sh";
  };

  clients = host.writeText "clients.json" (toJSON (import ./clients.nix { isDarwin = !host.stdenv.hostPlatform.isLinux; }));

  # A function that the wrapper gives to the evaluation of a project's flake,
  # which reads no other file: a shell -> the derivation of its variables.
  variablesOf = host.writeText "shell-variables.nix" ''
    shell:
    ((${builtins.readFile ./shellVariables.nix}) {
      inherit shell;
      builder = ${lib.strings.escapeNixString (builtins.readFile ./shellVariables.sh)};
    }).drvPath
  '';

  # A file's text with each @word@ that there is a value for replaced by it.
  fill =
    file: values:
    builtins.replaceStrings (map (word: "@${word}@") (attrNames values)) (lib.attrValues values) (
      builtins.readFile file
    );

  nameOf = artifact: artifact.metadata.name;

  # Sentences about the arguments, from which `plan` follows.
  problemsOf =
    args: plan:
    let
      own = args.environments or [ ];
      strangers = lib.filter (a: !(isAttrs a && a ? outPath && isAttrs (a.metadata or null))) (
        artifactsIn own
      );
      all = plan.artifacts;
      ofConfig = if args.config or null == null then [ ] else toml.problems args.config;
      wrongAtStart = validate.values "mkServer:" options.start (builtins.intersectAttrs options.start args);
      twice = attrNames (lib.filterAttrs (_: same: lib.length same > 1) (builtins.groupBy nameOf all));
    in
    if !pkgs.stdenv.hostPlatform.isLinux then
      [
        "mkServer: sandboxes run on Linux, and these packages are for ${pkgs.stdenv.hostPlatform.system}: use the package set of Linux as guest beside it, as the flake does for aarch64-darwin"
      ]
    else if !(isAttrs args) then
      [ "mkServer is given ${validate.show args}: use mkServer { config = ./config.toml; }" ]
    else if !(lib.isList own || isAttrs own) then
      [ "mkServer: environments is ${validate.show own}: use a list of mkSandbox artifacts" ]
    else if lib.any (key: !(lib.elem key arguments)) (attrNames args) then
      validate.unknown "mkServer:" "argument" arguments args
    else if ofConfig != [ ] then
      ofConfig
    else if strangers != [ ] then
      map (a: "mkServer: environments has ${validate.show a} in it: use what mkSandbox gives") strangers
    else
      map (name: "mkServer: two environments are called ${toJSON name}: rename one of them") twice
      # An empty list is a server for what sandbox folders hold.
      ++ lib.optional (
        all == [ ] && !(args ? environments) && args.flakeRefs or null == null
      ) "mkServer: has no environment: set config = ./config.toml or environments = [ … ]"
      ++ wrongAtStart
      ++ lib.optionals (wrongAtStart == [ ] && !plan.start.buildAtStart) (
        map (
          what: "mkServer: buildAtStart is false, and ${what}: set buildAtStart = true, or leave it out"
        ) plan.toBuild
      )
      ++ lib.concatMap (
        table:
        lib.optionals (args ? ${table}) (
          validate.table "mkServer: ${table}:" options.${table} args.${table}
        )
      ) [ "on_demand" "session" "serve" "project" ];

  build =
    { plan, ofUser }:
    let
      inherit (plan) metadata;
      inherit (metadata) project;
      # The programs with the toolbox in them, or without.
      outside = if plan.tools == null then programs else programs.toolbox;
      server =
        host.runCommandLocal "nix-sandbox-mcp-${programs.version}"
          {
            # Texts of any length, as variables of the shell.
            __structuredAttrs = true;
            metadata = toJSON metadata;
            wrapper = fill ../wrapper/wrapper.sh {
              shell = host.runtimeShell;
              flakeRefs = lib.escapeShellArg (lib.concatStringsSep "," plan.start.flakeRefs);
              onDemand = if plan.onDemand == [ ] then "0" else "1";
              useFlake = if project.use_flake then "1" else "0";
              project = lib.escapeShellArg (lib.optionalString (project.path != null) project.path);
              tools = "${host.coreutils}/bin";
              start = lib.optionalString plan.start.buildAtStart "${start}";
              ofUser = lib.optionalString ofUser "1";
              scripts = "${scripts}";
              builder = lib.optionalString plan.start.buildAtStart (lib.getExe programs.builder);
              bubblewrap = lib.optionalString host.stdenv.hostPlatform.isLinux (lib.getExe' host.bubblewrap "bwrap");
              variablesOf = "${variablesOf}";
              packageOf = "${../wrapper/packageOf.nix}";
              nixpkgs = lib.optionalString plan.start.buildAtStart packages;
              system = pkgs.stdenv.hostPlatform.system;
              runtime = lib.getExe outside.runtime;
              operator = lib.getExe outside.operator;
              clients = "${clients}";
              gateway = lib.optionalString plan.hasGateway (lib.getExe outside.gateway);
            };
            meta = {
              description = "MCP server that runs code in sandboxes";
              license = lib.licenses.mit;
              mainProgram = "nix-sandbox-mcp";
              platforms = lib.platforms.linux ++ lib.platforms.darwin;
            };
          }
          ''
            mkdir -p $out/bin $out/share/nix-sandbox-mcp
            printf %s "$metadata" > $out/share/nix-sandbox-mcp/metadata.json
            printf %s "''${wrapper//@out@/$out}" > $out/bin/nix-sandbox-mcp
            chmod +x $out/bin/nix-sandbox-mcp

            export NIX_SANDBOX_CLIENTS=${clients}
            write() {
              mkdir -p "$(dirname "$out/share/$1")"
              ${lib.getExe outside.operator} "''${@:2}" > "$out/share/$1"
            }
            write man/man1/nix-sandbox-mcp.1 manual
            write bash-completion/completions/nix-sandbox-mcp completion bash
            write zsh/site-functions/_nix-sandbox-mcp completion zsh
            write fish/vendor_completions.d/nix-sandbox-mcp.fish completion fish
          '';
    in
    server
    // {
      inherit metadata start;
      environments = lib.listToAttrs (map (a: lib.nameValuePair (nameOf a) a) plan.artifacts);
    };
in
{
  problems = args: problemsOf args (read args);
  toBuild = args: (read args).toBuild;

  make =
    args:
    let
      plan = read args;
    in
    validate.orThrow (problemsOf args plan) (build {
      inherit plan;
      ofUser = false;
    });

  default = build {
    plan = read {
      config =
        if host.stdenv.hostPlatform.isLinux then
          ../../config.example.toml
        else
          let
            example = builtins.fromTOML (builtins.readFile ../../config.example.toml);
          in
          example
          // {
            defaults = example.defaults // {
              backend = "vm";
            };
            # Machines share no files.
            session = example.session // {
              shared_files = false;
            };
          };
    };
    ofUser = true;
  };
}
