# What nixpkgs refuses, and what stands in for it must refuse too: in `evaluated` when the value is
# asked for, in `built` when it is built. tests/nixpkgs/run shows that nixpkgs does.
{ pkgs }:
let
  inherit (pkgs) lib;

  derived = attributes: (pkgs.stdenv.mkDerivation ({ name = "a"; } // attributes)).outPath;
  folder = name: command: pkgs.runCommandLocal name { } "mkdir $out; cd $out; ${command}";
  module =
    attributes:
    pkgs.buildGoModule (
      {
        pname = "a";
        version = "1";
        src = folder "source" ''
          echo 'module a' > go.mod
          echo 'package main; var V string; func main() { println(V) }' > main.go
          mkdir vendor
        '';
        vendorHash = null;
        doCheck = false;
      }
      // attributes
    );
in
{
  evaluated = {
    unknownArgument = (import pkgs.path { unknown = 1; }).jq.outPath;
    runCommandUnknownArgument = (pkgs.runCommandWith { name = "a"; unknown = 1; } "").outPath;
    buildEnvUnknownArgument = (pkgs.buildEnv { name = "a"; paths = [ ]; unknown = 1; }).outPath;
    writeTextFileToTheOutput = (pkgs.writeTextFile { name = "a"; text = ""; destination = "/"; }).outPath;
    listInEnv = derived { env.A = [ "b" ]; };
    numberAsInput = derived { nativeBuildInputs = [ 1 ]; };
    otherPlatform = derived { meta.platforms = [ "x86_64-darwin" ]; };
    broken = derived { meta.broken = true; };
    unfree = derived { meta.license.free = false; };
    numberWithZero = lib.toInt "010";
    programOfASet = lib.getExe' { outPath = "/a"; } "b";
    functionElsewhere = lib.strings.optional true 1;
    goVendorHashAbsent = (pkgs.buildGoModule { pname = "a"; version = "1"; src = ./.; }).outPath;
  };

  built = {
    fileInAnEnvironment = pkgs.buildEnv {
      name = "a";
      paths = [ (pkgs.writeText "b" "") ];
    };
    fileAndFolderInAnEnvironment = pkgs.buildEnv {
      name = "a";
      paths = [
        (folder "file" "touch b")
        (folder "folder" "mkdir b")
      ];
    };
    wrapperWithoutItsHook = pkgs.runCommandLocal "a" { } "makeWrapper ${pkgs.jq}/bin/jq $out";
    wrapperOfNothing = pkgs.runCommandLocal "a" { nativeBuildInputs = [ pkgs.makeWrapper ]; } "makeWrapper ${pkgs.jq}/bin/none $out";
    linkToNothing = pkgs.stdenv.mkDerivation {
      name = "a";
      dontUnpack = true;
      installPhase = "mkdir $out; ln -s none $out/a";
    };
    goVendoredTwice = (module { vendorHash = lib.fakeHash; }).goModules;
    goReferredTo = module { ldflags = [ "-X main.V=${pkgs.go}" ]; };
  };
}
