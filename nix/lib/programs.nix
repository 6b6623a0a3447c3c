# The Go programs: agent (inside each sandbox), jail and jailDevices (start one), seccomp
# (writes the filter that the jail is started with), network (a sandbox's proxy),
# runtime (the MCP server of one client), gateway (serves many over HTTP), operator (the
# other commands), demo (a client that shows it) and escapeTest (tries to get out of a sandbox).
#
# They are compiled in two halves, what a sandbox holds and what stands outside,
# each from only its own sources: a change to the runtime builds no sandbox
# anew, and a change to a test or a document builds neither half. Two and not
# four, because most of the time goes into the standard library. The escape test
# is compiled apart, on request: no server depends on it. All use one
# vendor tree. What is in sandboxes is for the package set `guest`, on a Mac that of Linux.
{
  pkgs,
  guest ? pkgs,
}:
let
  inherit (pkgs) lib;

  name = "nix-sandbox-mcp";
  version = lib.fileContents ../../VERSION;
  root = ../..;

  # Whether a path, relative to the root, is one of these or lies inside one.
  within = folders: path: lib.any (folder: path == folder || lib.hasPrefix "${folder}/" path) folders;

  # What of the checkout `wanted` accepts, asked with each file's path
  # relative to the root; folders that end up empty do no harm to Go.
  sources =
    wanted:
    builtins.path {
      name = "${name}-source";
      path = root;
      filter =
        path: type:
        let
          relative = lib.removePrefix "${toString root}/" (toString path);
        in
        wanted relative type;
    };

  # Go itself would refuse go.mod only in the middle of a build.
  wantsGo = lib.head (builtins.match ".*\ngo ([0-9.]+)\n.*" (builtins.readFile (root + "/go.mod")));
  buildGoModule =
    set:
    assert
      lib.versionAtLeast set.go.version wantsGo
      || throw "nix-sandbox-mcp takes Go ${wantsGo}, and this package set has ${set.go.version}: use a nixpkgs with Go ${wantsGo} or later as pkgs";
    set.buildGoModule;

  isModuleFile = path: path == "go.mod" || path == "go.sum";

  # Every Go file of the module, because what `go mod vendor` writes depends on
  # every import. A folder with a go.mod is a module of its own: without that
  # file, its imports would count as this module's. The tree is a fixed-output
  # derivation: its path follows from vendorHash alone, whatever else changes in
  # here.
  vendor =
    (buildGoModule pkgs {
      pname = name;
      inherit version;
      vendorHash = import ./vendorHash.nix;
      src = sources (
        path: type:
        if type == "directory" then
          !(lib.elem (baseNameOf path) [
            ".git"
            ".cache"
            "testdata"
            "vendor"
          ])
          && !(builtins.pathExists (root + "/${path}/go.mod"))
        else
          isModuleFile path || lib.hasSuffix ".go" path
      );
    }).goModules;

  compile =
    {
      pname,
      # The folders that it is compiled from.
      folders,
      packages,
      # The package set that it is for.
      set ? pkgs,
    }:
    let
      # The way down to the folders, and what is in them.
      isParent = path: lib.any (folder: lib.hasPrefix "${path}/" folder) folders;
      own = sources (
        path: type:
        if type == "directory" then
          (isParent path || within folders path) && baseNameOf path != "testdata"
        else
          isModuleFile path || (within folders path && !(lib.hasSuffix "_test.go" path))
      );
    in
    buildGoModule set {
      inherit pname version;
      # The vendor tree lies in the source, so buildGoModule has none to make.
      vendorHash = null;
      src = set.runCommandLocal "${pname}-source" { } ''
        cp -r ${own} $out
        chmod u+w $out
        cp -r ${vendor} $out/vendor
      '';
      subPackages = packages;
      env.CGO_ENABLED = 0;
      ldflags = [
        "-s"
        "-w"
        "-X main.version=${version}"
        "-X github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/command.version=${version}"
      ];
      # ./check runs the tests, with the race detector and outside of this.
      doCheck = false;
    }
    // {
      inherit set;
    };

  # The folders of the programs that sandboxes are made of.
  sandboxFolders = {
    inside = [
      "agent"
      "jail"
      "wire"
    ];
    network = [
      "network"
      "wire"
    ];
    machine = [
      "jail"
      "vm"
      "wire"
    ];
  };

  inside = compile {
    pname = "nix-sandbox-mcp-inside";
    set = guest;
    folders = sandboxFolders.inside;
    packages = [
      "agent/cmd/nix-sandbox-agent"
      "jail/cmd/nix-sandbox-jail"
      "jail/devices/cmd/nix-sandbox-jail-devices"
      "jail/cmd/nix-sandbox-seccomp"
      "agent/cmd/nix"
    ];
  };

  outsideFolders = [
    "builder"
    "gateway"
    "jail"
    "operator"
    "parts"
    "runtime"
    "wire"
    "tests/demo"
    "tests/mcpclient"
  ];
  outsidePackages = [
    "builder/cmd/nix-sandbox-builder"
    "gateway/cmd/nix-sandbox-gateway"
    "operator/cmd/nix-sandbox-ctl"
    "operator/tools/nix-sandbox-ctl-tools"
    "operator/tools/nix-sandbox-gateway-tools"
    "operator/tools/nix-sandbox-mcp-tools"
    "runtime/cmd/nix-sandbox-mcp"
  ];
  outside = compile {
    pname = "nix-sandbox-mcp-outside";
    folders = outsideFolders;
    packages = outsidePackages ++ [ "tests/demo" ];
  };

  insideToolbox = compile {
    pname = "nix-sandbox-mcp-inside-toolbox";
    set = guest;
    folders = [ "parts/toolbox/cmd" ];
    packages = [ "parts/toolbox/cmd/tool" ];
  };

  # Apart, because only sandboxes with a network have it.
  network = compile {
    pname = "nix-sandbox-mcp-network";
    folders = sandboxFolders.network;
    packages = [ "network/cmd/nix-sandbox-net" ];
  };

  # Apart, because only sandboxes in virtual machines have it.
  machine =
    set:
    compile {
      pname = "nix-sandbox-mcp-machine";
      inherit set;
      folders = sandboxFolders.machine;
      packages = [
        "vm/cmd/nix-sandbox-vm"
        "vm/cmd/nix-sandbox-vm-image"
      ]
      # A machine's first process.
      ++ lib.optional set.stdenv.hostPlatform.isLinux "vm/cmd/nix-sandbox-vm-guest";
    };

  attacks = compile {
    pname = "nix-sandbox-mcp-attacks";
    folders = [
      "runtime/cgroup"
      "tests/escape"
      "tests/networld"
      "tests/procfs"
      "wire"
    ];
    packages = [ "tests/escape/cmd/nix-sandbox-escape-test" ];
  };

  # One of the programs that were compiled together, in a store path of its own.
  # It is static, and refers to nothing but the few data files that nixpkgs' Go
  # names in each program (tzdata, iana-etc and mailcap).
  program =
    compiled: name: description:
    compiled.set.runCommandLocal "${name}-${version}"
      {
        meta = {
          inherit description;
          license = lib.licenses.mit;
          mainProgram = name;
          platforms = lib.platforms.linux ++ lib.platforms.darwin;
        };
      }
      ''
        mkdir -p $out/bin
        cp ${compiled}/bin/${name} $out/bin/
      '';

  # The programs of a server. Those of one with tools have another ending.
  outsidePrograms = ending: {
    gateway = program outside "nix-sandbox-gateway${ending}" "Serves sandboxes to many clients over HTTP";
    operator = program outside "nix-sandbox-ctl${ending}" "Lets a user list, run and examine sandboxes";
    runtime = program outside "nix-sandbox-mcp${ending}" "Serves sandboxes over the Model Context Protocol";
  };
