# mkImage makes an OCI image of a server, which Docker, Podman and Kubernetes
# run. The result is a program that writes the image to its standard output:
#
#   nix build .#image && ./result | podman load
#
# Its arguments are those of mkServer, and `name` and `tag` of the image. The
# server builds nothing when it starts, because a container has no Nix.
{
  pkgs,
  programs,
  mkServer,
}:
{
  name ? "nix-sandbox-mcp",
  tag ? programs.version,
  ...
}@args:
let
  inherit (pkgs) lib;

  server = mkServer (
    {
      buildAtStart = false;
    }
    // removeAttrs args [
      "name"
      "tag"
    ]
  );
  user = import ./user.nix;
  state = "/var/lib/nix-sandbox-mcp";

  # Programs ask for the name of their user.
  accounts = pkgs.runCommandLocal "nix-sandbox-mcp-accounts" { } ''
    mkdir -p $out/etc
    printf '%s\n' 'root:x:0:0::/root:/bin/false' 'server:x:${toString user.uid}:${toString user.gid}::${state}:/bin/false' > $out/etc/passwd
    printf '%s\n' 'root:x:0:' 'server:x:${toString user.gid}:' > $out/etc/group
  '';
in
pkgs.dockerTools.streamLayeredImage {
  inherit name tag;
  contents = [ accounts ];
  # The container's user, whoever that is, writes here and nowhere else.
  extraCommands = ''
    mkdir -p tmp .${state}
    chmod 1777 tmp .${state}
  '';
  config = {
    Entrypoint = [ (lib.getExe server) ];
    Cmd = [ "--stdio" ];
    User = "${toString user.uid}:${toString user.gid}";
    Env = [
      "HOME=${state}"
      "XDG_STATE_HOME=${state}"
      "XDG_CACHE_HOME=/tmp/cache"
    ];
    Volumes.${state} = { };
    WorkingDir = "/";
    Labels."org.opencontainers.image.licenses" = "MIT";
  };
}
