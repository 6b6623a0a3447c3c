# nixpkgs' names -> Debian's packages and their main programs, null where nixpkgs names none. `more` are packages that Debian has split off.
{
  bash.pname = "bash-interactive";
  bc = { };
  bind = {
    package = "bind9-dnsutils";
    mainProgram = null;
  };
  bubblewrap.mainProgram = "bwrap";
  bzip2.mainProgram = null;
  cacert = {
    pname = "nss-cacert";
    package = "ca-certificates";
    mainProgram = null;
  };
  coreutils.mainProgram = null;
  curl = { };
  diffutils.mainProgram = null;
  erofs-utils.mainProgram = null;
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
    pname = "patch";
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
  hostname.pname = "hostname-debian";
  iproute2.mainProgram = null;
  jq = { };
  less = { };
  lua5_4 = {
    package = "lua5.4";
    pname = "lua";
    mainProgram = "lua";
  };
  ncurses = {
    package = "ncurses-base";
    mainProgram = null;
    more = [ "ncurses-bin" ];
  };
  netcat-openbsd.mainProgram = "nc";
  nix.package = "nix-bin";
  nodejs.mainProgram = "node";
  openssl = { };
  patchelf = { };
  perl = { };
  procps.mainProgram = null;
  qemu = {
    package = "qemu-system-x86";
    mainProgram = "qemu-kvm";
    more = [ "qemu-system-arm" ];
  };
  qemu_kvm = {
    package = "qemu-system-x86";
    pname = "qemu-host-cpu-only";
    mainProgram = "qemu-kvm";
  };
  ripgrep.mainProgram = "rg";
  ruby = { };
  sqlite = {
    package = "sqlite3";
    mainProgram = "sqlite3";
  };
  strace = { };
  tree = { };
  tzdata.mainProgram = null;
  unzip = { };
  util-linux = {
    mainProgram = null;
    more = [
      "bsdextrautils"
      "bsdutils"
      "mount"
    ];
  };
  wget = { };
  which.package = "debianutils";
  xxd.pname = "tinyxxd";
  xz = {
    package = "xz-utils";
    mainProgram = null;
  };
  zip = { };
  zstd = { };
}
