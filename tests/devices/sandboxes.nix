# The sandboxes of the tests of devices. Which devices python has the tests write into its
# description, so that one artifact is enough; none has none.
{ nixpkgs }:
let
  pkgs = import nixpkgs { system = builtins.currentSystem; };
  sandboxes = import ../../nix { inherit pkgs; };

  python = {
    packages = [
      pkgs.coreutils
      pkgs.python3
    ];
    interpreter = "python3 -c";
  };
in
{
  python = sandboxes.mkSandbox (
    python
    // {
      name = "devices-python";
      devices = [ "vendor.example/gpu=all" ];
    }
  );

  gpu-check = sandboxes.gpuCheck;

  # The same without devices.
  none = sandboxes.mkSandbox (python // { name = "devices-none"; });
}
