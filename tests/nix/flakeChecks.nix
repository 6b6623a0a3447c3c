# checks.nix, which the flake's checks are.
{ pkgs, lib, ... }:
let
  evaluation =
    tests:
    (import ./checks.nix {
      inherit pkgs tests;
      server.environments = { };
    }).evaluation;

  right.testRight = {
    expr = 1;
    expected = 1;
  };
  wrong = {
    testWrong = {
      expr = 1;
      expected = 2;
    };
    testThrows = {
      expr = throw "no";
      expected = 1;
    };
  };
in
{
  testFailingTestsStillEvaluate = {
    expr = map (tests: (builtins.tryEval (evaluation tests).drvPath).success) [
      right
      wrong
    ];
    expected = [
      true
      true
    ];
  };
  testFailingTestsAreNamedInTheBuild = {
    expr = map (tests: (evaluation tests).failed) [
      right
      (right // wrong)
    ];
    expected = [
      ""
      "testThrows\ntestWrong"
    ];
  };
}
