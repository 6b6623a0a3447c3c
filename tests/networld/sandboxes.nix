# The sandboxes that are tested in the world of this folder: those whose network has its
# policy, in each language; one without limits that a measurement would reach; one that
# reaches other hosts; and one without a network that is otherwise the same.
{ nixpkgs }:
let
  pkgs = import nixpkgs { system = builtins.currentSystem; };
  sandboxes = import ../../nix { inherit pkgs; };

  policy = builtins.fromJSON (builtins.readFile ./policy.json);
  network = {
    mode = "allow";
  }
  // removeAttrs policy [
    "schema"
    "upstream"
  ];

  python = options: sandboxes.mkSandbox ({
    packages = [ pkgs.python3 ];
    interpreter = "python3 -c";
    inherit network;
  } // options);
in
{
  python = python { name = "world-python"; };

  bash = sandboxes.mkSandbox {
    name = "world-bash";
    packages = [
      pkgs.bash
      pkgs.coreutils
    ];
    interpreter = "bash -c";
    inherit network;
  };

  # The same in a virtual machine.
  machine = python {
    name = "world-machine";
    backend = "vm";
  };

  # Programs that reach a network, each in its own way.
  tools = sandboxes.mkSandbox {
    name = "world-tools";
    packages = [
      pkgs.bash
      pkgs.bind
      pkgs.coreutils
      pkgs.curl
      pkgs.git
      pkgs.nodejs
      pkgs.perl
      pkgs.wget
      (pkgs.python3.withPackages (ps: [
        ps.aiohttp
        ps.httpx
        ps.requests
      ]))
    ];
    interpreter = "bash -c";
    inherit network;
  };

  node = sandboxes.mkSandbox {
    name = "world-node";
    packages = [ pkgs.nodejs ];
    interpreter = "node -e";
    inherit network;
  };

  ample = python {
    name = "world-ample";
    network = network // {
      connections = 1024;
      rate = 10000;
      megabytes = 1048576;
      names = 65536;
    };
  };

  other = python {
    name = "world-other";
    network = network // {
      domains = [
        "evil.example"
        "*.other.example"
      ];
    };
  };

  # A user is asked about all hosts but one.
  ask = python {
    name = "world-ask";
    ask_seconds = 20;
    timeout_seconds = 5;
    network = network // {
      domains = [ "files.example" ];
      ask = [
        "*.host.example"
        "evil.example"
        "git.example:22"
      ];
    };
  };

  none = python {
    name = "world-none";
    network = "none";
  };
}
