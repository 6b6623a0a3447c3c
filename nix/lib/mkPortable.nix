# mkPortable makes an archive of a server for machines without Nix:
#
#   nix build .#portable && tar -xJf result/*.tar.xz && nix-sandbox-mcp/bin/nix-sandbox-mcp doctor
#
# Its arguments are those of mkServer. The archive has the server's closure in a folder, which
# portable.sh shows at /nix/store to the server alone, with the bubblewrap of the closure.
# Files with the same content are stored once: each sandbox has a tree of its own.
{
  pkgs,
  host,
  programs,
  server,
  validate,
}:
let
  inherit (pkgs) lib;

  withoutNix = import ./withoutNix.nix { inherit host server validate; } {
    name = "mkPortable";
    place = "the machine";
    own = [ ];
  };

  name = "nix-sandbox-mcp";
  inherit (pkgs.stdenv.hostPlatform) system;

  build =
    args:
    let
      portable = withoutNix.make args;
    in
    pkgs.runCommand "${name}-portable-${programs.version}"
      {
        nativeBuildInputs = [ pkgs.xz ];
        closure = pkgs.closureInfo {
          rootPaths = [
            portable
            pkgs.bubblewrap
            pkgs.util-linux
          ];
        };
        server = portable;
        bubblewrap = lib.getExe' pkgs.bubblewrap "bwrap";
        nsenter = lib.getExe' pkgs.util-linux "nsenter";
        shell = pkgs.runtimeShell;
        # The loader starts bubblewrap and nsenter, which becomes the server.
        profile = lib.replaceStrings [ "@name@" "@launcher@" "@bubblewrap@ ix" ] [
          "nix-sandbox-archive"
          "\"FOLDER/lib/loader\""
          "${pkgs.runtimeShell} pux"
        ] (lib.readFile ../backends/apparmor.profile);
        passthru.server = portable;
      }
      ''
        mkdir -p ${name}/bin ${name}/store $out
        # A store that `auto-optimise-store` keeps small has links of its own, as of empty files.
        xargs cp --archive --no-preserve=links --target-directory=${name}/store < $closure/store-paths
        find ${name} -type d -exec chmod u+w {} +

        # The same content and mode, one file.
        last= first=
        while read -r sum mode file; do
          if [ "$sum $mode" = "$last" ]; then
            ln -f "$first" "$file"
          else
            last="$sum $mode" first=$file
          fi
        done < <(
          cd ${name}/store
          paste -d ' ' \
            <(find . -type f -size +0 -print0 | sort -z | xargs -0 sha256sum | cut -d ' ' -f 1) \
            <(find . -type f -size +0 -print0 | sort -z | xargs -0 stat -c "%a $PWD/%n") |
            sort
        )

        # What makes the namespace, in which the store is not yet at its place: with the loader
        # and libraries beside it, and no link that leads into the store.
        mkdir ${name}/lib
        loader=$(grep --text --only-matching --max-count 1 \
          '${builtins.storeDir}/[a-z0-9]\{32\}-[^/]*/[A-Za-z0-9_/.-]*/ld-[a-z0-9_.-]*' "$(readlink -f $bubblewrap)" | sed 1q)
        for program in $bubblewrap $nsenter; do
          cp -L $program ${name}/lib/
          $loader --list $program | sed -n 's,.*=> \(/[^ ]*\) .*,\1,p' | xargs cp -Lf --target-directory=${name}/lib
        done
        cp -L $loader ${name}/lib/loader

        sed -e "s,@shell@,$shell,; s,@server@,$server," ${./portable.sh} > ${name}/bin/${name}
        if grep '@[a-z]*@' ${name}/bin/${name}; then exit 1; fi
        chmod +x ${name}/bin/${name}
        # One file for AppArmor (nix/backends/apparmor.profile), whose ABI is named once.
        { echo 'abi <abi/4.0>,'; { printf %s "$profile"; grep -E -- '-nix-sandbox-[0-9a-f]{8}$' $closure/store-paths | xargs cat; } | sed '/^abi /d; /^#/d'; } > ${name}/apparmor

        ln -s store/''${server#${builtins.storeDir}/}/share ${name}/share
        cp ${../../LICENSE} ${name}/LICENSE

        # With several threads, xz makes the same blocks whatever their number is.
        tar --sort=name --mtime=@1 --owner=0 --group=0 --numeric-owner --mode=go-w -cf - ${name} |
          xz --threads=2 -6 > $out/${name}-${programs.version}-${system}.tar.xz
      '';
in
{
  inherit (withoutNix) problems;

  make = args: validate.orThrow (withoutNix.problems args) (build args);
}
