# What `client-config` prints for each client, and what it does with --install.
#
#   add       the client's own command that adds a server: the words of `start` and `connect`, as
#             below, and of `get` and `remove` if it refuses a name that it has; null if it has
#             none. Then --install edits its file, if that is plain JSON
#   format    of its file: json, toml or yaml
#   files     by scope: the file for all projects of a user, and the one for a project; null if
#             there is none. A path may have ${VARIABLE:-DEFAULT} in it
#   note      how the user finds the file in the client; null if the path says enough
#   start     has the client start the server
#   variables the same, with variables for the server
#   connect   has the client reach a server at a URL; null if its file has no place for that
#   allow     what another file needs so that the client does not ask before each call: files and
#             text, which is JSON; null if the client asks nothing, or has no file for that
#   trust     what its user does before the client uses the server; null if nothing
#   shell     what has the client's own shell commands run in the sandbox (`hook`): files and text, and
#             for JSON that a file is to have besides, format = "json"; note says what the user does then;
#             null if the client has no hook for that
#
# "@COMMAND@" and "@URL@" are replaced by strings in quotes, which JSON, TOML and YAML write alike,
# and in `add` by the words themselves, as is @SCOPE@, "user" or "project". "@ENV@" is replaced by
# a table of variables, and in `add` by --env NAME=VALUE for each of them. The server is called
# "sandbox" in a table of servers: operator/clients/clientfile relies on that.
{ isDarwin }:
let
  # Of @HOOK@, which fails closed: these clients run the command unless the status is 2.
  hook = matcher: [
    {
      inherit matcher;
      hooks = [
        {
          type = "command";
          command = "@HOOK@";
        }
      ];
    }
  ];

  # The variable in which clients find the token of their user.
  token = "NIX_SANDBOX_TOKEN";

  config = "\${XDG_CONFIG_HOME:-~/.config}";
  # Where programs with windows have their files.
  applications = if isDarwin then "~/Library/Application Support" else config;

  serve = [
    "@COMMAND@"
    "--stdio"
  ];
  # Claude Code and Gemini CLI fill the variable in when they connect.
  overHttp = [
    "--transport"
    "http"
    "sandbox"
    "@URL@"
    "--header"
    "Authorization: Bearer \${${token}}"
  ];

  # A client whose file is JSON, with the servers below a key.
  json =
    {
      user,
      project ? null,
      note ? null,
      trust ? null,
      allow ? null,
      add ? null,
      shell ? null,
      key ? "mcpServers",
      # What the description of a server has besides.
      start ? { },
      # The description of a server with a command, and with variables.
      command ? {
        command = "@COMMAND@";
        args = [ "--stdio" ];
      },
      variables ? "env",
      # What the description of a connection has besides; bearer becomes a token.
      connect ? { },
      url ? "url",
      bearer ? null,
      # What the file has besides the connection.
      beside ? { },
    }:
    let
      write = server: builtins.toJSON { ${key}.sandbox = server; };
      started = start // command;
    in
    {
      format = "json";
      files = { inherit user project; };
      inherit
        note
        trust
        allow
        add
        shell
        ;
      start = write started;
      variables = write (started // { ${variables} = "@ENV@"; });
      connect =
        if bearer == null then
          null
        else
          builtins.toJSON (
            beside
            // {
              ${key}.sandbox = connect // {
                ${url} = "@URL@";
                headers.Authorization = "Bearer ${bearer}";
              };
            }
          );
    };
