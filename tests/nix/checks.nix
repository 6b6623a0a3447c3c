# What `nix flake check` builds.
{ pkgs, server }:
let
  inherit (pkgs) lib;

  tests = import ./. { inherit pkgs; };
  failed = lib.filter (name: tests.${name}.expr != tests.${name}.expected) (lib.attrNames tests);

  greetings = {
    bash = "echo hello";
    node = "console.log('hello')";
    python = "print('hello')";
  };
in
{
  inherit server;

  evaluation =
    if failed == [ ] then
      pkgs.runCommandLocal "evaluation-tests" { } "echo ${toString (lib.length (lib.attrNames tests))} passed > $out"
    else
      throw "these tests of tests/nix fail: ${lib.concatStringsSep ", " failed}";

  # The artifacts run inside a build too, where that may make namespaces.
  hello = pkgs.runCommandLocal "hello" { nativeBuildInputs = [ pkgs.bubblewrap ]; } (
    ''
      if ! bwrap --unshare-user --unshare-pid --ro-bind / / --proc /proc -- ${lib.getExe pkgs.bash} -c :; then
        echo "SKIP: a build may make no namespaces here" | tee $out
        exit 0
      fi
    ''
    + lib.concatStrings (
      lib.mapAttrsToList (name: artifact: ''
        [ "$(echo ${lib.escapeShellArg greetings.${name}} | ${artifact}/bin/run)" = hello ]
        echo ${name} said hello | tee -a $out
      '') server.environments
    )
  );
}
