# Stands in for the toolbox if a server reads a configuration when it starts: it has neither the
# toolbox's sources nor its programs.
{ lib, checks }:
{
  inherit checks;

  add = _: _: arguments: arguments;
  catalog = _: _: null;
  problems =
    dialect: values:
    lib.optional (values.tools or { } != { })
      "${dialect.location "tools"} is in a configuration that is read when the server starts, and servers of tools are built with the server: give this file to mkServer, or leave the table out"
    ++ lib.concatLists (
      lib.mapAttrsToList (
        name: own:
        lib.optional (builtins.isAttrs own && own.tools or null != null)
          "${dialect.location "environments.${name}"} tools is in a configuration that is read when the server starts: give this file to mkServer, or leave it out"
      ) (values.environments or { })
    );
}
