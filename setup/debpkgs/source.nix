# The files that `stage` has put into the store, as fixed-output derivations: nothing is fetched while their paths are valid.
let
  index = builtins.fromJSON (builtins.readFile ./index.json);
  fetch = import <nix/fetchurl.nix>;
  # The address is never asked while the path is valid; when it is, Nix shows it, so it says what to do.
  address = name: "file:///run-nix-debpkgs-stage-again/${name}";
  deb =
    package:
    let
      inherit (index.packages.${package}) file sha256;
    in
    fetch {
      name = file;
      url = address file;
      inherit sha256;
    };
in
{
  inherit index deb;

  # Unpatched programs that run through an explicit loader: what unpacks and binds every other package.
  seed =
    let
      inherit (builtins.fromJSON (builtins.readFile ./seed.json)) name sha256;
    in
    fetch {
      inherit name sha256;
      url = address name;
      unpack = true;
    };

  # One line a package: "name version size file path", for `stage`.
  manifest = builtins.concatStringsSep "\n" (
    map (
      name:
      let
        inherit (index.packages.${name}) version size file;
      in
      "${name} ${version} ${toString size} ${file} ${builtins.unsafeDiscardStringContext (deb name).outPath}"
    ) (builtins.attrNames index.packages)
  );
}
