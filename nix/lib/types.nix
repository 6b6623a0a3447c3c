# The types of options: { accepts; wanted; } is a test, and the words for
# what passes it, which follow "write" in a sentence. A choice has its
# `choices` too, so that a misspelling can be named, and may have `reasons`
# against values that operators will try. Of a list or a set, `offends` finds the
# elements that are wrong by themselves, so that the sentence names one of them.
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

  # Written plainly: absolute, and without empty parts, dots or lines in it.
  isPlain =
    v: isString v && match "(/[^/\n]+)+" v != null && match ".*/\\.{1,2}(/.*)?" v == null;

  overlaps = path: lib.any (folder: inside path folder || inside folder path);

  inside = path: folder: path == folder || lib.hasPrefix "${folder}/" path;

  isLine = most: v: isString v && v != "" && stringLength v <= most && match "[^\n\r]*" v != null;

  isPackage = v: isAttrs v && v ? outPath;

  listOf =
    isElement: more:
    {
      accepts = v: isList v && all isElement v;
      offends = v: lib.optionals (isList v) (lib.filter (e: !(isElement e)) v);
    }
    // more;

  setOf =
    isPair: more:
    {
      accepts = v: isAttrs v && !(isPackage v) && all (name: isPair name v.${name}) (attrNames v);
      offends =
        v:
        lib.optionals (isAttrs v && !(isPackage v)) (
          map (name: { ${name} = v.${name}; }) (lib.filter (name: !(isPair name v.${name})) (attrNames v))
        );
    }
    // more;

  # A name that a shell can have for a variable.
  isVariable = n: match "[A-Za-z_][A-Za-z0-9_]*" n != null;

  or' =
    words:
    if lib.length words < 2 then
      lib.concatStrings words
    else
      "${lib.concatStringsSep ", " (lib.init words)} or ${lib.last words}";
in
rec {
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

  lines = listOf (isLine 200) {
    wanted = "a list of names in quotes";
  };

  choice = choices: {
    accepts = v: isString v && elem v choices;
    wanted = or' (map toJSON choices);
    inherit choices;
  };

  # { VALUE = WHY_NOT; }
  choiceBut = reasons: choices: choice choices // { inherit reasons; };

  # A string that a regular expression matches whole.
  matching = pattern: wanted: {
    accepts = v: isString v && match pattern v != null;
    inherit wanted;
  };

  name =
    matching "[a-z0-9][a-z0-9_-]{0,63}" "1 to 64 of a-z, 0-9, _ and -, with a letter or a digit first"
    // {
      example = "\"data\"";
    };

  packages = listOf isPackage { wanted = "a list of packages, such as [ pkgs.jq ]"; };

  package = {
    accepts = isPackage;
    wanted = "a package";
  };

  packagesOrNames = listOf (p: isLine 200 p || isPackage p) {
    wanted = "a list of packages, or of their names in quotes";
  };

  artifact = {
    accepts = v: isAttrs v && v ? outPath && isAttrs (v.metadata or null);
    wanted = "what mkSandbox gives";
  };

  references = listOf (r: isString r && match "[^#, \t\n]+#[^#, \t\n]+" r != null) {
    wanted = "a list of flake references with what to build, such as [ \"github:me/sandboxes#data\" ]";
  };

  boolean = {
    accepts = builtins.isBool;
    wanted = "true or false";
  };

  variables = setOf (name: value: isVariable name && isString value) {
    wanted = "variables and their values in quotes, such as { TZ = \"UTC\" }";
  };

  inherited = {
    accepts =
      v: isAttrs v && attrNames v == [ "vars" ] && isList v.vars && all (n: isString n && isVariable n) v.vars;
    wanted = "the names of variables, such as { vars = [\"TZ\"] }";
  };

  mountPoint = {
    accepts = v: isPlain v && !(overlaps v reserved);
    wanted = "a plain absolute path outside of ${lib.concatStringsSep ", " reserved}";
  };

  # { PATH = SOURCE; }: a path in the sandbox, and what of the host or store.
  binds =
    let
      own = reserved ++ [ "/project" ];
      # Sources through which code would speak with the host's kernel.
      never = [
        "/dev"
        "/proc"
        "/sys"
      ];
      isSource =
        v: builtins.isPath v || isPackage v || (isPlain v && !(lib.any (inside v) never));
      pairs = setOf (path: source: isPlain path && !(overlaps path own) && isSource source);
      apart = names: all (name: !(overlaps name (lib.filter (other: other != name) names))) names;
    in
    pairs {
      wanted = "paths in the sandbox and what is shown there, such as { \"/data\" = \"/srv/data\" }: plain absolute paths, those in the sandbox apart from each other and from ${lib.concatStringsSep ", " own}, the sources outside of ${lib.concatStringsSep ", " never}";
    }
    // {
      accepts = v: (pairs { }).accepts v && apart (attrNames v);
    };

  shell = {
    accepts = v: isAttrs v && v ? drvAttrs && v.drvAttrs ? stdenv;
    wanted = "a shell that mkShell made, such as devShells.x86_64-linux.default";
  };
}
