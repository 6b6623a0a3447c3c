# What the model reads about an environment, from what is in it: a few words, and the
# names of the packages that were added to what these words are about.
{ lib }:
let
  # The tool shows as much of a line if there are few environments (runtime/tool).
  most = 160;
in
rec {
  # The name by which an operator asked for a package, or else its own.
  nameOf = package: package.attributeName or package.pname or (lib.getName package);

  # "Python 3" -> [ "numpy" "pandas" ] -> "Python 3 with numpy, pandas"
  with' =
    words: names:
    let
      said = lib.filter lib.isString (builtins.split "[^a-z0-9_.+-]+" (lib.toLower words));
      add =
        text: name:
        let
          longer =
            if text == "" then
              name
            else
              "${text}${if text == words && !(lib.hasInfix " with " words) then " with" else ","} ${name}";
        in
        if lib.hasSuffix "…" text then
          text
        else if lib.stringLength longer > most then
          "${text}, …"
        else
          longer;
    in
    lib.foldl' add words (lib.filter (name: !(lib.elem (lib.toLower name) said)) names);
}
