# Packages on demand (nix/lib/onDemand.nix): what an artifact says of them, and what
# names that come from the model become.
{
  pkgs,
  lib,
  library,
  ...
}:
let
  onDemand = import ../../nix/lib/onDemand.nix { inherit pkgs; inherit (library) backends; };

  # Stand-ins whose meta is that of nixpkgs' check-meta.
  refused =
    meta:
    {
      type = "derivation";
      name = "refused-1";
      drvPath = throw "refusing to evaluate";
      outPath = throw "refusing to evaluate";
      inherit meta;
    };
  withRefused = import ../../nix/lib/onDemand.nix {
    inherit (library) backends;
    pkgs = pkgs // {
      lame = refused { broken = true; };
      leaky = refused {
        insecure = true;
        knownVulnerabilities = [ "CVE-2026-1,\nby the network" ];
      };
      closed = refused {
        unfree = true;
        license.spdxId = "BUSL-1.1";
      };
      elsewhere = refused { unsupported = true; };
    };
  };

  python = {
    name = "python";
    interpreter_type = "python";
    packages = [
      { module = "numpy"; }
      { interpreter = "python3"; }
    ];
  };
  derive =
    on: base: packages:
    on.deriveFrom (builtins.toJSON base) packages;
  names = base: packages: map lib.getName (derive onDemand base packages).arguments.packages;
  wrong = base: packages: (derive withRefused base packages).wrong;
  absent = name: {
    inherit name;
    wrong = "absent";
    reason = "";
  };
  reason = name: reason: {
    inherit name reason;
    wrong = "refused";
  };

  withSentence = import ../../nix/lib/onDemand.nix {
    inherit (library) backends;
    pkgs = pkgs // {
      jq = throw "this package set has no jq";
      # Nobody's name, which is not asked.
      strange = throw "this package set has nothing strange";
    };
  };

  # Names that a model may write and that are attributes of nixpkgs, but no packages.
  strange = [
    "lib"
    "writeShellScript"
    "runCommand"
    "python3Packages"
    "pkgs"
    "path"
    "system"
    "config"
    "withPackages"
    "mkDerivation"
    "x/../y"
    "../../x"
    "a.b"
    "\${builtins.currentTime}"
    ""
    "-"
    "__functor"
    "nоde" # with a Cyrillic letter
  ];

  # nixpkgs itself has these; its stand-in of setup/debpkgs has no module system either.
  isNixpkgs = (builtins.tryEval (lib ? evalModules && builtins.isFunction lib.evalModules)).value or false;
  modules = [
    "numpy"
    "pandas"
    "scipy"
    "scikit-learn"
    "opencv4"
    "pillow"
    "requests"
    "beautifulsoup4"
    "polars"
    "duckdb"
    "sympy"
    "networkx"
    "matplotlib"
    "seaborn"
    "statsmodels"
    "scikit-image"
    "openpyxl"
    "pyyaml"
    "lxml"
    "sqlalchemy"
    "torch"
    "plotly"
    "python-dateutil"
  ];
  programs = [
    "ffmpeg"
    "imagemagick"
    "graphviz"
    "jq"
    "ripgrep"
    "nodejs"
    "gnuplot"
    "poppler-utils"
    "sqlite"
    "go"
  ];
  # Like an artifact's recipe of the presets.
  resolved = base: list: map (package: package.drvPath) (
    lib.drop (lib.length base.packages) (derive onDemand base list).arguments.packages
  );

  table = values: onDemand.table ({ interpreter_type = "python"; } // values);
  allPackages = table { packages_on_demand = "all"; };
in
{
  # A hint names what can be built.
  testTableLeavesOutWhatIsOnlyASentence = {
    expr =
      let
        has = on: lib.elem "jq" (on.table { interpreter_type = "bash"; packages_on_demand = "all"; }).names;
      in
      [
        (has onDemand)
        (has withSentence)
      ];
    expected = [
      true
      false
    ];
  };
  testOnDemandResolves = {
    expr = names python [
      "jq"
      "pandas"
    ];
    expected = map lib.getName [
      pkgs.python3.pkgs.numpy
      pkgs.python3
      pkgs.jq
      pkgs.python3.pkgs.pandas
    ];
  };
  # Modules of Python are for environments of Python.
  testOnDemandModulesNotOfOthers = {
    expr = wrong (python // { interpreter_type = "bash"; }) [ "beautifulsoup4" ];
    expected = [ (absent "beautifulsoup4") ];
  };
  testOnDemandStrangeNames = {
    expr = wrong python strange;
    expected = map absent strange;
  };
  testOnDemandRefusals = {
    expr = wrong python [
      "lame"
      "leaky"
      "closed"
      "elsewhere"
    ];
    expected = [
      (reason "lame" "it is marked as broken")
      (reason "leaky" "it is marked as insecure (CVE-2026-1, by the network)")
      (reason "closed" "its license is unfree (BUSL-1.1)")
      (reason "elsewhere" "it is not for ${pkgs.stdenv.hostPlatform.system}")
    ];
  };
  # The options of the environment are those of its sandboxes with packages.
  testOnDemandKeepsOptions = {
    expr =
      removeAttrs (derive onDemand (python // { memory_mb = 64; description = "Python 3"; }) [ "pandas" ]).arguments
        [ "packages" ];
    expected = removeAttrs python [ "packages" ] // {
      memory_mb = 64;
      description = "Python 3 with pandas";
      derived = true;
    };
  };
  # A recipe is data: no text in it is evaluated.
  testOnDemandRecipe = {
    expr = builtins.fromJSON (
      onDemand.recipe {
        name = "python";
        from_shell = null;
        packages_on_demand = "all";
        env.X = "\${builtins.currentTime}";
        packages = [
          pkgs.python3
          pkgs.python3.pkgs.numpy
        ];
      }
    );
    expected = {
      name = "python";
      env.X = "\${builtins.currentTime}";
      packages = [
        { interpreter = "python3"; }
        { module = "numpy"; }
      ];
    };
  };

  # Whatever a call names, nothing is built or evaluated for it but that package.
  testOnDemandReferences = {
    expr = (derive onDemand (python // { packages = [ { paths = [ "${builtins.storeDir}/0123456789abcdfghijklmnpqrsvwxyz-tool-1" ]; } ]; }) [ ]).arguments.packages;
    expected = [
      {
        type = "derivation";
        name = "tool-1";
        outPath = "${builtins.storeDir}/0123456789abcdfghijklmnpqrsvwxyz-tool-1";
      }
    ];
  };

  testOnDemandTableOfList = {
    expr = table {
      packages_on_demand = [
        "beautifulsoup4"
        "pandas"
        "ripgrep"
      ];
    };
    expected = {
      names = [
        "beautifulsoup4"
        "pandas"
        "ripgrep"
      ];
      modules.bs4 = "beautifulsoup4";
      modules_by_name = true;
      programs.rg = "ripgrep";
    };
  };
  testOnDemandTableOfAll = {
    expr = {
      names = lib.all (name: lib.elem name allPackages.names) [
        "beautifulsoup4"
        "jq"
        "pandas"
      ];
      strange = lib.filter (name: lib.elem name allPackages.names) strange;
      inherit (allPackages.modules) bs4;
      inherit (allPackages.programs) rg;
    };
    expected = {
      names = true;
      strange = [ ];
      bs4 = "beautifulsoup4";
      rg = "ripgrep";
    };
  };
}
// lib.optionalAttrs isNixpkgs {
  testOnDemandCommonModules = {
    expr = resolved python modules;
    expected = map (name: pkgs.python3Packages.${name}.drvPath) modules;
  };
  testOnDemandCommonPrograms = {
    expr = resolved (python // { interpreter_type = "bash"; }) programs;
    expected = map (name: pkgs.${name}.drvPath) programs;
  };
  # What a module says of itself is in the table.
  testOnDemandImports = {
    expr =
      let
        inherit (allPackages) modules;
      in
      map (name: modules.${name} or null) [
        "cv2"
        "PIL"
        "sklearn"
        "skimage"
        "yaml"
        "bs4"
        "dateutil"
        "docx"
        "fitz"
        "Crypto"
      ];
    expected = [
      "opencv4"
      "pillow"
      "scikit-learn"
      "scikit-image"
      "pyyaml"
      "beautifulsoup4"
      "python-dateutil"
      "python-docx"
      "pymupdf"
      "pycryptodome"
    ];
  };
}
