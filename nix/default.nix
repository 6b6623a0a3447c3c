# nix-sandbox-mcp as a library, for a given package set: no flake needed.
#
#   let sandboxes = import ./nix { pkgs = import <nixpkgs> { }; };
#   in sandboxes.mkServer { config = ./config.toml; }
{
  pkgs,
  # The package set of what is in sandboxes: on a Mac that of Linux, for the same processor. A builder
  # with Linux makes it.
  guest ? pkgs,
  # The Go programs { agent; builder; gateway; jail; jailDevices; network; nix; operator; runtime; seccomp; vm; vmGuest; vmImage; }, for those who have them built.
  programs ? import ./lib/programs.nix { inherit pkgs guest; },
  # The commit that this is, for --version.
  revision ? null,
}:
let
  inherit (pkgs) lib;

  # Calls the function in a file with those of the values below that its arguments name.
  call =
    file:
    let
      function = import file;
    in
    function (builtins.intersectAttrs (builtins.functionArgs function) values);

  values = {
    inherit
      lib
      programs
      revision
      ;
    pkgs = guest;
    host = pkgs;
    inherit (guest.stdenv.hostPlatform) system;

    backends = call ./backends;
    configuration = call ./lib/configuration.nix;
    interpreter = call ./lib/interpreter.nix;
    interpreters = call ./interpreters;
    named = call ./lib/named.nix;
    onDemand = call ./lib/onDemand.nix;
    options = import ./lib/options.nix {
      inherit lib;
      interpreters = lib.attrNames interpreters;
      presets = lib.attrNames presets;
      backends = lib.attrNames backends;
    };
    presets = call ./presets.nix;
    project = call ./lib/fromProject.nix;
    sandbox = call ./lib/mkSandbox.nix;
    server = call ./lib/mkServer.nix;
    serverMetadata = call ./lib/serverMetadata.nix;
    toml = call ./lib/fromToml.nix;
    # The sources that a server keeps for its start have no toolbox.
    toolbox = if builtins.pathExists ../parts/toolbox/surface then allTools else call ./lib/noToolbox.nix;
    checks = allTools.problems;
    validate = call ./lib/validate.nix;

    fromOptions = written.make;
    mkSandbox = sandbox.make;
    mkServer = server.make;
  };
  allTools = call ../parts/toolbox/nix // {
    checks = allTools.problems;
  };

  inherit (values)
    backends
    interpreters
    options
    presets
    project
    sandbox
    server
    toml
    ;

  written = call ./lib/fromOptions.nix;
  image = call ./lib/mkImage.nix;
  portable = call ./lib/mkPortable.nix;
  smokeTest = call ./lib/smokeTest.nix;
in
{
  inherit
    backends
    interpreters
    options
    programs
    ;
  escapeTest = call ./lib/escapeTest.nix;
  gpuCheck = call ./lib/gpuCheck.nix;

  # { name, packages, interpreter_type | interpreter, … } -> an artifact.
  mkSandbox = sandbox.make;

  # A TOML file, or a set of the same shape -> { environments; session; project; }.
  fromToml = toml.make;

  # { prefix; values; }: where a module's options are, and what they hold -> the same.
  fromOptions = written.make;

  # { project } -> the artifact of a project's own development shell.
  fromProject = project.make;

  # { config } or what fromToml gives -> the server.
  mkServer = server.make;

  # The server of config.example.toml, which adds its user's own configuration when it starts.
  default = server.default;

  # What mkServer is given, name and tag -> a program that prints an OCI image.
  mkImage = image.make;

  # What mkServer is given -> an archive of the server for machines without Nix.
  mkPortable = portable.make;

  # What modules for a machine or a user install: { environments; server; }.
  installation = call ./lib/installation.nix;

  # What the wrapper of a server asks when the server starts.
  start = call ./wrapper;

  # An artifact -> a check that runs code in it.
  smokeTest = artifact: smokeTest { inherit artifact; };

  # { artifact; code; output; } -> a check that the code prints the output.
  prints = smokeTest;

  # The pages of docs/options, by name.
  optionPages = call ./lib/optionPages.nix;

  # What is wrong with the argument of the function of that name, as a list of
  # sentences; the functions themselves throw the first.
  problems = {
    mkSandbox = sandbox.problems;
    fromToml = toml.problems;
    fromOptions = written.problems;
    fromProject = project.problems;
    mkServer = server.problems;
    mkImage = image.problems;
    mkPortable = portable.problems;
  };

  # The programs of each preset, on their own.
  presets = lib.mapAttrs (name: _: (sandbox.make { inherit name; preset = name; }).environment) presets;
}
