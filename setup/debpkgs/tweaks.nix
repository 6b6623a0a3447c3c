# What single packages need beyond unpacking and binding. Each attribute may hold:
#   depends    further packages; two packages that depend on each other share a store path
#   title      the package whose name and version the group's path has
#   env        attributes of the derivation
#   postFixup  shell text (busybox), run last
{
  lib,
  index,
  group,
  has,
  # The groups whose programs run here, or null: these.
  native,
  processor,
  seedRun,
}:
let
  isNative = native == null;
  # Where programs of a package are that run here, and where those are that it runs while it is made.
  runnable = if isNative then group else native.group;
  own = package: if isNative then "$out" else "${runnable package}";
  inherit (processor) folder;

  shell = "${group "bash"}/bin/bash";
  relocate = seedRun ./build/relocate.pl;

  # NAME becomes a script that sets variables and runs the program
  wrap = name: variables: ''
    mv $out/bin/${name} $out/bin/.${name}-wrapped
    {
      echo '#!${shell}'
      ${lib.concatStrings (lib.mapAttrsToList (n: v: "echo 'export ${n}='\"${v}\"\n") variables)}
      echo "exec -a \"\$0\" $out/bin/.${name}-wrapped \"\$@\""
    } > $out/bin/${name}
    chmod 755 $out/bin/${name}
  '';

  # "python3.13"
  python = lib.head (lib.filter (lib.hasPrefix "python3.") index.packages.python3.depends);
  names = builtins.attrNames index.packages;

  single = {
    # C.UTF-8 is a file of libc-bin. libc looks for it below /usr/lib/locale, which is not there: it gets an archive of its
    # own instead, at a name compiled into it.
    libc6 = {
      depends = [ "libc-bin" ];
      title = "libc6";
      postFixup = ''
        lib=$out/lib/${folder}
        own=${own "libc6"}
        mkdir -p $out/usr/lib/locale
        $own/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2 --library-path $own/lib/x86_64-linux-gnu $own/bin/localedef --prefix=$out --add-to-archive $out/lib/locale/C.utf8
        mv $out/usr/lib/locale/locale-archive $out/lib/locale/
        rm -r $out/usr $out/lib/locale/C.utf8
        ${relocate} $lib/libc.so.6 /usr/lib/locale/locale-archive $out/lib/locale/locale-archive
        rm -rf $out/etc $out/bin/ldconfig $out/bin/ld.so $out/share/libc-bin
      '';
    };

    # The folders of perl's library are compiled in with their lengths, so a wrapper names them.
    perl = {
      title = "perl";
      postFixup =
        let
          version = lib.removePrefix "libperl" (lib.head (lib.filter (lib.hasPrefix "libperl5.") index.packages.perl.depends));
        in
        wrap "perl" {
          PERL5LIB = "\\\${PERL5LIB:+\\$PERL5LIB:}$out/lib/${folder}/perl/${version}:$out/share/perl/${version}:$out/lib/${folder}/perl-base";
        };
    };

    bash.postFixup = "ln -s bash $out/bin/sh";
    debianutils.postFixup = "ln -sf which.debianutils $out/bin/which";
    gawk.postFixup = "ln -sf gawk $out/bin/awk";
    netcat-openbsd.postFixup = "ln -s nc.openbsd $out/bin/nc";
    "lua5.4".postFixup = "ln -s lua5.4 $out/bin/lua; ln -s luac5.4 $out/bin/luac";

    # Debian makes the bundle when the package is installed.
    ca-certificates.postFixup = ''
      mkdir -p $out/etc/ssl/certs
      find $out/share/ca-certificates -name '*.crt' | sort | xargs cat > $out/etc/ssl/certs/ca-bundle.crt
      ln -s ca-bundle.crt $out/etc/ssl/certs/ca-certificates.crt
      rm -rf $out/bin $out/share/ca-certificates
    '';

    file.postFixup = wrap "file" { MAGIC = "${group "libmagic-mgc"}/lib/file/magic.mgc"; };

    # QEMU searches for firmware beside its own program.
    qemu-system-x86.postFixup = ''
      mkdir -p $out/share/qemu
      for file in ${group "qemu-system-data"}/share/qemu/* ${group "seabios"}/share/seabios/*; do
        [ -e $out/share/qemu/''${file##*/} ] || ln -s $file $out/share/qemu/
      done
    '';

    # The folder of its configuration is compiled in.
    openssl.postFixup = wrap "openssl" { OPENSSL_CONF = "\\\${OPENSSL_CONF:-$out/etc/ssl/openssl.cnf}"; };

    # top reads what a terminal can do even where it draws on none.
    procps.postFixup = wrap "top" { TERMINFO_DIRS = "${group "ncurses-base"}/share/terminfo"; };

    # git and tar start other programs through a shell whose name is compiled in.
    tar.postFixup = "${relocate} $out/bin/tar /bin/sh ${shell}";
    git.postFixup = ''
      ${relocate} $out/bin/git /bin/sh ${shell}
      rm -rf $out/lib/git-core/git-shell $out/share/git-core/contrib $out/share/gitweb
    ''
    + wrap "git" {
      GIT_EXEC_PATH = "$out/lib/git-core";
      GIT_TEMPLATE_DIR = "$out/share/git-core/templates";
    };

    # The former names of time zones, such as US/Eastern, are links to the present ones.
    tzdata.depends = [ "tzdata-legacy" ];

    # The interpreter and its standard library are one path, so that sys.prefix is that path.
    "lib${python}-minimal".depends = [
      "python3"
      "tzdata"
    ];
    python3 = {
      title = "python3";
      postFixup = ''
        ln -s python3 $out/bin/python
        rm -rf $out/lib/python3*/test $out/lib/python3*/idlelib
        # the standard library is compiled by what has just been unpacked
        ${own "python3"}/bin/${python} -B -E -s -S -m compileall -q -j 0 --invalidation-mode unchecked-hash $out/lib/${python} $out/lib/python3
      '';
    };

    # ruby looks for its library in a list of folders that is compiled into libruby, and has no room for more bytes than
    # that list has. Debian's local folders are left out of it.
    ruby = {
      title = "ruby";
      postFixup = ''
        library=$(echo $out/lib/${folder}/libruby-*.so.*.*.*)
        chmod u+w $library
        ${seedRun ./build/ruby.pl} $library $out
        $out/bin/ruby -e 'require "rubygems"; require "json"'
      '';
    };

    # Debian's node reads some of its built-in modules from files whose names are compiled into its library.
    nodejs.title = "nodejs";
    ${lib.head (lib.filter (lib.hasPrefix "libnode") index.packages.nodejs.depends ++ [ "libnode" ])}.postFixup = ''
      library=$(echo $out/lib/${folder}/libnode.so.*)
      set --
      for name in $(strings -n 18 $library | grep '^/usr/share/nodejs/[a-z/.-]*[.]js$'); do
        for root in $out $deps none; do
          [ $root != none ] || { echo "no package has $name, which node loads at its start" >&2; exit 1; }
          if [ -e $root/''${name#/usr/} ]; then break; fi
        done
        set -- "$@" $name $root/''${name#/usr/}
      done
      ${relocate} $library "$@"
      ${lib.optionalString isNative "$out/bin/node -e 0"}
    '';
  };

  # pytz joins the name of its folder from parts. Its package has had two names.
  pytz = lib.genAttrs [ "python3-pytz" "python3-tz" ] (_: {
    depends = [ "tzdata" ];
    postFixup = ''
      sed -i "s|'/usr','share',|'${group "tzdata"}/share',|" $out/lib/python3/dist-packages/pytz/__init__.py
    '';
  });

  # perl-base holds the program, the others its library: one path.
  perl = lib.genAttrs (lib.filter (name: builtins.match "perl-base|perl-modules-.*|libperl5.*" name != null) names) (_: {
    depends = [ "perl" ];
  });

  # Go's tool chain and its library are halves of one tree.
  go = builtins.listToAttrs (
    lib.concatMap (
      name:
      let
        tools = lib.removeSuffix "-src" name + "-go";
      in
      [
        (lib.nameValuePair name { depends = [ tools ]; })
        (lib.nameValuePair tools { title = tools; })
      ]
    ) (lib.filter (name: builtins.match "golang-1\\.[0-9]+-src" name != null) names)
  );

  # The modules of python packages are compiled once here, not in each environment.
  modules =
    lib.genAttrs (lib.filter (name: lib.hasPrefix "python3-" name && name != "python3-minimal") names)
      (name: {
        inherit (pytz.${name} or { depends = [ ]; }) depends;
        postFixup = (pytz.${name}.postFixup or "") + ''
          if [ -d $out/lib/python3/dist-packages ]; then
            ${runnable "python3"}/bin/${python} -B -E -s -S -m compileall -q -j 0 --invalidation-mode unchecked-hash $out/lib/python3/dist-packages || true
          fi
        '';
      });
in
single // perl // go // modules
