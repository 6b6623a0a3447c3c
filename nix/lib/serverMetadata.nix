# What the server's metadata holds besides its environments
# (docs/contracts.md, C2): the settings with their defaults filled in, and
# what the runtime must know of sandboxes without knowing how they are made.
{
  lib,
  options,
  interpreters,
}:
{
  on_demand,
  project,
  serve,
  session,
}:
{
  schema = 1;

  # The fields of environments that artifacts of earlier versions lack.
  defaults =
    lib.mapAttrs (_: option: option.default or null) (
      removeAttrs options.published [
        "backend"
        "name"
      ]
    )
    // {
      closure = "";
      description = "";
      interpreter_type = "command";
      needs = "";
    };
  interpreters = lib.mapAttrs (_: known: known.language) interpreters;

  inherit on_demand session;
  # There is always a class for those who have none.
  serve = serve // {
    quotas = {
      default = lib.mapAttrs (_: row: row.default or null) options.serve.quotas.type.each;
    }
    // serve.quotas;
  };
  project = project // {
    modes = options.project.mode.type.choices;
    refused_modes = options.project.mode.type.reasons;
    reserved = import ./reserved.nix;
  };
  inbox.mount_point = import ./inbox.nix;
}
