{ pkgs }:
{
  name = "node";
  description = "JavaScript and TypeScript in Node.js";
  packages = import ../tools.nix { inherit pkgs; } ++ [
    pkgs.nodejs
    pkgs.esbuild
  ];
}
