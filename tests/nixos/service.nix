# The module for NixOS itself: its service starts, with the gateway in it, refuses callers without a
# token, and runs the code of one that has one.
{ pkgs }:
let
  initialize = builtins.toJSON {
    jsonrpc = "2.0";
    id = 1;
    method = "initialize";
    params = {
      protocolVersion = "2025-11-25";
      capabilities = { };
      clientInfo = {
        name = "test";
        version = "1";
      };
    };
  };
  call = builtins.toJSON {
    jsonrpc = "2.0";
    id = 2;
    method = "tools/call";
    params = {
      name = "run";
      arguments = {
        env = "bash";
        code = "echo $((6 * 7)); id -u; ls /home";
      };
    };
  };
  tokens = "/var/lib/tokens";
in
pkgs.testers.runNixOSTest {
  name = "nix-sandbox-mcp-service";

  nodes.machine = {
    imports = [ ../../modules/nixos.nix ];
    virtualisation = {
      cores = 2;
      memorySize = 2048; # MB
    };
    environment.systemPackages = [ pkgs.curl ];
    services.nix-sandbox-mcp = {
      enable = true;
      environments.bash.preset = "shell";
      serve.token_file = tokens;
      service.enable = true;
    };
    # It needs its tokens, which are made below.
    systemd.services.nix-sandbox-mcp.wantedBy = pkgs.lib.mkForce [ ];
  };

  testScript = ''
    machine.wait_for_unit("multi-user.target")
    machine.succeed("install -m 600 /dev/null ${tokens}")
    token = machine.succeed("nix-sandbox-mcp token new alice --file ${tokens}").strip().split()[-1]
    machine.succeed("systemctl start nix-sandbox-mcp.service")
    machine.wait_for_unit("nix-sandbox-mcp.service")
    post = "curl -sS -X POST -H 'Content-Type: application/json' -H 'Accept: application/json, text/event-stream' http://127.0.0.1:8080/mcp"
    assert machine.succeed(post + " -o /dev/null -w '%{http_code}' --data '${initialize}'") == "401", "a caller without a token is answered"
    with_token = f"{post} -H 'Authorization: Bearer {token}'"
    head = machine.succeed(with_token + " -D - -o /dev/null --data '${initialize}'")
    session = [l.split(": ")[1].strip() for l in head.splitlines() if l.lower().startswith("mcp-session-id")][0]
    answer = machine.succeed(f"{with_token} -H 'Mcp-Session-Id: {session}' -H 'Mcp-Protocol-Version: 2025-11-25' --data '${call}'")
    assert "42" in answer and "isError\":true" not in answer, answer
    # Every user of the machine has the command and its environments.
    assert "bash" in machine.succeed("su nobody -s /bin/sh -c 'HOME=/tmp nix-sandbox-mcp list'")
    machine.succeed("systemctl stop nix-sandbox-mcp.service")
  '';
}
