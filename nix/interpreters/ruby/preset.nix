{ pkgs }:
{
  name = "ruby";
  description = "Ruby with its standard library";
  packages = [
    pkgs.ruby
    pkgs.bash
    pkgs.coreutils
  ];
}
