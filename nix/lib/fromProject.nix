# fromProject makes the development shell of a project's flake into an artifact,
# the environment `project`:
#
#   fromProject { project = inputs.project; }
#
# `project` is the outputs of the flake. Whatever else is given goes to
# mkSandbox. The folder of a project whose author is not trusted is a matter of
# the wrapper: see nix/wrapper/project.sh.
{
  lib,
  validate,
  sandbox,
  system,
}:
let
  inherit (builtins) isAttrs;

  usual = {
    name = "project";
    description = "The project's own development shell, in bash";
  };

  # Agents expect git, ripgrep and the like, which few shells name. The shell's own programs come first.
  withTools =
    shell:
    if !(isAttrs shell) then shell else shell // { behind = (sandbox.build { name = "shell"; preset = "shell"; }).environment; };

  shellOf =
    project: project.devShells.${system}.default or project.devShell.${system} or null;

  values =
    { project, ... }@args: usual // { from_shell = withTools (shellOf project); } // removeAttrs args [ "project" ];

  problems =
    args:
    if !(isAttrs args && args ? project) then
      [ "fromProject lacks project: use fromProject { project = inputs.project; }" ]
    else if !(isAttrs args.project) then
      [
        "fromProject: project is ${validate.show args.project}: use the outputs of a flake, or set PROJECT_DIR to the folder and PROJECT_USE_FLAKE to 1"
      ]
    else if shellOf args.project == null then
      [
        "fromProject: the flake has no devShells.${system}.default: define one with mkShell, or leave PROJECT_USE_FLAKE unset"
      ]
    else
      sandbox.problemsAt "fromProject:" (values args);
in
{
  inherit problems;

  make = args: validate.orThrow (problems args) (sandbox.build (values args));

  # The same of a file of variables that shellVariables.nix made.
  ofVariables = sandboxVariables: sandbox.build (usual // { from_shell = withTools { inherit sandboxVariables; }; });
}
