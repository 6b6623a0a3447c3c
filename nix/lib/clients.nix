# What `client-config` prints for each client, and what it does with --install.
#
#   add       the client's own command that adds a server: the words of `start`, `project` and
#             `connect`, as below, and of `get` and `remove` if it refuses a name that it has; null
#             if it has none. Then --install edits its file, if that is plain JSON
#   format    of its file: json, toml or yaml
#   files     by scope: the file for all projects of a user, and the one for a project; null if
#             there is none. A path may have ${VARIABLE:-DEFAULT} in it
#   note      how the user finds the file in the client; null if the path says enough
#   start     has the client start the server
#   project   the same, with a project for every sandbox
#   connect   has the client reach a server at a URL; null if its file has no place for that
#   allow     what another file needs so that the client does not ask before each call: files and
#             text, which is JSON; null if the client asks nothing, or has no file for that
#
# "@COMMAND@", "@DIR@" and "@URL@" are replaced by strings in quotes, which JSON, TOML and YAML
# write alike, and in `add` by the words themselves, as is @SCOPE@, "user" or "project". The server is called "sandbox" in a table of servers: operator/clientfile relies on
# that.
let
  # The variable in which clients find the token of their user.
  token = "NIX_SANDBOX_TOKEN";

  config = "\${XDG_CONFIG_HOME:-~/.config}";

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
      allow ? null,
      add ? null,
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
      inherit note allow add;
      start = write started;
      project = write (started // { ${variables}.PROJECT_DIR = "@DIR@"; });
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
  claude-code = json {
    add =
      let
        words = [
          "claude"
          "mcp"
          "add"
          "--scope"
          "@SCOPE@"
        ];
        # --env takes every word up to the next option.
        start = variables: words ++ [ "sandbox" ] ++ variables ++ [ "--" ] ++ serve;
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
        start = start [ ];
        project = start [
          "--env"
          "PROJECT_DIR=@DIR@"
        ];
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
  };
  claude-desktop = json {
    user = "${config}/Claude/claude_desktop_config.json";
    note = "Settings, Developer, Edit Config";
  };
  cline = json {
    user = "${config}/Code/User/globalStorage/saoudrizwan.claude-dev/settings/cline_mcp_settings.json";
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
        start = words ++ [ "--" ] ++ serve;
        project = words ++ [
          "--env"
          "PROJECT_DIR=@DIR@"
          "--"
        ] ++ serve;
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
    allow = null;
    start = ''
      [mcp_servers.sandbox]
      command = "@COMMAND@"
      args = ["--stdio"]
    '';
    project = ''
      ${start}env = { PROJECT_DIR = "@DIR@" }
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
        start =
          variables:
          words
          ++ [
            "sandbox"
            "@COMMAND@"
          ]
          ++ variables
          ++ [
            "--"
            "--stdio"
          ];
      in
      {
        start = start [ ];
        project = start [
          "--env"
          "PROJECT_DIR=@DIR@"
        ];
        connect = words ++ overHttp;
      };
    user = "~/.gemini/settings.json";
    project = ".gemini/settings.json";
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
    allow = null;
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
    project = ''
      ${start}    envs: {PROJECT_DIR: "@DIR@"}
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
    user = "${config}/Code/User/mcp.json";
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
