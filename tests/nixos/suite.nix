# A Go test suite as a program: bin/suite, and in share/suite what lies beside
# its sources, which is where it expects to be started.
{
  pkgs,
  vendor,
  # What the derivation is called.
  name,
  # The package's folder in this repository.
  folder,
}:
let
  inherit (pkgs) lib;
  root = ../..;
in
pkgs.buildGoModule {
  pname = "nix-sandbox-mcp-test-${name}";
  version = "0";
  # The vendor tree lies in the source, so buildGoModule has none to make.
  vendorHash = null;
  src = pkgs.runCommandLocal "test-${name}-source" { } ''
    cp -r ${
      lib.fileset.toSource {
        inherit root;
        # All Go code, and what this suite alone has beside its own.
        fileset = lib.fileset.unions [
          (root + "/go.mod")
          (root + "/go.sum")
          (root + "/${folder}")
          (lib.fileset.fileFilter (file: file.hasExt "go") root)
        ];
      }
    } $out
    chmod u+w $out
    cp -r ${vendor} $out/vendor
  '';
  env.CGO_ENABLED = 0;
  buildPhase = ''
    runHook preBuild
    go test -c -trimpath -o suite ./${folder}
    runHook postBuild
  '';
  doCheck = false;
  installPhase = ''
    runHook preInstall
    install -D suite $out/bin/suite
    mkdir -p $out/share
    cp -r ${folder} $out/share/suite
    find $out/share/suite -name '*.go' -delete
    runHook postInstall
  '';
  meta.mainProgram = "suite";
}
