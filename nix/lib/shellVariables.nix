# The environment variables of a development shell, as `nix develop` finds
# them: by a build that runs the set-up of the shell's own stdenv, with the
# hooks of its packages. $out is a file of NAME=VALUE, each ended by a zero byte.
#
# Variables of the build itself are left out: its folders, its number of
# processors, the attributes that stdenv acts on. So the result is the same
# wherever it is built. The shellHook does not run: it is meant for an
# interactive shell and may do anything.
#
# This needs nothing but its arguments, so that the wrapper can give its text to
# an evaluation that may read no other file.
{
  # The text of shellVariables.sh.
  builder,
  # What mkShell gives.
  shell,
}:
derivation (
  # These hold for what the derivation builds, and not for its variables.
  removeAttrs shell.drvAttrs [
    "allowedReferences"
    "allowedRequisites"
    "disallowedReferences"
    "disallowedRequisites"
    "outputChecks"
    "outputHash"
    "outputHashAlgo"
    "outputHashMode"
  ]
  // {
    name = "sandbox-shell-variables";
    outputs = [ "out" ];
    args = [
      "-e"
      (builtins.toFile "shellVariables.sh" builder)
    ];
  }
)
