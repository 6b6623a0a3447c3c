# The ways to isolate a sandbox, by name. Each is a function of
#
#   { name, environment, variables, driver, memory_mb, pids, workspace_mb }
#
# where `environment` is the package whose bin is the PATH, `variables` the
# environment variables and `driver` the agent's words for the interpreter, to
#
#   { run, sessionRun, closure }
#
# the contents of bin/run and bin/session-run, and a hash that names
# everything inside the sandbox.
{ pkgs, programs }:
{
  jail = import ./jail.nix { inherit pkgs programs; };
}
