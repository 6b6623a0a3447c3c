# A program that tries the devices of the machine in sandboxes, and prints what a report
# about it needs: `nix run .#gpu-check`. Which devices its sandbox has is found when it
# runs, so that it writes their names into the description of the sandbox.
{
  pkgs,
  programs,
  mkSandbox,
}:
let
  inherit (pkgs) lib;

  sandbox = mkSandbox {
    name = "gpu-check";
    packages = [ pkgs.python3 ];
    interpreter = "python3 -c";
    memory_mb = 4096;
    devices = [ "vendor.example/gpu=all" ];
  };
in
pkgs.runCommandLocal "nix-sandbox-gpu-check"
  {
    meta = {
      description = "Tries the devices of this machine in sandboxes";
      mainProgram = "nix-sandbox-gpu-check";
      platforms = lib.platforms.linux;
    };
    script = ./gpuCheck.sh;
    code = ../../examples/gpu/check.py;
    inherit sandbox;
    inherit (programs) version;
    jq = lib.getExe pkgs.jq;
    bash = lib.getExe pkgs.bash;
    path = lib.makeBinPath [
      pkgs.coreutils
      pkgs.gnused
    ];
  }
  ''
    mkdir -p $out/bin
    {
      echo "#!$bash"
      for name in sandbox code version jq path; do
        printf '%s=%q\n' "$name" "''${!name}"
      done
      cat $script
    } > $out/bin/nix-sandbox-gpu-check
    chmod +x $out/bin/nix-sandbox-gpu-check
  ''