in
{
  claude-code = json rec {
    add =
      let
        words = [
          "claude"
          "mcp"
          "add"
          "--scope"
          "@SCOPE@"
        ];
      in
      {
        get = [
          "claude"
          "mcp"
          "get"
          "sandbox"
        ];
        remove = [
          "claude"
          "mcp"
          "remove"
          "--scope"
          "@SCOPE@"
          "sandbox"
        ];
        # --env takes every word up to the next option.
        start =
          words
          ++ [
            "sandbox"
            "@ENV@"
            "--"
          ]
          ++ serve;
        connect = words ++ overHttp;
      };
    user = "\${CLAUDE_CONFIG_DIR:-~}/.claude.json";
    project = ".mcp.json";
    connect.type = "http";
    bearer = "\${${token}}";
    allow = {
      files = {
        user = "\${CLAUDE_CONFIG_DIR:-~/.claude}/settings.json";
        project = ".claude/settings.json";
      };
      text = builtins.toJSON { permissions.allow = [ "mcp__sandbox__run" ]; };
    };
    shell = {
      inherit (allow) files;
      format = "json";
      note = null;
      text = builtins.toJSON { hooks.PreToolUse = hook "Bash|Monitor|PowerShell|REPL|Eval"; };
    };
  };
  claude-desktop = json {
    user = "${applications}/Claude/claude_desktop_config.json";
    note = "Settings, Developer, Edit Config";
  };
  cline = json {
    user = "${applications}/Code/User/globalStorage/saoudrizwan.claude-dev/settings/cline_mcp_settings.json";
    note = "MCP Servers, Configure MCP Servers";
    connect.type = "streamableHttp";
    bearer = "TOKEN";
  };
  codex = rec {
    add =
      let
        words = [
          "codex"
          "mcp"
          "add"
          "sandbox"
        ];
      in
      {
        remove = [
          "codex"
          "mcp"
          "remove"
          "sandbox"
        ];
        start =
          words
          ++ [
            "@ENV@"
            "--"
          ]
          ++ serve;
        connect = words ++ [
          "--url"
          "@URL@"
          "--bearer-token-env-var"
          token
        ];
      };
    format = "toml";
    files = {
      user = "\${CODEX_HOME:-~/.codex}/config.toml";
      project = ".codex/config.toml";
    };
    note = null;
    trust = null;
    allow = null;
    shell = {
      files = {
        user = "\${CODEX_HOME:-~/.codex}/hooks.json";
        project = ".codex/hooks.json";
      };
      format = "json";
      note = "start codex, open /hooks and trust the hook: until then Codex runs commands outside, without a word";
      text = builtins.toJSON { hooks.PreToolUse = hook "Bash"; };
    };
    start = ''
      [mcp_servers.sandbox]
      command = "@COMMAND@"
      args = ["--stdio"]
    '';
    variables = ''
      ${start}env = "@ENV@"
    '';
    connect = ''
      [mcp_servers.sandbox]
      url = "@URL@"
      bearer_token_env_var = "${token}"
    '';
  };
  copilot-cli = json {
    user = "\${COPILOT_HOME:-~/.copilot}/mcp-config.json";
    start = {
      type = "local";
      tools = [ "*" ];
    };
    connect = {
      type = "http";
      tools = [ "*" ];
    };
    bearer = "\${${token}}";
  };
  cursor = json {
    user = "~/.cursor/mcp.json";
    project = ".cursor/mcp.json";
    bearer = "\${env:${token}}";
  };
  gemini-cli = json {
    add =
      let
        words = [
          "gemini"
          "mcp"
          "add"
          "--scope"
          "@SCOPE@"
        ];
      in
      {
        remove = [
          "gemini"
          "mcp"
          "remove"
          "--scope"
          "@SCOPE@"
          "sandbox"
        ];
        start = words ++ [
          "sandbox"
          "@COMMAND@"
          "@ENV@"
          "--"
          "--stdio"
        ];
        connect = words ++ overHttp;
      };
    user = "~/.gemini/settings.json";
    project = ".gemini/settings.json";
    trust = "trust the folder when it asks: until then Gemini CLI shows the server as disabled";
    shell = {
      files = {
        user = "~/.gemini/settings.json";
        project = ".gemini/settings.json";
      };
      format = "json";
      note = null;
      text = builtins.toJSON { hooks.BeforeTool = hook "run_shell_command"; };
    };
    url = "httpUrl";
    bearer = "\${${token}}";
  };
  goose = rec {
    add = null;
    format = "yaml";
    files = {
      user = "${config}/goose/config.yaml";
      project = null;
    };
    note = null;
    trust = null;
    allow = null;
    shell = null;
    start = ''
      extensions:
        sandbox:
          enabled: true
          type: stdio
          name: sandbox
          description: Runs code in sandboxes
          cmd: "@COMMAND@"
          args: ["--stdio"]
          timeout: 300
    '';
    variables = ''
      ${start}    envs: "@ENV@"
    '';
    connect = ''
      extensions:
        sandbox:
          enabled: true
          type: streamable_http
          name: sandbox
          description: Runs code in sandboxes
          uri: "@URL@"
          headers: {Authorization: "Bearer TOKEN"}
          timeout: 300
    '';
  };
  lm-studio = json {
    user = "~/.lmstudio/mcp.json";
    note = "Program, Install, Edit mcp.json";
    bearer = "TOKEN";
  };
  opencode = json {
    user = "${config}/opencode/opencode.json";
    project = "opencode.json";
    shell = {
      files = {
        user = "${config}/opencode/plugin/nix-sandbox.js";
        project = ".opencode/plugin/nix-sandbox.js";
      };
      format = "js";
      note = null;
      text = builtins.readFile ./opencode.js;
    };
    key = "mcp";
    start = {
      type = "local";
      enabled = true;
    };
    command.command = [
      "@COMMAND@"
      "--stdio"
    ];
    variables = "environment";
    connect = {
      type = "remote";
      enabled = true;
    };
    bearer = "{env:${token}}";
  };
  vscode = json {
    user = "${applications}/Code/User/mcp.json";
    project = ".vscode/mcp.json";
    note = "MCP: Open User Configuration";
    key = "servers";
    start.type = "stdio";
    connect.type = "http";
    # It asks for the token, and keeps it.
    bearer = "\${input:token}";
    beside.inputs = [
      {
        type = "promptString";
        id = "token";
        description = "Token of nix-sandbox-mcp";
        password = true;
      }
    ];
  };
  windsurf = json {
    user = "~/.codeium/windsurf/mcp_config.json";
    url = "serverUrl";
    bearer = "\${env:${token}}";
  };
  zed = json {
    user = "${config}/zed/settings.json";
    project = ".zed/settings.json";
    note = "zed: open settings file";
    key = "context_servers";
    bearer = "TOKEN";
  };
}
