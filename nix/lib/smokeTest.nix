# A check of an artifact: it runs code in it, inside a build. A build that may
# make no namespaces says so and passes; the same holds for nobody else.
{ pkgs }:
let
  inherit (pkgs) lib;

  # Code that prints "hello", by the kind of interpreter. What a command wants
  # nobody knows; that it starts is seen.
  greetings = {
    bash = "echo hello";
    node = "console.log('hello')";
    python = "print('hello')";
  };
in
artifact:
let
  inherit (artifact.metadata) name interpreter_type;
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
    if greetings ? ${interpreter_type} then
      ''
        said=$(echo ${lib.escapeShellArg greetings.${interpreter_type}} | ${run})
        if [ "$said" != hello ]; then
          echo "sandbox ${name} was to say hello, and said: $said" >&2
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
