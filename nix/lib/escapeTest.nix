# escapeTest tries to get out of an artifact's sandbox while something is built,
# and fails where that succeeds; its output is what the suite printed.
#
#   checks.x86_64-linux.escape-perl = library.escapeTest artifact;
#
# A build lacks much that the controls of the attempts need (other users, devices,
# a network), so it makes none of them; `nix run .#escape-test -- ARTIFACT` does.
# The output says SKIP and why if a build may make no user namespaces, or if
# builds run as the machine's root because Nix has no build users: their
# sandboxes would be root's too.
{ pkgs, programs }:
let
  inherit (pkgs) lib;

  # Attempts are written in these: the interpreter types of tests/escape.
  languages = [
    "python"
    "bash"
    "node"
  ];

  make =
    artifact:
    if !(lib.elem artifact.metadata.interpreter_type languages) then
      throw "escapeTest: ${artifact.metadata.name} has interpreter_type ${artifact.metadata.interpreter_type}: use one with python, bash or node"
    else
      pkgs.runCommand "escape-${artifact.metadata.name}" { meta.platforms = lib.platforms.linux; } ''
        read -r inside outside _ < /proc/self/uid_map
        if [ "$inside" != 0 ] && [ "$outside" = 0 ]; then
          echo "SKIP escape-${artifact.metadata.name}: this build runs as the machine's root: give Nix build users" | tee $out
          exit
        fi
        status=0
        ${lib.getExe programs.escapeTest} --no-controls ${artifact} > log 2>&1 || status=$?
        if [ "$status" = 77 ]; then
          { printf 'SKIP escape-${artifact.metadata.name}: '; cat log; } | tee $out
        else
          grep -v '^ok' log || true
          [ "$status" = 0 ]
          cp log $out
        fi
      '';
in
{
  inherit languages;
  __functor = _: make;
}
