# The server as a service of NixOS: the units of dist/deploy/, and HAProxy with the
# configuration of dist/deploy/ before more than one of them. So what the tests run is what a
# system gets.
{
  lib,
  # The server's program.
  program,
  # The options `serve`, completed, and `service`.
  serve,
  service,
}:
let
  inherit (lib) concatMapStringsSep filter hasPrefix range;

  # The lines NAME=VALUE of a section of a unit. A name that is there twice has a list.
  section =
    name: text:
    let
      lines = lib.splitString "\n" text;
      step =
        state: line:
        if hasPrefix "[" line then
          state // { inside = line == "[${name}]"; }
        else if state.inside && !(hasPrefix "#" line) && lib.hasInfix "=" line then
          state // { found = state.found ++ [ (builtins.match "([^=]+)=(.*)" line) ]; }
        else
          state;
      found =
        (lib.foldl' step {
          inside = false;
          found = [ ];
        } lines).found;
    in
    lib.mapAttrs (_: values: if lib.length values == 1 then lib.head values else values) (
      lib.zipAttrs (map (pair: { ${lib.head pair} = lib.last pair; }) found)
    );

  unit = builtins.readFile ../dist/deploy/nix-sandbox-mcp.service;
  base = section "Service" unit;

  user = base.User;
  path = lib.removePrefix "unix:" serve.listen;
  port = lib.toInt (lib.last (lib.splitString ":" serve.listen));
  isUnix = path != serve.listen;

  several = service.instances > 1;
  names = if several then map (n: "nix-sandbox-mcp-${toString n}") (range 1 service.instances) else [ "nix-sandbox-mcp" ];
  socketOf = name: if several then "/run/${name}.socket" else path;

  serviceOf = name: {
    description = "Sandboxes for language models";
    requires = [ "${name}.socket" ];
    after = [
      "network.target"
      "${name}.socket"
    ];
    wantedBy = [ "multi-user.target" ];
    serviceConfig =
      removeAttrs base [ "LoadCredential" ]
      // {
        ExecStart = "${program} serve --http systemd";
        ExecReload = "/bin/sh -c 'kill -HUP $MAINPID'";
        StateDirectory = name;
        RuntimeDirectory = name;
        Environment =
          lib.optional (serve.token_file != null) "NIX_SANDBOX_TOKENS=%d/tokens"
          ++ [ "HOME=%S/${name} XDG_STATE_HOME=%S/${name} XDG_RUNTIME_DIR=%t/${name} XDG_CACHE_HOME=%T/cache" ];
        TimeoutStopSec = serve.lame_duck_seconds + serve.drain_seconds + 15;
      }
      // lib.optionalAttrs (serve.token_file != null) { LoadCredential = "tokens:${serve.token_file}"; };
  };

  socketUnit = name: {
    wantedBy = [ "sockets.target" ];
    listenStreams = [ (socketOf name) ];
    # Only the proxy connects to the servers behind it.
    socketConfig = lib.optionalAttrs several {
      SocketUser = "haproxy";
      SocketMode = "0600";
    };
  };

  # dist/deploy/haproxy.cfg with these servers in the place of its own.
  haproxy =
    lib.replaceStrings [ "\"\${MCP_ADDRESS}\"" ] [ (if isUnix then "unix@${path} mode 0660" else serve.listen) ] (
      lib.concatLines (
        filter (line: !hasPrefix "    server " line) (
          lib.splitString "\n" (lib.removeSuffix "\n" (builtins.readFile ../dist/deploy/haproxy.cfg))
        )
      )
    )
    + concatMapStringsSep "" (name: "    server ${name} unix@${socketOf name} check\n") names;
in
{
  assertions = [
    {
      assertion = !(several && serve.audit_file != null);
      message = "services.nix-sandbox-mcp: serve.audit_file is one file, and service.instances is ${toString service.instances}: leave one of them out";
    }
    {
      assertion = !(several && serve.metrics_listen != null);
      message = "services.nix-sandbox-mcp: serve.metrics_listen is one address, and service.instances is ${toString service.instances}: leave one of them out";
    }
    {
      assertion = serve.listen != "systemd";
      message = "services.nix-sandbox-mcp: serve.listen is systemd, and service.enable makes the socket: set it to an address, such as 127.0.0.1:8080";
    }
    {
      assertion = !(service.openFirewall && isUnix);
      message = "services.nix-sandbox-mcp: service.openFirewall opens a port, and serve.listen is ${serve.listen}: leave it out";
    }
  ];
  users.users.${user} = {
    isSystemUser = true;
    group = user;
  };
  users.groups.${user} = { };
  systemd.services = lib.genAttrs names serviceOf;
  systemd.sockets = lib.genAttrs names socketUnit;
  services.haproxy = lib.mkIf several {
    enable = true;
    config = haproxy;
  };
  networking.firewall.allowedTCPPorts = lib.optional service.openFirewall port;
}
