# The types of options: { accepts; wanted; } is a test, and the words for
# what passes it, which follow "write" in a sentence. A choice has its
# `choices` too, so that a slip of the pen can be named.
{ lib }:
let
  inherit (builtins)
    all
    attrNames
    attrValues
    elem
    isAttrs
    isFloat
    isInt
    isList
    isString
    match
    stringLength
    toJSON
    ;

  reserved = import ./reserved.nix;

  inside = path: folder: path == folder || lib.hasPrefix "${folder}/" path;

  isLine = most: v: isString v && v != "" && stringLength v <= most && match "[^\n\r]*" v != null;

  # A name that a shell can have for a variable.
  isVariable = n: match "[A-Za-z_][A-Za-z0-9_]*" n != null;

  or' =
    words:
    if lib.length words < 2 then
      lib.concatStrings words
    else
      "${lib.concatStringsSep ", " (lib.init words)} or ${lib.last words}";
in
{
  integer = min: max: {
    accepts = v: isInt v && v >= min && v <= max;
    wanted = "a whole number from ${toString min} to ${toString max}";
  };

  # The least is a hundredth.
  number = max: {
    accepts = v: (isInt v || isFloat v) && v >= 0.01 && v <= max;
    wanted = "a number from 0.01 to ${toString max}";
  };

  line = most: {
    accepts = isLine most;
    wanted = "a line of 1 to ${toString most} bytes in quotes";
  };

  lines = {
    accepts = v: isList v && all (isLine 200) v;
    wanted = "a list of names in quotes";
  };

  choice = choices: {
    accepts = v: isString v && elem v choices;
    wanted = or' (map toJSON choices);
    inherit choices;
  };

  name = {
    accepts = v: isString v && match "[a-z0-9][a-z0-9_-]{0,63}" v != null;
    wanted = "1 to 64 of a-z, 0-9, _ and -, with a letter or a digit first";
  };

  packages = {
    accepts = v: isList v && all (p: isAttrs p && p ? outPath) v;
    wanted = "a list of packages";
  };

  variables = {
    accepts = v: isAttrs v && !(v ? outPath) && all isVariable (attrNames v) && all isString (attrValues v);
    wanted = "variables and their values in quotes, such as { TZ = \"UTC\" }";
  };

  inherited = {
    accepts =
      v: isAttrs v && attrNames v == [ "vars" ] && isList v.vars && all (n: isString n && isVariable n) v.vars;
    wanted = "the names of variables, such as { vars = [\"TZ\"] }";
  };

  mountPoint = {
    accepts =
      v:
      isString v
      && match "(/[^/\n]+)+" v != null
      && match ".*/\\.{1,2}(/.*)?" v == null
      && !(lib.any (folder: inside v folder || inside folder v) reserved);
    wanted = "a plain absolute path outside of ${lib.concatStringsSep ", " reserved}";
  };
}
