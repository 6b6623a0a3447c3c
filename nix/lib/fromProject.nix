# fromProject makes a project's own development shell into an artifact, the
# environment `project`:
#
#   fromProject { project = "/home/me/project"; }
#
# `project` is a folder with a flake.nix in it or above it (evaluation is
# then impure), or the outputs of a flake that is there already. Whatever else
# is given goes to mkSandbox.
{
  lib,
  validate,
  sandbox,
  system,
}:
let
  inherit (builtins) isAttrs isString toJSON;

  # The folder that has a file of this name, or the next above that has.
  find =
    file: path:
    if builtins.pathExists (path + "/${file}") then
      path
    else if path == "/" then
      null
    else
      find file (dirOf path);

  # Whether a flake in a folder leaves open what its inputs are.
  isOpen =
    folder:
    (import (folder + "/flake.nix")).inputs or { } != { }
    && !(builtins.pathExists (folder + "/flake.lock"));

  # Of a checkout, git's files alone go into the store, and not what lies
  # beside them untracked, such as secrets; so do Nix's commands.
  reference =
    folder:
    let
      root = find ".git" folder;
      flake = find "flake.nix" folder;
      inside = lib.removePrefix "/" (lib.removePrefix root flake);
      # What ends a path in a reference.
      escape = builtins.replaceStrings [ "%" "?" "#" " " ] [ "%25" "%3F" "%23" "%20" ];
    in
    if flake == null then
      null
    else if root == null || !(lib.hasPrefix root flake) then
      "path:${escape flake}"
    else
      "git+file://${escape root}${lib.optionalString (inside != "") "?dir=${escape inside}"}";

  # { location; outputs; } or { problem; }.
  open =
    project:
    if isAttrs project then
      {
        location = "fromProject: the flake";
        outputs = project;
      }
    else if !(isString project && lib.hasPrefix "/" project) then
      { problem = "fromProject: project is ${validate.show project}: write the absolute path of a folder"; }
    else
      let
        found = reference project;
      in
      if !(builtins.pathExists project) then
        { problem = "fromProject: ${project} does not exist: write the path of the project's folder"; }
      else if found == null then
        {
          problem = "fromProject: ${project} has no flake.nix in it or above it: write one with devShells.${system}.default, or leave PROJECT_USE_FLAKE unset";
        }
      else if isOpen (find "flake.nix" project) then
        {
          problem = "fromProject: the flake of ${project} has inputs and no flake.lock: write it with `nix flake lock` and `git add`";
        }
      else
        {
          location = "fromProject: the flake of ${project}";
          outputs = builtins.getFlake found;
        };

  describe =
    { project, ... }@args:
    let
      opened = open project;
      shell = opened.outputs.devShells.${system}.default or opened.outputs.devShell.${system} or null;
      values = {
        name = "project";
        description = "The project's own development shell, in bash";
        from_shell = shell;
      }
      // removeAttrs args [ "project" ];
    in
    if opened ? problem then
      { problems = [ opened.problem ]; }
    else if shell == null then
      {
        problems = [
          "${opened.location} has no devShells.${system}.default: write one with mkShell, or leave PROJECT_USE_FLAKE unset"
        ];
      }
    else
      {
        inherit values;
        problems = sandbox.problemsAt "fromProject:" values;
      };

  problems =
    args:
    if isAttrs args && args ? project then
      (describe args).problems
    else
      [ "fromProject lacks project: write fromProject { project = ${toJSON "/path/of/a/project"}; }" ];
in
{
  inherit problems reference;

  make = args: validate.orThrow (problems args) (sandbox.build (describe args).values);
}
