# What is installed on a machine or for a user: the environments, for their
# sandbox folder, and a server that has the settings and finds the
# environments there, like every other server that reads the folder.
{
  fromOptions,
  mkServer,
}:
{
  prefix,
  values,
  # { buildAtStart; flakeRefs; }
  start,
}:
let
  written = fromOptions { inherit prefix values; };
in
{
  inherit (written) environments;
  server = mkServer (
    {
      environments = { };
      inherit (written) on_demand session project;
    }
    // builtins.intersectAttrs { serve = null; tools = null; } written
    // start
  );
}
