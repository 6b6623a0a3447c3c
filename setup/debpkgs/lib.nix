# The part of nixpkgs.lib that flakes and packages of everyday use: its names and its semantics.
let
  inherit (builtins)
    add
    all
    any
    attrNames
    attrValues
    baseNameOf
    catAttrs
    compareVersions
    concatLists
    concatMap
    concatStringsSep
    deepSeq
    dirOf
    div
    elem
    elemAt
    filter
    foldl'
    fromJSON
    functionArgs
    genList
    getAttr
    groupBy
    hasAttr
    head
    intersectAttrs
    isAttrs
    isBool
    isFloat
    isFunction
    isInt
    isList
    isNull
    isPath
    isString
    length
    lessThan
    listToAttrs
    map
    mapAttrs
    match
    mul
    parseDrvName
    partition
    pathExists
    readDir
    readFile
    removeAttrs
    replaceStrings
    seq
    sort
    split
    splitVersion
    stringLength
    sub
    substring
    tail
    toJSON
    trace
    tryEval
    typeOf
    ;

  # ---- functions
  id = x: x;
  const = x: _: x;
  flip =
    f: a: b:
    f b a;
  pipe = foldl' (x: f: f x);
  fix =
    f:
    let
      x = f x;
    in
    x;
  extends =
    overlay: f: final:
    let
      prev = f final;
    in
    prev // overlay final prev;
  composeExtensions =
    f: g: final: prev:
    let
      first = f final prev;
    in
    first // g final (prev // first);
  composeManyExtensions = foldr composeExtensions (_: _: { });
  makeExtensible =
    f:
    fix f
    // {
      extend = overlay: makeExtensible (extends overlay f);
    };
  toFunction = v: if isFunction' v then v else _: v;
  isFunction' = f: isFunction f || (f ? __functor && isFunction' (f.__functor f));
  functionArgs' = f: if f ? __functor then f.__functionArgs or (functionArgs' (f.__functor f)) else functionArgs f;
  setFunctionArgs = f: args: {
    __functor = _: f;
    __functionArgs = args;
  };
  boolToString = b: if b then "true" else "false";
  min = a: b: if a < b then a else b;
  max = a: b: if a > b then a else b;
  mod = a: b: a - b * (a / b);
  assertMsg = condition: message: condition || throw message;
  assertOneOf =
    name: value: allowed:
    assertMsg (elem value allowed) "${name} must be one of ${toPretty allowed}, but is: ${toPretty value}";
  throwIf = condition: message: if condition then throw message else id;
  throwIfNot = condition: throwIf (!condition);
  warn = message: trace "evaluation warning: ${message}";
  warnIf = condition: message: if condition then warn message else id;
  warnIfNot = condition: warnIf (!condition);
  traceVal = x: trace x x;
  traceSeq = x: y: trace (deepSeq x x) y;
  importJSON = path: fromJSON (readFile path);
  importTOML = path: builtins.fromTOML (readFile path);
  toPretty =
    v:
    if isString v then
      toJSON v
    else if isList v then
      "[ ${concatMapStringsSep " " toPretty v} ]"
    else if isAttrs v then
      "{ ${concatStrings (mapAttrsToList (n: x: "${n} = ${toPretty x}; ") v)}}"
    else if isFunction v then
      "<function>"
    else if isBool v then
      boolToString v
    else if isNull v then
      "null"
    else
      toString v;

  # ---- lists
  singleton = x: [ x ];
  foldr =
    op: nul: list:
    let
      n = length list;
      from = i: if i == n then nul else op (elemAt list i) (from (i + 1));
    in
    from 0;
  foldl = op: foldl' op;
  imap0 = f: list: genList (i: f i (elemAt list i)) (length list);
  imap1 = f: list: genList (i: f (i + 1) (elemAt list i)) (length list);
  ifilter0 = p: list: map (x: x.value) (filter (x: p x.i x.value) (imap0 (i: value: { inherit i value; }) list));
  flatten = x: if isList x then concatMap flatten x else [ x ];
  remove = e: filter (x: x != e);
  findFirst =
    p: default: list:
    let
      found = filter p list;
    in
    if found == [ ] then default else head found;
  findSingle =
    p: default: multiple: list:
    let
      found = filter p list;
    in
    if found == [ ] then
      default
    else if length found > 1 then
      multiple
    else
      head found;
  count = p: list: length (filter p list);
  optional = condition: x: if condition then [ x ] else [ ];
  optionals = condition: list: if condition then list else [ ];
  toList = x: if isList x then x else [ x ];
  range = first: last: if first > last then [ ] else genList (n: first + n) (last - first + 1);
  replicate = n: x: genList (_: x) n;
  zipListsWith =
    f: a: b:
    genList (i: f (elemAt a i) (elemAt b i)) (min (length a) (length b));
  zipLists = zipListsWith (fst: snd: { inherit fst snd; });
  reverseList =
    list:
    let
      n = length list;
    in
    genList (i: elemAt list (n - i - 1)) n;
  sortOn = f: list: map (x: x.value) (sort (a: b: a.key < b.key) (map (value: { inherit value; key = f value; }) list));
  naturalSort = sort (a: b: compareVersions a b < 0);
  take = n: sublist 0 n;
  drop = n: list: sublist n (length list) list;
  dropEnd = n: list: take (length list - n) list;
  sublist =
    start: n: list:
    let
      all' = length list;
    in
    genList (i: elemAt list (start + i)) (
      if start >= all' then
        0
      else if start + n > all' then
        all' - start
      else
        n
    );
  last = list: if list == [ ] then throw "lib.last: the list is empty" else elemAt list (length list - 1);
  init = list: if list == [ ] then throw "lib.init: the list is empty" else take (length list - 1) list;
  unique = foldl' (seen: x: if elem x seen then seen else seen ++ [ x ]) [ ];
  allUnique = list: length (unique list) == length list;
  intersectLists = a: filter (x: elem x a);
  subtractLists = a: filter (x: !(elem x a));
  mutuallyExclusive = a: b: length a == 0 || !(any (x: elem x a) b);
  crossLists = f: foldl (fs: xs: concatMap (g: map g xs) fs) [ f ];
  foldAttrs =
    op: nul: list:
    mapAttrs (_: foldr op nul) (zipAttrs list);

  # ---- attribute sets
  nameValuePair = name: value: { inherit name value; };
  genAttrs = names: f: listToAttrs (map (n: nameValuePair n (f n)) names);
  genAttrs' = xs: f: listToAttrs (map f xs);
  mapAttrs' = f: set: listToAttrs (mapAttrsToList f set);
  mapAttrsToList = f: set: map (n: f n set.${n}) (attrNames set);
  attrsToList = mapAttrsToList nameValuePair;
  concatMapAttrs = f: set: foldl' (a: b: a // b) { } (mapAttrsToList f set);
  filterAttrs = p: set: removeAttrs set (filter (n: !(p n set.${n})) (attrNames set));
  getAttrs = names: set: genAttrs names (n: set.${n});
  attrVals = names: set: map (n: set.${n}) names;
  optionalAttrs = condition: set: if condition then set else { };
  attrByPath =
    path: default: set:
    if path == [ ] then
      set
    else if isAttrs set && set ? ${head path} then
      attrByPath (tail path) default set.${head path}
    else
      default;
  hasAttrByPath =
    path: set:
    path == [ ] || (isAttrs set && set ? ${head path} && hasAttrByPath (tail path) set.${head path});
  getAttrFromPath =
    path: set:
    if hasAttrByPath path set then
      attrByPath path null set
    else
      throw "cannot find attribute '${concatStringsSep "." path}'";
  setAttrByPath = path: value: if path == [ ] then value else { ${head path} = setAttrByPath (tail path) value; };
  zipAttrsWithNames =
    names: f: sets:
    genAttrs names (n: f n (catAttrs n sets));
  zipAttrsWith = f: sets: zipAttrsWithNames (unique (concatMap attrNames sets)) f sets;
  zipAttrs = zipAttrsWith (_: values: values);
  mergeAttrsList = foldl' (a: b: a // b) { };
  recursiveUpdateUntil =
    stop: a: b:
    let
      merge =
        path:
        zipAttrsWith (
          n: values:
          let
            here = path ++ [ n ];
          in
          if length values == 1 || stop here (elemAt values 1) (head values) then last values else merge here values
        );
    in
    merge
      [ ]
      [
        a
        b
      ];
  recursiveUpdate = recursiveUpdateUntil (
    _: a: b:
    !(isAttrs a && isAttrs b)
  );
  mapAttrsRecursive = mapAttrsRecursiveCond (_: true);
  mapAttrsRecursiveCond =
    condition: f:
    let
      go = path: mapAttrs (n: v: if isAttrs v && condition v then go (path ++ [ n ]) v else f (path ++ [ n ]) v);
    in
    go [ ];
  collect = p: v: if p v then [ v ] else optionals (isAttrs v) (concatMap (collect p) (attrValues v));
  foldlAttrs =
    f: nul: set:
    foldl' (acc: n: f acc n set.${n}) nul (attrNames set);
  cartesianProduct = foldlAttrs (
    sets: n: values:
    concatMap (set: map (v: set // { ${n} = v; }) values) sets
  ) [ { } ];
  isDerivation = v: v.type or null == "derivation";
  recurseIntoAttrs = set: set // { recurseForDerivations = true; };
  dontRecurseIntoAttrs = set: set // { recurseForDerivations = false; };
  updateManyAttrsByPath =
    updates: set:
    foldl' (
      s: u:
      recursiveUpdate s (setAttrByPath u.path (u.update (attrByPath u.path (throw "no attribute ${concatStringsSep "." u.path}") s)))
    ) set updates;

  # ---- strings
  concatStrings = concatStringsSep "";
  concatMapStrings = concatMapStringsSep "";
  concatMapStringsSep =
    separator: f: list:
    concatStringsSep separator (map f list);
  concatImapStringsSep =
    separator: f: list:
    concatStringsSep separator (imap1 f list);
  concatMapAttrsStringSep =
    separator: f: set:
    concatStringsSep separator (mapAttrsToList f set);
  concatLines = concatMapStrings (line: line + "\n");
  intersperse =
    separator: list:
    if length list < 2 then list else tail (concatMap (x: [ separator x ]) list);
  join = concatStringsSep;
  optionalString = condition: s: if condition then s else "";
  stringToCharacters = s: genList (i: substring i 1 s) (stringLength s);
  stringAsChars = f: s: concatStrings (map f (stringToCharacters s));
  hasPrefix = prefix: s: substring 0 (stringLength prefix) s == prefix;
  hasSuffix =
    suffix: s:
    let
      n = stringLength s;
      m = stringLength suffix;
    in
    n >= m && substring (n - m) m s == suffix;
  hasInfix =
    infix: s:
    length (split (escapeRegex infix) "${s}") > 1;
  removePrefix = prefix: s: if hasPrefix prefix s then substring (stringLength prefix) (-1) s else s;
  removeSuffix = suffix: s: if hasSuffix suffix s then substring 0 (stringLength s - stringLength suffix) s else s;
  trimWith =
    {
      start ? false,
      end ? false,
    }:
    s:
    let
      blank = "[ \t\r\n]*";
      front = if start then head (match "${blank}(.*)" s) else s;
      back = match "(.*[^ \t\r\n])${blank}" front;
    in
    if !end then
      front
    else if back == null then
      ""
    else
      head back;
  trim = trimWith {
    start = true;
    end = true;
  };
  addContextFrom = from: s: substring 0 0 from + s;
  # `split` drops the context.
  splitString =
    separator: s:
    map (addContextFrom s) (filter isString (split (escapeRegex (toString separator)) (toString s)));
  escape = chars: replaceStrings chars (map (c: "\\${c}") chars);
  escapeRegex = escape (stringToCharacters "\\[{()^$?*+|.");
  escapeShellArg =
    arg:
    let
      s = toString arg;
    in
    if match "[[:alnum:],._+:@%/-]+" s == null then "'${replaceStrings [ "'" ] [ "'\\''" ] s}'" else s;
  escapeShellArgs = concatMapStringsSep " " escapeShellArg;
  escapeNixString = s: escape [ "$" ] (toJSON s);
  isValidPosixName = name: match "[a-zA-Z_][a-zA-Z0-9_]*" name != null;
  toShellVar =
    name: value:
    throwIfNot (isValidPosixName name) "toShellVar: ${name} is not a valid shell variable name" (
      if isAttrs value && !isStringLike value then
        "declare -A ${name}=(${concatStringsSep " " (mapAttrsToList (n: v: "[${escapeShellArg n}]=${escapeShellArg v}") value)})"
      else if isList value then
        "declare -a ${name}=(${escapeShellArgs value})"
      else
        "${name}=${escapeShellArg value}"
    );
  toShellVars = vars: concatStringsSep "\n" (mapAttrsToList toShellVar vars);
  isStringLike = x: isString x || isPath x || x ? outPath || x ? __toString;
  isStorePath = x: isStringLike x && match "/nix/store/[^/]+" (toString x) != null;
  lower = "abcdefghijklmnopqrstuvwxyz";
  upper = "ABCDEFGHIJKLMNOPQRSTUVWXYZ";
  toLower = replaceStrings (stringToCharacters upper) (stringToCharacters lower);
  toUpper = replaceStrings (stringToCharacters lower) (stringToCharacters upper);
  toSentenceCase = s: toUpper (substring 0 1 s) + substring 1 (-1) s;
  fixedWidthString =
    width: filler: s:
    if stringLength s >= width then s else fixedWidthString width filler (filler + s);
  fixedWidthNumber = width: n: fixedWidthString width "0" (toString n);
  fileContents = file: removeSuffix "\n" (readFile file);
  versionOlder = a: b: compareVersions b a == 1;
  versionAtLeast = a: b: !versionOlder a b;
  versions = {
    inherit splitVersion;
    major = v: elemAt (splitVersion v) 0;
    minor = v: elemAt (splitVersion v) 1;
    patch = v: elemAt (splitVersion v) 2;
    majorMinor = v: concatStringsSep "." (take 2 (splitVersion v));
  };
  getName = x: if isString x then (parseDrvName x).name else x.pname or (parseDrvName x.name).name;
  getVersion = x: if isString x then (parseDrvName x).version else x.version or (parseDrvName x.name).version;
  nameFromURL = url: separator: head (splitString separator (last (splitString "/" url)));
  cmakeBool = name: value: "-D${name}:BOOL=${if value then "TRUE" else "FALSE"}";
  toInt =
    s:
    let
      number = match "[[:space:]]*(-?[0-9]+)[[:space:]]*" s;
    in
    if number == null then
      throw "Could not convert ${toJSON s} to int."
    else if match "-?0[0-9]+" (head number) != null then
      throw "toInt: ${toJSON s} has a zero in front: it may be meant as octal"
    else
      fromJSON (head number);
  sanitizeDerivationName =
    s:
    let
      parts = filter isString (split "[^[:alnum:]+._?=-]+" (builtins.unsafeDiscardStringContext (toString s)));
      joined = concatStringsSep "-" parts;
      bare = head (match "\\.*(.*)" joined);
    in
    if bare == "" then "unknown" else substring 0 207 bare;

  # ---- paths of packages
  makeSearchPath =
    folder: packages:
    concatStringsSep ":" (map (p: "${p}/${folder}") (filter (p: p != null) packages));
  makeSearchPathOutput = output: folder: packages: makeSearchPath folder (map (getOutput output) packages);
  makeBinPath = makeSearchPathOutput "bin" "bin";
  makeLibraryPath = makeSearchPathOutput "lib" "lib";
  getOutput = output: package: if package.outputSpecified or false then package else package.${output} or package.out or package;
  getBin = getOutput "bin";
  getLib = getOutput "lib";
  getDev = getOutput "dev";
  getMan = getOutput "man";
  getExe =
    package:
    getExe' package (
      package.meta.mainProgram
        or (warn "getExe: package ${toPretty (package.name or package)} has no meta.mainProgram; its name is taken" (getName package))
    );
  getExe' =
    package: program:
    if !isDerivation package then
      throw "lib.meta.getExe': the package is of type ${typeOf package}, and not a derivation"
    else if match ".*/.*" program != null then
      throw "lib.meta.getExe': the program '${program}' must be a name, not a path"
    else
      "${getBin package}/bin/${program}";

  # ---- sources
  cleanSourceFilter =
    path: type:
    let
      name = baseNameOf (toString path);
    in
    !(
      (type == "directory" && elem name [ ".git" ".svn" "CVS" ".hg" ".jj" ])
      || hasSuffix "~" name
      || match "^\\.sw[a-z]$|^\\..*\\.sw[a-z]$" name != null
      || hasSuffix ".o" name
      || hasSuffix ".so" name
      || (type == "symlink" && hasPrefix "result" name)
      || type == "unknown"
    );
  cleanSourceWith =
    {
      src,
      filter ? _: _: true,
      name ? null,
    }:
    let
      inner = src._isLibCleanSourceWith or false;
      origin = if inner then src.origSrc else src;
      both = path: type: filter path type && (!inner || src.filter path type);
      title = if name != null then name else if inner then src.name else "source";
    in
    {
      _isLibCleanSourceWith = true;
      origSrc = origin;
      filter = both;
      name = title;
      outPath = builtins.path {
        filter = both;
        path = origin;
        name = title;
      };
    };
  cleanSource = src: cleanSourceWith { inherit src; filter = cleanSourceFilter; };
  sourceByRegex =
    src: regexes:
    cleanSourceWith {
      inherit src;
      filter =
        path: _:
        let
          relative = removePrefix (toString src + "/") (toString path);
        in
        any (r: match r relative != null) regexes;
    };
  sourceFilesBySuffices =
    src: suffixes:
    cleanSourceWith {
      inherit src;
      filter = path: type: type == "directory" || any (s: hasSuffix s (baseNameOf (toString path))) suffixes;
    };
  filesystem.listFilesRecursive =
    folder:
    flatten (
      mapAttrsToList (
        n: type: if type == "directory" then filesystem.listFilesRecursive (folder + "/${n}") else folder + "/${n}"
      ) (readDir folder)
    );

  # ---- packages
  makeOverridable =
    f: args:
    let
      result = f args;
      with' = new: args // (if isFunction' new then new args else new);
    in
    if isAttrs result then
      result // { override = new: makeOverridable f (with' new); }
    else
      result;
  callPackageWith =
    auto: f: args:
    let
      function = if isFunction' f then f else import f;
    in
    makeOverridable function (intersectAttrs (functionArgs' function) auto // args);
  callPackagesWith = callPackageWith;
  overrideDerivation = drv: f: derivation (drv.drvAttrs // f drv);
  hydraJob = id;
  addMetaAttrs = meta: drv: drv // { meta = drv.meta or { } // meta; };
  fakeHash = "sha256-AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=";
  fakeSha256 = "0000000000000000000000000000000000000000000000000000000000000000";
  licenses = mapAttrs (_: spdxId: { inherit spdxId; free = true; shortName = spdxId; }) {
    asl20 = "Apache-2.0";
    bsd2 = "BSD-2-Clause";
    bsd3 = "BSD-3-Clause";
    cc0 = "CC0-1.0";
    gpl2Only = "GPL-2.0-only";
    gpl2Plus = "GPL-2.0-or-later";
    gpl3Only = "GPL-3.0-only";
    gpl3Plus = "GPL-3.0-or-later";
    isc = "ISC";
    lgpl21Plus = "LGPL-2.1-or-later";
    lgpl3Plus = "LGPL-3.0-or-later";
    mit = "MIT";
    mpl20 = "MPL-2.0";
  };
  maintainers = { };
  platforms = {
    all = [ "x86_64-linux" ];
    linux = [ "x86_64-linux" ];
    unix = [ "x86_64-linux" ];
    x86_64 = [ "x86_64-linux" ];
    darwin = [ ];
  };
  systems = {
    flakeExposed = [ "x86_64-linux" ];
  };
  sourceTypes = {
    fromSource.shortName = "fromSource";
    binaryNativeCode.shortName = "binaryNativeCode";
  };
  generators = {
    toJSON = _: toJSON;
    toKeyValue =
      {
        mkKeyValue ? n: v: "${n}=${if isBool v then boolToString v else toString v}",
        ...
      }:
      set: concatLines (mapAttrsToList mkKeyValue set);
    toPretty = _: toPretty;
  };

  # { testX = { expr; expected; }; } -> the tests that fail
  runTests =
    tests:
    concatMap (
      name:
      let
        test = tests.${name};
      in
      optional ((hasPrefix "test" name || elem name (tests.tests or [ ])) && test.expr != test.expected) {
        inherit name;
        inherit (test) expected;
        result = test.expr;
      }
    ) (attrNames tests);

  version = "debpkgs";
  trivial = {
    release = version;
    inherit version;
  };

  # An attribute of nixpkgs.lib that is not here says so, where its name is known.
  absent =
    genAttrs
      [
        "evalModules"
        "fetchers"
        "fileset"
        "gvariant"
        "kernel"
        "mkOption"
        "modules"
        "network"
        "nixosSystem"
        "options"
        "path"
        "types"
      ]
      (
        name:
        throw "debpkgs: lib.${name} is not part of setup/debpkgs, which stands in for nixpkgs where it cannot be reached; use nixpkgs, or do without it"
      );

  strings = {
    inherit
      addContextFrom
      cmakeBool
      compareVersions
      concatImapStringsSep
      concatLines
      concatMap
      concatMapAttrsStringSep
      concatMapStrings
      concatMapStringsSep
      concatStrings
      concatStringsSep
      elem
      elemAt
      escape
      escapeNixString
      escapeRegex
      escapeShellArg
      escapeShellArgs
      fileContents
      filter
      fixedWidthNumber
      fixedWidthString
      genList
      getName
      getVersion
      hasInfix
      hasPrefix
      hasSuffix
      head
      intersperse
      isAttrs
      isInt
      isList
      isPath
      isStorePath
      isString
      isStringLike
      isValidPosixName
      join
      makeBinPath
      makeLibraryPath
      makeSearchPath
      makeSearchPathOutput
      match
      nameFromURL
      optionalString
      readFile
      removePrefix
      removeSuffix
      replaceStrings
      replicate
      sanitizeDerivationName
      split
      splitString
      stringAsChars
      stringLength
      stringToCharacters
      substring
      tail
      toInt
      toJSON
      toLower
      toSentenceCase
      toShellVar
      toShellVars
      toUpper
      trim
      trimWith
      typeOf
      versionAtLeast
      versionOlder
      ;
    inherit (builtins) fromJSON;
  };

  lib = absent // removeAttrs strings [ "escapeNixString" "sanitizeDerivationName" ] // {
    inherit
      add
      addMetaAttrs
      all
      allUnique
      any
      assertMsg
      assertOneOf
      attrByPath
      attrNames
      attrVals
      attrValues
      attrsToList
      baseNameOf
      boolToString
      callPackageWith
      callPackagesWith
      cartesianProduct
      catAttrs
      cleanSource
      cleanSourceFilter
      cleanSourceWith
      collect
      composeExtensions
      composeManyExtensions
      concatLists
      concatMapAttrs
      const
      count
      crossLists
      deepSeq
      dirOf
      div
      dontRecurseIntoAttrs
      drop
      dropEnd
      extends
      fakeHash
      fakeSha256
      filesystem
      filterAttrs
      findFirst
      findSingle
      fix
      flatten
      flip
      foldAttrs
      foldl
      foldl'
      foldlAttrs
      foldr
      genAttrs
      genAttrs'
      generators
      getAttr
      getAttrFromPath
      getAttrs
      getBin
      getDev
      getExe
      getExe'
      getLib
      getMan
      getOutput
      groupBy
      hasAttr
      hasAttrByPath
      hydraJob
      id
      ifilter0
      imap0
      imap1
      importJSON
      importTOML
      init
      intersectAttrs
      intersectLists
      isBool
      isDerivation
      isFloat
      last
      length
      lessThan
      licenses
      listToAttrs
      maintainers
      makeExtensible
      makeOverridable
      map
      mapAttrs
      mapAttrs'
      mapAttrsRecursive
      mapAttrsRecursiveCond
      mapAttrsToList
      max
      mergeAttrsList
      min
      mod
      mul
      mutuallyExclusive
      nameValuePair
      naturalSort
      optional
      optionalAttrs
      optionals
      overrideDerivation
      partition
      pathExists
      pipe
      platforms
      range
      readDir
      recurseIntoAttrs
      recursiveUpdate
      recursiveUpdateUntil
      remove
      removeAttrs
      reverseList
      runTests
      seq
      setAttrByPath
      setFunctionArgs
      singleton
      sort
      sortOn
      sourceByRegex
      sourceFilesBySuffices
      sourceTypes
      splitVersion
      sub
      sublist
      subtractLists
      systems
      take
      throwIf
      throwIfNot
      toFunction
      toList
      trace
      traceSeq
      traceVal
      trivial
      tryEval
      unique
      updateManyAttrsByPath
      version
      versions
      warn
      warnIf
      warnIfNot
      zipAttrs
      zipAttrsWith
      zipAttrsWithNames
      zipLists
      zipListsWith
      ;
    isFunction = isFunction';
    functionArgs = functionArgs';
    asserts = { inherit assertMsg assertOneOf; };
    meta = {
      inherit getExe getExe';
      availableOn = _: _: true;
    };
    attrsets = { inherit genAttrs mapAttrs' filterAttrs recursiveUpdate mapAttrsToList optionalAttrs; };
    lists = { inherit optional optionals unique flatten range toList; };
    inherit strings;
  };
in
lib
