# nix-instantiate --eval --strict lib.nix --arg lib 'import FILE': the tests of a lib that fail; [ ] when all pass. nixpkgs'
# own passes them too.
{ lib }:
let
  package = {
    type = "derivation";
    outPath = "/p";
    name = "a-1";
    meta.mainProgram = "m";
  };
  referring = "a b${builtins.substring 0 0 (builtins.toFile "c" "")}";
  fails = expr: !(builtins.tryEval (builtins.deepSeq expr expr)).success;
in
lib.runTests {
  testGenAttrs = {
    expr = lib.genAttrs [ "a" "b" ] (n: n + "1");
    expected = {
      a = "a1";
      b = "b1";
    };
  };
  testRecursiveUpdate = {
    expr = lib.recursiveUpdate {
      a.b = 1;
      a.c = 2;
      d = 3;
    } { a.b = { x = 1; }; };
    expected = {
      a.b.x = 1;
      a.c = 2;
      d = 3;
    };
  };
  testRecursiveUpdateReplacesList = {
    expr = lib.recursiveUpdate { a = [ 1 ]; } { a = [ 2 ]; };
    expected = {
      a = [ 2 ];
    };
  };
  testSplitString = {
    expr = lib.splitString "." "a..b";
    expected = [
      "a"
      ""
      "b"
    ];
  };
  # What is made of a string refers to the store as the string does.
  testKeepsContext = {
    expr = lib.attrNames (
      lib.filterAttrs (_: f: !(builtins.hasContext (f referring))) {
        inherit (lib)
          escapeRegex
          escapeShellArg
          toSentenceCase
          toUpper
          ;
        inherit (lib.strings) escapeNixString;
        concatLines = s: lib.concatLines [ s ];
        escape = lib.escape [ "a" ];
        fixedWidthString = lib.fixedWidthString 5 "0";
        nameFromURL = s: lib.nameFromURL "a/${s}.c" ".";
        removePrefix = lib.removePrefix "a";
        removeSuffix = lib.removeSuffix "b";
        replaceStrings = lib.replaceStrings [ "a" ] [ "c" ];
        splitString = s: lib.head (lib.splitString " " s);
        stringToCharacters = s: lib.head (lib.stringToCharacters s);
        toShellVar = lib.toShellVar "a";
      }
    );
    expected = [ ];
  };
  testDropsContext = {
    expr = map (f: builtins.hasContext (f referring)) [
      lib.strings.sanitizeDerivationName
      lib.trim
    ];
    expected = [
      false
      false
    ];
  };
  testEscapeShellArg = {
    expr = map lib.escapeShellArg [
      "plain/path-1.0"
      "it's"
      ""
      "a b"
    ];
    expected = [
      "plain/path-1.0"
      "'it'\\''s'"
      "''"
      "'a b'"
    ];
  };
  testHas = {
    expr = [
      (lib.hasPrefix "ab" "abc")
      (lib.hasSuffix "bc" "abc")
      (lib.hasInfix "b.c" "ab.cd")
      (lib.hasInfix "b.c" "abxcd")
    ];
    expected = [
      true
      true
      true
      false
    ];
  };
  testTrim = {
    expr = [
      (lib.trim " a b\n")
      (lib.trim " \t")
      (lib.removeSuffix "x" "axx")
      (lib.removePrefix "a" "aax")
    ];
    expected = [
      "a b"
      ""
      "ax"
      "ax"
    ];
  };
  testLists = {
    expr = [
      (lib.unique [ 1 2 1 ])
      (lib.flatten [ 1 [ 2 [ 3 ] ] ])
      (lib.last [ 1 2 ])
      (lib.init [ 1 2 ])
      (lib.take 5 [ 1 2 ])
      (lib.drop 1 [ 1 2 ])
      (lib.imap1 (i: x: i * x) [ 5 6 ])
      (lib.foldr (a: b: a - b) 0 [ 5 3 1 ])
      (lib.findFirst (x: x > 1) 9 [ 1 2 3 ])
      (lib.sublist 1 2 [ 1 2 3 4 ])
      (lib.reverseList [ 1 2 ])
      (lib.range 2 4)
    ];
    expected = [
      [ 1 2 ]
      [ 1 2 3 ]
      2
      [ 1 ]
      [ 1 2 ]
      [ 2 ]
      [ 5 12 ]
      3
      2
      [ 2 3 ]
      [ 2 1 ]
      [ 2 3 4 ]
    ];
  };
  testAttrs = {
    expr = [
      (lib.filterAttrs (_: v: v > 1) { a = 1; b = 2; })
      (lib.mapAttrs' (n: v: lib.nameValuePair (n + "x") v) { a = 1; })
      (lib.attrByPath [ "a" "b" ] 0 { a.b = 1; })
      (lib.attrByPath [ "a" "c" ] 0 { a.b = 1; })
      (lib.hasAttrByPath [ "a" "b" ] { a.b = 1; })
      (lib.mapAttrsToList (n: v: n + v) { a = "1"; b = "2"; })
      (lib.concatMapAttrs (n: v: { ${n} = v; "${n}${n}" = v; }) { a = 1; })
      (lib.zipAttrsWith (_: vs: vs) [ { a = 1; } { a = 2; b = 3; } ])
      (lib.foldlAttrs (acc: n: v: acc + n + v) "" { a = "1"; b = "2"; })
    ];
    expected = [
      { b = 2; }
      { ax = 1; }
      1
      0
      true
      [ "a1" "b2" ]
      { a = 1; aa = 1; }
      { a = [ 1 2 ]; b = [ 3 ]; }
      "a1b2"
    ];
  };
  testVersions = {
    expr = [
      (lib.versionOlder "1.9" "1.10")
      (lib.versionAtLeast "2.0" "2.0")
      (lib.versions.majorMinor "3.13.5")
      (lib.getName { name = "foo-bar-1.2"; })
      (lib.getVersion { name = "foo-bar-1.2"; })
      (lib.toInt " 10 ")
    ];
    expected = [
      true
      true
      "3.13"
      "foo-bar"
      "1.2"
      10
    ];
  };
  testExe = {
    expr = [
      (lib.getExe package)
      (lib.getExe' package "q")
      (lib.makeBinPath [ "/a" null "/b" ])
      (lib.getLib { outPath = "/p"; lib = "/l"; })
    ];
    expected = [
      "/p/bin/m"
      "/p/bin/q"
      "/a/bin:/b/bin"
      "/l"
    ];
  };
  testFix = {
    expr = removeAttrs ((lib.makeExtensible (final: { a = 1; b = final.a + 1; })).extend (_: prev: { a = prev.a + 10; })) [ "extend" "__unfix__" ];
    expected = {
      a = 11;
      b = 12;
    };
  };
  testToShellVar = {
    expr = [
      (lib.toShellVar "x" "a b")
      (lib.toShellVar "l" [ "a" "b c" ])
      (lib.toShellVar "m" { k = "v w"; })
    ];
    expected = [
      "x='a b'"
      "declare -a l=(a 'b c')"
      "declare -A m=([k]='v w')"
    ];
  };
  testSource = {
    expr = lib.cleanSourceFilter "/x/.git" "directory" || lib.cleanSourceFilter "/x/a~" "regular";
    expected = false;
  };
  testCallPackage = {
    expr =
      let
        result = lib.callPackageWith { a = 1; b = 2; } ({ a, c }: { sum = a + c; }) { c = 5; };
      in
      [
        result.sum
        (result.override { c = 7; }).sum
      ];
    expected = [
      6
      8
    ];
  };
  testAssert = {
    expr = [
      (fails (lib.assertMsg false "no"))
      (lib.assertMsg true "no")
      (fails (lib.throwIf true "no" 1))
      (lib.throwIf false "no" 1)
    ];
    expected = [
      true
      true
      true
      1
    ];
  };
}
