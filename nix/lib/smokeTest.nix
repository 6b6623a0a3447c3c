# A check of an artifact: it runs code in it, inside a build. A build that may
# make no namespaces says so and passes; the same holds for nobody else.
{ pkgs }:
let
  inherit (pkgs) lib;
in
artifact:
let
  inherit (artifact.metadata) name;
  # Code that prints 42. The language of a command is not known: the check shows
  # that it starts.
  code = artifact.metadata.language.probe or null;
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
        printed=$(echo ${lib.escapeShellArg code} | ${run})
        if [ "$printed" != 42 ]; then
          echo "sandbox ${name} should print 42 and printed: $printed" >&2
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
