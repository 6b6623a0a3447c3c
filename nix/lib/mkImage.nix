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
  server,
  validate,
}:
let
  inherit (pkgs) lib;

  forServer =
    args:
    removeAttrs args [
      "name"
      "tag"
      "buildAtStart"
    ];

  problems =
    args:
    if !(builtins.isAttrs args) then
      [ "mkImage is given ${validate.show args}: write mkImage { config = ./config.toml; }" ]
    else if server.problems (forServer args) != [ ] then
      server.problems (forServer args)
    else
      map (what: "mkImage: ${what}, and an image has no Nix: write mkServer for a machine that has it, or leave it out") (
        lib.optional (args.buildAtStart or false != false) "buildAtStart is true"
        ++ server.toBuild (forServer args)
      );

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
    pkgs.dockerTools.streamLayeredImage {
      name = args.name or "nix-sandbox-mcp";
      tag = args.tag or programs.version;
      contents = [ accounts ];
      # The container's user, whoever that is, writes here and nowhere else.
      extraCommands = ''
        mkdir -p tmp .${state}
        chmod 1777 tmp .${state}
      '';
      config = {
        Entrypoint = [ (lib.getExe (server.make (forServer args // { buildAtStart = false; }))) ];
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
    };
in
{
  inherit problems;

  make = args: validate.orThrow (problems args) (build args);
}
