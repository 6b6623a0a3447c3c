{
  description = "A project with a development shell and tests";

  inputs.nixpkgs.url = "github:NixOS/nixpkgs/nixos-unstable";

  outputs =
    { nixpkgs, ... }:
    {
      devShells = builtins.mapAttrs (_: pkgs: {
        default = pkgs.mkShellNoCC {
          packages = [
            (pkgs.python3.withPackages (ps: [ ps.pytest ]))
            pkgs.gnumake
          ];
          GREETING = "hello from the shell";
        };
      }) nixpkgs.legacyPackages;
    };
}
