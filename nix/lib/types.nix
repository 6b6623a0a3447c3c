# The types of options: { accepts; wanted; } is a test, and the words for
# what passes it, which follow "use" in a sentence. A choice has its
# `choices` too, so that a misspelling can be named, and may have `reasons`
# against values that operators will try. Of a list or a set, `offends` finds the
# elements that are wrong by themselves, so that the sentence names one of them.
# `explain` takes such an element, or else the whole value, and gives { why; use; }:
# what is wrong with it, which follows the value in the sentence, and what to use
# in place of `wanted`. Both may be left out. A type that takes a table has its `rows`, and
# one that takes tables by name has `each`, the rows of each, `isName` and `most`. `beyond` finds
# what is wrong with the rows of a table together, as { key; sentence; }.
{ lib }:
let
  inherit (builtins)
    all
    attrNames
    elem
    isAttrs
    isFloat
    isInt
    isList
    isString
    length
    match
    stringLength
    toJSON
    ;

  reserved = import ./reserved.nix;

  # Written plainly: absolute, and without empty parts, dots or lines in it.
  isPlain =
    v: isString v && match "(/[^/\n]+)+" v != null && match ".*/\\.{1,2}(/.*)?" v == null;

  overlaps = path: lib.any (folder: inside path folder || inside folder path);

  inside = path: folder: path == folder || lib.hasPrefix "${folder}/" path;

  isLine = most: v: isString v && v != "" && stringLength v <= most && match "[^\n\r]*" v != null;

  isPackage = v: isAttrs v && v ? outPath;

  # `of` is the word for the elements. `also` is a further test of the whole list.
  listOf =
    isElement:
    {
      least ? 0,
      most ? 1000,
      of ? "elements",
      also ? (_: true),
      explain ? (_: { }),
      ...
    }@more:
    more
    // {
      accepts =
        v: isList v && all isElement v && length v >= least && length v <= most && also v;
      offends = v: lib.optionals (isList v) (lib.filter (e: !(isElement e)) v);
      explain =
        v:
        lib.optionalAttrs (isList v && length v < least) { why = " without ${of}"; }
        // lib.optionalAttrs (isList v && length v > most) {
          why = " of ${toString (length v)}";
          use = "at most ${toString most} ${of}";
        }
        // explain v;
    };

  setOf =
    isPair: more:
    {
      accepts = v: isAttrs v && !(isPackage v) && all (name: isPair name v.${name}) (attrNames v);
      offends =
        v:
        lib.optionals (isAttrs v && !(isPackage v)) (
          map (name: { ${name} = v.${name}; }) (lib.filter (name: !(isPair name v.${name})) (attrNames v))
        );
    }
    // more;

  # A name that a shell can have for a variable.
  # A name of a header (RFC 9110, section 5.6.2).
  isToken = n: match "[A-Za-z0-9!#$%&'*+.^_|~-]+" n != null;
  isVariable = n: match "[A-Za-z_][A-Za-z0-9_]*" n != null;

  or' =
    words:
    if lib.length words < 2 then
      lib.concatStrings words
    else
      "${lib.concatStringsSep ", " (lib.init words)} or ${lib.last words}";

  types = rec {
    integer = min: max: {
      accepts = v: isInt v && v >= min && v <= max;
      wanted = "a whole number from ${toString min} to ${toString max}";
    };

    # The least is a hundredth.
    number = max: {
      accepts = v: (isInt v || isFloat v) && v >= 0.01 && v <= max;
      wanted = "a number from 0.01 to ${toString max}";
    };

    line = most: {
      accepts = isLine most;
      wanted = "a line of 1 to ${toString most} bytes in quotes";
    };

    lines = listOf (isLine 200) {
      wanted = "a list of names in quotes";
    };

    choice = choices: {
      accepts = v: isString v && elem v choices;
      wanted = or' (map toJSON choices);
      inherit choices;
    };

    # { VALUE = WHY_NOT; }
    choiceBut = reasons: choices: choice choices // { inherit reasons; };

    # A string that a regular expression matches whole.
    matching = pattern: wanted: {
      accepts = v: isString v && match pattern v != null;
      inherit wanted;
    };

    name =
      matching "[a-z0-9][a-z0-9_-]{0,63}" "1 to 64 of a-z, 0-9, _ and -, with a letter or a digit first"
      // {
        example = "\"data\"";
      };

    packages = listOf isPackage { wanted = "a list of packages, such as [ pkgs.jq ]"; };

    # What the model may write in a name: no path to an attribute.
    packagesOnDemand =
      let
        names = listOf (name: isString name && match "[A-Za-z0-9_][A-Za-z0-9_-]{0,63}" name != null) { };
      in
      names
      // {
        accepts = v: v == "all" || names.accepts v;
        wanted = "\"all\", or a list of at most 1000 names without dots, such as [\"pandas\", \"ripgrep\"]";
        choices = [ "all" ];
        explain =
          v:
          lib.optionalAttrs (isString v && match "(python3?Packages|python3\\.pkgs)\\..+" v != null) {
            use = "${toJSON (lib.last (lib.splitString "." v))}: in an environment of Python a name is looked up in python3Packages first";
          };
      };

    # Modules of a language, as code names them.
    modules =
      let
        part = "[A-Za-z_][A-Za-z0-9_]{0,63}";
      in
      listOf (name: isString name && match "${part}([.]${part}){0,7}" name != null) {
        most = 32;
        wanted = "a list of at most 32 modules as code imports them, such as [\"numpy\", \"scipy.stats\"]";
      };

    package = {
      accepts = isPackage;
      wanted = "a package";
    };

    packagesOrNames = listOf (p: isLine 200 p || isPackage p) {
      wanted = "a list of packages, or of their names in quotes";
    };

    artifact = {
      accepts = v: isAttrs v && v ? outPath && isAttrs (v.metadata or null);
      wanted = "what mkSandbox gives";
    };

    references = listOf (r: isString r && match "[^#, \t\n]+#[^#, \t\n]+" r != null) {
      wanted = "a list of flake references with what to build, such as [ \"github:me/sandboxes#data\" ]";
    };

    url = matching "https?://[!$-;=@-Z_a-z~]{1,500}" "a URL, such as \"https://login.example\""
      // {
        example = "\"https://login.example\"";
      };

    # The name of a class of principals.
    isPattern = v: isString v && match "[A-Za-z0-9_.*-]{1,128}" v != null;
    isToolServer = v: isString v && match "[a-z][a-z0-9_]{0,31}" v != null;

    isClass = v: match "[a-z0-9][a-z0-9_-]{0,63}" v != null;

    boolean = {
      accepts = builtins.isBool;
      wanted = "true or false";
    };

    variables = setOf (name: value: isVariable name && isString value) {
      wanted = "variables and their values in quotes, such as { TZ = \"UTC\" }";
    };

    # Names of tools, in which * stands for any text.
    patterns = listOf isPattern {
      wanted = "names of tools, such as [\"get_issue\", \"list_*\"]";
    };

    # Whose tools code may call: all that their servers allow, or some of these.
    tools = {
      accepts =
        v:
        isList v && all isToolServer v
        || isAttrs v && !(isPackage v) && all (n: isToolServer n && isList v.${n} && all isPattern v.${n}) (attrNames v);
      wanted = "names of [tools] tables, such as [\"github\"], or a table that narrows them, such as { github = [\"get_*\"] }";
    };

    inherited = {
      accepts =
        v: isAttrs v && attrNames v == [ "vars" ] && isList v.vars && all (n: isString n && isVariable n) v.vars;
      wanted = "the names of variables, such as { vars = [\"TZ\"] }";
    };

    mountPoint = {
      accepts = v: isPlain v && !(overlaps v reserved);
      wanted = "a plain absolute path outside of ${lib.concatStringsSep ", " reserved}";
    };

    # { PATH = SOURCE; }: a path in the sandbox, and what of the host or store.
    binds =
      let
        own = reserved ++ [ "/project" ];
        # Sources through which code would speak with the host's kernel.
        never = [
          "/dev"
          "/proc"
          "/sys"
        ];
        isSource =
          v: builtins.isPath v || isPackage v || (isPlain v && !(lib.any (inside v) never));
        pairs = setOf (path: source: isPlain path && !(overlaps path own) && isSource source);
        apart = names: all (name: !(overlaps name (lib.filter (other: other != name) names))) names;
      in
      pairs {
        wanted = "paths in the sandbox and what is shown there, such as { \"/data\" = \"/srv/data\" }: plain absolute paths, those in the sandbox apart from each other and from ${lib.concatStringsSep ", " own}, the sources outside of ${lib.concatStringsSep ", " never}";
      }
      // {
        accepts = v: (pairs { }).accepts v && apart (attrNames v);
        explain =
          v:
          let
            homes = if isAttrs v then lib.filter (source: isString source && lib.hasPrefix "~" source) (lib.attrValues v) else [ ];
          in
          lib.optionalAttrs (homes != [ ]) {
            why = ", and ~ stands for no folder here";
            use = "the whole path, such as ${toJSON "/home/you${lib.removePrefix "~" (lib.head homes)}"}";
          };
      };

    # Names of the Container Device Interface, and device nodes.
    devices =
      let
        most = 64;
        name = "[A-Za-z]([A-Za-z0-9_.-]*[A-Za-z0-9])?";
        isName = v: match "${name}/${name}=[A-Za-z0-9]([A-Za-z0-9_.:-]*[A-Za-z0-9])?" v != null;
        isNode = v: isPlain v && lib.hasPrefix "/dev/" v && !(isOwn v);
        # Those that every sandbox has.
        isOwn =
          v:
          match "/dev/(console|core|fd|full|mqueue|null|ptmx|pts|random|shm|stderr|stdin|stdout|tty|urandom|zero)(/.*)?" v != null;
        isDevice = v: isString v && stringLength v <= 200 && (isName v || isNode v);
      in
      listOf isDevice {
        inherit most;
        also = v: lib.unique v == v;
        wanted = "names such as \"nvidia.com/gpu=all\", or device nodes such as \"/dev/dri/renderD128\"";
        explain =
          v:
          if isList v then
            {
              why = " of ${toString (lib.length v)}";
              use = "at most ${toString most} different ones";
            }
          else if isString v && isOwn v then
            {
              why = ", which every sandbox has or makes for itself";
              use = "others, or leave it out";
            }
          else if isString v && match "${name}/${name}" v != null then
            {
              why = ", a kind of devices";
              use = "one of them, such as ${toJSON "${v}=all"}";
            }
          else
            { };
      };

    # What a device node is by its name, if a sandbox gets it only with unsafe_devices; null
    # otherwise. The launcher asks again, by the node's numbers (jail/devices/device).
    unsafeDevice =
      v:
      let
        of = pattern: match "/dev/(${pattern})" v != null;
      in
      if
        of "(sd|hd|vd|xvd)[a-z]+[0-9]*|(nvme|mmcblk|loop|md|dm-|sr|scd|zram|nbd|ram|sg|st|nst|fd|zd|bcache|mtd|ubi|pmem|dax|raw)[0-9].*|(block|bsg|cdrom|disk|loop-control|mapper|md|raw|zvol)(/.*)?|btrfs-control"
      then
        "a disk"
      else if of "mem|kmem|port|nvram|kmsg|hpet|cpu(/.*)?|cpu_dma_latency|crash|snapshot|mcelog|udmabuf" then
        "the memory or the kernel of the machine"
      else if of "tty.+|pty.+|vcs.*|hvc.*|hvsi.*|ircomm.*|rfcomm.*|input(/.*)?|uinput|uhid|hidraw.*|serial(/.*)?|gpiochip.*|watchdog.*" then
        "a terminal or the input of the machine"
      else if of "kvm|vhost-.*|vfio(/.*)?|vboxdrv.*|sev|sgx.*|iommu" then
        "KVM or another way to the processor"
      else if of "net/tun|tun.*|tap.*|ppp" then
        "TUN"
      else if of "fuse|cuse|autofs" then
        "FUSE"
      else
        null;

    shell = {
      accepts = v: isAttrs v && v ? drvAttrs && v.drvAttrs ? stdenv;
      wanted = "a shell that mkShell made, such as devShells.x86_64-linux.default";
    };

    # A table whose keys are options.
    table = rows: {
      accepts =
        v:
        isAttrs v
        && !(isPackage v)
        && all (key: rows ? ${key}) (attrNames v)
        && all (
          key:
          if v.${key} or null == null then
            !(rows.${key}.required or false)
          else
            rows.${key}.type.accepts v.${key}
        ) (attrNames rows);
      inherit rows;
    };

    # Tables with the same options, by a name.
    tables =
      isName: each: more:
      {
        accepts = v: isAttrs v && !(isPackage v) && all (name: isName name && (table each).accepts v.${name}) (attrNames v);
        inherit isName each;
      }
      // more;

    # A file that is read when a sandbox starts.
    npmFolder = {
      accepts = v: builtins.isPath v || isPlain v;
      wanted = "the path of a folder with package.json and package-lock.json, such as ./web";
    };
    secretFile = {
      accepts = v: isPlain v && !(inside v builtins.storeDir);
      wanted = "the absolute path of a file in quotes, outside of ${builtins.storeDir}, where everybody could read it";
    };

    variableNames = {
      accepts = v: isList v && all (n: isString n && isVariable n) v;
      wanted = "a list of names of variables, such as [\"API_TOKEN\"]";
    };

    headers = setOf (name: value: isToken name && isString value && isVariable value) {
      wanted = "headers, each with the name of a variable, such as { X-API-Key = \"API_KEY\" }";
    };

    variableName = {
      accepts = v: isString v && isVariable v;
      wanted = "the name of a variable, such as \"API_TOKEN\"";
    };
  };
in
types
// import ./networkTypes.nix {
  inherit
    lib
    isLine
    isPlain
    isVariable
    listOf
    ;
  inherit (types) table tables;
}
