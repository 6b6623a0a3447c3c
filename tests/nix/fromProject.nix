{ pkgs, library, ... }:
let
  inherit (library) fromProject problems;
  inherit (pkgs.stdenv.hostPlatform) system;

  outputs.devShells.${system}.default = pkgs.mkShell {
    packages = [ pkgs.jq ];
    GREETING = "hello";
  };
  here = toString ./.;
in
{
  testProjectIsASandboxForBash = {
    expr =
      let
        inherit (fromProject { project = outputs; }) metadata;
      in
      [
        metadata.name
        metadata.interpreter_type
        metadata.timeout_seconds
      ];
    expected = [
      "project"
      "bash"
      30
    ];
  };
  testProjectTakesLimits = {
    expr = removeAttrs (fromProject {
      project = outputs;
      timeout_seconds = 600;
      interpreter = "python3 -c";
    }).metadata [
      "closure"
      "language"
    ];
    expected =
      let
        usual = (fromProject { project = outputs; }).metadata;
      in
      removeAttrs usual [
        "closure"
        "language"
      ]
      // {
        timeout_seconds = 600;
        interpreter = "python3 -c";
        interpreter_type = "python";
      };
  };
  testProjectOfAnOlderFlake = {
    expr = problems.fromProject { project.devShell.${system} = outputs.devShells.${system}.default; };
    expected = [ ];
  };

  # Mistakes
  testProjectIsMissing = {
    expr = problems.fromProject { };
    expected = [ "fromProject lacks project: write fromProject { project = \"/path/of/a/project\"; }" ];
  };
  testProjectOfWrongType = {
    expr = problems.fromProject { project = "project"; };
    expected = [
      "fromProject: project is \"project\": write the absolute path of a folder"
    ];
  };
  testProjectThatIsNotThere = {
    expr = problems.fromProject { project = "${here}/none"; };
    expected = [
      "fromProject: ${here}/none does not exist: write the path of the project's folder"
    ];
  };
  testProjectWithoutALock = {
    expr = problems.fromProject { project = "${here}/../e2e/testdata/project"; };
    expected = [
      "fromProject: the flake of ${here}/../e2e/testdata/project has inputs and no flake.lock: write it with `nix flake lock` and `git add`"
    ];
  };
  testProjectWithoutAShell = {
    expr = problems.fromProject { project.packages = { }; };
    expected = [
      "fromProject: the flake has no devShells.${system}.default: write one with mkShell, or leave PROJECT_USE_FLAKE unset"
    ];
  };
  testProjectWithAStrangeShell = {
    expr = problems.fromProject { project.devShells.${system}.default = "bash"; };
    expected = [
      "fromProject: from_shell is \"bash\": write a shell that mkShell made, such as devShells.x86_64-linux.default"
    ];
  };
  testProjectWithAnUnknownOption = {
    expr = builtins.length (
      problems.fromProject {
        project = outputs;
        timeout = 5;
      }
    );
    expected = 1;
  };
}
