{ lib, ... }:
let
  validate = import ../../nix/lib/validate.nix { inherit lib; };
in
{
  testNearTheSame = {
    expr = validate.near 0 "python" "python";
    expected = true;
  };
  testNearOneLeftOut = {
    expr = validate.near 1 "pyton" "python";
    expected = true;
  };
  testNearTwoSwapped = {
    expr = validate.near 2 "pyhton" "python";
    expected = true;
  };
  testNearTooFar = {
    expr = validate.near 2 "ruby" "python";
    expected = false;
  };
  testNearOneTooMany = {
    expr = validate.near 0 "pythonn" "python";
    expected = false;
  };
  testNearNothing = {
    expr = validate.near 2 "" "abc";
    expected = false;
  };
  testPerhapsIsSilentAboutShortWords = {
    expr = validate.perhaps "a" [ "b" ];
    expected = "";
  };
  testShowCutsLongText = {
    expr = builtins.stringLength (validate.show (lib.concatStrings (lib.genList (_: "x") 1000)));
    expected = 85; # 80, two quotes and the three bytes of …
  };
}
