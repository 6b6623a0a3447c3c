# The server of the tests in this folder: environments of each language, and servers of tools that
# others have published. `folder` has them, and later the lock file. In place of these environments,
# `machine` is one that is a virtual machine, and `probes` are four with the same twenty tools.
{
  nixpkgs,
  folder,
  environments ? "languages",
}:
let
  pkgs = import nixpkgs { system = builtins.currentSystem; };
  inherit (pkgs) lib;
  server = command: {
    inherit command;
    extra_binds."/server" = folder;
    memory_mb = 1024;
    allow = [ "*" ];
    calls = 100000;
  };
  # A program of these tests alone.
  own =
    folder: file:
    server [
      "python3"
      "/server/${file}"
    ]
    // {
      packages = [ "python3" ];
      extra_binds."/server" = "${builtins.path {
        path = folder;
        name = "own";
        filter = path: _: baseNameOf path == file;
      }}";
    };
  npm =
    name: arguments:
    server (
      [
        "node"
        "/server/node_modules/@modelcontextprotocol/server-${name}/dist/index.js"
      ]
      ++ arguments
    )
    // {
      packages = [ "nodejs" ];
    };
  lock = folder + "/tools.lock.json";
  tools = [
    "everything"
    "fickle"
    "files"
    "memory"
    "recall"
    "ten"
  ];
  environment = preset: {
    inherit preset tools;
    max_timeout_seconds = 120;
  };
in
(import ../../nix { inherit pkgs; }).mkServer {
  config = {
    tools = {
      budget = npm "budget-allocator" [ "--stdio" ];
      everything = npm "everything" [ "stdio" ];
      # With narrow limits.
      fickle =
        let
          it = own ./. "fickle.py";
        in
        it
        // {
          extra_binds = it.extra_binds // {
            "/data" = folder + "/fickle";
          };
          at_once = 2;
          calls = 40;
          result_mb = 1;
          shared = "session";
          timeout_seconds = 2;
        };
      files = npm "filesystem" [ "/data" ] // {
        extra_binds = {
          "/server" = folder;
          "/data" = folder + "/data";
        };
        allow = [
          "read_*"
          "list_*"
        ];
      };
      memory = npm "memory" [ ] // {
        env.MEMORY_FILE_PATH = "/tmp/memory.jsonl";
        shared = "session";
      };
      # The same from the SDK for Go.
      recall = server [ "/server/bin/memory" ];
      ten = own ../../examples/tools "ten.py" // {
        allow = [ "add" ];
      };
      thinking = npm "sequential-thinking" [ ];
      writable = npm "filesystem" [ "/tmp" ];
    };
    environments =
      {
        languages = {
          node = environment "node";
          python = environment "python" // {
            timeout_seconds = 60;
          };
          shell = environment "shell" // {
            tools = {
              ten = [ "*" ];
              everything = [ "echo" ];
            };
          };
          published = environment "python" // {
            tools = [
              "budget"
              "everything"
              "files"
              "memory"
              "recall"
              "thinking"
            ];
          };
          none.preset = "python";
        };
        machine.machine = environment "python" // {
          backend = "vm";
        };
        probes = lib.genAttrs [ "node" "python" "shell" ] (preset: {
          inherit preset;
          tools = {
            budget = [ "*" ];
            everything = [
              "echo"
              "get-structured-content"
              "get-sum"
              "get-tiny-image"
            ];
            memory = [
              "add_observations"
              "create_*"
              "open_nodes"
              "read_graph"
              "search_nodes"
            ];
            ten = [ "*" ];
            writable = [
              "create_directory"
              "get_file_info"
              "list_directory"
              "move_file"
              "read_multiple_files"
              "read_text_file"
              "search_files"
              "write_file"
            ];
          };
        });
      }
      .${environments};
    # With the gateway, which writes audit logs.
    serve = { };
  }
  // lib.optionalAttrs (builtins.pathExists lock) { tools_lock = lib.importJSON lock; };
}
