# One derivation for each group of Debian packages: packages that depend on each other (libc6 and libgcc-s1) share a path.
{
  lib,
  processor,
  seed,
  source,
  system,
  # The groups whose programs run here, or null: these.
  native,
}:
let
  inherit (source) index deb;
  inherit (lib)
    attrNames
    concatMap
    elem
    filter
    head
    optional
    replaceStrings
    sort
    ;

  tweaks = import ./tweaks.nix {
    inherit
      lib
      index
      group
      has
      native
      processor
      seedRun
      ;
  };
  tweak = package: tweaks.${package} or { };

  has = package: index.packages ? ${package};
  depends = package: filter has (index.packages.${package}.depends ++ (tweak package).depends or [ ]);

  closure =
    packages:
    map (entry: entry.key) (
      builtins.genericClosure {
        startSet = map (key: { inherit key; }) packages;
        operator = entry: map (key: { inherit key; }) (depends entry.key);
      }
    );
  closures = lib.genAttrs (attrNames index.packages) (package: closure [ package ]);
  reaches = from: to: elem to closures.${from};

  # the packages of a group, in order; the first one names it
  members = lib.genAttrs (attrNames index.packages) (
    package: sort (a: b: a < b) (filter (other: other == package || reaches other package) closures.${package})
  );
  leader = package: head members.${package};

  # Scripts may use the shell; a group that does not name it in the end does not refer to it.
  shell = closures.bash;

  build =
    name:
    let
      own = members.${name};
      reached = filter (package: !elem package own) (
        closure (own ++ optional (!elem name shell && !elem "bash" own) "bash")
      );
      leaders = lib.unique (map leader reached);
      tweaked = map tweak own;
    in
    derivation (
      {
        # the package after which the group is called may have been chosen by the alphabet; the tweaks know better
        name =
          let
            title = head (concatMap (t: optional (t ? title) t.title) tweaked ++ [ name ]);
          in
          "${title}-${replaceStrings [ ":" "~" ] [ "_" "_" ] index.packages.${title}.version}";
        inherit system seed;
        builder = "${seed}/lib/ld-linux-x86-64.so.2";
        args = [
          "--library-path"
          "${seed}/lib"
          "${seed}/bin/perl"
          "-I${seed}/lib/perl-base"
          ./build/unpack.pl
        ];
        debs = map deb own;
        deps = map (package: groups.${package}) leaders;
        inherit (processor) elf folder loader;
        libc = if elem "libc6" reached then groups.libc6 else "";
        postFixup = lib.concatMapStringsSep "\n" (t: t.postFixup or "") tweaked;
        preferLocalBuild = true;
      }
      // lib.foldl' (all: t: all // t.env or { }) { } tweaked
    );

  built = lib.genAttrs (lib.unique (map leader (attrNames index.packages))) build;
  groups = lib.mapAttrs (package: _: built.${leader package}) index.packages;
  group =
    package:
    groups.${package}
      or (throw "debpkgs: Debian ${index.release}'s package ${package} is not staged; add it to setup/debpkgs/${if native == null then "packages" else "arm64"}.list and run setup/debpkgs/stage");

  # shell text that runs a perl program of ./build with the seed's perl
  seedRun = script: "${seed}/lib/ld-linux-x86-64.so.2 --library-path ${seed}/lib ${seed}/bin/perl -I${seed}/lib/perl-base ${script}";
in
{
  inherit
    group
    has
    closure
    seedRun
    ;
  version = package: index.packages.${package}.version;
}
