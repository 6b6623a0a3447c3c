# nixpkgs' names -> Debian's packages and their main programs. `more` are packages that Debian has split off.
{
  bash = { };
  bc = { };
  bind = {
    package = "bind9-dnsutils";
    mainProgram = "dig";
  };
  bubblewrap.mainProgram = "bwrap";
  bzip2 = { };
  cacert.package = "ca-certificates";
  coreutils.mainProgram = "ls";
  curl = { };
  diffutils.mainProgram = "diff";
  erofs-utils.mainProgram = "mkfs.erofs";
  esbuild = { };
  file = { };
  findutils.mainProgram = "find";
  gawk = { };
  git = { };
  gnugrep = {
    package = "grep";
    mainProgram = "grep";
  };
  gnumake = {
    package = "make";
    mainProgram = "make";
  };
  gnupatch = {
    package = "patch";
    mainProgram = "patch";
  };
  gnused = {
    package = "sed";
    mainProgram = "sed";
  };
  gnutar = {
    package = "tar";
    mainProgram = "tar";
  };
  gzip = { };
  iproute2.mainProgram = "ip";
  jq = { };
  less = { };
  lua5_4 = {
    package = "lua5.4";
    mainProgram = "lua";
  };
  netcat-openbsd.mainProgram = "nc";
  nodejs.mainProgram = "node";
  openssl = { };
  patchelf = { };
  perl = { };
  procps.mainProgram = "ps";
  qemu_kvm = {
    package = "qemu-system-x86";
    mainProgram = "qemu-system-x86_64";
  };
  ripgrep.mainProgram = "rg";
  ruby = { };
  sqlite = {
    package = "sqlite3";
    mainProgram = "sqlite3";
  };
  strace = { };
  tree = { };
  tzdata = { };
  unzip = { };
  util-linux = {
    mainProgram = "mount";
    more = [
      "bsdextrautils"
      "bsdutils"
      "mount"
    ];
  };
  wget = { };
  which.package = "debianutils";
  xxd = { };
  xz.package = "xz-utils";
  zip = { };
  zstd = { };
}
