# What `client-config` prints for each client:
#
#   where     names the client's configuration file, for the user
#   start     has the client start the server
#   project   the same, with a project for every sandbox
#   connect   has the client reach a server at a URL; null if its file has no place for that
#
# "@COMMAND@", "@DIR@" and "@URL@" are replaced by strings in quotes, which JSON and TOML write
# alike.
let
  # The variable in which clients find the token of their user.
  token = "NIX_SANDBOX_TOKEN";

  # A client whose file is JSON, with the servers below a key.
  json =
    {
      where,
      key ? "mcpServers",
      # What the description of a server has besides.
      start ? { },
      # What the description of a connection has besides; bearer becomes a token.
      connect ? { },
      bearer ? null,
      # What the file has besides the connection.
      beside ? { },
    }:
    let
      write = server: builtins.toJSON { ${key}.sandbox = server; };
      started = start // {
        command = "@COMMAND@";
        args = [ "--stdio" ];
      };
    in
    {
      inherit where;
      start = write started;
      project = write (started // { env.PROJECT_DIR = "@DIR@"; });
      connect =
        if bearer == null then
          null
        else
          builtins.toJSON (
            beside
            // {
              ${key}.sandbox = connect // {
                url = "@URL@";
                headers.Authorization = "Bearer ${bearer}";
              };
            }
          );
    };
in
{
  claude-code = json {
    where = ".mcp.json in the project, or the user's by: claude mcp add sandbox -- COMMAND --stdio";
    connect.type = "http";
    bearer = "\${${token}}";
  };
  claude-desktop = json {
    where = "claude_desktop_config.json (Settings, Developer, Edit Config)";
  };
  codex = rec {
    where = "~/.codex/config.toml";
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
  cursor = json {
    where = "~/.cursor/mcp.json, or .cursor/mcp.json in the project";
    bearer = "\${env:${token}}";
  };
  vscode = json {
    where = ".vscode/mcp.json in the project, or the user's by: MCP: Open User Configuration";
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
  zed = json {
    where = "settings.json (zed: open settings)";
    key = "context_servers";
    bearer = "TOKEN";
  };
}
