# The options of every module, made from nix/lib/options.nix, where names,
# ranges, defaults and descriptions are declared.
#
# The types here accept every value: what is wrong with one is said by the same
# sentence as everywhere else, with the option's name.
{ lib }:
let
  inherit (lib) mkOption types;

  # No package is needed to know what can be written.
  pkgs = { inherit lib; };
  interpreters = import ../nix/interpreters { inherit pkgs; };
  rows = import ../nix/lib/options.nix {
    inherit lib;
    interpreters = lib.attrNames interpreters;
    presets = lib.attrNames (import ../nix/presets.nix { inherit pkgs interpreters; });
    backends = lib.attrNames (import ../nix/backends { pkgs = { }; host = { }; programs = { }; });
  };

  isPlainSet = value: lib.isAttrs value && !(value ? outPath);

  # Lists join; of anything else there is one. In sets this holds for each name, at every depth, and
  # so do mkForce, mkIf and the like: a set that another module adds to loses nothing.
  merge =
    location: definitions:
    let
      values = map (definition: definition.value) definitions;
    in
    if lib.all lib.isList values then
      lib.concatLists values
    else if lib.all isPlainSet values then
      (types.attrsOf (unchecked "anything")).merge location definitions
    else
      lib.mergeEqualOption location definitions;

  unchecked =
    wanted:
    lib.mkOptionType {
      name = "value";
      description = wanted;
      check = _: true;
      inherit merge;
    };

  # The options below an option are options as well. What is no table reaches our own sentence.
  typeOf =
    type:
    if type ? rows then
      orUnchecked type.wanted (table type.rows)
    else if type ? each then
      orUnchecked type.wanted (types.attrsOf (orUnchecked "a table" (table type.each)))
    else
      unchecked type.wanted;

  orUnchecked =
    wanted: type:
    unchecked wanted
    // {
      merge =
        location: definitions:
        if lib.all (definition: isPlainSet definition.value) definitions then
          # What is left out stays out.
          lib.filterAttrs (_: value: value != null) (type.merge location definitions)
        else
          merge location definitions;
      inherit (type) getSubOptions;
    };

  # What is left out is completed where artifacts are made, from [defaults]
  # first; so its default is null, and the text says what that comes to.
  option =
    row:
    mkOption {
      type = typeOf row.type;
      default = null;
      defaultText = lib.literalExpression (
        if row.default or null == null then "null" else builtins.toJSON row.default
      );
      example = row.example or null;
      description = row.doc;
    };

  # Keys that are no options reach our own sentence about them.
  table =
    rows:
    types.submodule {
      freeformType = types.attrsOf (unchecked "anything");
      options = lib.mapAttrs (_: option) rows;
    };

  given = lib.filterAttrs (_: value: value != null);
in
{
  inherit rows;

  options = {
    environments = mkOption {
      # lazyAttrsOf would keep the names that mkIf switches off.
      type = types.attrsOf (table rows.module);
      default = { };
      example = lib.literalExpression ''{ python.preset = "python"; }'';
      description = "Places to run code, by the name that the model asks for.";
    };
    defaults = mkOption {
      type = table rows.defaults;
      default = { };
      example = lib.literalExpression "{ timeout_seconds = 60; }";
      description = "Limits of every environment that does not say otherwise.";
    };
    tools = mkOption {
      type = types.attrsOf (table rows.toolServer);
      default = { };
      example = lib.literalExpression ''{ time = { packages = [ "mcp-server-time" ]; command = [ "mcp-server-time" ]; allow = [ "get_*" ]; }; }'';
      description = "Servers of tools that code may call, by the name that environments give.";
    };
    tools_lock = mkOption {
      type = unchecked "the contents of tools.lock.json";
      default = { };
      example = lib.literalExpression "lib.importJSON ./tools.lock.json";
      description = "What `nix-sandbox-mcp tools lock` wrote of these servers.";
    };
    session = mkOption {
      type = table rows.session;
      default = { };
      example = lib.literalExpression "{ idle_timeout_seconds = 600; }";
      description = "How long sessions live.";
    };
    on_demand = mkOption {
      type = table rows.on_demand;
      default = { };
      example = lib.literalExpression "{ keep_days = 7; }";
      description = "Bounds of what calls have built, where environments allow packages on demand.";
    };
    project = mkOption {
      type = table rows.project;
      default = { };
      example = lib.literalExpression ''{ mode = "overlay"; }'';
      description = "The folder that every sandbox sees.";
    };
    serve = mkOption {
      type = table rows.serve;
      default = { };
      example = lib.literalExpression ''{ token_file = "/etc/nix-sandbox-mcp/tokens"; }'';
      description = "How the server takes many clients over HTTP.";
    };
    buildAtStart = mkOption {
      type = unchecked rows.start.buildAtStart.type.wanted;
      default = true;
      description = rows.start.buildAtStart.doc;
    };
    flakeRefs = mkOption {
      type = unchecked rows.start.flakeRefs.type.wanted;
      default = [ ];
      example = [ "github:me/sandboxes#data" ];
      description = rows.start.flakeRefs.doc;
    };
  };

  enable = mkOption {
    type = types.bool;
    default = false;
    example = true;
    description = rows.modules.nixos.enable.doc;
  };

  package =
    server:
    mkOption {
      type = types.package;
      default = server;
      defaultText = lib.literalExpression "a server with the settings of this module";
      description = rows.modules.nixos.package.doc;
    };

  # What mkServer takes besides.
  start = lib.getAttrs (lib.attrNames rows.start);

  # The values of the options, as fromOptions takes them.
  values = config: {
    environments = lib.mapAttrs (_: given) config.environments;
    defaults = given config.defaults;
    on_demand = given config.on_demand;
    session = given config.session;
    project = given config.project;
  }
  // lib.optionalAttrs (config.tools != { }) {
    tools = lib.mapAttrs (_: given) config.tools;
    inherit (config) tools_lock;
  }
  // lib.optionalAttrs (given config.serve != { } || config.service.enable or false) {
    serve = given config.serve;
  };
}
