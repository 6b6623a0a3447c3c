# What operators get wrong, and what they read: one sentence that names the
# location and says what to write instead.
{ pkgs, lib, library, choices, ... }:
let
  inherit (library) problems;

  toml = text: problems.fromToml (builtins.fromTOML text);
  sandbox =
    values:
    problems.mkSandbox (
      {
        name = "data";
        interpreter_type = "python";
      }
      // values
    );
  module =
    values:
    problems.fromOptions {
      prefix = "services.nix-sandbox-mcp";
      inherit values;
    };

  data = library.mkSandbox {
    name = "data";
    interpreter_type = "bash";
    packages = [ pkgs.bash ];
  };

  growing = library.mkSandbox {
    name = "data";
    interpreter_type = "bash";
    packages = [ pkgs.bash ];
    packages_on_demand = [ "jq" ];
  };

  onMacOS = import ../../nix {
    pkgs = pkgs // {
      stdenv = pkgs.stdenv // {
        hostPlatform = pkgs.stdenv.hostPlatform // {
          system = "aarch64-darwin";
          isLinux = false;
        };
      };
    };
  };

  onDemand = packages_on_demand: sandbox { inherit packages_on_demand; };

  network =
    values:
    sandbox {
      network = {
        mode = "allow";
        domains = [ "files.example" ];
      }
      // values;
    };

  credential =
    values:
    network {
      credentials.TOKEN = {
        domain = "files.example";
        header = "Authorization: Bearer {}";
        file = "/run/secrets/token";
      }
      // values;
    };

  # What is written in a list of the network's table, and how the sentence goes on.
  elements = key: lib.mapAttrs' (
    written: rest:
    lib.nameValuePair "${builtins.toJSON written} among ${key}" {
      read = network { ${key} = [ written ]; };
      sentence = "mkSandbox data: network.${key} has ${builtins.toJSON written} in it${rest}";
    }
  );

  named = ", and a sandbox reaches hosts that are named: use host names, such as \"files.example\", \"*.files.example\" or \"files.example:8443\"";
  address = ", an address: use the host's name";
  notAName = ": use host names, such as \"files.example\", \"*.files.example\" or \"files.example:8443\"";
  notAPort = ", whose port is not one: use a port from 1 to 65535 after the colon, and not 53, at which the sandbox's own resolver listens";
  inItsForm = form: ", which is not the form in which names are compared: use \"${form}\"";

  domains = elements "domains" {
    "" = named;
    "*" = named;
    "*.com" = named;
    "*.com:443" = named;
    "." = named;
    "https://files.example/x" = ", which is not a host name alone${notAName}";
    "files.example/x" = ", which is not a host name alone${notAName}";
    "me@files.example" = notAName;
    "files example" = notAName;
    "files..example" = notAName;
    "-files.example" = notAName;
    "0x7f.1" = notAName;
    "files.example\n" = ", which is not ASCII: use the name in its ASCII form, such as \"xn--bcher-kva.example\" for bücher.example";
    "bücher.example" = ", which is not ASCII: use the name in its ASCII form, such as \"xn--bcher-kva.example\" for bücher.example";
    "${lib.concatStrings (lib.genList (_: "a") 64)}.example" = notAName;
    "Files.Example" = inItsForm "files.example";
    "files.example." = inItsForm "files.example";
    "localhost" = ", which is the sandbox itself${notAName}";
    "localhost:8080" = ", which is the sandbox itself${notAName}";
    "10.0.0.5" = address;
    "10.0.0.5:443" = address;
    "127.1" = address;
    "[::1]" = address;
    "[2001:db8::1]:443" = address;
    "2001:db8::1" = address;
    "files.*.example" = ", and * stands only for what is before the first dot${notAName}";
    "*files.example" = ", and * stands only for what is before the first dot${notAName}";
    "files.example:" = notAPort;
    "files.example:0" = notAPort;
    "files.example:0443" = notAPort;
    "files.example:65536" = notAPort;
    "files.example:53" = notAPort;
    "files.example:https" = notAPort;
  };

  networks = elements "private" {
    "10.1.0.0" = ": use \"10.1.0.0/32\"";
    "10.1.0.0/33" = ": use networks, such as [\"10.1.0.0/16\"]";
    "10.1.0.256/32" = ": use networks, such as [\"10.1.0.0/16\"]";
    "10.1.0.1/16" = ", whose address has bits after its prefix: use the network's first address before the /";
    "0.0.0.0/0" = ", which is larger than a private network: use a prefix from /8";
    "127.0.0.0/8" = ", in which there is no other host: use networks, such as [\"10.1.0.0/16\"]";
    "files.example" = ": use networks, such as [\"10.1.0.0/16\"]";
    "::/0" = ", which is larger than a private network: use a prefix from /16";
    "::1/128" = ", in which there is no other host: use networks, such as [\"10.1.0.0/16\"]";
    "fd00::1/64" = ", whose address has bits after its prefix: use the network's first address before the /";
    "fd00::/129" = ": use networks, such as [\"10.1.0.0/16\"]";
    "fd00::1::/64" = ": use networks, such as [\"10.1.0.0/16\"]";
  };

  mistakes = domains // networks // {
    "a preset's name misspelt" = {
      read = toml "[environments.python]\npreset = \"pyton\"\n";
      sentence = "config: [environments.python] preset is \"pyton\" (did you mean \"python\"?): use ${choices.presets}";
    };
    "a key misspelt" = {
      read = toml "[environments.python]\npreset = \"python\"\ntimeout_second = 5\n";
      sentence = "config: [environments.python] has no option \"timeout_second\" (did you mean \"timeout_seconds\"?): use one of ask_seconds, backend, cpus, description, devices, env, extra_binds, flake, hostname, inherit_env, interpreter, interpreter_type, max_timeout_seconds, memory_mb, network, nix, npm, output_kb, packages, packages_ask, packages_on_demand, pids, preload, preset, prewarm, sandbox, stdin_mode, timeout_seconds, tools, unsafe_devices, workspace_mb";
    };
    "a table misspelt" = {
      read = toml "[environment.python]\npreset = \"python\"\n[environments.x]\npreset = \"shell\"\n";
      sentence = "config: has no table \"environment\" (did you mean \"environments\"?): use one of defaults, environments, on_demand, project, serve, session, tools, tools_lock";
    };
    "a server of tools that there is not" = {
      read = toml "[environments.python]\npreset = \"python\"\ntools = [\"githb\"]\n[tools.github]\nurl = \"https://tools.example/mcp\"\n";
      sentence = "config: [environments.python] tools names \"githb\", and there is no [tools.githb] (did you mean \"github\"?): add that table, or use the name of another one";
    };
    "a server of tools without a program" = {
      read = toml "[environments.python]\npreset = \"python\"\n[tools.github]\nallow = [\"*\"]\n";
      sentence = "config: [tools.github] has neither command nor url: set one of them";
    };
    "a server of tools with both" = {
      read = toml "[environments.python]\npreset = \"python\"\n[tools.github]\nurl = \"https://tools.example/mcp\"\ncommand = [\"x\"]\n";
      sentence = "config: [tools.github] has both command and url: set one of them";
    };
    "packages beside a URL" = {
      read = toml "[environments.python]\npreset = \"python\"\n[tools.github]\nurl = \"https://tools.example/mcp\"\npackages = [\"bash\"]\n";
      sentence = "config: [tools.github] has packages beside url, and no jail: use command in place of url, or leave it out";
    };
    "headers for a program" = {
      read = toml "[environments.python]\npreset = \"python\"\n[tools.github]\ncommand = [\"x\"]\nheaders = { Authorization = \"KEY\" }\n";
      sentence = "config: [tools.github] has headers beside command: use env or credentials of its network, or url";
    };
    "a server of tools with a name for no code" = {
      read = toml "[environments.python]\npreset = \"python\"\n[tools.git-hub]\ncommand = [\"x\"]\n";
      sentence = "config: [tools.git-hub] is no name that code can write: use 1 to 32 of a-z, 0-9 and _, with a letter first";
    };
    "a package of a server that there is not" = {
      read = toml "[environments.python]\npreset = \"python\"\n[tools.github]\ncommand = [\"x\"]\npackages = [\"no-such-package\"]\n";
      sentence = "config: [tools.github] packages names \"no-such-package\", which nixpkgs does not have: use one that `nix search nixpkgs WORD` finds";
    };
    "tools and packages on demand" = {
      read = toml "[environments.python]\npreset = \"python\"\ntools = [\"github\"]\npackages_on_demand = [\"jq\"]\n[tools.github]\ncommand = [\"x\"]\n";
      sentence = "config: [environments.python] has both tools and packages_on_demand, and an environment that a call extends has no tools: set packages_on_demand = [], or leave tools out";
    };
    "a number in quotes" = {
      read = toml "[environments.python]\npreset = \"python\"\ntimeout_seconds = \"60\"\n";
      sentence = "config: [environments.python] timeout_seconds is \"60\": use a whole number from 1 to 86400";
    };
    "a number out of range" = {
      read = toml "[environments.python]\npreset = \"python\"\nmemory_mb = 4\n";
      sentence = "config: [environments.python] memory_mb is 4: use a whole number from 16 to 16777216";
    };
    "a longest time that is less than the usual one" = {
      read = toml "[environments.python]\npreset = \"python\"\nmax_timeout_seconds = 20\n";
      sentence = "config: [environments.python] max_timeout_seconds is 20, less than timeout_seconds, which is 30: use 30 or more, or leave it out";
    };
    "a usual time that is more than the longest one of the defaults" = {
      read = toml "[defaults]\nmax_timeout_seconds = 60\n[environments.python]\npreset = \"python\"\ntimeout_seconds = 90\n";
      sentence = "config: [environments.python] max_timeout_seconds is 60, less than timeout_seconds, which is 90: use 90 or more, or leave it out";
    };
    "such times among the defaults" = {
      read = toml "[defaults]\ntimeout_seconds = 60\nmax_timeout_seconds = 30\n[environments.python]\npreset = \"python\"\n";
      sentence = "config: [defaults] max_timeout_seconds is 30, less than timeout_seconds, which is 60: use 60 or more, or leave it out";
    };
    "such times of a sandbox" = {
      read = sandbox { timeoutSeconds = 2; maxTimeoutSeconds = 1; };
      sentence = "mkSandbox data: max_timeout_seconds is 1, less than timeout_seconds, which is 2: use 2 or more, or leave it out";
    };
    "an environment with capital letters" = {
      read = toml "[environments.Python]\npreset = \"python\"\n";
      sentence = "config: [environments.Python] name is \"Python\": use 1 to 64 of a-z, 0-9, _ and -, with a letter or a digit first";
    };
    "an environment with nothing in it" = {
      read = toml "[environments.python]\n";
      sentence = "config: [environments.python] is empty: set preset = ${choices.presets}, or packages = [ … ]";
    };
    "no environment" = {
      read = toml "";
      sentence = "config: has no environment: add [environments.python] and preset = \"python\" below it";
    };
    "a package that does not exist" = {
      read = toml "[environments.bash]\npreset = \"shell\"\npackages = [\"sqlight\"]\n";
      sentence = "config: [environments.bash] packages names \"sqlight\", which nixpkgs does not have: use one that `nix search nixpkgs WORD` finds";
    };
    "an extension of what is not there" = {
      read = toml "extends = \"python\"\n[environments.x]\npreset = \"python\"\n";
      sentence = "config: extends is \"python\": use \"default\", the server of config.example.toml, or leave it out";
    };
    "packages of npm without a lock" = {
      read = sandbox { npm = ./testdata/npm/without-lock; };
      sentence = "mkSandbox data: npm is a folder without package-lock.json: create it with `npm install --package-lock-only`, and have Git track both files if they are in a flake";
    };
    "a lock of npm without a hash" = {
      read = sandbox { npm = ./testdata/npm/without-hash; };
      sentence = "mkSandbox data: npm has a package-lock.json with \"node_modules/semver\", which has no hash: use a version from a registry in its place, not git or a folder";
    };
    "a lock of npm without an address" = {
      read = sandbox { npm = ./testdata/npm/without-address; };
      sentence = "mkSandbox data: npm has a package-lock.json with \"node_modules/semver\", which has no address: create it again with `npm install --package-lock-only --omit-lockfile-registry-resolved=false`, once the old one is removed";
    };
    "a lock of an old npm" = {
      read = sandbox { npm = ./testdata/npm/old; };
      sentence = "mkSandbox data: npm has a package-lock.json that has no hash for each package: create it again with npm 7 or later";
    };
    "npm by a name" = {
      read = sandbox { npm = "lodash"; };
      sentence = "mkSandbox data: npm is \"lodash\": use the path of a folder with package.json and package-lock.json, such as ./web";
    };
    "packages on demand beside npm" = {
      read = sandbox {
        npm = ./testdata/npm/empty;
        packages_on_demand = [ "jq" ];
      };
      sentence = "mkSandbox data: packages_on_demand is beside npm, whose lock names all packages: keep one of the two";
    };
    "a folder of the home in a bind" = {
      read = sandbox { extra_binds."/data" = "~/data"; };
      sentence = "mkSandbox data: extra_binds has \"/data\" = \"~/data\" in it, and ~ stands for no folder here: use the whole path, such as \"/home/you/data\"";
    };
    "an interpreter with quotes" = {
      read = toml "[environments.sh]\npreset = \"shell\"\ninterpreter = \"sh -c \\\"$1\\\"\"\n";
      sentence = "config: [environments.sh] interpreter is \"sh -c \\\"$1\\\"\": leave out quotes and backslashes, because it is split at spaces";
    };
    "a network without names" = {
      read = toml "[environments.python]\npreset = \"python\"\nnetwork = \"host\"\n";
      sentence = "config: [environments.python] network is \"host\", and a sandbox reaches hosts that are named: use \"none\", or a table such as { mode = \"allow\", domains = [\"files.example\"] }";
    };
    "a network's key misspelt" = {
      read = toml "[environments.python]\npreset = \"python\"\n[environments.python.network]\nmode = \"allow\"\ndomain = [\"files.example\"]\ndomains = [\"files.example\"]\n";
      sentence = "config: [environments.python] network has no option \"domain\" (did you mean \"domains\"?): use one of ask, connections, credentials, domains, megabytes, mode, names, ports, private, rate, rules, upstream";
    };
    "a network's mode" = {
      read = network { mode = "deny"; };
      sentence = "mkSandbox data: network.mode is \"deny\": use \"allow\"";
    };
    "no network as a table" = {
      read = network { mode = "none"; };
      sentence = "mkSandbox data: network.mode is \"none\", and a sandbox without a network has network = \"none\" in place of a table: use \"allow\"";
    };
    "a network without a mode" = {
      read = sandbox { network.domains = [ "files.example" ]; };
      sentence = "mkSandbox data: network lacks mode: set mode = \"allow\"";
    };
    "a network without domains" = {
      read = sandbox { network.mode = "allow"; };
      sentence = "mkSandbox data: network lacks domains: set domains = [\"files.example\"], or network = \"none\"";
    };
    "a network in the defaults" = {
      read = toml "[defaults.network]\nmode = \"allow\"\ndomains = []\n[environments.python]\npreset = \"python\"\n";
      sentence = "config: [defaults] network.domains is a list without hosts: use some, such as [\"files.example\"], or network = \"none\"";
    };
    "a network in a module" = {
      read = module {
        environments.python = {
          preset = "python";
          network = {
            mode = "allow";
            domains = "files.example";
          };
        };
      };
      sentence = "services.nix-sandbox-mcp.environments.python: network.domains is \"files.example\": use host names, such as \"files.example\", \"*.files.example\" or \"files.example:8443\"";
    };
    "a port that is none" = {
      read = network { ports = [ 0 ]; };
      sentence = "mkSandbox data: network.ports has 0 in it: use ports from 1 to 65535, such as [443, 80]";
    };
    "the resolver's port" = {
      read = network { ports = [ 443 53 ]; };
      sentence = "mkSandbox data: network.ports has 53 in it, at which the sandbox's own resolver listens: use other ports, such as [443, 80]";
    };
    "no ports" = {
      read = network { ports = [ ]; };
      sentence = "mkSandbox data: network.ports is a list without ports: use ports from 1 to 65535, such as [443, 80]";
    };
    "too many ports" = {
      read = network { ports = lib.range 1000 1032; };
      sentence = "mkSandbox data: network.ports is a list of 33: use at most 32 ports";
    };
    "too many packages" = {
      read = problems.fromOptions {
        prefix = "here";
        values.environments.data.packages = lib.genList toString 1001;
      };
      sentence = "here.environments.data: packages is a list of 1001: use at most 1000 elements";
    };
    "too many domains" = {
      read = network { domains = map (n: "h${toString n}.example") (lib.range 0 1000); };
      sentence = "mkSandbox data: network.domains is a list of 1001: use at most 1000 names, and \"*.files.example\" for all names below files.example";
    };
    "too many ports after names" = {
      read = network { domains = map (n: "files.example:${toString n}") (lib.range 1000 1032); };
      sentence = "mkSandbox data: network.domains is a list with 33 different ports: use at most 32 different ports after names";
    };
    "a rule for a host that is not reached" = {
      read = network { rules."api.example".methods = [ "GET" ]; };
      sentence = "mkSandbox data: network.rules has \"api.example\", which is not in domains: add it there";
    };
    "a rule for many hosts" = {
      read = network { rules."*.files.example".methods = [ "GET" ]; };
      sentence = "mkSandbox data: network.rules has \"*.files.example\" in it: use the names of hosts, such as rules.\"api.example\"";
    };
    "a rule for a host that only a pattern allows" = {
      read = network {
        domains = [ "*.files.example" ];
        rules."api.files.example".methods = [ "GET" ];
      };
      sentence = "mkSandbox data: network.rules has \"api.files.example\", which domains allows only by a \"*.\": add its name there";
    };
    "a rule for a host at another port" = {
      read = network {
        domains = [ "files.example" "files.example:8443" ];
        rules."files.example".methods = [ "GET" ];
      };
      sentence = "mkSandbox data: network.rules has \"files.example\", which domains allows at port 8443 too, where its requests cannot be read: allow it only at 443 and 80";
    };
    "a rule for a host that a pattern allows at another port" = {
      read = network {
        domains = [ "api.files.example" "*.files.example:22" ];
        rules."api.files.example".methods = [ "GET" ];
      };
      sentence = "mkSandbox data: network.rules has \"api.files.example\", which domains allows at port 22 too, where its requests cannot be read: allow it only at 443 and 80";
    };
    "a rule for a host without TLS" = {
      read = network {
        ports = [ 80 ];
        rules."files.example".methods = [ "GET" ];
      };
      sentence = "mkSandbox data: network.rules has \"files.example\", which domains does not allow at port 443: add \"files.example:443\" there too";
    };
    "a rule without methods and paths" = {
      read = network { rules."files.example" = { }; };
      sentence = "mkSandbox data: network.rules.\"files.example\" has neither methods nor paths: set one of them, or leave the rule out";
    };
    "a rule with a method in small letters" = {
      read = network { rules."files.example".methods = [ "get" ]; };
      sentence = "mkSandbox data: network.rules.\"files.example\".methods has \"get\" in it: use methods in capital letters, such as [\"GET\", \"HEAD\"]";
    };
    "a rule with a path that leads elsewhere" = {
      read = network { rules."files.example".paths = [ "/v1/../admin" ]; };
      sentence = "mkSandbox data: network.rules.\"files.example\".paths has \"/v1/../admin\" in it: use paths, such as [\"/v1/items\", \"/v1/public/*\"], without %, ?, #, backslashes or dots alone";
    };
    "a rule with a regular expression" = {
      read = network { rules."files.example".paths = [ "/v1/.*" ]; };
      sentence = "mkSandbox data: network.rules.\"files.example\".paths has \"/v1/.*\" in it: use paths, such as [\"/v1/items\", \"/v1/public/*\"], without %, ?, #, backslashes or dots alone";
    };
    "a rule with a path that servers read differently" = {
      read = network { rules."files.example".paths = [ "/v1\\items" ]; };
      sentence = "mkSandbox data: network.rules.\"files.example\".paths has \"/v1\\\\items\" in it: use paths, such as [\"/v1/items\", \"/v1/public/*\"], without %, ?, #, backslashes or dots alone";
    };
    "a rule that is none" = {
      read = network { rules."files.example" = "GET"; };
      sentence = "mkSandbox data: network.rules.\"files.example\" is \"GET\": use a table";
    };
    "a credential without a header" = {
      read = credential { header = null; };
      sentence = "mkSandbox data: network.credentials.TOKEN lacks header: set header = \"Authorization: Bearer {}\"";
    };
    "a credential that says where it goes" = {
      read = credential { header = "Host: {}"; };
      sentence = "mkSandbox data: network.credentials.TOKEN.header is \"Host: {}\", which says how a request is sent: use a header with {} where the secret belongs, such as \"Authorization: Bearer {}\"";
    };
    "a credential for many hosts" = {
      read = credential { domain = "*.example.net"; };
      sentence = "mkSandbox data: network.credentials.TOKEN.domain is \"*.example.net\": use a host name, such as \"api.example\"";
    };
    "a credential for a host that is not reached" = {
      read = credential { domain = "evil.example"; };
      sentence = "mkSandbox data: network.credentials.TOKEN.domain is \"evil.example\", which is not in domains: add it there";
    };
    "a credential for a host that only a pattern allows" = {
      read = network {
        domains = [ "*.files.example" ];
        credentials.TOKEN = {
          domain = "api.files.example";
          header = "X-Key: {}";
          variable = "TOKEN";
        };
      };
      sentence = "mkSandbox data: network.credentials.TOKEN.domain is \"api.files.example\", which domains allows only by a \"*.\": add its name there";
    };
    "two credentials in one header" = {
      read = network {
        credentials = {
          A = {
            domain = "files.example";
            header = "X-Key: {}";
            variable = "A";
          };
          B = {
            domain = "files.example";
            header = "x-key: {}";
            variable = "B";
          };
        };
      };
      sentence = "mkSandbox data: network.credentials.B.header is \"x-key: {}\", which credentials.A has for this host too: keep one of them";
    };
    "a credential without its secret" = {
      read = credential { file = null; };
      sentence = "mkSandbox data: network.credentials.TOKEN has neither file nor variable: set one of them, from which the secret is read when a sandbox starts";
    };
    "a credential with two secrets" = {
      read = credential { variable = "TOKEN"; };
      sentence = "mkSandbox data: network.credentials.TOKEN has both file and variable: set one of them, from which the secret is read when a sandbox starts";
    };
    "a secret in the store" = {
      read = credential { file = "/nix/store/x-token"; };
      sentence = "mkSandbox data: network.credentials.TOKEN.file is \"/nix/store/x-token\": use the absolute path of a file in quotes, outside of /nix/store, where everybody could read it";
    };
    "a secret as a path of Nix" = {
      read = credential { file = ./config.toml; };
      sentence = "mkSandbox data: network.credentials.TOKEN.file is a path: use the absolute path of a file in quotes, outside of /nix/store, where everybody could read it";
    };
    "a company's proxy with a password" = {
      read = network { upstream = "http://me:secret@proxy.example:3128"; };
      sentence = "mkSandbox data: network.upstream is \"http://me:secret@proxy.example:3128\": use \"http://HOST:PORT\", without a password, because everybody on the machine can read it";
    };
    "connections without a limit" = {
      read = network { connections = 0; };
      sentence = "mkSandbox data: network.connections is 0: use a whole number from 1 to 1024";
    };
    "another backend" = {
      read = toml "[environments.python]\npreset = \"python\"\nbackend = \"docker\"\n";
      sentence = "config: [environments.python] backend is \"docker\": use \"jail\" or \"vm\"";
    };
    "a project that can be written to" = {
      read = toml "[environments.python]\npreset = \"python\"\n[project]\nmode = \"readwrite\"\n";
      sentence = "config: [project] mode is \"readwrite\", and code in a sandbox never changes files of the host: use \"readonly\", \"overlay\" or \"write\"";
    };
    "a project in the store's place" = {
      read = toml "[environments.python]\npreset = \"python\"\n[project]\nmount_point = \"/nix\"\n";
      sentence = "config: [project] mount_point is \"/nix\": use a plain absolute path outside of /bin, /dev, /etc, /inbox, /nix, /proc, /sys, /tmp, /usr, /workspace";
    };
    "variables to inherit, as a list" = {
      read = toml "[environments.python]\npreset = \"python\"\n[project]\ninherit_env = [\"TZ\"]\n";
      sentence = "config: [project] inherit_env is a list: use the names of variables, such as { vars = [\"TZ\"] }";
    };
    "an hour in words" = {
      read = toml "[environments.python]\npreset = \"python\"\n[session]\nmax_lifetime_seconds = \"1h\"\n";
      sentence = "config: [session] max_lifetime_seconds is \"1h\": use a whole number from 1 to 2592000";
    };
    "an artifact's path where the server is built" = {
      read = toml "[environments.data]\nsandbox = \"/srv/sandboxes/data\"\n";
      sentence = "config: [environments.data] sandbox is \"/srv/sandboxes/data\", and a build takes no artifact by its path: use a flake reference, or give this file to the server when it starts, in NIX_SANDBOX_CONFIG";
    };
    "a flake and a preset" = {
      read = toml "[environments.data]\nflake = \"github:me/tools#data\"\npreset = \"python\"\n";
      sentence = "config: [environments.data] has both flake and preset: keep one of them";
    };
    "a set where a file belongs" = {
      read = problems.fromToml [ ./config.toml ];
      sentence = "fromToml is given a list: use the path of a TOML file";
    };
    "mkSandbox without a name" = {
      read = problems.mkSandbox { interpreter_type = "python"; };
      sentence = "mkSandbox: lacks name: set name = \"data\"";
    };
    "packages by name in Nix" = {
      read = sandbox { packages = [ "numpy" ]; };
      sentence = "mkSandbox data: packages has \"numpy\" in it: use a list of packages, such as [ pkgs.jq ]";
    };
    "one package without brackets" = {
      read = sandbox { packages = pkgs.jq; };
      sentence = "mkSandbox data: packages is a package: use a list of packages, such as [ pkgs.jq ]";
    };
    "a variable that is a number" = {
      read = sandbox { env.PORT = 80; };
      sentence = "mkSandbox data: env has \"PORT\" = 80 in it: use variables and their values in quotes, such as { TZ = \"UTC\" }";
    };
    "a kind of interpreter that does not exist" = {
      read = sandbox { interpreter_type = "cobol"; };
      sentence = "mkSandbox data: interpreter_type is \"cobol\": use ${choices.types}";
    };
    "a package in place of a module to preload" = {
      read = sandbox { preload = [ "python3-pandas" ]; };
      sentence = "mkSandbox data: preload has \"python3-pandas\" in it: use a list of at most 32 modules as code imports them, such as [\"numpy\", \"scipy.stats\"]";
    };
    "modules that code of a shell cannot import" = {
      read = sandbox {
        interpreter_type = "bash";
        preload = [ "numpy" ];
      };
      sentence = "mkSandbox data: preload is for Python, and this environment is of the type bash: set preload = [], or leave it out";
    };
    "a folder shown at a reserved place" = {
      read = sandbox { extraBinds."/etc/ssl" = "/etc/ssl"; };
      sentence = "mkSandbox data: extra_binds has \"/etc/ssl\" = \"/etc/ssl\" in it: use paths in the sandbox and what is shown there, such as { \"/data\" = \"/srv/data\" }: plain absolute paths, those in the sandbox apart from each other and from /bin, /dev, /etc, /inbox, /nix, /proc, /sys, /tmp, /usr, /workspace, /project, the sources outside of /dev, /proc, /sys";
    };
    "a disk among devices" = {
      read = sandbox { devices = [ "/dev/sda" ]; };
      sentence = "mkSandbox data: devices has \"/dev/sda\" in it, a disk, through which code gets out of the sandbox or stops the machine: set unsafe_devices = true beside it, or leave it out";
    };
    "KVM in TOML" = {
      read = toml "[environments.python]\npreset = \"python\"\ndevices = [\"/dev/dri/renderD128\", \"/dev/kvm\"]\n";
      sentence = "config: [environments.python] devices has \"/dev/kvm\" in it, KVM or another way to the processor, through which code gets out of the sandbox or stops the machine: set unsafe_devices = true beside it, or leave it out";
    };
    "a device as Docker names a GPU" = {
      read = sandbox { devices = [ "gpu" ]; };
      sentence = "mkSandbox data: devices has \"gpu\" in it: use names such as \"nvidia.com/gpu=all\", or device nodes such as \"/dev/dri/renderD128\"";
    };
    "a kind of devices" = {
      read = sandbox { devices = [ "nvidia.com/gpu" ]; };
      sentence = "mkSandbox data: devices has \"nvidia.com/gpu\" in it, a kind of devices: use one of them, such as \"nvidia.com/gpu=all\"";
    };
    "a device that every sandbox has" = {
      read = sandbox { devices = [ "/dev/null" ]; };
      sentence = "mkSandbox data: devices has \"/dev/null\" in it, which every sandbox has or makes for itself: use others, or leave it out";
    };
    "a device twice" = {
      read = sandbox { devices = [ "a.example/b=c" "a.example/b=c" ]; };
      sentence = "mkSandbox data: devices is a list of 2: use at most 64 different ones";
    };
    "a package where a shell belongs" = {
      read = sandbox { fromShell = "devShells.default"; };
      sentence = "mkSandbox data: from_shell is \"devShells.default\": use a shell that mkShell made, such as devShells.x86_64-linux.default";
    };
    "a description of two lines" = {
      read = sandbox { description = "Python\nfor data"; };
      sentence = "mkSandbox data: description is \"Python\\nfor data\": use a line of 1 to 200 bytes in quotes";
    };
    "mkServer of nothing" = {
      read = problems.mkServer { };
      sentence = "mkServer: has no environment: set config = ./config.toml or environments = [ … ]";
    };
    "mkServer with a file" = {
      read = problems.mkServer ./config.toml;
      sentence = "mkServer is given a path: use mkServer { config = ./config.toml; }";
    };
    "mkServer with a package" = {
      read = problems.mkServer { environments = [ pkgs.jq ]; };
      sentence = "mkServer: environments has a package in it: use what mkSandbox gives";
    };
    "mkServer with a name twice" = {
      read = problems.mkServer { environments = [ data data ]; };
      sentence = "mkServer: two environments are called \"data\": rename one of them";
    };
    "a reference without what to build" = {
      read = problems.mkServer { flakeRefs = [ "github:me/sandboxes" ]; };
      sentence = "mkServer: flakeRefs has \"github:me/sandboxes\" in it: use a list of flake references with what to build, such as [ \"github:me/sandboxes#data\" ]";
    };
    "a module's option misspelt" = {
      read = module { environments.python.presset = "python"; };
      sentence = "services.nix-sandbox-mcp.environments.python: has no option \"presset\" (did you mean \"preset\"?): use one of ask_seconds, backend, cpus, description, devices, env, extra_binds, from_shell, hostname, inherit_env, interpreter, interpreter_type, max_timeout_seconds, memory_mb, network, nix, npm, output_kb, packages, packages_ask, packages_on_demand, pids, preload, preset, prewarm, sandbox, stdin_mode, timeout_seconds, tools, unsafe_devices, workspace_mb";
    };
    "a module's environment under another name" = {
      read = module { environments.numbers.sandbox = data; };
      sentence = "services.nix-sandbox-mcp.environments.numbers: sandbox is called \"data\": rename the environment to data, or give the sandbox this name where it is made";
    };
    "a sandbox on macOS" = {
      read = onMacOS.problems.mkSandbox {
        name = "data";
        interpreter_type = "bash";
      };
      sentence = "mkSandbox data: backend is \"jail\", which needs the namespaces of Linux, and aarch64-darwin does not have them: set backend = \"vm\"";
    };
    "a configuration on macOS" = {
      read = onMacOS.problems.fromToml { environments.python.preset = "python"; };
      sentence = "config: [environments.python] backend is \"jail\", which needs the namespaces of Linux, and aarch64-darwin does not have them: set backend = \"vm\"";
    };
    "a server on macOS" = {
      read = onMacOS.problems.mkServer { config = ./config.toml; };
      sentence = "mkServer: sandboxes run on Linux, and these packages are for aarch64-darwin: use the package set of Linux as guest beside it, as the flake does for aarch64-darwin";
    };
    "an archive of macOS" = {
      read = onMacOS.problems.mkPortable { config = ./config.toml; };
      sentence = "mkPortable: it holds the server of Linux, and these packages are for aarch64-darwin: use the package set of Linux as pkgs";
    };
    "a project without a shell" = {
      read = problems.fromProject { project.packages = { }; };
      sentence = "fromProject: the flake has no devShells.${pkgs.stdenv.hostPlatform.system}.default: define one with mkShell, or leave PROJECT_USE_FLAKE unset";
    };

    "one package on demand without a list" = {
      read = onDemand "pandas";
      sentence = "mkSandbox data: packages_on_demand is \"pandas\": use \"all\", or a list of at most 1000 names without dots, such as [\"pandas\", \"ripgrep\"]";
    };
    "a package on demand by its path" = {
      read = onDemand [ "python3Packages.pandas" ];
      sentence = "mkSandbox data: packages_on_demand has \"python3Packages.pandas\" in it: use \"pandas\": in an environment of Python a name is looked up in python3Packages first";
    };
    "a package on demand that does not exist" = {
      read = onDemand [ "pandsa" ];
      sentence = "mkSandbox data: packages_on_demand names \"pandsa\", which nixpkgs does not have: use one that `nix search nixpkgs WORD` finds";
    };
    "packages on demand beside a finished Python" = {
      read = sandbox {
        packages = [ (pkgs.python3.withPackages (ps: [ ps.numpy ])) ];
        packages_on_demand = "all";
      };
      sentence = "mkSandbox data: packages_on_demand is beside ${lib.getName (pkgs.python3.withPackages (ps: [ ps.numpy ]))}, to which nothing can be added: use modules of python3Packages in its place";
    };
    "packages on demand of a server that builds nothing" = {
      read = problems.mkServer {
        buildAtStart = false;
        environments = [ growing ];
      };
      sentence = "mkServer: buildAtStart is false, and packages_on_demand of data is given: set buildAtStart = true, or leave it out";
    };
    "packages on demand in an image" = {
      read = problems.mkImage { environments = [ growing ]; };
      sentence = "mkImage: packages_on_demand of data is given, and an image has no Nix: use mkServer for a machine that has it, or leave it out";
    };
    "an image that builds" = {
      read = problems.mkImage {
        environments = [ data ];
        buildAtStart = true;
      };
      sentence = "mkImage: buildAtStart is true, and an image has no Nix: use mkServer for a machine that has it, or leave it out";
    };
    "an archive that builds" = {
      read = problems.mkPortable { environments = [ growing ]; };
      sentence = "mkPortable: packages_on_demand of data is given, and the machine has no Nix: use mkServer for a machine that has it, or leave it out";
    };
    "an image without environments" = {
      read = problems.mkImage { tag = "one"; };
      sentence = "mkServer: has no environment: set config = ./config.toml or environments = [ … ]";
    };
    "a bound of packages on demand misspelt" = {
      read = toml ''
        [environments.python]
        preset = "python"
        [on_demand]
        keep_day = 3
      '';
      sentence = "config: [on_demand] has no option \"keep_day\" (did you mean \"keep_days\"?): use one of build_seconds, flakes, keep_days, keep_mb, max_builds, max_closure_mb";
    };
  };
