# fromToml turns a configuration file into artifacts.
#
# Two keys name what another flake made: `sandbox` an artifact, `flake` a
# program to make one of. A build can only follow references that are locked;
# a server that reads the file when it starts follows all of them, and paths
# too.
{
  pkgs,
  options,
  validate,
  configuration,
}:
let
  inherit (pkgs) lib;
  inherit (builtins) attrNames isAttrs toJSON;
  inherit (pkgs.stdenv.hostPlatform) system;

  # A path is a TOML file, a set is what such a file holds. `extends` is what it adds to.
  read = readAs null;
  readAs =
    usually: config:
    let
      given =
        if isAttrs config then
          config
        else
          let
            written = builtins.fromTOML (builtins.readFile config);
            lock = dirOf config + "/tools.lock.json";
          in
          written
          // lib.optionalAttrs (written ? tools && builtins.pathExists lock) {
            tools_lock = lib.importJSON lock;
          };
      own =
        removeAttrs given [ "extends" ]
        // lib.optionalAttrs (isAttrs (given.environments or null)) {
          environments = lib.mapAttrs (_: inFolder) given.environments;
        };
      # A path in a file begins at the file's folder.
      inFolder =
        environment:
        if isAttrs environment && lib.isString (environment.npm or null) && !(isAttrs config) then
          environment
          // {
            npm =
              if lib.hasPrefix "/" environment.npm then /. + environment.npm else /. + "${toString (dirOf config)}/${environment.npm}";
          }
        else
          environment;
      extends = given.extends or usually;
    in
    {
      file = if isAttrs config then "config" else baseNameOf (toString config);
      values =
        if extends == "default" then
          lib.recursiveUpdate (builtins.fromTOML (builtins.readFile ../../config.example.toml)) own
        else
          own;
      problems = lib.optional (
        !(lib.elem extends [
          null
          "default"
        ])
      ) "extends is ${validate.show extends}: use \"default\", the server of config.example.toml, or leave it out";
    };

  dialect = file: {
    location = table: "${file}: [${table}]";
    top = "${file}:";
    environment = options.toml;
    example = "[environments.python] and preset = \"python\" below it";
  };

  isPath = reference: lib.hasPrefix "/" reference && !(lib.hasInfix "#" reference);

  # Whether pure evaluation may follow it.
  isLocked =
    reference:
    builtins.match ".*[0-9a-f]{40}.*" reference != null
    || lib.hasInfix "narHash=" reference
    || lib.hasPrefix builtins.storeDir (lib.removePrefix "path:" reference);
  isPure = !(builtins ? currentSystem);

  # What `nix build` would build, and where in the flake it was found.
  # Relative references begin at `base`, a folder.
  follow =
    base: location: reference:
    let
      parts = lib.splitString "#" reference;
      flake = lib.head parts;
      outputs = builtins.getFlake (if lib.hasPrefix "." flake then "${base}/${flake}" else flake);
      attribute = if lib.length parts == 1 || lib.last parts == "" then "default" else lib.last parts;
      named = lib.splitString "." attribute;
      found = lib.findFirst (path: lib.hasAttrByPath path outputs) null [
        ([ "packages" system ] ++ named)
        ([ "legacyPackages" system ] ++ named)
        named
      ];
    in
    if found == null then
      throw "${location}: ${flake} has no ${attribute} for ${system}: use one that `nix flake show ${flake}` lists"
    else
      {
        path = found;
        value = lib.getAttrFromPath found outputs;
      };

  # The values of an environment with `flake`, with what it names among the
  # packages.
  withPackage =
    found: own:
    removeAttrs own [ "flake" ]
    // (
      if lib.head found.path == "devShells" then
        { from_shell = found.value; }
      else
        { packages = [ found.value ] ++ own.packages or [ ]; }
    );

  # What the file may say of somebody else's sandbox, because the server alone looks at it. Its memory
  # and network are what its own programs make of them.
  ofServer = [
    "max_timeout_seconds"
    "timeout_seconds"
  ];
  says = own: lib.filterAttrs (key: value: lib.elem key ofServer && value != null) own;

  # The same sandbox with what the file says of it.
  changed =
    name: own: artifact:
    let
      given = says own;
      changes = given // {
        inherit name;
        # A call may ask for as much as it has anyway.
        max_timeout_seconds =
          given.max_timeout_seconds or (lib.max artifact.metadata.max_timeout_seconds (given.timeout_seconds or 0));
      };
    in
    if given == { } then
      artifact
    else
      pkgs.runCommandLocal "sandbox-${name}"
        {
          nativeBuildInputs = [ pkgs.jq ];
          changes = toJSON changes;
        }
        ''
          cp -r ${artifact} $out
          chmod -R u+w $out
          jq --compact-output --argjson changes "$changes" '. + $changes' ${artifact}/metadata.json > $out/metadata.json
        ''
      // {
        metadata = artifact.metadata // changes;
      };

  # Until it is followed, any package stands in for it.
  standIn = {
    path = [ "packages" ];
    value = pkgs.bash;
  };

  # `starting` says that it is a server that reads the file.
  environmentProblems =
    starting: words: defaults: name: own:
    let
      location = words.location "environments.${name}";
      given = key: isAttrs own && own.${key} or null != null;
      typed = validate.table location words.environment own ++ validate.values location { inherit (options.mkSandbox) name; } { inherit name; };
      key = lib.findFirst given null [
        "sandbox"
        "flake"
      ];
      # Of an artifact at a path nothing can be changed here.
      beside = lib.filter (k: k != "sandbox" && given k && (isPath own.sandbox || !(lib.elem k ofServer))) (attrNames own);
    in
    if key == null then
      configuration.environmentProblems words defaults name own
    else if typed != [ ] then
      typed
    else if key == "sandbox" && beside != [ ] then
      [ "${location} has ${lib.head beside} beside sandbox: set it where that sandbox is made" ]
    else if key == "flake" && given "preset" then
      [ "${location} has both flake and preset: keep one of them" ]
    else if !starting && key == "sandbox" && isPath own.sandbox then
      [
        "${location} sandbox is ${toJSON own.sandbox}, and a build takes no artifact by its path: use a flake reference, or give this file to the server when it starts, in NIX_SANDBOX_CONFIG"
      ]
    else if !starting && isPure && !(isLocked own.${key}) then
      [
        "${location} ${key} is ${toJSON own.${key}}, which is not locked: add the commit, such as \"github:owner/repo/<40 hex digits>#name\", or give this file to the server when it starts, in NIX_SANDBOX_CONFIG"
      ]
    else if key == "flake" then
      configuration.environmentProblems (words // { environment = options.module; }) defaults name (
        withPackage standIn own
      )
    else
      [ ];

  problemsOf =
    { starting, checking ? false, usually ? null }:
    config:
    let
      inherit (readAs usually config) file values problems;
      words = dialect file // {
        inherit checking;
      };
    in
    if !(builtins.isPath config || lib.isString config || isAttrs config) then
      [ "fromToml is given ${validate.show config}: use the path of a TOML file" ]
    else
      map (problem: "${words.top} ${problem}") problems
      ++ configuration.problems words (environmentProblems starting words) values;

  # The file's values with every reference followed.
  followed =
    base:
    { file, values, ... }:
    let
      words = dialect file;
    in
    values
    // {
      environments = lib.mapAttrs (
        name: own:
        let
          location = words.location "environments.${name}";
          artifact = (follow base location own.sandbox).value;
        in
        if own.sandbox or null != null then
          {
            sandbox =
              if !(isAttrs (artifact.metadata or null)) then
                throw "${location} sandbox is ${toJSON own.sandbox}, which is no sandbox: use flake = and an interpreter, or make it with mkSandbox"
              else
                # The file's name for it counts.
                let
                  same = changed name own artifact;
                in
                same // { metadata = same.metadata // { inherit name; }; };
          }
        else if own.flake or null != null then
          withPackage (follow base location own.flake) own
        else
          own
      ) (values.environments or { });
    };

  build =
    config:
    configuration.build (followed (if isAttrs config then "/" else toString (dirOf config)) (read config));
