# mkServer makes the server: bin/nix-sandbox-mcp, which is the runtime with
# the metadata of its environments.
{
  pkgs,
  programs,
  options,
  check,
  toml,
}:
let
  inherit (pkgs) lib;
  inherit (builtins) attrNames isAttrs toJSON;

  arguments = [
    "config"
    "environments"
    "flakeRefs"
    "project"
    "session"
  ];

  # A list of artifacts, or a set of them by name as fromToml gives it.
  artifactsIn = environments: if isAttrs environments then lib.attrValues environments else environments;

  fromConfig = args: if args.config or null == null then { } else toml.make args.config;

  artifacts =
    args: artifactsIn ((fromConfig args).environments or { }) ++ artifactsIn (args.environments or [ ]);

  nameOf = artifact: artifact.metadata.name;

  problems =
    args:
    let
      own = args.environments or [ ];
      strangers = lib.filter (a: !(isAttrs a && a ? outPath && isAttrs (a.metadata or null))) (
        artifactsIn own
      );
      all = artifacts args;
      twice = lib.filter (name: lib.length (lib.filter (a: nameOf a == name) all) > 1) (
        lib.unique (map nameOf all)
      );
    in
    if !(isAttrs args) then
      [ "mkServer is given ${check.show args}: write mkServer { config = ./config.toml; }" ]
    else if !(lib.isList own || isAttrs own) then
      [ "mkServer: environments is ${check.show own}: write a list of mkSandbox artifacts" ]
    else if lib.any (key: !(lib.elem key arguments)) (attrNames args) then
      check.unknown "mkServer:" "argument" arguments args
    else if args.config or null != null && toml.problems args.config != [ ] then
      toml.problems args.config
    else if strangers != [ ] then
      map (a: "mkServer: environments has ${check.show a} in it: write what mkSandbox gives") strangers
    else
      map (name: "mkServer: two environments are called ${toJSON name}: rename one of them") twice
      # An empty list is a server for what sandbox folders hold.
      ++ lib.optional (
        all == [ ] && !(args ? environments) && !(args ? flakeRefs)
      ) "mkServer: has no environment: write config = ./config.toml or environments = [ … ]"
      ++ check.values "mkServer:" { inherit (options) flakeRefs; } (builtins.intersectAttrs { flakeRefs = null; } args)
      ++ lib.optionals (args ? session) (check.table "mkServer: session:" options.session args.session)
      ++ lib.optionals (args ? project) (check.table "mkServer: project:" options.project args.project);

  metadataOf =
    args:
    let
      configured = fromConfig args;
      settings = table: check.complete options.${table} (configured.${table} or { } // args.${table} or { });
    in
    {
      schema = 1;
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
        ) (artifacts args)
      );
      session = settings "session";
      project = lib.filterAttrs (_: v: v != null) (settings "project");
    };

  build =
    args:
    let
      metadata = metadataOf args;
      flakeRefs = lib.concatStringsSep "," (args.flakeRefs or [ ]);
      server =
        pkgs.runCommandLocal "nix-sandbox-mcp-${programs.version}"
          {
            passAsFile = [ "metadata" ];
            metadata = toJSON metadata;
            meta = {
              description = "MCP server that runs code in sandboxes";
              license = lib.licenses.mit;
              mainProgram = "nix-sandbox-mcp";
              platforms = lib.platforms.linux;
            };
          }
          ''
            mkdir -p $out/bin $out/share/nix-sandbox-mcp
            cp "$metadataPath" $out/share/nix-sandbox-mcp/metadata.json
            cat > $out/bin/nix-sandbox-mcp <<EOF
            #!${pkgs.runtimeShell}
            export NIX_SANDBOX_METADATA="\''${NIX_SANDBOX_METADATA-$out/share/nix-sandbox-mcp/metadata.json}"
            ${lib.optionalString (flakeRefs != "") ''
              NIX_SANDBOX_ENVS=${lib.escapeShellArg flakeRefs}"\''${NIX_SANDBOX_ENVS:+,\$NIX_SANDBOX_ENVS}"
              export NIX_SANDBOX_ENVS
            ''}
            exec ${lib.getExe programs.runtime} "\$@"
            EOF
            chmod +x $out/bin/nix-sandbox-mcp
          '';
    in
    server
    // {
      inherit metadata;
      environments = lib.listToAttrs (map (a: lib.nameValuePair (nameOf a) a) (artifacts args));
    };
in
{
  inherit problems;

  make = args: check.orThrow (problems args) (build args);
}
