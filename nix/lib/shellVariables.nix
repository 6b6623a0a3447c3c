# The environment variables of a development shell, as `nix develop` finds
# them: by a build that runs the set-up of the shell's own stdenv, with the
# hooks of its packages. $out is a file of NAME=VALUE, each ended by a zero byte.
#
# What the build itself brings is left out: its folders, its number of
# processors, the attributes that stdenv acts on. So the result is the same
# wherever it is built. The shellHook is not run; it belongs to a person's
# shell and may do anything.
{
  # What mkShell gives.
  shell,
  # The package whose programs come first on the PATH.
  programs,
  # Names of variables that the sandbox sets itself.
  except,
}:
derivation (
  removeAttrs shell.drvAttrs [
    "outputHash"
    "outputHashAlgo"
    "outputHashMode"
  ]
  // {
    name = "sandbox-variables";
    outputs = [ "out" ];
    args = [
      "-e"
      ./shellVariables.sh
    ];
    sandboxPrograms = "${programs}/bin";
    sandboxExcept = toString except;
  }
)
