# A profile of macOS (sandbox-exec(1)) for a program of the host: it may start itself, read the
# closures of `roots`, the `files` and what macOS gives to every program. Whatever else it needs
# comes as an open descriptor. There is no network, no other program and no file to write.
{ pkgs }:
{
  program,
  roots,
  files,
}:
let
  inherit (pkgs) lib;
  read = file: "(allow file-read* (literal ${builtins.toJSON file}))\n";
in
pkgs.runCommandLocal "sandbox.sb"
  {
    closure = pkgs.closureInfo { rootPaths = roots; };
    # A later rule counts more than an earlier one.
    rules = ''
      (version 1)
      (deny default)
      (allow process-exec (literal ${builtins.toJSON program}))
      (allow sysctl-read)
      (allow file-read-metadata (literal "/") (literal "/nix") (literal "/nix/store") (literal "/dev"))
      (allow file-read* (subpath "/usr/lib") (subpath "/System/Library") (subpath "/System/Volumes/Preboot/Cryptexes"))
      (allow file-read* (literal "/dev/random") (literal "/dev/urandom"))
      (allow file-read* file-write-data (literal "/dev/null") (subpath "/dev/fd"))
    ''
    + lib.concatMapStrings read files;
    passAsFile = [ "rules" ];
  }
  ''
    {
      cat "$rulesPath"
      sed 's/.*/(allow file-read* (subpath "&"))/' $closure/store-paths
    } > $out
  ''
