# nix-sandbox-mcp as a library, for a given package set: no flake needed.
#
#   let sandboxes = import ./nix { pkgs = import <nixpkgs> { }; };
#   in sandboxes.mkServer { config = ./config.toml; }
{
  pkgs,
  # The Go programs { agent; gateway; jail; jailDevices; network; operator; runtime; seccomp; vm; vmGuest; vmImage; }, for those who have them built.
  programs ? import ./lib/programs.nix { inherit pkgs; },
  # The commit that this is, for --version.
  revision ? null,
}:
let
  inherit (pkgs) lib;

  interpreters = import ./interpreters { inherit pkgs; };
  environments = lib.mapAttrs' (
    type: known:
    lib.nameValuePair known.preset.name (
      removeAttrs known.preset [ "name" ] // { interpreter_type = type; }
    )
  ) interpreters;
  backends = import ./backends { inherit pkgs programs; };
  options = import ./lib/options.nix {
    inherit lib;
    interpreters = lib.attrNames interpreters;
    presets = lib.attrNames environments;
    backends = lib.attrNames backends;
  };
  validate = import ./lib/validate.nix { inherit lib; };
  interpreter = import ./lib/interpreter.nix { inherit lib interpreters; };

  onDemand = import ./lib/onDemand.nix { inherit pkgs; };
  sandbox = import ./lib/mkSandbox.nix {
    inherit
      pkgs
      backends
      onDemand
      options
      validate
      interpreter
      interpreters
      ;
  };
  # The sources that a server keeps for its start have no toolbox.
  hasToolbox = builtins.pathExists ../toolbox/nix;
  toolbox =
    if hasToolbox then
      import ../toolbox/nix {
        inherit
          pkgs
          options
          programs
          sandbox
          validate
          ;
      }
    else
      import ./lib/noToolbox.nix { inherit lib; };
  configuration = import ./lib/configuration.nix {
    inherit
      toolbox
      pkgs
      options
      validate
      environments
      sandbox
      backends
      ;
  };
  toml = import ./lib/fromToml.nix {
    inherit
      pkgs
      options
      validate
      configuration
      ;
  };
  project = import ./lib/fromProject.nix {
    inherit lib validate sandbox;
    inherit (pkgs.stdenv.hostPlatform) system;
  };
  written = import ./lib/fromOptions.nix { inherit options validate configuration; };
  serverMetadata = import ./lib/serverMetadata.nix { inherit lib options interpreters; };
  server = import ./lib/mkServer.nix {
    inherit
      pkgs
      programs
      revision
      options
      validate
      toml
      serverMetadata
      ;
  };
  image = import ./lib/mkImage.nix {
    inherit
      pkgs
      programs
      revision
      server
      validate
      ;
  };
  portable = import ./lib/mkPortable.nix {
    inherit
      pkgs
      programs
      server
      validate
      ;
  };
  escapeTest = import ./lib/escapeTest.nix { inherit pkgs programs; };
  gpuCheck = import ./lib/gpuCheck.nix {
    inherit pkgs programs;
    mkSandbox = sandbox.make;
  };
  smokeTest = import ./lib/smokeTest.nix { inherit pkgs; };
in
{
  inherit
    backends
    escapeTest
    gpuCheck
    interpreters
    options
    programs
    ;

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

  # What mkServer is given, name and tag -> a program that prints an OCI image.
  mkImage = image.make;

  # What mkServer is given -> an archive of the server for machines without Nix.
  mkPortable = portable.make;

  # What modules for a machine or a user install: { environments; server; }.
  installation = import ./lib/installation.nix {
    fromOptions = written.make;
    mkServer = server.make;
  };

  # What the wrapper of a server asks when the server starts.
  start = import ./wrapper {
    inherit
      lib
      onDemand
      toml
      project
      sandbox
      serverMetadata
      ;
  };

  # An artifact -> a check that runs code in it.
  smokeTest = artifact: smokeTest { inherit artifact; };

  # { artifact; code; output; } -> a check that the code prints the output.
  prints = smokeTest;

  # The pages of docs/options, by name.
  optionPages = import ./lib/optionPages.nix { inherit lib options; };

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
  presets = lib.mapAttrs (name: preset: (sandbox.make ({ inherit name; } // preset)).environment) environments;
}
