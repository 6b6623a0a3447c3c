# The Go programs: agent (inside each sandbox), jail (starts one), seccomp
# (writes the filter that the jail is started with) and runtime (the MCP
# server).
#
# Each is a derivation of its own with only its own sources, so that a change
# to the runtime builds no sandbox anew and a change to a test or a document
# builds nothing. All compile against one vendor tree.
{ pkgs }:
let
  inherit (pkgs) lib;

  name = "nix-sandbox-mcp";
  version = "0.1.0";
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

  isModuleFile = path: path == "go.mod" || path == "go.sum";

  # Every Go file, because what `go mod vendor` writes depends on every import.
  # The tree is a fixed-output derivation: its path follows from vendorHash
  # alone, whatever else changes in here.
  vendor =
    (pkgs.buildGoModule {
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
        else
          isModuleFile path || lib.hasSuffix ".go" path
      );
    }).goModules;

  program =
    {
      pname,
      # The folders that it is compiled from.
      folders,
      package,
      description,
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
    pkgs.buildGoModule {
      inherit pname version;
      # The vendor tree lies in the source, so buildGoModule has none to make.
      vendorHash = null;
      src = pkgs.runCommandLocal "${pname}-source" { } ''
        cp -r ${own} $out
        chmod u+w $out
        cp -r ${vendor} $out/vendor
      '';
      subPackages = [ package ];
      env.CGO_ENABLED = 0;
      ldflags = [
        "-s"
        "-w"
        "-X main.version=${version}"
      ];
      # ./check runs the tests, with the race detector and outside of this.
      doCheck = false;
      meta = {
        inherit description;
        license = lib.licenses.mit;
        mainProgram = baseNameOf package;
        platforms = lib.platforms.linux;
      };
    };
in
{
  inherit version vendor;

  agent = program {
    pname = "nix-sandbox-agent";
    folders = [ "agent" ];
    package = "agent/cmd/nix-sandbox-agent";
    description = "Runs code inside a sandbox, as its first process";
  };

  jail = program {
    pname = "nix-sandbox-jail";
    folders = [ "jail" ];
    package = "jail/cmd/nix-sandbox-jail";
    description = "Starts one sandbox from its generated description";
  };

  seccomp = program {
    pname = "nix-sandbox-seccomp";
    folders = [ "jail/seccomp" "jail/cmd/nix-sandbox-seccomp" ];
    package = "jail/cmd/nix-sandbox-seccomp";
    description = "Writes the system call filter of a jail";
  };

  runtime = program {
    pname = "nix-sandbox-mcp-runtime";
    folders = [
      "agent/frame"
      "runtime"
    ];
    package = "runtime/cmd/nix-sandbox-mcp";
    description = "Serves sandboxes over the Model Context Protocol";
  };
}
