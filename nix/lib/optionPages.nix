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

  # tests/docs reads the configurations. What a module is given stands in somebody's flake.
  fenced = example: "```${example.language}\n${example.text}```";
  toml = text: {
    language = "toml config";
    inherit text;
  };
  nix = text: {
    language = "nix elsewhere: it is a part of a flake";
    inherit text;
  };

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
        ++ lib.optional (part ? example) (fenced part.example)
        ++ lib.optional (part ? rows) (table (part.prefix or "") part.rows)
      ) parts
    )
    + "\n";

  # The options of a module: those of its own, and how to write the others.
  module =
    prefix: own:
    [
      {
        rows = own // options.start;
        inherit prefix;
      }
      {
        title = "The tables of the configuration file";
        intro = ''
          Every option of [the configuration file](toml.md) is here too, below the same names: `keep_files` of `[session]` is
          `${prefix}session.keep_files`, and `domains` of `[environments.NAME.network]` is
          `${prefix}environments.<name>.network.domains`. `${prefix}tools_lock` takes the contents of
          `tools.lock.json`. An environment takes packages too, and not only their names:'';
        prefix = "${prefix}environments.<name>.";
        rows = lib.getAttrs [
          "from_shell"
          "packages"
          "sandbox"
        ] options.module;
      }
    ];
in
{
  mkSandbox =
    page "Options of mkSandbox"
      ''
        `nix-sandbox-mcp.lib.mkSandbox { inherit pkgs; … }` makes a sandbox: a folder with `metadata.json`, `bin/run` and
        [others](../contracts.md#c1-artifact). Names may also be written in Nix's style (`fromShell`, `extraBinds`, `timeoutSeconds`). A sandbox is
        the same wherever it is built.''
      [
        {
          example = nix ''
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
          '';
        }
        {
          intro = "`network` takes the options of [`[environments.NAME.network]`](toml.md#environmentsnamenetwork).";
          rows = options.mkSandbox;
        }
      ];

  toml =
    page "Options of the configuration file"
      ''
        The file is the `config` of [`mkServer`](../environments.md#a-configuration-file), or what `NIX_SANDBOX_CONFIG` names when the server starts.
        `extends = "default"` before the first table adds what is in the file to [`config.example.toml`](../../config.example.toml), the default server.''
      [
        {
          title = "[environments.NAME]";
          example = toml ''
            extends = "default"

            [environments.data]
            preset = "python"
            packages = ["python3Packages.seaborn"]
            memory_mb = 4096
            timeout_seconds = 120
          '';
          rows = options.toml;
        }
        {
          title = "[environments.NAME.network]";
          example = toml ''
            extends = "default"

            [environments.python.network]
            mode = "allow"
            domains = ["files.example", "*.host.example", "git.example:22"]

            [environments.python.network.rules."files.example"]
            methods = ["GET", "HEAD"]
          '';
          rows = network;
        }
        {
          title = "[tools.NAME]";
          example = toml ''
            [tools.clock]
            packages = ["python3"]
            extra_binds = { "/server" = "/srv/tool-servers" }
            command = ["python3", "/server/clock.py"]
            allow = ["get_*"]

            [environments.python]
            preset = "python"
            tools = ["clock"]
          '';
          rows = options.toolServer;
        }
        {
          title = "[defaults]";
          intro = "What holds for each environment that does not set it itself: ${
            lib.concatMapStringsSep ", " (name: "`${name}`") (attrNames options.defaults)
          }.";
          example = toml ''
            extends = "default"

            [defaults]
            timeout_seconds = 60
            memory_mb = 1024
          '';
        }
        {
          title = "[session]";
          example = toml ''
            extends = "default"

            [session]
            idle_timeout_seconds = 1800
            keep_files = true
          '';
          rows = options.session;
        }
        {
          title = "[on_demand]";
          example = toml ''
            extends = "default"

            [on_demand]
            build_seconds = 1200
            keep_days = 7
          '';
          rows = options.on_demand;
        }
        {
          title = "[project]";
          example = toml ''
            extends = "default"

            [project]
            path = "/home/me/project"
            mode = "overlay"
          '';
          rows = options.project;
        }
        {
          title = "[serve]";
          intro = "This table, which may be empty, adds the program that serves HTTP, and that keeps audit logs and metrics. A server that is built without it has none of that.";
          example = toml ''
            extends = "default"

            [serve]
            listen = "127.0.0.1:8080"
            hosts = ["sandbox.example"]
            token_file = "/etc/nix-sandbox-mcp/tokens"

            [serve.quotas.default]
            calls = 8
            memory_mb = 16384
          '';
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
        The module gives `packages.nix-sandbox-mcp` (the server), `packages.sandbox-<name>`, an app `nix-sandbox-mcp`, and for each environment two
        checks: `sandbox-<name>` runs code in it, `escape-<name>` tries to get out of it. `nix eval .#nix-sandbox-mcp.metadata --json` shows what the
        server is made of. With `project.use_flake` the flake's own `devShells.default` is the environment `project`.''
      (
        [
          {
            example = nix ''
              imports = [ inputs.nix-sandbox-mcp.flakeModules.default ];
              perSystem = { pkgs, ... }: {
                nix-sandbox-mcp.environments.data = {
                  preset = "python";
                  packages = [ pkgs.python3Packages.seaborn ];
                  memory_mb = 4096;
                };
              };
            '';
          }
        ]
        ++ module "perSystem.nix-sandbox-mcp." options.modules.flake-parts
      );

  nixos =
    page "Options of the NixOS module"
      ''
        The module puts the command `nix-sandbox-mcp` on everybody's PATH, and the environments into `/etc/nix-sandbox-mcp/sandboxes`, where every
        server of the machine finds them.''
      (
        [
          {
            example = nix ''
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
          }
        ]
        ++ module "services.nix-sandbox-mcp." options.modules.nixos
      );

  home-manager =
    page "Options of the home-manager module"
      ''
        The module sets `programs.mcp.servers.nix-sandbox`, which every client that home-manager configures reads if `programs.mcp.enable` is set,
        and puts the environments into the user's own sandbox folder.''
      (
        [
          {
            example = nix ''
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
          }
        ]
        ++ module "programs.nix-sandbox-mcp." options.modules.home-manager
      );
}
