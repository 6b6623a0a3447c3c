{ pkgs }:
{
  name = "node";
  description = "JavaScript in Node.js";
  packages = [
    pkgs.nodejs
    pkgs.bash
    pkgs.coreutils
  ];
}
