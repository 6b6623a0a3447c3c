# Says what is wrong with a set of values, one sentence each, and never throws:
# the caller throws the first sentence, and a test compares them all.
{ lib }:
let
  inherit (import ./types.nix { inherit lib; }) unsafeDevice;

  inherit (builtins)
    attrNames
    concatMap
    hasAttr
    isAttrs
    isBool
    isFloat
    isInt
    isList
    isPath
    isString
    stringLength
    substring
    toJSON
    ;

  # Whether two words differ in at most `slips` letters put in, left out or
  # changed. The search branches three ways at a slip and nowhere else.
  near =
    slips: a: b:
    let
      rest = s: substring 1 (stringLength s) s;
      same = substring 0 1 a == substring 0 1 b;
    in
    if a == b then
      true
    else if a != "" && b != "" && same then
      near slips (rest a) (rest b)
    else
      slips > 0
      && (
        (a != "" && near (slips - 1) (rest a) b)
        || (b != "" && near (slips - 1) a (rest b))
        || (a != "" && b != "" && near (slips - 1) (rest a) (rest b))
      );

  # The one of the choices that was probably meant, as the end of a sentence.
  perhaps =
    word: choices:
    let
      # A name may lack its unit, such as memory of memory_mb.
      close = lib.filter (near 2 word) choices ++ lib.filter (lib.hasPrefix "${word}_") choices;
    in
    lib.optionalString (close != [ ] && stringLength word > 2) " (did you mean ${toJSON (lib.head close)}?)";

  show =
    v:
    if isString v && stringLength v > 80 then
      "${toJSON (substring 0 80 v)}…"
    else if v == null || isString v || isInt v || isFloat v || isBool v then
      toJSON v
    else if isPath v then
      "a path"
    else if isList v then
      "a list"
    else if isAttrs v then
      if v ? outPath then "a package" else "a set of values"
    else
      "a function";
  # The element of a list or a set that is wrong by itself, or { } if only the whole value
  # is wrong.
  elementOf =
    type: value:
    let
      wrong = (type.offends or (_: [ ])) value;
    in
    lib.optionalAttrs (wrong != [ ]) { element = lib.head wrong; };

  # What is wrong with a value: all of it, or the first of its elements.
  shown =
    type: value:
    let
      wrong = elementOf type value;
      name = lib.head (attrNames wrong.element);
    in
    if wrong == { } then
      "is ${show value}"
    else if isList value then
      "has ${show wrong.element} in it"
    else
      "has ${toJSON name} = ${show wrong.element.${name}} in it";

  # The sentence about a value that its type does not accept.
  refused =
    at: type: value:
    let
      explained = (type.explain or (_: { })) ((elementOf type value).element or value);
      why =
        if isString value && type ? reasons.${value} then
          ", ${type.reasons.${value}}"
        else
          explained.why or (lib.optionalString (isString value && type ? choices) (perhaps value type.choices));
    in
    "${at} ${shown type value}${why}: use ${explained.use or type.wanted}";

  # What is wrong with the values of options; `at` gives the words that name one.
  valuesAt =
    location: at: options: given:
    concatMap (
      key:
      let
        inherit (options.${key}) type;
        value = given.${key};
      in
      if !(hasAttr key given) || value == null then
        lib.optional (
          options.${key}.required or false
        ) "${location} lacks ${key}: set ${key} = ${type.example or type.wanted}"
      else if type ? rows && isAttrs value && !(value ? outPath) then
        let
          problems = tableAt (at key) (inner: "${at key}.${inner}") type.rows value;
        in
        if problems != [ ] then
          problems
        else
          map (problem: "${at key}.${problem.key} ${problem.sentence}") ((type.beyond or (_: [ ])) value)
      else if type ? each && isAttrs value && !(value ? outPath) then
        (lib.optional (
          lib.length (attrNames value) > (type.most or 1000)
        ) "${at key} has ${toString (lib.length (attrNames value))} tables: use ${type.wanted}")
        ++ concatMap (
          name:
          let
            of = "${at key}.${if builtins.match "[A-Za-z0-9_-]+" name == null then toJSON name else name}";
          in
          if !(type.isName name) then
            [ "${at key} has ${show name} in it: use ${type.wanted}" ]
          else if !(isAttrs value.${name}) then
            [ "${of} is ${show value.${name}}: use a table" ]
          else
            tableAt of (inner: "${of}.${inner}") type.each value.${name}
        ) (attrNames value)
      else
        lib.optional (!(type.accepts value)) (refused (at key) type value)
    ) (attrNames options);

  tableAt =
    location: at: options: given:
    unknownAt location "option" (attrNames options) given ++ valuesAt location at options given;

  unknownAt =
    location: what: known: values:
    concatMap (
      key:
      lib.optional (!(lib.elem key known))
        "${location} has no ${what} ${toJSON key}${perhaps key known}: use one of ${lib.concatStringsSep ", " known}"
    ) (attrNames values);
in
rec {
  inherit near perhaps show;

  # Keys that are no options. `what` is the word for one key.
  unknown = unknownAt;

  # Values that their options do not accept. Null is the same as left out.
  values = location: valuesAt location (key: "${location} ${key}");

  # Both.
  table =
    location: options: given:
    if !(isAttrs given) then
      [ "${location} is ${show given}: use a set of values" ]
    else
      tableAt location (key: "${location} ${key}") options given;

  # Values that are right by themselves and not together.
  together =
    location: options: given:
    let
      complete' = complete options given;
      inherit (complete') timeout_seconds max_timeout_seconds;
      # [defaults] has no devices.
      devices = complete'.devices or [ ];
      unsafe = lib.filter (device: unsafeDevice device != null) devices;
    in
    lib.optional (unsafe != [ ] && !complete'.unsafe_devices)
      "${location} devices has ${show (lib.head unsafe)} in it, ${unsafeDevice (lib.head unsafe)}, through which code gets out of the sandbox or stops the machine: set unsafe_devices = true beside it, or leave it out"
    ++
    lib.optional (max_timeout_seconds != null && max_timeout_seconds < timeout_seconds)
      "${location} max_timeout_seconds is ${show max_timeout_seconds}, less than timeout_seconds, which is ${show timeout_seconds}: use ${show timeout_seconds} or more, or leave it out";

  # The values given, and the defaults of those that were not.
  complete =
    options: given:
    lib.mapAttrs (
      key: option:
      let
        value = if given.${key} or null != null then given.${key} else option.default or null;
      in
      if option.type ? rows && isAttrs value then
        complete option.type.rows value
      else if option.type ? each && isAttrs value then
        lib.mapAttrs (_: complete option.type.each) value
      else
        value
    ) options;

  # Throws the first of the problems, or returns the value.
  orThrow = problems: value: if problems == [ ] then value else throw (lib.head problems);
}