in
{
  problems = problemsOf { starting = false; };

  # The same as make, of a configuration that has no problems.
  inherit build;

  make = config: validate.orThrow (problemsOf { starting = false; } config) (build config);

  # For a server that reads the file when it starts; base is the file's folder, and `extends` what
  # it adds to if it does not say.
  start =
    { file, base, extends }:
    let
      given = readAs extends file;
      inherit (given) values;
      built = configuration.build (followed base given);
      ofStart = {
        starting = true;
        usually = extends;
      };
    in
    {
      problems = problemsOf ofStart file;
      # The same, but with servers of tools, which are built with a server.
      mistakes = problemsOf (ofStart // { checking = true; }) file;
      inherit (built)
        environments
        on_demand
        project
        session
        ;
      serve = built.serve or (validate.complete options.serve { });
      # What has to be done for each environment: { kind; value; }.
      kinds = lib.mapAttrs (
        _: own:
        if own.sandbox or null != null then
          {
            # One that is changed is another one, which is made here.
            kind = if isPath own.sandbox then "path" else if says own == { } then "sandbox" else "flake";
            value = own.sandbox;
          }
        else if own.flake or null != null then
          {
            kind = "flake";
            value = own.flake;
          }
        else
          {
            kind = "own";
            value = "";
          }
      ) values.environments;
    };
}
