{ lib, ... }:
let
  check = import ../../nix/lib/check.nix { inherit lib; };
in
{
  testNearTheSame = {
    expr = check.near 0 "python" "python";
    expected = true;
  };
  testNearOneLeftOut = {
    expr = check.near 1 "pyton" "python";
    expected = true;
  };
  testNearTwoSwapped = {
    expr = check.near 2 "pyhton" "python";
    expected = true;
  };
  testNearTooFar = {
    expr = check.near 2 "ruby" "python";
    expected = false;
  };
  testNearOneTooMany = {
    expr = check.near 0 "pythonn" "python";
    expected = false;
  };
  testNearNothing = {
    expr = check.near 2 "" "abc";
    expected = false;
  };
  testPerhapsIsSilentAboutShortWords = {
    expr = check.perhaps "a" [ "b" ];
    expected = "";
  };
  testShowCutsLongText = {
    expr = builtins.stringLength (check.show (lib.concatStrings (lib.genList (_: "x") 1000)));
    expected = 85; # 80, two quotes and the three bytes of …
  };
}
