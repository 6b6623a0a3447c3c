# mkImage makes an OCI image of a server, which Docker, Podman and Kubernetes
# run. The result is a program that writes the image to its standard output:
#
#   nix build .#image && ./result | podman load
#
# Its arguments are those of mkServer, and `name` and `tag` of the image. The
# server builds nothing when it starts, because a container has no Nix.
{
  pkgs,
  host,
  programs,
  revision,
  server,
  validate,
}:
let
  inherit (pkgs) lib;

  withoutNix = import ./withoutNix.nix { inherit host server validate; } {
    name = "mkImage";
    place = "an image";
    own = [
      "name"
      "tag"
    ];
  };

  user = import ./user.nix;
  state = "/var/lib/nix-sandbox-mcp";

  # Programs ask for the name of their user.
  accounts = pkgs.runCommandLocal "nix-sandbox-mcp-accounts" { } ''
    mkdir -p $out/etc
    printf '%s\n' 'root:x:0:0::/root:/bin/false' 'server:x:${toString user.uid}:${toString user.gid}::${state}:/bin/false' > $out/etc/passwd
    printf '%s\n' 'root:x:0:' 'server:x:${toString user.gid}:' > $out/etc/group
  '';

  build =
    args:
    let
      program = lib.getExe (withoutNix.make args);
    in
    pkgs.dockerTools.streamLayeredImage {
      name = args.name or "nix-sandbox-mcp";
      tag = args.tag or programs.version;
      contents = [ accounts ];
      # The container's user, whoever that is, writes here and nowhere else.
      extraCommands = ''
        mkdir -p bin tmp .${state}
        # For `podman exec` and `kubectl exec`.
        ln -s ${program} bin/nix-sandbox-mcp
        chmod 1777 tmp .${state}
      '';
      config = {
        Entrypoint = [ program ];
        Cmd = [ "--stdio" ];
        User = "${toString user.uid}:${toString user.gid}";
        Env = [
          "HOME=${state}"
          "XDG_STATE_HOME=${state}"
          "XDG_CACHE_HOME=/tmp/cache"
        ];
        Volumes.${state} = { };
        WorkingDir = "/";
        Labels = {
          "org.opencontainers.image.title" = "nix-sandbox-mcp";
          "org.opencontainers.image.description" = "Runs a model's code in sandboxes built by Nix, over MCP";
          "org.opencontainers.image.licenses" = "MIT";
          "org.opencontainers.image.source" = "https://github.com/nix-sandbox-mcp/nix-sandbox-mcp";
          "org.opencontainers.image.version" = programs.version;
          # The registry of MCP servers compares it with the name in server.json.
          "io.modelcontextprotocol.server.name" = "io.github.nix-sandbox-mcp/nix-sandbox-mcp";
        }
        // lib.optionalAttrs (revision != null) { "org.opencontainers.image.revision" = revision; };
      };
    };
in
{
  inherit (withoutNix) problems;

  make = args: validate.orThrow (withoutNix.problems args) (build args);
}
