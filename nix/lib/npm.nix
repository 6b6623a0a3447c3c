# The packages that an npm lock names, for Node.js: a folder node_modules that Nix builds
# from the lock's hashes. What else a package would fetch is not there, and the scripts that
# packages run when they are installed do not run.
{ pkgs }:
let
  inherit (pkgs) lib;

  read = folder: name: lib.importJSON (folder + "/${name}");
in
{
  # The packages that package.json itself asks for.
  names = folder: lib.attrNames ((read folder "package.json").dependencies or { });

  problems =
    location: folder:
    let
      absent = lib.filter (name: !(builtins.pathExists (folder + "/${name}"))) [
        "package.json"
        "package-lock.json"
      ];
      lock = read folder "package-lock.json";
      loose = lib.attrNames (
        lib.filterAttrs (
          path: module: path != "" && !(module.link or false) && !(module ? integrity) && !(module.inBundle or false)
        ) lock.packages
      );
      unplaced = lib.attrNames (lib.filterAttrs (_: module: module ? integrity && !(module ? resolved)) lock.packages);
    in
    if absent != [ ] then
      [
        "${location} npm is a folder without ${lib.head absent}: create it with `npm install --package-lock-only`, and have Git track both files if they are in a flake"
      ]
    else if !(lock ? packages) then
      [ "${location} npm has a package-lock.json that has no hash for each package: create it again with npm 7 or later" ]
    else
      map (
        path:
        "${location} npm has a package-lock.json with ${builtins.toJSON path}, which has no hash: use a version from a registry in its place, not git or a folder"
      ) loose
      ++ map (
        path:
        "${location} npm has a package-lock.json with ${builtins.toJSON path}, which has no address: create it again with `npm install --package-lock-only --omit-lockfile-registry-resolved=false`, once the old one is removed"
      ) unplaced;

  modules =
    folder:
    pkgs.importNpmLock.buildNodeModules {
      npmRoot = folder;
      packageLock = read folder "package-lock.json";
      inherit (pkgs) nodejs;
      derivationArgs = {
        npmRebuildFlags = [ "--ignore-scripts" ];
        # It names the archives, which then would be in the sandbox too.
        preInstall = "rm -f node_modules/.package-lock.json";
      };
    };
}
