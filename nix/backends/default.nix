# The ways to isolate a sandbox, by name. Each is a set { problems; make; }.
# `problems` takes the place to name, and lists sentences about a platform where
# the backend does not work. `make` takes
#
#   {
#     name, environment, variables, shellVariables, binds, command, driver,
#     pipe, memory_mb, pids, workspace_mb
#   }
#
# where `environment` is the package of the programs, `variables` the
# environment variables, `shellVariables` a file of those that a shell
# brings (see lib/shellVariables.nix) or null, `binds` a list of { from; to; }
# that the sandbox sees of the host, read-only, `command` the interpreter's
# command line, a list, `driver` the folder of its driver or null, and `pipe`
# whether a command without a driver reads its code from stdin, and gives
#
#   { run, sessionRun, attach, closure, contents }
#
# the contents of bin/run, bin/session-run and bin/attach, a hash that names
# everything inside the sandbox, and the folder that holds it.
{ pkgs, programs }:
{
  jail = import ./jail.nix { inherit pkgs programs; };
}
