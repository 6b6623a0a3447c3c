# Debian's kernel for virtual machines, in nixpkgs' layout: bzImage or Image, and lib/modules/VERSION.
{
  builders,
  groups,
  processor,
  source,
  seed,
}:
let
  # The package of that name is empty, and depends on the one of the current kernel.
  inherit (source.index.packages."linux-image-cloud-${source.index.architecture}") depends;
  package = builtins.head depends;
  version = groups.version package;
in
builders.runCommandLocal "linux-${version}" { } ''
  mkdir $out unpacked
  ${seed}/bin/busybox ar p ${source.deb package} data.tar.xz | tar --extract --xz --directory=unpacked
  cp unpacked/boot/vmlinuz-* $out/${processor.kernel}
  mkdir $out/lib
  if [ -e unpacked/usr/lib/modules ]; then cp -r unpacked/usr/lib/modules $out/lib/; else cp -r unpacked/lib/modules $out/lib/; fi
''
// {
  inherit version;
}