in
lib.mapAttrs' (
  what: mistake:
  lib.nameValuePair "testMistake: ${what}" {
    expr = mistake.read;
    expected = [ mistake.sentence ];
  }
) mistakes
// {
  # The control: what the sentences tell people to write is accepted.
  testRightNetworks = {
    expr = lib.concatMap network [
      { domains = [ "files.example" "*.files.example" "files.example:8443" "*.a.b.example:22" "_dns.a-b.example" "1.example" "git" "xn--bcher-kva.example" ]; }
      { ports = [ 1 80 443 65535 ]; }
      { private = [ "10.1.0.0/16" "10.0.0.0/8" "192.168.1.7/32" "100.64.0.0/10" "fd00::/16" "fd00:1:2:3:4:5:6:7/128" "2001:db8::8000/113" ]; }
      {
        connections = 1024;
        rate = 1;
        megabytes = 1048576;
        names = null;
        upstream = "http://proxy.example:3128";
      }
      { upstream = "http://10.0.0.8:65535/"; }
      {
        domains = [
          "files.example"
          "*.host.example"
          "a.host.example:443"
        ];
        rules."a.host.example" = {
          methods = [ "GET" ];
          paths = [
            "/"
            "/v1/*"
          ];
        };
        credentials.TOKEN = {
          domain = "files.example";
          header = "X-Key: {}";
          variable = "TOKEN";
        };
      }
    ];
    expected = [ ];
  };
  testMistakesAreEnough = {
    expr = lib.length (lib.attrNames mistakes) >= 25;
    expected = true;
  };
  # What is wrong, and what to do.
  testMistakesSayWhatToDo = {
    expr = lib.filter (
      what: builtins.match ".*: (add|allow it|build|create|define|keep|leave out|rename|set|use) .*|.*, so give .*" mistakes.${what}.sentence == null
    ) (lib.attrNames mistakes);
    expected = [ ];
  };
}
