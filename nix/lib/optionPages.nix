# The pages of docs/options, made from the declarations; `docs/options/write`
# writes them, and a test compares.
{ lib, options }:
let
  inherit (builtins) toJSON;

  # In a table's cell, a bar ends it.
  cell = builtins.replaceStrings [ "|" "\n" ] [ "\\|" " " ];

  default =
    option:
    if option.required or false then
      "required"
    else if option.default or null == null then
      ""
    else
      "`${toJSON option.default}`";

  row =
    prefix: name: option:
    "| `${prefix}${name}` | ${cell option.doc} | ${cell option.type.wanted} | ${cell (default option)} |";

  table =
    prefix: rows:
    lib.concatStringsSep "\n" (
      [
        "| option | | value | default |"
        "| --- | --- | --- | --- |"
      ]
      ++ lib.mapAttrsToList (row prefix) rows
    );

  # With the tables in it.
  network =
    removeAttrs options.network [
      "credentials"
      "rules"
    ]
    // lib.mapAttrs' (name: lib.nameValuePair "rules.\"HOST\".${name}") options.rule
    // lib.mapAttrs' (name: lib.nameValuePair "credentials.NAME.${name}") options.credential;

  page =
    title: intro: parts:
    lib.concatStringsSep "\n\n" (
      [
        "# ${title}"
        intro
      ]
      ++ lib.concatMap (
        part:
        lib.optional (part ? title) "## ${part.title}"
        ++ lib.optional (part ? intro) part.intro
        ++ [ (table (part.prefix or "") part.rows) ]
      ) parts
    )
    + "\n";

  # What all modules have below their prefix.
  module = prefix: own: [
    { rows = own; inherit prefix; }
    {
      title = "Environments";
      prefix = "${prefix}environments.<name>.";
      rows = options.module;
    }
    {
      title = "The network of an environment";
      prefix = "${prefix}environments.<name>.network.";
      rows = network;
    }
    {
      title = "Servers of tools";
      prefix = "${prefix}tools.<name>.";
      rows = options.toolServer;
    }
    {
      title = "Defaults of environments";
      prefix = "${prefix}defaults.";
      rows = options.defaults;
    }
    {
      title = "Sessions";
      prefix = "${prefix}session.";
      rows = options.session;
    }
    {
      title = "Packages on demand";
      prefix = "${prefix}on_demand.";
      rows = options.on_demand;
    }
    {
      title = "The project";
      prefix = "${prefix}project.";
      rows = options.project;
    }
    {
      title = "Many clients";
      prefix = "${prefix}serve.";
      rows = options.serve;
    }
    {
      title = "A proxy that says who calls";
      prefix = "${prefix}serve.proxy.";
      rows = options.serve.proxy.type.rows;
    }
    {
      title = "An authorization server";
      prefix = "${prefix}serve.oauth.";
      rows = options.serve.oauth.type.rows;
    }
    {
      title = "Quotas";
      prefix = "${prefix}serve.quotas.<name>.";
      rows = options.serve.quotas.type.each;
    }
  ];
in
{
  mkSandbox = page "Options of mkSandbox" ''
    `nix-sandbox-mcp.lib.mkSandbox { inherit pkgs; … }` makes a sandbox: a folder with `metadata.json`, `bin/run` and `bin/session-run`. Names may
    also be written in Nix's style (`fromShell`, `extraBinds`, `timeoutSeconds`). A sandbox is the same wherever it is built.'' [
    { rows = options.mkSandbox; }
    {
      title = "The network";
      prefix = "network.";
      rows = network;
    }
  ];

  toml = page "Options of the configuration file" "`config.example.toml` shows most of them. `extends = \"default\"` before the first table adds what is in the file to what that one says." [
    {
      title = "[environments.NAME]";
      rows = options.toml;
    }
    {
      title = "[environments.NAME.network]";
      rows = network;
    }
    {
      title = "[tools.NAME]";
      rows = options.toolServer;
    }
    {
      title = "[defaults]";
      rows = options.defaults;
    }
    {
      title = "[session]";
      rows = options.session;
    }
    {
      title = "[on_demand]";
      rows = options.on_demand;
    }
    {
      title = "[project]";
      rows = options.project;
    }
    {
      title = "[serve]";
      intro = "This table, which may be empty, adds the program that serves HTTP, and that keeps audit logs and metrics. A server that is built without it has none of that.";
      rows = options.serve;
    }
    {
      title = "[serve.proxy]";
      rows = options.serve.proxy.type.rows;
    }
    {
      title = "[serve.oauth]";
      rows = options.serve.oauth.type.rows;
    }
    {
      title = "[serve.quotas.NAME]";
      rows = options.serve.quotas.type.each;
    }
  ];

  flake-parts =
    page "Options of the flake-parts module"
      ''
        `imports = [ inputs.nix-sandbox-mcp.flakeModules.default ];` gives `packages.nix-sandbox-mcp` (the server), `packages.sandbox-<name>`, an app
        `nix-sandbox-mcp`, and for each environment two checks: `sandbox-<name>` runs code in it, `escape-<name>` tries to get out of it. `nix eval .#nix-sandbox-mcp.metadata --json` shows what the server is
        made of. With `project.use_flake` the flake's own `devShells.default` is the environment `project`.''
      (module "perSystem.nix-sandbox-mcp." (options.modules.flake-parts // options.start));

  nixos =
    page "Options of the NixOS module"
      ''
        `imports = [ inputs.nix-sandbox-mcp.nixosModules.default ];` puts the command `nix-sandbox-mcp` on everybody's PATH, and the environments into
        `/etc/nix-sandbox-mcp/sandboxes`, where every server of the machine finds them.''
      (module "services.nix-sandbox-mcp." (options.modules.nixos // options.start));

  home-manager =
    page "Options of the home-manager module"
      ''
        `imports = [ inputs.nix-sandbox-mcp.homeModules.default ];` sets `programs.mcp.servers.nix-sandbox`, which every client that home-manager
        configures reads where `programs.mcp.enable` is set, and puts the environments into the user's own sandbox folder.''
      (module "programs.nix-sandbox-mcp." (
        options.modules.home-manager // options.start
      ));
}
