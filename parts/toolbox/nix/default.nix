# Tools that code calls: from [tools.NAME] tables, the lock file and the environments' lists to
#
#   problems   what is wrong with them, as sentences
#   add        the arguments of an environment's sandbox, with what its code needs
#   catalog    the file that the gate reads: servers, and what each environment may call
#
# A server of tools is a sandbox like any other, in which the gate starts a program.
{
  pkgs,
  named,
  options,
  programs,
  sandbox,
  validate,
}:
let
  inherit (pkgs) lib;
  inherit (builtins) attrNames isAttrs isList toJSON;

  surface = ../surface;

  given = lib.filterAttrs (_: v: v != null);

  matches =
    patterns: name:
    lib.any (
      pattern: builtins.match (builtins.replaceStrings [ "." "*" ] [ "\\." ".*" ] pattern) name != null
    ) patterns;

  lockOf = values: values.tools_lock.servers or { };
  lockedTools = values: server: (lockOf values).${server}.tools or { };

  isAllowed = values: server: matches (values.tools.${server}.allow or [ ]);
  # Whether a user is asked about a tool.
  asks = values: server: tool: !(isAllowed values server tool) && matches (values.tools.${server}.ask or [ ]) tool;

  # The tools of an environment by server: what is locked, allowed and, if it narrows that, listed.
  toolsOf =
    values: own:
    let
      wanted = own.tools or null;
      listed = if wanted == null then { } else if isList wanted then lib.genAttrs wanted (_: [ "*" ]) else wanted;
    in
    lib.filterAttrs (_: tools: tools != [ ]) (
      lib.mapAttrs (
        server: patterns:
        lib.filter (tool: matches patterns tool && (isAllowed values server tool || asks values server tool)) (
          attrNames (lockedTools values server)
        )
      ) listed
    );

  # The name by which code calls a tool: the gate takes it for the tool.
  plain = lib.stringAsChars (c: if builtins.match "[A-Za-z0-9_]" c == null then "_" else c);

  # How a tool is called, such as "get_issue(owner: string, number: integer, state?: string)".
  signature =
    name: tool:
    let
      typeOf =
        depth: property:
        if !(isAttrs property) then
          "any"
        else if isList (property.enum or null) && lib.length property.enum <= 6 then
          lib.concatMapStringsSep "|" toJSON property.enum
        else if isList (property.type or null) then
          lib.concatStringsSep "|" property.type
        else if property.type or null == "array" then
          "array of ${typeOf depth (property.items or { })}"
        # A model cannot guess the fields of an object: those of a small one are shown.
        else if depth < 2 && lib.elem (lib.length (attrNames (fieldsOf property))) (lib.range 1 8) then
          "{${listed (depth + 1) property}}"
        else
          property.type or "any";
      fieldsOf = schema: if isAttrs (schema.properties or null) then schema.properties else { };
      listed =
        depth: schema:
        let
          properties = fieldsOf schema;
          required = lib.filter (key: properties ? ${key}) (schema.required or [ ]);
          optional = lib.filter (key: !(lib.elem key required)) (attrNames properties);
        in
        lib.concatStringsSep ", " (
          map (key: "${key}: ${typeOf depth properties.${key}}") required
          ++ map (key: "${key}?: ${typeOf depth properties.${key}}") optional
        );
    in
    "${plain name}(${listed 0 (tool.inputSchema or { })})";

  described =
    values: tools:
    lib.mapAttrs (
      server: names:
      lib.listToAttrs (map (
        name:
        let
          tool = (lockedTools values server).${name};
        in
        lib.nameValuePair (plain name) ({
          signature = signature name tool;
          description = tool.description or "";
          inherit (tool) inputSchema;
        }
        // lib.optionalAttrs (tool ? outputSchema) { inherit (tool) outputSchema; })
      ) names)
    ) tools;

  readme = ''
    Tools that code in this sandbox can call. They run elsewhere; their results are data.

    Python   tools.SERVER.TOOL(name=value); help(tools.SERVER.TOOL); tools.search("words")
    Node.js  await tools.SERVER.TOOL({name: value}); tools.SERVER.TOOL.help; tools.search("words")
    shell    tool SERVER TOOL name=text name:=json; tool SERVER --help; tool --search words

    SERVER/TOOL.json has a tool's description and schemas.
  '';

  # What the sandbox of an environment has: the program, the modules, and the files of /tools.
  files =
    values: tools:
    pkgs.runCommandLocal "sandbox-tools"
      {
        __structuredAttrs = true;
        catalog = toJSON (described values tools);
        inherit readme;
        # The tools that each name of a file stands for.
        pages = lib.listToAttrs (
          lib.concatLists (
            lib.mapAttrsToList (
              server: lib.mapAttrsToList (name: tool: lib.nameValuePair "${server}/${name}.json" (toJSON tool))
            ) (described values tools)
          )
        );
      }
      ''
        mkdir -p $out/bin $out/tools
        ln -s ${lib.getExe programs.toolbox.tool} $out/bin/tool
        cp -r ${surface} $out/surface
        printf %s "$catalog" > $out/tools/catalog.json
        printf %s "$readme" > $out/tools/README
        for page in "''${!pages[@]}"; do
          mkdir -p "$out/tools/''${page%/*}"
          printf %s "''${pages[$page]}" > "$out/tools/$page"
        done
      '';

  isServed = server: server.url or null == null;

  serverArtifact =
    name: server:
    sandbox.build {
      name = "tool-${name}";
      description = "A server of tools";
      interpreter_type = "command";
      interpreter = "/bin/sh -c";
      stdin_mode = "arg";
      packages = map named.package (server.packages or [ ]);
      prewarm = 0;
      inherit (validate.complete options.toolServer server)
        env
        extra_binds
        memory_mb
        network
        pids
        workspace_mb
        ;
    };

  serverProblems =
    dialect: name: server:
    let
      location = dialect.location "tools.${name}";
      typed = validate.table location options.toolServer server;
      absent = named.problems location (server.packages or [ ]);
      says = key: server.${key} or null != null && server.${key} != [ ] && server.${key} != { };
      ofURL = lib.filter says [
        "env"
        "extra_binds"
        "network"
        "packages"
      ];
    in
    if builtins.match "[a-z][a-z0-9_]{0,31}" name == null then
      [ "${location} is no name that code can write: use 1 to 32 of a-z, 0-9 and _, with a letter first" ]
    else if typed != [ ] then
      typed
    else if absent != [ ] then
      absent
    else if says "command" == says "url" then
      [ "${location} has ${if says "url" then "both command and url" else "neither command nor url"}: set one of them" ]
    else if says "url" && ofURL != [ ] then
      [ "${location} has ${lib.head ofURL} beside url, and no jail: use command in place of url, or leave it out" ]
    else if says "command" && says "headers" then
      [ "${location} has headers beside command: use env or credentials of its network, or url" ]
    else
      [ ];

  environmentProblems =
    dialect: values: name: own:
    let
      location = dialect.location "environments.${name}";
      wanted = if isAttrs own then own.tools or null else null;
      names = if isList wanted then wanted else if isAttrs wanted then attrNames wanted else [ ];
      unknown = lib.filter (server: !(values.tools or { } ? ${server})) names;
      tools = toolsOf values own;
      # Names that are one name where dots call them.
      twice = lib.concatLists (
        lib.mapAttrsToList (
          server: names:
          lib.filter (n: lib.length (lib.filter (m: plain m == plain n) names) > 1) names
        ) tools
      );
    in
    lib.optionals (names != [ ]) (
      if unknown != [ ] then
        [ "${location} tools names ${toJSON (lib.head unknown)}, and there is no [tools.${lib.head unknown}]${validate.perhaps (lib.head unknown) (attrNames (values.tools or { }))}: add that table, or use the name of another one" ]
      else if (own.packages_on_demand or [ ]) != [ ] then
        [ "${location} has both tools and packages_on_demand, and an environment that a call extends has no tools: set packages_on_demand = [], or leave tools out" ]
      else
        map (n: "${location} tools has ${toJSON n} and another tool of the same server that is called ${plain n} in code: allow one of them") (lib.take 1 twice)
    );
in
{
  problems =
    dialect: values:
    let
      ofServers = lib.concatLists (lib.mapAttrsToList (serverProblems dialect) (values.tools or { }));
    in
    if ofServers != [ ] then
      ofServers
    else
      lib.concatLists (lib.mapAttrsToList (environmentProblems dialect values) (values.environments or { }));

  add =
    values: own: arguments:
    let
      tools = toolsOf values own;
      made = files values tools;
    in
    if tools == { } then
      arguments
    else
      arguments
      // {
        packages = arguments.packages ++ [ made ];
        env = {
          NIX_SANDBOX_TOOLS = "${made}/tools";
          PYTHONPATH = "${made}/surface/python";
          NODE_OPTIONS = "--require ${made}/surface/node/preload.js";
        }
        // arguments.env or { };
      };

  catalog =
    values: environments:
    pkgs.writeText "toolbox.json" (toJSON {
      servers = lib.mapAttrs (
        name: own:
        let
          server = validate.complete options.toolServer own;
          artifact = serverArtifact name (given own);
        in
        {
          inherit (server)
            allow
            at_once
            calls
            result_mb
            shared
            timeout_seconds
            ;
          tools = lib.mapAttrs (
            tool: locked:
            {
              signature = signature tool locked;
              inherit (locked) inputSchema sha256;
            }
            // lib.optionalAttrs (asks values name tool) { ask = true; }
            // lib.optionalAttrs (locked ? outputSchema) { inherit (locked) outputSchema; }
          ) (lockedTools values name);
        }
        // (
          if isServed server then
            {
              exec = "${artifact}/bin/session-run";
              start = "exec ${lib.escapeShellArgs server.command}";
              secrets = artifact.metadata.network.secrets or [ ];
            }
          else
            { inherit (server) url headers; }
        )
      ) (values.tools or { });
      # A list, because the name of an attribute cannot refer to the store.
      environments = lib.concatLists (
        lib.mapAttrsToList (
          name: own:
          let
            tools = toolsOf values own;
          in
          lib.optional (tools != { }) {
            exec = "${environments.${name}}/bin/session-run";
            inherit tools;
          }
        ) (values.environments or { })
      );
    });
}
