# The pages of docs/options, made from the declarations; `docs/options/write`
# writes them, and a test compares.
{ lib, options }:
let
  inherit (builtins) attrNames toJSON;

  # In a table's cell, a bar ends it. A page that the text names is linked.
  cell =
    text:
    lib.concatMapStrings (
      part:
      if lib.isList part then
        "([${lib.head part}](../${lib.head part}.md))"
      else
        builtins.replaceStrings [ "|" "\n" ] [ "\\|" " " ] part
    ) (builtins.split "\\(docs/([a-z-]+)\\.md\\)" text);

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

  # A fenced block. tests/docs reads the configurations; what a module is given is a part of a flake.
  fenced =
    language: text:
    lib.concatStringsSep "\n" [
      "```${language}"
      "${text}```"
    ];
  toml = fenced "toml config";
  nix = fenced "nix elsewhere: it is a part of a flake";

  page = title: parts: lib.concatStringsSep "\n\n" ([ "# ${title}" ] ++ parts) + "\n";

  # A table of the configuration file: its options, and what the default server may have in it.
  section = title: rows: example: [
    "## ${title}"
    (toml ("extends = \"default\"\n\n" + example))
    (table "" rows)
  ];
  # One that the example of an earlier table has.
  further = title: rows: [
    "## ${title}"
    (table "" rows)
  ];

  # The page of a module: the options of its own, and how to write the others.
  module =
    {
      title,
      intro,
      prefix,
      own,
      example,
    }:
    page "Options of the ${title} module" [
      intro
      (nix example)
      (table prefix (own // options.start))
      "## The tables of the configuration file"
      ''
        Every option of [the configuration file](toml.md) is here too, below the same names: `keep_files` of `[session]` is
        `${prefix}session.keep_files`, and `domains` of `[environments.NAME.network]` is
        `${prefix}environments.<name>.network.domains`. `${prefix}tools_lock` takes the contents of
        `tools.lock.json`. An environment takes packages too, and not only their names:''
      (table "${prefix}environments.<name>." (
        lib.getAttrs [
          "from_shell"
          "packages"
          "sandbox"
        ] options.module
      ))
    ];
in
{
  mkSandbox = page "Options of mkSandbox" [
    ''
      `nix-sandbox-mcp.lib.mkSandbox { inherit pkgs; … }` makes a sandbox: a folder with `metadata.json`, `bin/run` and
      [others](../contracts.md#c1-artifact). Names may also be written in Nix's style (`fromShell`, `extraBinds`, `timeoutSeconds`). A sandbox is
      the same wherever it is built.''
    (nix ''
      nix-sandbox-mcp.lib.mkSandbox {
        inherit pkgs;
        name = "data";
        preset = "python";
        packages = [ pkgs.python3Packages.scikit-learn ];
        timeoutSeconds = 120;
        network = {
          mode = "allow";
          domains = [ "files.example" ];
        };
      }
    '')
    "`network` takes the options of [`[environments.NAME.network]`](toml.md#environmentsnamenetwork)."
    (table "" options.mkSandbox)
  ];

  toml = page "Options of the configuration file" (
    [
      ''
        The file is [your configuration](../environments.md#your-configuration), the `config` of [`mkServer`](../environments.md#a-server-of-a-team), or what `NIX_SANDBOX_CONFIG` names when the server starts.
        `extends = "default"` before the first table adds what is in the file to [`config.example.toml`](../../config.example.toml), the default server.''
    ]
    ++ section "[environments.NAME]" options.toml ''
      [environments.data]
      preset = "python"
      packages = ["python3Packages.seaborn"]
      memory_mb = 4096
      timeout_seconds = 120
    ''
    ++ section "[environments.NAME.network]" network ''
      [environments.python.network]
      mode = "allow"
      domains = ["files.example", "*.host.example", "git.example:22"]

      [environments.python.network.rules."files.example"]
      methods = ["GET", "HEAD"]
    ''
    ++ section "[tools.NAME]" options.toolServer ''
      [tools.clock]
      packages = ["python3"]
      extra_binds = { "/server" = "/srv/tool-servers" }
      command = ["python3", "/server/clock.py"]
      allow = ["get_*"]

      [environments.python]
      tools = ["clock"]
      packages_on_demand = []
    ''
    ++ [
      "## [defaults]"
      "What holds for each environment that does not set it itself: ${
        lib.concatMapStringsSep ", " (name: "`${name}`") (attrNames options.defaults)
      }."
      (toml ''
        extends = "default"

        [defaults]
        timeout_seconds = 60
        memory_mb = 1024
      '')
    ]
    ++ section "[session]" options.session ''
      [session]
      idle_timeout_seconds = 1800
      keep_files = true
    ''
    ++ section "[on_demand]" options.on_demand ''
      [on_demand]
      build_seconds = 1200
      keep_days = 7
    ''
    ++ section "[project]" options.project ''
      [project]
      path = "/home/me/project"
      mode = "overlay"
    ''
    ++ section "[serve]" options.serve ''
      # It may be empty. A server without this table has no program that serves HTTP, or
      # keeps audit logs and metrics.
      [serve]
      listen = "127.0.0.1:8080"
      hosts = ["sandbox.example"]
      token_file = "/etc/nix-sandbox-mcp/tokens"

      [serve.quotas.default]
      calls = 8
      memory_mb = 16384
    ''
    ++ further "[serve.proxy]" options.serve.proxy.type.rows
    ++ further "[serve.oauth]" options.serve.oauth.type.rows
    ++ further "[serve.quotas.NAME]" options.serve.quotas.type.each
  );

  flake-parts = module {
    title = "flake-parts";
    intro = ''
      The module gives `packages.nix-sandbox-mcp` (the server), `packages.sandbox-<name>`, an app `nix-sandbox-mcp`, and for each environment two
      checks: `sandbox-<name>` runs code in it, `escape-<name>` tries to get out of it. `nix eval .#nix-sandbox-mcp.metadata --json` shows what the
      server is made of. With `project.use_flake` the flake's own `devShells.default` is the environment `project`.'';
    prefix = "perSystem.nix-sandbox-mcp.";
    own = options.modules.flake-parts;
    example = ''
      imports = [ inputs.nix-sandbox-mcp.flakeModules.default ];
      perSystem = { pkgs, ... }: {
        nix-sandbox-mcp.environments.data = {
          preset = "python";
          packages = [ pkgs.python3Packages.seaborn ];
          memory_mb = 4096;
        };
      };
    '';
  };

  nixos = module {
    title = "NixOS";
    intro = ''
      The module puts the command `nix-sandbox-mcp` on everybody's PATH, and the environments into `/etc/nix-sandbox-mcp/sandboxes`, where every
      server of the machine finds them.'';
    prefix = "services.nix-sandbox-mcp.";
    own = options.modules.nixos;
    example = ''
      imports = [ inputs.nix-sandbox-mcp.nixosModules.default ];
      services.nix-sandbox-mcp = {
        enable = true;
        environments.data = {
          preset = "python";
          packages = [ pkgs.python3Packages.seaborn ];
        };
        session.keep_files = true;
      };
    '';
  };

  home-manager = module {
    title = "home-manager";
    intro = ''
      The module sets `programs.mcp.servers.nix-sandbox`, which every client that home-manager configures reads if `programs.mcp.enable` is set,
      and puts the environments into the user's own sandbox folder.'';
    prefix = "programs.nix-sandbox-mcp.";
    own = options.modules.home-manager;
    example = ''
      imports = [ inputs.nix-sandbox-mcp.homeModules.default ];
      programs.nix-sandbox-mcp = {
        enable = true;
        environments.data = {
          preset = "python";
          packages = [ pkgs.python3Packages.seaborn ];
        };
        env.PROJECT_DIR = "/home/me/project";
      };
    '';
  };
}
