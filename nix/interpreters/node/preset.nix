{ pkgs }:
{
  name = "node";
  description = "JavaScript and TypeScript in Node.js";
  packages = [
    pkgs.nodejs
    pkgs.bash
    pkgs.coreutils
    pkgs.esbuild
  ];
}
