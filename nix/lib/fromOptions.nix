# fromOptions turns the values of a module's options into artifacts: fromToml's
# values, with packages as well as their names, shells, and artifacts that are
# made already.
{
  options,
  validate,
  configuration,
}:
let
  dialect = prefix: {
    location = table: "${prefix}.${table}:";
    top = "${prefix}:";
    environment = options.module;
    example = null;
  };

  problems =
    { prefix, values }:
    let
      words = dialect prefix;
    in
    configuration.problems words (configuration.environmentProblems words) values;
in
{
  inherit problems;

  make = args: validate.orThrow (problems args) (configuration.build args.values);
}
