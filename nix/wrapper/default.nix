# What the wrapper of a server asks Nix when the server starts; start.sh asks
# the first, build.sh the others.
{
  pkgs,
  lib,
  backends,
  onDemand,
  toml,
  project,
  sandbox,
  serverMetadata,
}:
{
  # A configuration file, for which `base` is the folder of relative references.
  config ? null,
  base ? "/",
  # What the file extends if it does not say.
  extends ? null,
  # The derivation of a project's variables, which project.sh had evaluated.
  variables ? null,
  # A file of what the runtime asks for: { recipe; packages; }, or of what the evaluation of code's flake said.
  request ? null,
  # What makes a probe another one.
  seed ? null,
}:
let
  read = toml.start {
    file = config;
    inherit base extends;
  };
  wrong = map (problem: "wrong ${problem}");
  requested = builtins.fromJSON (builtins.readFile request);
  built =
    found: of:
    lines (
      if found.wrong != [ ] then
        map (one: lib.trim "${one.wrong} ${one.name} ${one.reason}") found.wrong
      else
        [ "build ${builtins.unsafeDiscardStringContext (of found).drvPath}" ]
    );
  lines = lib.concatMapStrings (line: "${line}\n");
in
{
  # What the file says that the server needs before it serves, as lines: the
  # server's metadata without the environments; whether the project's shell is
  # one, with the project's folder; KIND NAME VALUE for each environment. Or
  # what is wrong with it, a line for each mistake that begins with "wrong".
  plan = lines (
    if read.problems != [ ] then
      wrong read.problems
    else
      [
        (builtins.toJSON (serverMetadata { inherit (read) on_demand session project serve; } // { environments = { }; }))
        "project ${if read.project.use_flake then "1" else "0"} ${
          if read.project.path == null then "" else read.project.path
        }"
      ]
      ++ lib.mapAttrsToList (name: todo: "${todo.kind} ${name} ${todo.value}") read.kinds
  );

  # What is wrong with a file that may be for a server that Nix has yet to build, or the lines
  # of its environments.
  checked = lines (
    if read.mistakes != [ ] then
      wrong read.mistakes
    else
      lib.mapAttrsToList (name: todo: "${todo.kind} ${name} ${todo.value}") read.kinds
  );

  # NAME DERIVATION for each environment that the file describes itself; one
  # that cannot be evaluated has no derivation, and is then asked for alone.
  derivations = lines (
    lib.mapAttrsToList (
      name: _:
      let
        tried = builtins.tryEval read.environments.${name}.drvPath;
      in
      "${name} ${lib.optionalString tried.success (builtins.unsafeDiscardStringContext tried.value)}"
    ) (lib.filterAttrs (_: todo: todo.kind == "own") read.kinds)
  );

  inherit (read) environments;

  # The environment of a request: "build DERIVATION", or a line for each name that is
  # wrong: KIND NAME REASON, in which the name is one that the request has.
  derived = built (onDemand.derive requested) (found: sandbox.build found.arguments);

  # The same for packages that a sandbox gets while it runs.
  addition = built (onDemand.addition requested) (found: found.program);

  # The same for the derivation of code's flake, which project.sh had evaluated: { drv; outputs; name; program; }. Of a
  # file that ends in .drv, import reads what it builds, and evaluates nothing.
  ofFlake =
    let
      made = import requested.drv;
    in
    built { wrong = [ ]; } (
      _:
      backends.jail.addition [
        {
          inherit (requested) name program;
          paths = map (output: "${made.${output}}") requested.outputs;
        }
      ]
    );

  # A file that says whether Nix builds in a sandbox of its own.
  probe = pkgs.runCommandLocal "sandbox-probe-${seed}" { } ''
    if [ -e /var ] || [ -e /home ] || [ -e /root ]; then echo open; else echo closed; fi > $out
  '';

  # A JSON object of what is known of each package of a request.
  facts = builtins.toJSON (onDemand.facts requested);

  # The project's own shell. Of a file that ends in .drv, import reads what it
  # builds, and evaluates nothing.
  project = project.ofVariables (import variables);
}