in
outsidePrograms ""
// {
  inherit version vendor;

  # The top-level folders from which sandboxes can be built again.
  startFolders = lib.unique (
    map (folder: lib.head (lib.splitString "/" folder)) (lib.concatLists (lib.attrValues sandboxFolders))
  );

  toolbox = outsidePrograms "-tools" // {
    tool = program insideToolbox "tool" "Calls a tool from inside a sandbox";
  };

  agent = program inside "nix-sandbox-agent" "Runs code inside a sandbox, as its first process";
  nix = program inside "nix" "Asks the server for packages from inside a sandbox";
  jail = program inside "nix-sandbox-jail" "Starts one sandbox from its generated description";
  jailDevices = program inside "nix-sandbox-jail-devices" "Starts one sandbox that has devices of the host";
  network = program network "nix-sandbox-net" "Connects one sandbox to the hosts that its policy names";
  seccomp = program inside "nix-sandbox-seccomp" "Writes the system call filter of a jail";
  demo = program outside "demo" "Talks to a built server as an MCP client does";
  vm = program (machine pkgs) "nix-sandbox-vm" "Starts one sandbox that is a virtual machine";
  vmGuest = program (machine guest) "nix-sandbox-vm-guest" "Starts a sandbox inside its virtual machine";
  builder = program outside "nix-sandbox-builder" "Builds with Nix what a server needs while it serves";
  vmImage = program (machine guest) "nix-sandbox-vm-image" "Makes the images of a virtual machine";
  escapeTest = program attacks "nix-sandbox-escape-test" "Tries to get out of built sandboxes";
}
