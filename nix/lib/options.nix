# Every option, declared once: mkSandbox, fromToml and the modules take their
# names, ranges, defaults and descriptions from here.
#
# An option is { type; doc; } and, if it has one, a `default`; `nullable`
# ones may be left out and then are null. `shared` ones may also stand in
# [defaults] and hold for every environment that does not set them itself.
# `published` ones are fields of metadata.json; backends get them all.
{
  lib,
  interpreters,
  presets,
  backends,
}:
let
  types = import ./types.nix { inherit lib; };

  # 30 days: long enough for any session, and far from overflow in nanoseconds.
  longest = 2592000;

  # The requests to one host that are allowed.
  rule = {
    methods = {
      type = types.methods;
      nullable = true;
      doc = "The methods of HTTP; all of them when left out.";
    };
    paths = {
      type = types.paths;
      nullable = true;
      doc = "The paths: `/v1/items` is that one, `/v1/*` each that begins with `/v1/`; all of them when left out.";
    };
  };

  # A secret for one host.
  credential = {
    domain = {
      type = types.host;
      required = true;
      doc = "The host that gets it, by its exact name. It gets the secret, and could send it back. The sandbox has a placeholder in the variable `NAME`.";
    };
    header = {
      type = types.header;
      required = true;
      doc = "The header of HTTP in which it goes, with `{}` in its place, such as `Authorization: Bearer {}`.";
    };
    file = {
      type = types.secretFile;
      nullable = true;
      doc = "The file with the secret. The server's user reads it when a sandbox starts.";
    };
    variable = {
      type = types.variableName;
      nullable = true;
      doc = "The variable of the server's own environment that has the secret, in place of a file.";
    };
  };

  # A reverse proxy that names the principal of a request.
  proxy = {
    header = {
      type = types.matching "[A-Za-z0-9-]{1,100}" "the name of a header field, such as \"X-Remote-User\"";
      required = true;
      doc = "The header field that the proxy sets. It must remove what clients send in it.";
    };
    from = {
      type = types.sources;
      required = true;
      doc = "The addresses of the proxy, as prefixes, or `unix` for one that connects by a Unix socket. A request from elsewhere that has the field is refused.";
    };
  };

  # An authorization server.
  oauth = {
    resource = {
      type = types.url;
      required = true;
      doc = "This server's URL, as tokens name it in their audience, such as `https://sandbox.example/mcp`.";
    };
    issuer = {
      type = types.url;
      required = true;
      doc = "The authorization server, as its tokens name it.";
    };
    jwks = {
      type = types.url;
      required = true;
      doc = "Where it publishes its keys. They are fetched again after an hour, after SIGHUP, and when a token names an unknown one.";
    };
    claim = {
      type = types.line 100;
      default = "sub";
      doc = "The claim that names the principal.";
    };
    scope = {
      type = types.line 100;
      nullable = true;
      doc = "The scope that a token must have, if any.";
    };
  };

  # What a principal may have at a time.
  quota = {
    calls = {
      type = types.integer 1 1024;
      default = 16;
      doc = "Calls that run or wait.";
    };
    sessions = {
      type = types.integer 1 10000;
      default = 8;
      doc = "Sessions.";
    };
    streams = {
      type = types.integer 1 1000;
      default = 64;
      doc = "Streams of notifications.";
    };
    memory_mb = {
      type = types.integer 16 16777216;
      default = 8192;
      doc = "Memory of all its sandboxes together, as their limits say it.";
    };
    memory_used_mb = {
      type = types.integer 16 16777216;
      nullable = true;
      doc = "Memory that all its sandboxes together may really use, in MiB, with their jails. If they would use more, the kernel ends one of them. No limit when left out. It needs control groups.";
    };
    pids = {
      type = types.integer 16 4194304;
      nullable = true;
      doc = "Processes and threads of all its sandboxes together, with their jails. Beyond that, none of them can start another one. No limit when left out. It needs control groups.";
    };
  };

  # The table of a network.
  network = {
    mode = {
      type = types.choiceBut {
        none = "and a sandbox without a network has network = \"none\" in place of a table";
      } [ "allow" ] // { example = "\"allow\""; };
      required = true;
      doc = "`allow`: the named hosts, and nothing else.";
    };
    domains = {
      type = types.hosts;
      required = true;
      doc = "The hosts by name: `files.example`, `*.files.example` for every name below files.example and not files.example itself, `git.example:22` at that port alone.";
    };
    ask = {
      type = types.askedHosts;
      default = [ ];
      doc = "Hosts like `domains` about which the user is asked at the first connection, and `*` for every other host (docs/asking.md). Hosts that `domains` has need no question.";
    };
    ports = {
      type = types.ports;
      default = [
        443
        80
      ];
      doc = "The TCP ports of the names without one. At 443 a sandbox speaks TLS, at 80 HTTP, and both must be for the named host; at other ports it speaks any protocol.";
    };
    private = {
      type = types.networks;
      default = [ ];
      doc = "Networks that are not public and that these names may lead to, such as `10.1.0.0/16`.";
    };
    connections = {
      type = types.integer 1 1024;
      default = 64;
      doc = "Connections at once.";
    };
    rate = {
      type = types.integer 1 10000;
      default = 50;
      doc = "New connections in a second.";
    };
    megabytes = {
      type = types.integer 1 1048576;
      default = 1024;
      doc = "How much a sandbox may send and receive in its life, together, in MiB.";
    };
    names = {
      type = types.integer 1 65536;
      default = 1000;
      doc = "Different names that a sandbox may look up in its life. This bounds how much look-ups below a `*.` can tell others.";
    };
    rules = {
      type = types.rules rule;
      default = { };
      doc = "What a sandbox may ask of a host, by the name that `domains` has for it, at ports 443 and 80 alone. TLS with this host ends at the proxy, which checks each request; the sandbox trusts a certificate authority of its own for it.";
    };
    credentials = {
      type = types.credentials credential;
      default = { };
      doc = "Secrets that the proxy adds to requests by TLS to one host, by a name. They never enter the sandbox. TLS with this host ends at the proxy, so it is named and reached as one with rules.";
    };
    upstream = {
      type = types.upstream;
      nullable = true;
      doc = "An HTTP proxy of the company's, such as `http://proxy.example:3128`, through which all connections go, and which looks the names up. That addresses are public is then not checked.";
    };
  };

  # What a sandbox is, wherever it is described.
  sandbox = {
    interpreter_type = {
      type = types.choice (lib.sort (a: b: a < b) ([ "command" ] ++ interpreters));
      nullable = true;
      published = true;
      doc = "The kind of interpreter: `command` runs any program once, all others keep sessions. Found from `interpreter` when left out.";
    };
    interpreter = {
      type = types.line 200;
      nullable = true;
      published = true;
      doc = "The program that runs the code and its arguments, split at spaces, such as `python3 -c` or `perl -e`.";
    };
    stdin_mode = {
      type = types.choice [
        "arg"
        "pipe"
      ];
      nullable = true;
      published = true;
      doc = "How the interpreter gets the code: as its last argument, or on standard input. Found from `interpreter` when left out: `arg` after -c or -e.";
    };
    description = {
      type = types.line 200;
      nullable = true;
      published = true;
      doc = "What the model reads about this environment: one short line.";
    };
    hostname = {
      type = types.matching "[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?" "a label of RFC 1123: 1 to 63 of a-z, 0-9 and -, with a letter or a digit first and last";
      default = "sandbox";
      shared = true;
      doc = "The host name inside the sandbox.";
    };
    env = {
      type = types.variables;
      default = { };
      doc = "Environment variables inside the sandbox. They lie in the store, so no secrets.";
    };
    inherit_env = {
      type = types.variableNames;
      default = [ ];
      published = true;
      doc = "Names of variables of the server's own environment that code gets, beside those of [project] inherit_env; their values never lie in the store.";
    };
    extra_binds = {
      type = types.binds;
      default = { };
      doc = "Folders and files of the host that code can read, by their path in the sandbox. They must be there when the sandbox starts.";
    };
    devices = {
      type = types.devices;
      default = [ ];
      doc = "Devices of the host that code can use: names of the Container Device Interface, such as `\"nvidia.com/gpu=all\"`, or device nodes, such as `\"/dev/dri/renderD128\"`. They must be there when the sandbox starts.";
    };
    unsafe_devices = {
      type = types.boolean;
      default = false;
      doc = "Whether devices may be disks, memory, terminals, KVM, TUN, FUSE and others through which code gets out of the sandbox or stops the machine.";
    };
    timeout_seconds = {
      type = types.integer 1 86400;
      default = 30;
      shared = true;
      published = true;
      doc = "How long one call may run.";
    };
    max_timeout_seconds = {
      type = types.integer 1 86400;
      nullable = true;
      shared = true;
      published = true;
      doc = "How long a call may ask to run, with the argument `timeout`; as long as timeout_seconds when left out, and the tool then has no such argument.";
    };
    ask_seconds = {
      type = types.integer 1 86400;
      default = 300;
      shared = true;
      published = true;
      doc = "For how long the questions of one call, together, may wait for the user. The call's own time stands still meanwhile.";
    };
    memory_mb = {
      type = types.integer 16 16777216;
      default = 512;
      shared = true;
      published = true;
      doc = "Memory of the sandbox, in MiB.";
    };
    cpus = {
      type = types.number 1024;
      nullable = true;
      shared = true;
      published = true;
      doc = "Processors that the sandbox may use, such as 0.5 or 2; all of them when left out. A virtual machine has whole ones, and 1 when left out.";
    };
    pids = {
      type = types.integer 8 4194304;
      default = 256;
      shared = true;
      published = true;
      doc = "Processes and threads in the sandbox.";
    };
    workspace_mb = {
      type = types.integer 1 16777216;
      default = 256;
      shared = true;
      published = true;
      doc = "Size of /workspace, and of /tmp, in MiB.";
    };
    output_kb = {
      type = types.integer 1 1024;
      default = 32;
      shared = true;
      published = true;
      doc = "Output that one call may answer, in KiB; of more, the head and the tail are kept.";
    };
    prewarm = {
      type = types.integer 0 64;
      default = 1;
      shared = true;
      published = true;
      doc = "Sandboxes that are kept started, waiting for a call.";
    };
    preload = {
      type = types.modules;
      default = [ ];
      doc = "Modules of Python that the sandboxes of `prewarm` import while they wait, so that a call does not wait for these imports. Each of these sandboxes takes their memory. A call then cannot set what a module reads when it is imported.";
    };
    backend = {
      type = types.choice backends;
      default = "jail";
      shared = true;
      published = true;
      doc = "How the sandbox is isolated: `jail` by namespaces of the host's own kernel, `vm` by a virtual machine with a kernel of its own, and the jail in it (docs/backends.md).";
    };
    packages_on_demand = {
      type = types.packagesOnDemand;
      default = [ ];
      published = true;
      doc = "Packages that a call may add by their names, as in `python+pandas`: a list of names, or `\"all\"` for every package of the package set that the server was built from. Nix builds them beside the server at the first such call.";
    };
    nix = {
      type = types.boolean;
      default = false;
      published = true;
      doc = "Whether the sandbox has a program `nix`, with which code adds the packages of `packages_on_demand` to the sandbox while it runs, as in `nix shell nixpkgs#jq -c jq .`. It asks the server; the sandbox reaches neither Nix nor a network.";
    };
    packages_ask = {
      type = types.boolean;
      default = false;
      published = true;
      doc = "Whether the user is asked before packages are built that a call adds (docs/asking.md).";
    };
    npm = {
      type = types.npmFolder;
      nullable = true;
      doc = "A folder with `package.json` and `package-lock.json`, such as `./web` beside the configuration: code in Node.js loads the packages that the lock names, and their programs are on the PATH. Nix fetches them by the lock's hashes; their install scripts do not run.";
    };
    network = {
      type = types.network network;
      default = "none";
      shared = true;
      doc = "The hosts that the sandbox reaches: `\"none\"`, or a table with the options below. A table replaces that of the defaults as a whole.";
    };
  };

  # Of an environment alone: servers are declared beside environments.
  tools = {
    type = types.tools;
    nullable = true;
    doc = "The servers of `[tools]` whose tools code may call, by name; a table narrows what their `allow` says, and never widens it.";
  };

  preset = {
    type = types.choice presets;
    nullable = true;
    doc = "The ready-made environment to start from.";
  };

  from_shell = {
    type = types.shell;
    nullable = true;
    doc = "A development shell whose programs and exported variables are in the sandbox too. Its shellHook does not run. Without an interpreter the sandbox runs bash.";
  };

  enable = {
    type = types.boolean;
    default = false;
    doc = "Whether to install the server and its environments.";
  };

  package = {
    type = types.package;
    doc = "The server: one with the settings of the module, when left out.";
  };

  isShared = option: option.shared or false;
