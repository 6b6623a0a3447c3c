# What differs between the processors that packages are for, by Debian's names.
{
  amd64 = {
    name = "x86_64";
    go = "amd64";
    folder = "x86_64-linux-gnu"; # of libraries, below lib/
    loader = "ld-linux-x86-64.so.2";
    elf = 62; # the number of the machine in ELF files
    kernel = "bzImage";
  };
  arm64 = {
    name = "aarch64";
    go = "arm64";
    folder = "aarch64-linux-gnu";
    loader = "ld-linux-aarch64.so.1";
    elf = 183;
    kernel = "Image";
  };
}
