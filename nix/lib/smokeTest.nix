# A check of an artifact: it runs code in it, inside a build. Where a build may
# make no namespaces, the check says so and passes.
{ pkgs }:
let
  inherit (pkgs) lib;
in
{
  artifact,
  # What to run, and what it has to print. The language of a command is not
  # known: for one, the check shows that it starts.
  code ? artifact.metadata.language.probe or null,
  output ? "42",
}:
let
  inherit (artifact.metadata) name;
  run = "${artifact}/bin/run";
in
pkgs.runCommandLocal "check-sandbox-${name}" { nativeBuildInputs = [ pkgs.bubblewrap ]; } (
  ''
    if ! bwrap --unshare-user --unshare-pid --ro-bind / / --proc /proc -- ${lib.getExe pkgs.bash} -c :; then
      echo "SKIP: a build may make no namespaces here" | tee $out
      exit 0
    fi
  ''
  + (
    if code != null then
      ''
        wanted=${lib.escapeShellArg output}
        printed=$(echo ${lib.escapeShellArg code} | ${run})
        if [ "$printed" != "$wanted" ]; then
          echo "sandbox ${name} should print \"$wanted\" and printed \"$printed\"" >&2
          exit 1
        fi
      ''
    else
      ''
        status=0
        ${run} < /dev/null || status=$?
        # 125 is the status of a sandbox that did not start.
        [ $status != 125 ]
      ''
  )
  + "echo ran > $out\n"
)
