# A configuration, wherever it was written: { defaults; environments; on_demand;
# project; serve; session; } becomes artifacts. Each environment is a preset, packages of its
# own, or both, completed by the defaults, and made by mkSandbox like any
# other sandbox.
#
# A dialect says how such values are written somewhere:
#
#   {
#     location      a table's name -> the words that name it in a sentence
#     top           the words that name the whole
#     environment   the options of an environment
#     example       what to add if there is no environment at all
#     checking      whether it is only checked: then it may have what a server at its
#                   start has no programs for; false if left out
#   }
{
  pkgs,
  named,
  options,
  validate,
  sandbox,
  backends,
  toolbox,
}:
let
  inherit (pkgs) lib;
  inherit (builtins) isAttrs isString toJSON;

  tables = [
    "defaults"
    "environments"
    "on_demand"
    "project"
    "serve"
    "session"
    "tools"
    "tools_lock"
  ];

  isGiven = key: values: values.${key} or null != null;

  # The defaults are those of the configuration, if they are right by themselves.
  environmentProblems =
    dialect: defaults: name: values:
    let
      location = dialect.location "environments.${name}";
      plain = validate.table location dialect.environment values;
      ofName = validate.values location { name = options.mkSandbox.name; } { inherit name; };
      absent = named.problems location (values.packages or [ ]);
      # An artifact is complete: its other options were set when it was made.
      beside = lib.filter (key: key != "sandbox" && isGiven key values) (lib.attrNames values);
      called = values.sandbox.metadata.name or null;
    in
    if ofName != [ ] then
      ofName
    else if !(isAttrs values) then
      [ "${location} is ${validate.show values}: use a table" ]
    else if plain != [ ] then
      plain
    else if isGiven "sandbox" values then
      if beside != [ ] then
        [ "${location} has ${lib.head beside} beside sandbox: set it where that sandbox is made" ]
      else
        lib.optional (called != name)
          "${location} sandbox is called ${toJSON called}: rename the environment to ${called}, or give the sandbox this name where it is made"
    else if absent != [ ] then
      absent
    else if
      !(isGiven "preset" values)
      && !(isGiven "from_shell" values)
      && values.packages or [ ] == [ ]
    then
      [
        "${location} is empty: set preset = ${options.environment.preset.type.wanted}, or packages = [ … ]"
      ]
    else
      sandbox.problemsAt location (arguments defaults name values);

  # What mkSandbox gets for one environment.
  arguments =
    defaults: name: values:
    let
      own = lib.filterAttrs (_: value: value != null) values;
    in
    defaults
    // removeAttrs own [ "tools" ]
    // {
      inherit name;
      packages = map named.package (own.packages or [ ]);
    };

  # Settings for all environments that the backend of one does not have.
  unsupported =
    dialect: values: name: own:
    let
      backend = own.backend or values.defaults.backend or "jail";
    in
    lib.optionals (isAttrs own && isString backend) (
      (backends.${backend}.unsupported or (_: _: [ ])) dialect.location {
        inherit name;
        project = values.project or { };
        session = values.session or { };
      }
    );
in
{
  inherit environmentProblems;

  # Sentences about all but the environments, and then about each of those
  # by `each`, which for most is environmentProblems.
  problems =
    dialect: each: values:
    let
      isTable = table: isAttrs (values.${table} or { });
      wrong = lib.filter (table: !(isTable table)) tables;
      simple = table: validate.table (dialect.location table) options.${table} (values.${table} or { });
      declared = values.environments or { };
      defaults = lib.filterAttrs (_: v: v != null) (values.defaults or { });
      ofDefaults =
        let
          typed = simple "defaults";
        in
        if typed != [ ] then
          typed
        else
          validate.together (dialect.location "defaults") options.defaults defaults;
      ofSession = simple "session";
    in
    validate.unknown dialect.top "table" tables values
    ++ map (
      table: "${dialect.location table} is ${validate.show values.${table}}: use a table"
    ) wrong
    ++ lib.optionals (wrong == [ ]) (
      ofDefaults
      ++ ofSession
      ++ simple "on_demand"
      ++ simple "project"
      ++ simple "serve"
      ++ lib.optional (
        declared == { } && dialect.example != null
      ) "${dialect.top} has no environment: add ${dialect.example}"
      ++ lib.concatLists (
        lib.mapAttrsToList (each (if ofDefaults == [ ] then defaults else { })) declared
      )
      ++ lib.concatLists (lib.mapAttrsToList (unsupported dialect values) declared)
      ++ (if dialect.checking or false then toolbox.checks else toolbox.problems) dialect values
    );

  build =
    values:
    let
      defaults = lib.filterAttrs (_: v: v != null) (values.defaults or { });
      environments = lib.mapAttrs (
        name: own:
        if isGiven "sandbox" own then
          own.sandbox
        else
          # The answer to a refusal names the table that an operator is to change.
          sandbox.build (
            toolbox.add values own (sandbox.withPreset (arguments defaults name own))
            // {
              of_defaults = defaults ? network && !(isGiven "network" own);
            }
          )
      ) (values.environments or { });
    in
    {
      inherit environments;
      on_demand = validate.complete options.on_demand (values.on_demand or { });
      session = validate.complete options.session (values.session or { });
      project = validate.complete options.project (values.project or { });
    }
    # A server without this table has no gateway.
    // lib.optionalAttrs (values ? serve) {
      serve = validate.complete options.serve values.serve;
    }
    # Nor has one without tools anything of the toolbox.
    // lib.optionalAttrs (values.tools or { } != { }) {
      tools = toolbox.catalog values environments;
    };
}
