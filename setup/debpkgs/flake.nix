{
  description = "nixpkgs' interface over Debian's packages";

  outputs =
    { self }:
    let
      system = "x86_64-linux";
    in
    {
      lib = import ./lib.nix;
      legacyPackages.${system} = import ./. { inherit system; };
    };
}
