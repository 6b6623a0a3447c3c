# Finds out how an environment runs code from what the operator wrote.
{ lib, interpreters }:
let
  types = import ./types.nix { inherit lib; };

  # The interpreter that a program is, whatever version its name ends with.
  typeOf =
    program:
    let
      plain = lib.head (builtins.match "(.*[^0-9.]|)[0-9.]*" program);
      isCalled = type: lib.elem plain interpreters.${type}.language.programs;
    in
    lib.findFirst isCalled "command" (lib.attrNames interpreters);

  # What to write for one of them.
  examples = (types.choice (lib.attrNames interpreters)).wanted;
in
rec {
  # Replaces nulls in { interpreter; interpreter_type; stdin_mode; } and adds the
  # interpreter's `command` as a list. For an interpreter that keeps sessions it
  # ends before -c, -e or -s: the agent's driver has its own way to hand code over.
  complete =
    {
      interpreter,
      interpreter_type,
      stdin_mode,
      ...
    }:
    let
      line = if interpreter != null then interpreter else interpreters.${interpreter_type}.interpreter;
      words = lib.filter (w: w != "") (lib.splitString " " line);
      takesArgument = lib.elem (lib.last words) [
        "-c"
        "-e"
      ];
      # Bash reads code from its input with -s, and takes no long option behind it.
      readsInput = type == "bash" && lib.last words == "-s";
      type = if interpreter_type != null then interpreter_type else typeOf (baseNameOf (lib.head words));
    in
    {
      interpreter = lib.concatStringsSep " " words;
      interpreter_type = type;
      stdin_mode =
        if stdin_mode != null then
          stdin_mode
        else if takesArgument then
          "arg"
        else
          "pipe";
      command = if type != "command" && (takesArgument || readsInput) then lib.init words else words;
    };

  preloadProblems =
    location: given:
    let
      type = (complete given).interpreter_type;
    in
    lib.optional (given.preload != [ ] && !(interpreters.${type}.preloads or false))
      "${location} preload is for Python, and this environment is of the type ${type}: set preload = [], or leave it out";

  problems =
    location:
    {
      interpreter ? null,
      interpreter_type ? null,
      ...
    }:
    if interpreter == null && interpreter_type == null then
      [
        "${location} does not say what runs the code: set interpreter_type = ${examples}, or interpreter = \"perl -e\" or the like"
      ]
    else if interpreter == null && interpreter_type == "command" then
      [
        "${location} interpreter_type is \"command\" without an interpreter: set interpreter = \"perl -e\" or the like"
      ]
    else if interpreter != null && builtins.match ".*['\"\\\\].*" interpreter != null then
      [
        "${location} interpreter is ${builtins.toJSON interpreter}: leave out quotes and backslashes, because it is split at spaces"
      ]
    else if interpreter != null && builtins.match " *" interpreter != null then
      [ "${location} interpreter is blank: use a program such as \"perl -e\"" ]
    else
      [ ];
}
