# importNpmLock.buildNodeModules without npm, which Debian builds of 300 packages: each archive of the lock is unpacked
# where the lock says, and its programs are linked. Scripts of packages never run.
{ lib, runCommandLocal }:
let
  fetch = import <nix/fetchurl.nix>;

  isFor = wanted: here: wanted == [ ] || lib.elem here wanted || (lib.all (lib.hasPrefix "!") wanted && !(lib.elem "!${here}" wanted));
  isHere =
    module: isFor (module.os or [ ]) "linux" && isFor (module.cpu or [ ]) "x64" && isFor (module.libc or [ ]) "glibc";

  archive =
    path: module:
    if builtins.match "https?://.*" (module.resolved or "") == null then
      throw "debpkgs: importNpmLock takes packages of a registry, not ${path}"
    else
      fetch {
        name = "npm-${lib.last (lib.splitString "/" module.resolved)}";
        url = module.resolved;
        hash = lib.head (lib.splitString " " module.integrity);
      };

  unpacked =
    path: module:
    let
      folder = lib.escapeShellArg path;
      name = module.name or (lib.last (lib.splitString "node_modules/" path));
      parent = lib.removeSuffix "/${name}" path;
      programs = module.bin or { };
    in
    assert builtins.match "node_modules/[^.].*" path != null && !(lib.hasInfix "/../" path);
    ''
      mkdir -p ${folder}
      tar --extract --gzip --file ${archive path module} --directory ${folder} --strip-components 1 --no-same-owner
      chmod -R u+w,a+rX ${folder}
    ''
    + lib.concatStrings (
      lib.mapAttrsToList (program: file: ''
        mkdir -p ${lib.escapeShellArg parent}/.bin
        chmod +x ${folder}/${lib.escapeShellArg file}
        ln -sfn ../${lib.escapeShellArg name}/${lib.escapeShellArg file} ${lib.escapeShellArg parent}/.bin/${lib.escapeShellArg program}
      '') programs
    );
in
{
  buildNodeModules =
    {
      npmRoot,
      package ? lib.importJSON (npmRoot + "/package.json"),
      packageLock ? lib.importJSON (npmRoot + "/package-lock.json"),
      nodejs,
      derivationArgs ? { },
    }:
    runCommandLocal "${package.name or "unknown"}-node-modules-${package.version or "0.0.0"}" { } ''
      mkdir -p $out/node_modules
      cd $out
      ${lib.concatStrings (
        lib.mapAttrsToList unpacked (
          lib.filterAttrs (
            path: module: path != "" && !(module.link or false) && !(module.inBundle or false) && isHere module
          ) packageLock.packages
        )
      )}
    '';
}