in
rec {
  inherit network rule credential;

  # The argument of mkSandbox.
  mkSandbox = sandbox // {
    name = {
      type = types.name;
      required = true;
      published = true;
      doc = "The name by which the model asks for this environment.";
    };
    packages = {
      type = types.packages;
      default = [ ];
      doc = "What is in the sandbox: their programs are on its PATH, before those of the preset.";
    };
    inherit from_shell preset;
  };

  # The fields of an artifact's metadata that are options.
  published = lib.filterAttrs (_: option: option.published or false) mkSandbox;

  # [environments.NAME] in TOML.
  environment = sandbox // {
    inherit preset tools;
    packages = {
      type = types.lines;
      default = [ ];
      doc = "Names of nixpkgs' packages, such as `imagemagick`, or `seaborn` for a module of Python; their programs come before those of the preset.";
    };
  };

  # The same with what TOML can only name: things that other flakes made.
  toml = environment // {
    flake = {
      type = types.line 1000;
      nullable = true;
      doc = "A flake reference of a program or shell, such as `github:owner/repo#name`, that joins the packages; say its interpreter too.";
    };
    sandbox = {
      type = types.line 1000;
      nullable = true;
      doc = "A sandbox that mkSandbox made, in place of all other options: a flake reference or, in a file that the server reads when it starts, a path.";
    };
  };

  # environments.NAME in a module.
  module = sandbox // {
    inherit preset tools from_shell;
    packages = {
      type = types.packagesOrNames;
      default = [ ];
      doc = "Packages, or names of nixpkgs' packages; their programs come before those of the preset.";
    };
    sandbox = {
      type = types.artifact;
      nullable = true;
      doc = "A sandbox that mkSandbox made, in place of all other options.";
    };
  };

  # [defaults] in TOML: environments that do not say otherwise.
  defaults = lib.filterAttrs (_: isShared) sandbox;

  # What the modules have besides, by module.
  modules = {
    flake-parts.enable = {
      type = types.boolean;
      doc = "Whether a system has the server: when left out, a Linux system where environments, flakeRefs or project.use_flake are set.";
    };
    nixos = {
      inherit enable package;
      "service.enable" = {
        type = types.boolean;
        default = false;
        doc = "Whether systemd runs the server for many clients, as `serve` says, with a socket at `serve.listen`.";
      };
      "service.instances" = {
        type = types.integer 1 64;
        default = 1;
        doc = "How many servers share the address. With more than one, HAProxy takes the clients, and leads each caller to the server that has its sessions.";
      };
      "service.openFirewall" = {
        type = types.boolean;
        default = false;
        doc = "Whether other machines may reach the port of `serve.listen`.";
      };
    };
    home-manager = {
      inherit enable package;
      env = {
        type = types.variables;
        default = { };
        doc = "Variables of the server's own environment, as clients are told to set them. They lie in the store, so no secrets.";
      };
    };
  };

  # What mkServer's wrapper builds when the server starts.
  start = {
    buildAtStart = {
      type = types.boolean;
      default = true;
      doc = "Whether the server can build sandboxes when it starts; nixpkgs' sources are then part of its closure. Without, it refuses NIX_SANDBOX_ENVS, NIX_SANDBOX_CONFIG and PROJECT_USE_FLAKE.";
    };
    flakeRefs = {
      type = types.references;
      default = [ ];
      doc = "Flake references of sandboxes that are built in the background when the server starts; those that NIX_SANDBOX_ENVS names then are added.";
    };
  };

  # [session]
  session = {
    idle_timeout_seconds = {
      type = types.integer 1 longest;
      default = 300;
      doc = "A session ends after this time without a call.";
    };
    max_lifetime_seconds = {
      type = types.integer 1 longest;
      default = 3600;
      doc = "A session ends at this age.";
    };
    shared_files = {
      type = types.boolean;
      default = false;
      doc = "Whether calls of one session may name several environments, which then have its files in common; otherwise a session has the environment of its first call.";
    };
    keep_files = {
      type = types.boolean;
      default = false;
      doc = "Whether the files of a session are there again when it has ended and its name is used once more with its environment (with any if shared_files is true), also by a server that is started later. SESSION_KEEP_FILES wins over this.";
    };
    keep_mb = {
      type = types.integer 1 1048576;
      default = 4096;
      doc = "The size of the kept files of all sessions of a user on disk, in MiB. If there is more, the principal with most of them loses those that were saved longest ago.";
    };
    outputs = {
      type = types.line 4096;
      nullable = true;
      doc = "A folder of the host to which files that code leaves in /workspace/outputs are copied, if NIX_SANDBOX_OUTPUTS does not name one when the server starts.";
    };
    forward = {
      type = types.boolean;
      default = false;
      doc = "Whether nix-sandbox-mcp forward may connect the user to TCP ports on which code of a session listens. Code gets no way out by it. The model is told of the ports.";
    };
    suspend = {
      type = types.boolean;
      default = true;
      doc = "Whether a session in a virtual machine is suspended to disk after idle_timeout_seconds without a call or when the server ends, and resumed by the next call of its name and environment, also in a server that is started later; it may then be branched too. Sessions in jails end.";
    };
    suspend_mb = {
      type = types.integer 1 1048576;
      default = 4096;
      doc = "The size of all suspended sessions of a user on disk, in MiB. The oldest are deleted first, and each after 7 days.";
    };
  };

  # [on_demand]
  on_demand = {
    max_closure_mb = {
      type = types.integer 1 1048576;
      default = 4096;
      doc = "The size on disk of an environment with packages that a call added, in MiB.";
    };
    build_seconds = {
      type = types.integer 1 86400;
      default = 600;
      doc = "How long Nix may build one.";
    };
    max_builds = {
      type = types.integer 1 64;
      default = 1;
      doc = "How many of them Nix builds at once.";
    };
    keep_days = {
      type = types.integer 1 3650;
      default = 30;
      doc = "An environment that no call has used for this time is no longer kept from Nix's garbage collection.";
    };
    keep_mb = {
      type = types.integer 1 16777216;
      default = 16384;
      doc = "The size of all environments that are kept, in MiB. If there is more, the principal with most of them loses those that were used longest ago.";
    };
    flakes = {
      type = types.boolean;
      default = false;
      doc = "Whether code may build flakes of its own files by `nix build .#NAME`, `nix run .` and `nix develop -c COMMAND`. They are evaluated in a jail without a network, and built in Nix's own sandbox.";
    };
  };

  # [tools.NAME]: a server of MCP whose tools code may call.
  toolServer = {
    command = {
      type = types.lines;
      nullable = true;
      doc = "The server's program and its arguments. It speaks MCP on standard input and output, in a jail of its own.";
    };
    url = {
      type = types.url;
      nullable = true;
      doc = "A server with Streamable HTTP, in place of `command`. This server connects to it, from outside of any jail.";
    };
    headers = {
      type = types.headers;
      default = { };
      doc = "What each request to `url` has: headers, and for each the name of the variable of the server's own environment that has its value.";
    };
    packages = {
      type = types.packagesOrNames;
      default = [ ];
      doc = "Packages, or names of nixpkgs' packages, that the jail of `command` holds.";
    };
    allow = {
      type = types.patterns;
      default = [ ];
      doc = "The tools that code may call, by names in which `*` stands for any text; none when left out.";
    };
    ask = {
      type = types.patterns;
      default = [ ];
      doc = "Further tools that code may call when the user allows it, in the same form (docs/asking.md). Tools that `allow` has need no question.";
    };
    timeout_seconds = {
      type = types.integer 1 86400;
      default = 60;
      doc = "How long one call of a tool may take.";
    };
    at_once = {
      type = types.integer 1 256;
      default = 8;
      doc = "Calls at a time; others wait.";
    };
    calls = {
      type = types.integer 1 1000000;
      default = 200;
      doc = "Calls that the code of one call of `run` may make.";
    };
    result_mb = {
      type = types.integer 1 64;
      default = 8;
      doc = "The largest answer of a tool, in MiB.";
    };
    shared = {
      type = types.choice [
        "principal"
        "server"
        "session"
      ];
      default = "principal";
      doc = "Who shares a process of the server: all principals (`server`), the sessions of one (`principal`), or the calls of one session (`session`). A process ends after 10 minutes without a call; that of a one-shot call ends with it.";
    };
  }
  // lib.getAttrs [
    "env"
    "extra_binds"
    "memory_mb"
    "network"
    "pids"
    "workspace_mb"
  ] sandbox;

  # [project]
  project = {
    path = {
      type = types.line 4096;
      nullable = true;
      doc = "The project's folder, if PROJECT_DIR does not name one when the server starts.";
    };
    mount_point = {
      type = types.mountPoint;
      default = "/project";
      doc = "Where the project appears in the sandbox.";
    };
    mode = {
      type = types.choiceBut {
        readwrite = "and code in a sandbox never changes files of the host";
      } [ "readonly" "overlay" "write" ];
      default = "readonly";
      doc = "What code may do with the project: read it, or (`overlay`) also write into it, on a layer of at most workspace_mb that is thrown away with the sandbox. With `write`, what `changes --apply` takes without a path is also written into the project itself after each call of a session.";
    };
    use_flake = {
      type = types.boolean;
      default = false;
      doc = "Whether the project's devShells.default is an environment too, called `project`. Nix builds it when the server starts.";
    };
    inherit_env = {
      type = types.inherited;
      nullable = true;
      doc = "`vars` names variables of the server's own environment that every sandbox gets; their values never lie in the store.";
    };
  };

  # [serve]
  serve = {
    listen = {
      type = types.listen;
      default = "127.0.0.1:8080";
      doc = "Where `nix-sandbox-mcp serve` listens, unless NIX_SANDBOX_HTTP or `--http` says otherwise: an address with a port, `unix:PATH`, or `systemd` for the socket that a systemd unit opens. Without tokens, a proxy or OAuth, it must be an address that only this machine reaches.";
    };
    hosts = {
      type = types.lines;
      default = [ ];
      doc = "The names and addresses under which clients reach the server, besides those of the loopback device. Requests for another host are refused. NIX_SANDBOX_HOSTS adds to them.";
    };
    origins = {
      type = types.lines;
      default = [ ];
      doc = "The pages that may call the server, such as `https://chat.example`, besides those that this machine serves to itself.";
    };
    token_file = {
      type = types.secretFile;
      nullable = true;
      doc = "The file of tokens, a line `NAME sha256:HASH` for each, as `nix-sandbox-mcp token new NAME` prints it. Only its owner may be able to write it. NIX_SANDBOX_TOKENS replaces it.";
    };
    proxy = {
      type = types.table proxy // {
        wanted = "a table such as { header = \"X-Remote-User\", from = [\"127.0.0.1/32\"] }";
      };
      nullable = true;
      doc = "A reverse proxy that names the principal of a request, as it found out by a certificate.";
    };
    oauth = {
      type = types.table oauth // {
        wanted = "a table with resource, issuer and jwks";
      };
      nullable = true;
      doc = "An authorization server whose access tokens are accepted: JSON Web Tokens for this server.";
    };
    quotas = {
      type = types.tables types.isClass quota {
        wanted = "at most 100 tables, by names of classes such as quotas.default";
        most = 100;
      };
      default = { };
      doc = "What a principal may have at a time, by class. A line of the file of tokens ends with `class=NAME`; all others are of the class `default`.";
    };
    calls_at_once = {
      type = types.integer 1 10000;
      nullable = true;
      doc = "How many calls run at a time; others wait, and principals take turns. When left out, twice the number of processors, and at least 8.";
    };
    audit_file = {
      type = types.secretFile;
      nullable = true;
      doc = "The file of the audit log, of a server on standard input and output too: a record for each call, a line of JSON. NIX_SANDBOX_AUDIT replaces it.";
    };
    metrics_listen = {
      type = types.metricsListen;
      nullable = true;
      doc = "Where metrics are served for Prometheus, with `/healthz` and `/readyz`: an address with a port, or `unix:PATH`. Of a server on standard input and output too. NIX_SANDBOX_METRICS replaces it.";
    };
    lame_duck_seconds = {
      type = types.integer 0 3600;
      default = 4;
      doc = "How long a server that was told to end goes on as before, so that proxies learn of it by `/readyz`.";
    };
    drain_seconds = {
      type = types.integer 0 longest;
      default = 30;
      doc = "How long calls that run may then take before they are cut short.";
    };
  };
}
