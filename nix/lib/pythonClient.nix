# The client for Python (clients/python) as a module of an interpreter, for
# python3.withPackages. It has no dependencies and nothing to build.
{ pkgs }:
{
  python ? pkgs.python3,
}:
pkgs.runCommandLocal "python3-nix-sandbox-${pkgs.lib.fileContents ../../VERSION}" { } ''
  site=$out/lib/python${pkgs.lib.versions.majorMinor python.version}/site-packages
  mkdir -p $site
  cp -r ${../../clients/python/src/nix_sandbox} $site/nix_sandbox
''
