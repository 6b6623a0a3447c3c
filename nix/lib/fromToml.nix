# fromToml turns a configuration file into artifacts.
{
  lib,
  options,
  check,
  configuration,
}:
let
  inherit (builtins) attrNames isAttrs;

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

  dialect = file: {
    place = table: "${file}: [${table}]";
    top = "${file}:";
    inherit (options) environment;
    example = "[environments.python] and preset = \"python\" below it";
  };

  # What a configuration can only say to a server that reads it when it starts.
  atStart = {
    flake = "a flake is built by its own lock file, so give its mkSandbox artifact to mkServer's environments";
    sandbox = "a build takes no artifact by its path, so give the artifact itself to mkServer's environments";
  };

  problems =
    config:
    let
      inherit (read config) file values;
      words = dialect file;
      each =
        name: own:
        let
          early = lib.filter (key: isAttrs own && own ? ${key}) (attrNames atStart);
        in
        if early == [ ] then
          configuration.environmentProblems words name own
        else
          map (
            key:
            "${words.place "environments.${name}"} ${key} belongs to a server's start, not to its build: ${atStart.${key}}"
          ) early;
    in
    if !(builtins.isPath config || lib.isString config || isAttrs config) then
      [ "fromToml is given ${check.show config}: write the path of a TOML file" ]
    else
      configuration.problems words each values;
in
{
  inherit problems;

  make = config: check.orThrow (problems config) (configuration.build (read config).values);
}
