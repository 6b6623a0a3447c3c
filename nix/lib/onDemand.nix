# Packages on demand: a call may name packages after its environment's name, and
# it gets the environment with these packages in it.
#
# An environment that allows it says so in two files of its artifact
# (docs/contracts.md, C1): recipe.json, from which `derive` makes the same
# environment with more packages, and packages.json, from which the runtime answers
# what needs no Nix. Names of packages come from the model. They reach this file as
# strings of a JSON file, and are looked up as attributes of the package set.
{ pkgs, backends }:
let
  inherit (pkgs) lib;
  inherit (builtins)
    attrNames
    elem
    filter
    hasAttr
    isAttrs
    isString
    match
    toJSON
    ;

  describe = import ./describe.nix { inherit lib; };
  known = import ./packageNames.nix;
  python = pkgs.python3;

  isModule = package: package.pythonModule or false != false;
  isInterpreter = package: package ? pythonVersion;

  # The sets that a name is looked up in, in this order.
  setsOf =
    interpreter_type:
    lib.optional (interpreter_type == "python") python.pkgs ++ [ pkgs ];

  # Names that are no packages wherever they are: functions and sets of nixpkgs. This
  # keeps names from Nix that it would refuse anyway.
  isOther =
    name:
    match "(__.*|_type|(add|append|build|call|close|closure|copy|define|ensure|extend|fetch|import|make|mk|override|recurse|remove|replace|run|splice|substitute|symlink|with|write)[A-Z].*|.*(Packages|Pkgs|Plugins|Extensions|Platform)|config|fetch(bzr|cvs|darcs|git|hg|patch2?|svn|url|zip)|lib|newScope|nixos|overlays|path|pkgs.*|stdenv.*|system|tests)" name != null;

  # ---- what an artifact says ----

  allows = given: given.packages_on_demand != [ ];

  # The attribute of a module or of the interpreter in python3.pkgs, or null. Only the
  # same package counts.
  attributeOf =
    package:
    let
      same = name: (builtins.tryEval (hasAttr name python.pkgs && python.pkgs.${name}.outPath == package.outPath));
      candidates = filter isString [
        (package.pname or null)
        (lib.getName package)
        (package.attributeName or null)
      ];
    in
    lib.findFirst (name: (same name).success && (same name).value) null candidates;

  # What of a package reaches the sandbox, in the store.
  outputsOf =
    package:
    let
      wanted = package.meta.outputsToInstall or [ ];
    in
    if wanted != [ ] && lib.all (output: package ? ${output}) wanted && !(package.outputSpecified or false) then
      map (output: "${package.${output}}") wanted
    else
      [ "${package}" ];

  described =
    package:
    if isModule package then
      { module = attributeOf package; }
    else if isInterpreter package then
      { interpreter = "python3"; }
    else
      { paths = outputsOf package; };

  problems =
    location: given:
    let
      inherit (given) packages;
      interpreters = filter (package: isInterpreter package && package.outPath != python.outPath) packages;
      strangers = filter (package: isModule package && attributeOf package == null) packages;
      named = given.packages_on_demand;
      isAbsent = name: !(lib.any (hasAttr name) (setsOf given.interpreter_type));
      at = "${location} packages_on_demand";
    in
    if !(allows given) then
      [ ]
    else if given.npm or null != null then
      [ "${at} is beside npm, whose lock names all packages: keep one of the two" ]
    else if given.from_shell != null then
      [ "${at} is beside from_shell, whose variables are for its own packages: leave one of them out" ]
    else if interpreters != [ ] then
      [
        "${at} is beside ${lib.getName (lib.head interpreters)}, to which nothing can be added: use modules of python3Packages in its place"
      ]
    else if strangers != [ ] then
      [
        "${at} is beside the module ${lib.getName (lib.head strangers)}, which is not that of python3Packages: leave one of them out"
      ]
    else if lib.isList named then
      map (
        name:
        "${at} names ${toJSON name}, which nixpkgs does not have: use one that `nix search nixpkgs WORD` finds"
      ) (filter isAbsent named)
    else
      [ ];

  recipe =
    given:
    toJSON (
      lib.filterAttrs (_: value: value != null) (
        removeAttrs given [
          "from_shell"
          "packages"
          "packages_ask"
          "packages_on_demand"
        ]
      )
      // {
        packages = map described given.packages;
      }
    );

  # The first word of a module's dotted name.
  topLevel = name: lib.head (lib.splitString "." name);

  # A value that cannot be had is another one.
  tried =
    otherwise: value:
    let
      result = builtins.tryEval (builtins.deepSeq value value);
    in
    if result.success then result.value else otherwise;

  modulesOf =
    name:
    tried [ ] (
      lib.optionals (hasAttr name python.pkgs) (
        map topLevel (filter isString (lib.toList (python.pkgs.${name}.pythonImportsCheck or [ ])))
      )
    );
  programOf =
    name:
    tried null (if hasAttr name pkgs && isAttrs pkgs.${name} then pkgs.${name}.meta.mainProgram or null else null);

  # What the runtime knows without Nix: the names, and the modules and programs that
  # are called differently from their packages.
  table =
    given:
    let
      isPython = given.interpreter_type == "python";
      all = given.packages_on_demand == "all";
      # A package set may have a name, and nothing but a sentence for it. Of a whole set, the names
      # that people use are asked.
      isSentence =
        name:
        let
          set = lib.findFirst (hasAttr name) { } (setsOf given.interpreter_type);
        in
        !(tried false (set ? ${name} && isAttrs set.${name}));
      names =
        if all then
          lib.subtractLists (filter isSentence (known.python ++ known.programs)) (
            filter (name: !(isOther name)) (
              attrNames (lib.foldl' (all: set: all // set) { } (setsOf given.interpreter_type))
            )
          )
        else
          lib.unique given.packages_on_demand;
      isAllowed =
        if all then name: lib.any (hasAttr name) (setsOf given.interpreter_type) else name: elem name names;
      examined = list: if all then list else names;
      asked = lib.listToAttrs (
        lib.concatMap (
          name: map (module: lib.nameValuePair module name) (filter (module: module != name) (modulesOf name))
        ) (lib.reverseList (examined known.python))
      );
      mains = lib.listToAttrs (
        lib.concatMap (
          name:
          let
            program = programOf name;
          in
          lib.optional (program != null && program != name) (lib.nameValuePair program name)
        ) (lib.reverseList (examined known.programs))
      );
      allowed = lib.filterAttrs (_: isAllowed);
    in
    {
      inherit names;
      modules = if isPython then allowed (known.importedAs // asked) else { };
      # Whether most packages are imported by their own names.
      modules_by_name = isPython;
      programs = allowed (known.providedBy // mains);
    };

  # ---- what is made of it ----

  # The package of a name in sets, or why there is none. A name may be a path of attributes.
  resolve =
    sets: name:
    let
      path = lib.splitString "." name;
      # A set may have something else of that name: python3.pkgs has functions.
      found =
        if isOther name then null else lib.findFirst (set: lib.isDerivation (lib.attrByPath path null set)) null sets;
      package = lib.getAttrFromPath path found;
      meta = package.meta or { };
      evaluates = (builtins.tryEval package.drvPath).success;
      reason =
        if meta.broken or false then
          "it is marked as broken"
        else if meta.insecure or (meta.knownVulnerabilities or [ ] != [ ]) then
          "it is marked as insecure (${line (lib.concatStringsSep "; " (meta.knownVulnerabilities or [ ]))})"
        else if meta.unfree or false then
          "its license is unfree (${licenseOf meta})"
        else if meta.unsupported or false then
          "it is not for ${pkgs.stdenv.hostPlatform.system}"
        else
          null;
    in
    if found == null then
      { wrong = "absent"; }
    else if !evaluates && reason != null then
      {
        wrong = "refused";
        inherit reason;
      }
    else
      { inherit package; };

  # A text as one line of at most 200 bytes.
  line =
    text:
    let
      whole = builtins.replaceStrings [ "\n" ] [ " " ] text;
    in
    if builtins.stringLength whole > 200 then "${builtins.substring 0 200 whole}…" else whole;

  wrongOf =
    resolved:
    map (one: {
      inherit (one) name wrong;
      reason = one.reason or "";
    }) (filter (one: one ? wrong) resolved);

  # Code that names packages itself means those of the package set, and modules of Python by their names alone after
  # them.
  setsOfCode = [
    pkgs
    python.pkgs
  ];

  licenseOf =
    meta:
    lib.concatMapStringsSep ", " (
      license: if isAttrs license then license.spdxId or license.shortName or license.fullName or "unfree" else toString license
    ) (lib.toList (meta.license or "unfree"));
in
rec {
  inherit
    allows
    problems
    recipe
    table
    ;

  # For { packages; }, a list of names: what is wrong with them, or the program that adds them to a sandbox that runs.
  addition =
    { packages, ... }:
    let
      resolved = map (name: { inherit name; } // resolve setsOfCode name) packages;
    in
    {
      wrong = wrongOf resolved;
      program = backends.jail.addition (
        map (
          { name, package, ... }:
          {
            inherit name;
            paths = outputsOf package;
            program = package.meta.mainProgram or (lib.getName package);
          }
        ) resolved
      );
    };

  # For the same: what can be told of them without building, by name. One of which nothing can be told is left out.
  facts =
    { packages, ... }:
    lib.filterAttrs (_: fact: fact != { }) (
      lib.genAttrs packages (
        name:
        tried { } (
          let
            found = resolve setsOfCode name;
            inherit (found) package;
            text = value: if isString value then line value else null;
            meta = package.meta or { };
          in
          if found ? wrong then
            { }
          else
            lib.filterAttrs (_: value: value != null) {
              name = text (package.name or null);
              pname = text (lib.getName package);
              version = text (lib.getVersion package);
              # An object with outPath would be written as that alone.
              path = builtins.unsafeDiscardStringContext package.outPath;
              "meta.description" = text (meta.description or null);
              "meta.homepage" = text (meta.homepage or null);
              "meta.mainProgram" = text (meta.mainProgram or null);
              "meta.license" = if meta ? license then line (licenseOf meta) else null;
            }
        )
      )
    );

  # For { recipe; packages; }, a path and a list of names: what is wrong with the
  # names, as { name; wrong; reason; }, and the arguments of mkSandbox. The path is of
  # a recipe in the store, whose references come with it.
  derive = { recipe, packages, ... }: deriveFrom (builtins.readFile recipe) packages;

  # The same for the text of a recipe.
  deriveFrom =
    text: packages:
    let
      # Nothing, that refers to all that the recipe does.
      references = builtins.substring 0 0 text;
      referring =
        value:
        if isString value then
          if lib.hasInfix builtins.storeDir value then references + value else value
        else if lib.isList value then
          map referring value
        else if isAttrs value then
          lib.mapAttrs (_: referring) value
        else
          value;
      given = referring (builtins.fromJSON (builtins.unsafeDiscardStringContext text));
      own =
        described:
        if described ? module then
          [ python.pkgs.${described.module} ]
        else if described ? interpreter then
          [ python ]
        else
          map (path: {
            type = "derivation";
            name = builtins.unsafeDiscardStringContext (builtins.substring 33 200 (baseNameOf path));
            outPath = path;
          }) described.paths;
      resolved = map (name: { inherit name; } // resolve (setsOf given.interpreter_type) name) packages;
    in
    {
      wrong = wrongOf resolved;
      arguments = given // {
        # Its code may add what that of the environment may.
        derived = true;
        packages = lib.concatMap own given.packages ++ map (one: one.package) resolved;
        # A line for `list`; the model reads that of the environment itself.
        description = describe.with' (given.description or "") packages;
      };
    };
}
