# Python modules among the packages of a sandbox become one Python that imports
# all of them. Alone, a module is on no search path.
{ lib }:
let
  # An application that was made of a module has pythonModule = false.
  isModule = package: package.pythonModule or false != false;

  # An interpreter, or the environment that withPackages makes.
  isPython = package: package ? pythonVersion;

  split =
    packages:
    let
      modules = lib.filter isModule packages;
      python = (lib.head modules).pythonModule;
    in
    {
      inherit modules python;
      rest = lib.filter (package: !(isModule package) && !(isPython package)) packages;
      strangers = lib.filter (
        package:
        if isModule package then package.pythonModule != python else isPython package && package != python
      ) packages;
    };
in
{
  join =
    packages:
    let
      inherit (split packages) modules python rest;
    in
    if modules == [ ] then packages else [ (python.withPackages (_: modules)) ] ++ rest;

  problems =
    location: packages:
    let
      inherit (split packages) modules strangers;
    in
    lib.optional (modules != [ ] && strangers != [ ])
      "${location} packages has ${lib.getName (lib.head modules)} and ${lib.getName (lib.head strangers)}, which are of different Pythons: use all modules from one set, such as python3Packages";
}
