# What is wrong with the arguments of a server for a place that has no Nix, in which
# nothing can be built: of `name`, for `place`.
{ host, server, validate }:
{
  name,
  place,
  # The arguments that mkServer does not know.
  own,
}:
let
  forServer = args: removeAttrs args (own ++ [ "buildAtStart" ]);
in
{
  make = args: server.make (forServer args // { buildAtStart = false; });

  problems =
    args:
    let
      ofServer = server.problems (forServer args);
    in
    if !host.stdenv.hostPlatform.isLinux then
      [
        "${name}: it holds the server of Linux, and these packages are for ${host.stdenv.hostPlatform.system}: use the package set of Linux as pkgs"
      ]
    else if !(builtins.isAttrs args) then
      [ "${name} is given ${validate.show args}: use ${name} { config = ./config.toml; }" ]
    else if ofServer != [ ] then
      ofServer
    else
      map
        (
          what:
          "${name}: ${what}, and ${place} has no Nix: use mkServer for a machine that has it, or leave it out"
        )
        (
          (if args.buildAtStart or false != false then [ "buildAtStart is true" ] else [ ])
          ++ server.toBuild (forServer args)
        );
}
