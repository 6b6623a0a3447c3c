# Go and buildGoModule.
{
  lib,
  system,
  source,
  groups,
  stdenv,
  cacert,
  native,
  processor,
}:
let
  inherit (lib) concatStringsSep escapeShellArg escapeShellArgs optionalString;
  staged = builtins.fromJSON (builtins.readFile ./go.json);

  go =
    if native != null then
      native.go
    else if staged ? package then
      let
        root = "lib/${lib.removeSuffix "-go" (lib.replaceStrings [ "golang" ] [ "go" ] staged.package)}";
      in
      stdenv.mkDerivation {
        pname = "go";
        version = lib.head (lib.splitString "-" (groups.version staged.package));
        buildCommand = ''
          mkdir -p $out/bin $out/share
          ln -s ${groups.group staged.package}/${root} $out/share/go
          ln -s ../share/go/bin/go ../share/go/bin/gofmt $out/bin/
        '';
        passthru.GOROOT = "${groups.group staged.package}/${root}";
        meta.mainProgram = "go";
      }
    else if staged ? name then
      let
        tree = import <nix/fetchurl.nix> {
          inherit (staged) name sha256;
          url = "file:///run-nix-debpkgs-stage-again/go";
          unpack = true;
        };
      in
      tree
      // {
        inherit (staged) version;
        pname = "go";
        GOROOT = "${tree}";
        meta.mainProgram = "go";
      }
    else
      throw "debpkgs: there is no Go here: Debian ${source.index.release} has none that is new enough; install Go 1.25.5 or later and run setup/debpkgs/stage --refresh";

  environment = ''
    export GOROOT=${go.GOROOT} GOPATH=$NIX_BUILD_TOP/go GOCACHE=$NIX_BUILD_TOP/go-cache GOTOOLCHAIN=local GOTELEMETRY=off GOPROXY=off GOSUMDB=off GOARCH=${processor.go}
    export PATH=${go}/bin:$PATH HOME=$NIX_BUILD_TOP
  '';

  # The standard library as Go's cache keeps it, compiled once for all programs: it is most of a small program's build.
  # An entry of the cache ends with the time when it was made; without it the same library is the same store path.
  standardLibrary = stdenv.mkDerivation {
    name = "go-standard-library-${go.version}";
    buildCommand = ''
      ${environment}
      export GOCACHE=$out CGO_ENABLED=0
      go build -trimpath -p "''${NIX_BUILD_CORES:-1}" std
      rm -f $out/*.txt $out/README
      find $out -name '*-a' -exec sed -i -E 's/[0-9]{19}$/1000000000000000000/' {} +
    '';
  };

  buildGoModule =
    definition:
    let
      attrs = if lib.isFunction definition then definition else _: definition;
    in
    stdenv.mkDerivation (
      finalAttrs:
      let
        args = attrs finalAttrs;
        vendorHash = args.vendorHash or (throw "buildGoModule: ${title} has no vendorHash; null means that it has a vendor folder or no dependencies");
        modRoot = args.modRoot or "./";
        name = args.name or "${args.pname}-${args.version}";
        title = args.pname or name;
        # An output of fixed content: its path depends on the name and vendorHash alone, so `stage --vendor` can put it into
        # the store beforehand, where the network and this machine's certificates are in reach.
        goModules =
          if vendorHash == null then
            null
          else
            stdenv.mkDerivation {
              name = "${name}-go-modules";
              inherit (args) src;
              outputHashMode = "recursive";
              outputHashAlgo = if vendorHash == "" then "sha256" else null;
              outputHash = if vendorHash == "" then lib.fakeSha256 else vendorHash;
              impureEnvVars = [
                "GOPROXY"
                "GONOSUMDB"
                "GOSUMDB"
                "http_proxy"
                "https_proxy"
                "no_proxy"
              ];
              configurePhase = ''
                ${environment}
                unset GOPROXY GOSUMDB
                export SSL_CERT_FILE=${cacert}/etc/ssl/certs/ca-bundle.crt
              '';
              buildPhase = ''
                cd ${escapeShellArg modRoot}
                if [ -d vendor ]; then
                  echo "there is a folder vendor: set vendorHash = null" >&2
                  exit 1
                fi
                go mod vendor || {
                  echo "the build has no network; put the modules into the store with: setup/debpkgs/stage --vendor DIR ${
                    args.pname or name
                  } ${args.version or ""}" >&2
                  exit 1
                }
              '';
              installPhase = ''
                cp -r vendor $out || {
                  echo "there are no dependencies: set vendorHash = null" >&2
                  exit 1
                }
              '';
              dontFixup = true;
            };
        subPackages = args.subPackages or null;
        ldflags = args.ldflags or [ ];
        tags = args.tags or [ ];
        # the flags come in front of what the package gives in GOFLAGS
        flags = [ "-trimpath" ]
        ++ lib.optional (args.proxyVendor or false == false) "-mod=vendor"
        ++ args.GOFLAGS or [ ];
        packages =
          if subPackages == null then
            "$(go list -f '{{if eq .Name \"main\"}}{{.ImportPath}}{{end}}' ./...)"
          else
            concatStringsSep " " (map (p: escapeShellArg "./${lib.removePrefix "./" p}") (lib.toList subPackages));
        tested = if subPackages == null then "./..." else packages;
      in
      if args ? CGO_ENABLED then
        throw "buildGoModule: ${title}: CGO_ENABLED goes into env"
      else
        removeAttrs args [
          "vendorHash"
          "subPackages"
          "modRoot"
          "ldflags"
          "tags"
          "GOFLAGS"
          "proxyVendor"
          "excludedPackages"
          "overrideModAttrs"
          "deleteVendor"
          "allowGoReference"
        ]
        // {
          env = {
            # there is no C compiler here
            CGO_ENABLED = "0";
          }
          // lib.mapAttrs (_: toString) (args.env or { });
          passthru = {
            inherit go goModules vendorHash;
          }
          // args.passthru or { };
          doCheck = args.doCheck or true;
          disallowedReferences = lib.optional (!(args.allowGoReference or false)) go;
          configurePhase =
            args.configurePhase or ''
              runHook preConfigure
              ${environment}
              cp -r --no-preserve=mode ${standardLibrary} $GOCACHE
              cd ${escapeShellArg modRoot}
              ${optionalString (goModules != null) ''
                rm -rf vendor
                cp -r --no-preserve=mode ${goModules} vendor
              ''}
              export GOFLAGS=${escapeShellArg (concatStringsSep " " flags)}
              runHook postConfigure
            '';
          buildPhase =
            args.buildPhase or ''
              runHook preBuild
              mkdir -p $GOPATH/bin
              go build -p "''${NIX_BUILD_CORES:-1}" ${optionalString (tags != [ ]) "-tags ${escapeShellArg (concatStringsSep "," tags)}"} \
                -ldflags ${escapeShellArg (concatStringsSep " " ([ "-buildid=" ] ++ ldflags))} -o $GOPATH/bin/ ${packages}
              runHook postBuild
            '';
          checkPhase =
            args.checkPhase or ''
              runHook preCheck
              go test -p "''${NIX_BUILD_CORES:-1}" ${optionalString (tags != [ ]) "-tags ${escapeShellArg (concatStringsSep "," tags)}"} \
                ''${checkFlags-} ${tested}
              runHook postCheck
            '';
          installPhase =
            args.installPhase or ''
              runHook preInstall
              mkdir -p $out
              if [ -n "$(ls $GOPATH/bin)" ]; then cp -r $GOPATH/bin $out/bin; fi
              runHook postInstall
            '';
          meta = {
            platforms = [ system ];
          }
          // args.meta or { };
        }
    );
in
{
  inherit go buildGoModule;
}
