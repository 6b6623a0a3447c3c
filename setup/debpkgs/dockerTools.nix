# nixpkgs' dockerTools, as far as nix/lib/mkImage.nix asks for it: the whole
# closure is one layer, in the archive that `docker save` writes.
{
  lib,
  builders,
  jq,
}:
{
  streamLayeredImage =
    {
      name,
      tag,
      contents ? [ ],
      extraCommands ? "",
      config ? { },
    }:
    let
      configuration = builders.writeText "${name}-configuration.json" (builtins.toJSON config);
      closure = builders.closureInfo { rootPaths = contents ++ [ configuration ]; };
      archive = builders.runCommandLocal "${name}-image" { nativeBuildInputs = [ jq ]; } ''
        # Without an entry of their own, Docker makes these for root alone.
        mkdir -p root/nix/store
        cd root
        ${lib.concatMapStringsSep "\n" (path: "cp -rP ${path}/. . && chmod -R u+w .") contents}
        ${extraCommands}
        cd ..
        mkdir image
        reproducible=(--sort=name --mtime=@1 --owner=0 --group=0 --numeric-owner --hard-dereference)
        tar "''${reproducible[@]}" -cf image/layer.tar -C "$PWD/root" . -C / --transform 's,^nix,./nix,' --files-from <(sed 's,^/,,' ${closure}/store-paths)
        layer=$(sha256sum image/layer.tar | cut -d ' ' -f 1)
        case $(uname -m) in
          aarch64) architecture=arm64 ;;
          *) architecture=amd64 ;;
        esac
        jq -n --slurpfile config ${configuration} --arg layer "sha256:$layer" --arg architecture "$architecture" \
          '{created: "1970-01-01T00:00:01Z", architecture: $architecture, os: "linux", config: $config[0],
            rootfs: {type: "layers", diff_ids: [$layer]}}' > image/config.json
        jq -n --arg name ${lib.escapeShellArg "${name}:${tag}"} \
          '[{Config: "config.json", RepoTags: [$name], Layers: ["layer.tar"]}]' > image/manifest.json
        tar "''${reproducible[@]}" -cf $out -C image manifest.json config.json layer.tar
      '';
    in
    builders.writeScript "stream-${name}" ''
      #!${builders.runtimeShell}
      exec cat ${archive}
    '';
}
