# The presets, by name: each is the argument of mkSandbox without a name.
{ pkgs }:
{
  node = import ./node.nix { inherit pkgs; };
  python = import ./python.nix { inherit pkgs; };
  shell = import ./shell.nix { inherit pkgs; };
}
