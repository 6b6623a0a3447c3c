# python3, its packages and withPackages.
{
  lib,
  groups,
  source,
  buildEnv,
}:
let
  inherit (groups) group has closure;
  inherit (source) index;

  # "python3.13"
  executable = lib.head (lib.filter (lib.hasPrefix "python3.") index.packages.python3.depends);
  version = lib.head (lib.splitString "-" index.packages.${executable}.version);

  # nixpkgs' name -> Debian's package
  names = import ./python-packages.nix;

  package =
    name: debian:
    if has debian then
      group debian
      // {
        pname = name;
        version = groups.version debian;
        debianPackage = debian;
        pythonModule = python3;
        meta = { };
      }
    else
      throw "debpkgs: python3.pkgs.${name} is not staged: ${debian} is not in setup/debpkgs/packages.list or Debian ${index.release} does not have it";

  absent = lib.genAttrs (import ./missing.nix).python (
    name:
    throw "debpkgs: python3Packages.${name} is not one of the packages of Debian that stand in for nixpkgs here: build the server with nixpkgs, or add it to setup/debpkgs/packages.list and python-packages.nix"
  );
  pkgs =
    absent
    // lib.mapAttrs package names
    // {
      python = python3;
    };

  # The interpreter is copied, so that sys.prefix is the environment and its site-packages are found.
  environment =
    packages:
    let
      wanted = map (
        p: p.debianPackage or (throw "debpkgs: python3.withPackages takes packages of python3.pkgs, not ${lib.getName p}")
      ) (lib.filter (p: p != null) (lib.flatten packages));
      reached = lib.filter (
        name: (lib.hasPrefix "python3-" name || lib.hasPrefix "python-" name) && name != "python3-minimal"
      ) (closure wanted);
    in
    buildEnv {
      name = "python3-${version}-env";
      paths = [ (group "python3") ] ++ lib.unique (map group reached);
      pathsToLink = [
        "/bin"
        "/lib"
        "/share"
        "/include"
      ];
      ignoreCollisions = true;
      postBuild = ''
        if [ -L $out/bin ]; then
          programs=$(readlink $out/bin)
          rm $out/bin
          mkdir $out/bin
          ln -s $programs/* $out/bin/
        fi
        # a script starts this interpreter, not the one without packages
        for program in $out/bin/*; do
          read -r first < "$(readlink -f $program)" 2>/dev/null || continue
          case $first in
          "#!"*/bin/python3*)
            sed "1s|.*|#!$out/bin/${executable}|" "$(readlink -f $program)" > $TMPDIR/script
            rm $program
            install -m 755 $TMPDIR/script $program
            ;;
          esac
        done
        rm $out/bin/${executable}
        cp ${group "python3"}/bin/${executable} $out/bin/
        ln -sfn ${executable} $out/bin/python3
        ln -sfn ${executable} $out/bin/python
      '';
      meta.mainProgram = "python3";
      passthru = interface // {
        python = python3;
      };
    };
  withPackages = f: environment (f pkgs);

  interface = {
    inherit pkgs withPackages executable;
    pythonVersion = lib.removePrefix "python" executable;
    sitePackages = "lib/python3/dist-packages";
    interpreter = "${group "python3"}/bin/${executable}";
    isPy3 = true;
    implementation = "cpython";
    buildEnv = throw "debpkgs: python3.buildEnv is not supported; use python3.withPackages";
  };

  python3 =
    group "python3"
    // interface
    // {
      pname = "python3";
      inherit version;
      meta.mainProgram = "python3";
      passthru = interface;
    };
in
python3
