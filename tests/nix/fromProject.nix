{ pkgs, library, ... }:
let
  inherit (library) fromProject problems;
  inherit (pkgs.stdenv.hostPlatform) system;

  outputs.devShells.${system}.default = pkgs.mkShell {
    packages = [ pkgs.jq ];
    GREETING = "hello";
  };
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
        max_timeout_seconds = 600;
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
    expected = [ "fromProject lacks project: use fromProject { project = inputs.project; }" ];
  };
  testProjectOfWrongType = {
    expr = problems.fromProject { project = "/project"; };
    expected = [
      "fromProject: project is \"/project\": use the outputs of a flake, or set PROJECT_DIR to the folder and PROJECT_USE_FLAKE to 1"
    ];
  };
  testProjectWithoutAShell = {
    expr = problems.fromProject { project.packages = { }; };
    expected = [
      "fromProject: the flake has no devShells.${system}.default: define one with mkShell, or leave PROJECT_USE_FLAKE unset"
    ];
  };
  testProjectWithAStrangeShell = {
    expr = problems.fromProject { project.devShells.${system}.default = "bash"; };
    expected = [
      "fromProject: from_shell is \"bash\": use a shell that mkShell made, such as devShells.x86_64-linux.default"
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
