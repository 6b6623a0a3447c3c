# fromToml turns a configuration file into artifacts: each [environments.NAME]
# is a preset or packages of its own, completed by [defaults], and made by
# mkSandbox like any other sandbox.
{
  pkgs,
  options,
  check,
  environments,
  sandbox,
}:
let
  inherit (pkgs) lib;
  inherit (builtins) attrNames isAttrs toJSON;

  # A path is a TOML file, a set is what such a file holds.
  read =
    config:
    if isAttrs config then
      {
        file = "config";
        values = config;
      }
    else
      {
        file = baseNameOf (toString config);
        values = builtins.fromTOML (builtins.readFile config);
      };

  tables = [
    "defaults"
    "environments"
    "project"
    "session"
  ];

  # What a configuration can only say to a server that reads it when it starts.
  atStart = {
    environment = {
      flake = "a flake is built by its own lock file, so give its mkSandbox artifact to mkServer's environments";
      sandbox = "a build takes no artifact by its path, so give the artifact itself to mkServer's environments";
    };
    project.use_flake = "which project it will be is not known before, so leave it out";
  };
  tooEarly =
    place: table: values:
    map (key: "${place} ${key} belongs to a server's start, not to its build: ${atStart.${table}.${key}}") (
      lib.filter (key: values ? ${key}) (attrNames atStart.${table})
    );

  # pkgs.a.b for "a.b", or null.
  package =
    name:
    let
      found = lib.attrByPath (lib.splitString "." name) null pkgs;
    in
    if isAttrs found && found ? outPath then found else null;

  environmentProblems =
    place: name: values:
    let
      early = tooEarly place "environment" values;
      plain = check.table place options.environment values;
      named = check.values place { name = options.mkSandbox.name; } { inherit name; };
      absent = lib.filter (p: package p == null) (values.packages or [ ]);
      whole = sandbox.problemsAt place (arguments { } name values);
    in
    if named != [ ] then
      named
    else if !(isAttrs values) then
      [ "${place} is ${check.show values}: write a table" ]
    else if early != [ ] then
      early
    else if plain != [ ] then
      plain
    else if absent != [ ] then
      map (p: "${place} packages names ${toJSON p}: nixpkgs has no package of that name") absent
    else if values.preset or null == null && values.packages or [ ] == [ ] then
      [
        "${place} has nothing in it: write preset = ${options.environment.preset.type.wanted}, or packages = [ … ]"
      ]
    else
      whole;

  # What mkSandbox gets for one environment.
  arguments =
    defaults: name: values:
    let
      preset = if values.preset or null == null then { packages = [ ]; } else environments.${values.preset};
    in
    # An environment's own interpreter is not of the preset's type.
    (if values ? interpreter then removeAttrs preset [ "interpreter_type" ] else preset)
    // defaults
    // removeAttrs values [ "preset" ]
    // {
      inherit name;
      packages = preset.packages ++ map package (values.packages or [ ]);
    };

  problems =
    config:
    let
      inherit (read config) file values;
      place = table: "${file}: [${table}]";
      declared = values.environments or { };
      project = values.project or { };
      isTable = table: isAttrs (values.${table} or { });
      wrong = lib.filter (table: !(isTable table)) tables;
    in
    if !(builtins.isPath config || lib.isString config || isAttrs config) then
      [ "fromToml is given ${check.show config}: write the path of a TOML file" ]
    else
      check.unknown "${file}:" "table" tables values
      ++ map (table: "${place table} is ${check.show values.${table}}: write a table") wrong
      ++ lib.optionals (wrong == [ ]) (
        check.table (place "defaults") options.defaults (values.defaults or { })
        ++ check.table (place "session") options.session (values.session or { })
        ++ tooEarly (place "project") "project" project
        ++ check.table (place "project") options.project (removeAttrs project (attrNames atStart.project))
        ++ lib.optional (declared == { }) "${file}: has no environment: write [environments.python] and preset = \"python\" below it"
        ++ lib.concatLists (
          lib.mapAttrsToList (name: environmentProblems (place "environments.${name}") name) declared
        )
      );
in
{
  inherit problems;

  make =
    config:
    let
      inherit (read config) values;
    in
    check.orThrow (problems config) {
      environments = lib.mapAttrs (
        name: own: sandbox.build (arguments (values.defaults or { }) name own)
      ) values.environments;
      session = check.complete options.session (values.session or { });
      project = check.complete options.project (values.project or { });
    };
}
