# Finds out how an environment runs code from what the operator wrote.
{ lib }:
let
  # The interpreters that keep sessions, by their program's name.
  typeOf =
    program:
    if builtins.match "python[0-9.]*" program != null then
      "python"
    else if program == "bash" || program == "node" then
      program
    else
      "command";

  # What a type alone stands for.
  usual = {
    python = "python3 -c";
    bash = "bash -c";
    node = "node -e";
  };
in
rec {
  # { interpreter; interpreter_type; stdin_mode; } with nulls -> without, and
  # the interpreter's `words`, which for a type that keeps sessions are those
  # before -c or -e: the agent's driver has its own way to hand code over.
  complete =
    {
      interpreter,
      interpreter_type,
      stdin_mode,
      ...
    }:
    let
      line = if interpreter != null then interpreter else usual.${interpreter_type};
      words = lib.filter (w: w != "") (lib.splitString " " line);
      takesArgument = lib.elem (lib.last words) [
        "-c"
        "-e"
      ];
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
      words = if type != "command" && takesArgument then lib.init words else words;
    };

  problems =
    place:
    {
      interpreter ? null,
      interpreter_type ? null,
      ...
    }:
    if interpreter == null && interpreter_type == null then
      [
        "${place} does not say what runs the code: write interpreter_type = \"python\", \"bash\" or \"node\", or interpreter = \"perl -e\" or the like"
      ]
    else if interpreter == null && interpreter_type == "command" then
      [
        "${place} interpreter_type is \"command\" without an interpreter: write interpreter = \"perl -e\" or the like"
      ]
    else if interpreter != null && builtins.match ".*['\"\\\\].*" interpreter != null then
      [
        "${place} interpreter is ${builtins.toJSON interpreter}: write it without quotes or backslashes, it is split at spaces"
      ]
    else if interpreter != null && builtins.match " *" interpreter != null then
      [ "${place} interpreter is blank: write a program such as \"perl -e\"" ]
    else
      [ ];
}
