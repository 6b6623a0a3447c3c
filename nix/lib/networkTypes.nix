# The types of options about networks and addresses, in the form that types.nix describes.
{
  lib,
  isLine,
  isPlain,
  isVariable,
  listOf,
  table,
  tables,
}:
let
  inherit (builtins)
    all
    attrNames
    elem
    isInt
    isList
    isString
    length
    match
    stringLength
    toJSON
    ;

  isHost = v: isString v && isHostName v && !(isLocalHost v);

  # The bits of a network's address after its prefix are zero. `width` is the size
  # of an element in bits, as which the address is a list of numbers.
  isMasked =
    width: prefix: elements:
    all (n: n) (
      lib.imap0 (
        i: element:
        let
          free = width - lib.max 0 (lib.min width (prefix - i * width));
        in
        builtins.bitAnd element (power free - 1) == 0
      ) elements
    );

  power = n: if n == 0 then 1 else 2 * power (n - 1);

  decimal = word: if match "0|[1-9][0-9]{0,4}" word != null then builtins.fromJSON word else null;

  # The 8 groups of an IPv6 address, as numbers, or null.
  groupsOf =
    address:
    let
      sides = lib.splitString "::" address;
      list = side: if side == "" then [ ] else lib.splitString ":" side;
      groups = map list sides;
      count = lib.length (lib.concatLists groups);
      filled =
        if lib.length sides == 1 && count == 8 then
          lib.head groups
        else if lib.length sides == 2 && count < 8 then
          lib.head groups ++ lib.genList (_: "0") (8 - count) ++ lib.last groups
        else
          [ ];
      hex = group: (builtins.fromTOML "n = 0x${group}").n;
    in
    if filled != [ ] && all (group: match "[0-9a-f]{1,4}" group != null) filled then
      map hex filled
    else
      null;

  # The parts of "NAME:PORT"; port is null if there is none.
  hostAndPort =
    entry:
    let
      parts = match "([^:]*)(:(.*))?" entry;
    in
    if parts == null then
      {
        host = entry;
        port = null;
      }
    else
      {
        host = lib.head parts;
        port = lib.last parts;
      };

  # The sandbox's own resolver listens at port 53.
  isPort = n: isInt n && n >= 1 && n <= 65535 && n != 53;

  hostLabel = "[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?";
  # C libraries read a last label that begins with a digit as an address.
  hostName = "(${hostLabel}\\.)*[a-z_]([a-z0-9_-]{0,61}[a-z0-9_])?";
  isHostName = v: stringLength v <= 253 && match hostName v != null;
  isLocalHost = v: v == "localhost" || lib.hasSuffix ".localhost" v;
  # A whole top-level domain is no host.
  isHostPattern =
    v:
    lib.hasPrefix "*." v && isHostName (lib.removePrefix "*." v) && match ".*\\..*\\..*" v != null;

  # Whether an entry of domains allows a host.
  allows =
    host: entry:
    let
      pattern = (hostAndPort entry).host;
    in
    host == pattern || lib.hasPrefix "*." pattern && lib.hasSuffix (lib.removePrefix "*" pattern) host;
in
rec {
  # Where a server listens.
  listen =
    let
      isAddress =
        v:
        let
          parts = match "([0-9A-Za-z.-]*|[[][0-9a-f:.]+[]]):([0-9]+)" v;
          port = decimal (lib.last parts);
        in
        parts != null && port != null && port <= 65535;
    in
    {
      accepts =
        v:
        isLine 200 v
        && (v == "systemd" || isAddress v || lib.hasPrefix "unix:" v && isPlain (lib.removePrefix "unix:" v));
      wanted = "an address with a port, such as \"127.0.0.1:8080\", \"unix:/run/nix-sandbox-mcp/socket\", or \"systemd\"";
    };

  # The addresses that a proxy connects from.
  sources =
    let
      isSource =
        v:
        isString v
        && match "unix|[0-9]{1,3}([.][0-9]{1,3}){3}/[0-9]{1,2}|[0-9a-f:]+/[0-9]{1,3}" v != null;
    in
    listOf isSource {
      least = 1;
      most = 64;
      of = "addresses";
      wanted = "addresses with the length of their prefix, such as [\"127.0.0.1/32\"], or [\"unix\"]";
    };

  # "none", or the table of a network.
  network =
    rows:
    table rows
    // {
      accepts = v: v == "none" || (table rows).accepts v;
      wanted = "\"none\", or a table such as { mode = \"allow\", domains = [\"files.example\"] }";
      choices = [ "none" ];
      explain =
        v:
        lib.optionalAttrs
          (isString v && elem v [ "allow" "all" "any" "bridge" "full" "host" "internet" ])
          {
            why = ", and a sandbox reaches hosts that are named";
          };
      beyond =
        v:
        let
          # A table's option, which null leaves at its default.
          orDefault = key: if v.${key} or null == null then rows.${key}.default else v.${key};
          given = key: if v.${key} or null == null then { } else v.${key};
          # Why the proxy could not read every request to a host, as `checkRead` of
          # network/policy has it; null if it can.
          unread =
            host:
            let
              entries = lib.filter (allows host) v.domains;
              exact = lib.any (entry: (hostAndPort entry).host == host) entries;
              ports = lib.concatMap (
                entry:
                let
                  inherit (hostAndPort entry) port;
                in
                if port == null then orDefault "ports" else [ (decimal port) ]
              ) entries;
              others = lib.filter (port: port != 443 && port != 80) ports;
            in
            if entries == [ ] then
              "which is not in domains: add it there"
            else if !exact then
              "which domains allows only by a \"*.\": add its name there"
            else if !(elem 443 ports) then
              "which domains does not allow at port 443: add ${toJSON "${host}:443"} there too"
            else if others != [ ] then
              "which domains allows at port ${toString (lib.head others)} too, where its requests cannot be read: allow it only at 443 and 80"
            else
              null;
          rules = given "rules";
          unreadRules = lib.filter (host: unread host != null) (attrNames rules);
          empty = lib.filter (
            host: rules.${host}.methods or null == null && rules.${host}.paths or null == null
          ) (attrNames rules);
          credentials = given "credentials";
          foreign = lib.filter (name: unread credentials.${name}.domain != null) (attrNames credentials);
          # The credentials before this one that would be sent in the same header.
          field =
            name: lib.toLower "${credentials.${name}.domain} ${lib.head (match "([^:]*):.*" credentials.${name}.header)}";
          sameAs = name: lib.filter (other: other < name && field other == field name) (attrNames credentials);
          doubled = lib.filter (name: sameAs name != [ ]) (attrNames credentials);
          sources = name: lib.filter (key: credentials.${name}.${key} or null != null) [ "file" "variable" ];
          unclear = lib.filter (name: lib.length (sources name) != 1) (attrNames credentials);
        in
        map (host: {
          key = "rules";
          sentence = "has ${toJSON host}, ${unread host}";
        }) unreadRules
        ++ map (host: {
          key = "rules.${toJSON host}";
          sentence = "has neither methods nor paths: set one of them, or leave the rule out";
        }) empty
        ++ map (name: {
          key = "credentials.${name}.domain";
          sentence = "is ${toJSON credentials.${name}.domain}, ${unread credentials.${name}.domain}";
        }) foreign
        ++ map (name: {
          key = "credentials.${name}.header";
          sentence = "is ${toJSON credentials.${name}.header}, which credentials.${lib.head (sameAs name)} has for this host too: keep one of them";
        }) doubled
        ++ map (name: {
          key = "credentials.${name}";
          sentence = "has ${
            if sources name == [ ] then "neither file nor variable" else "both file and variable"
          }: set one of them, from which the secret is read when a sandbox starts";
        }) unclear;
    };

  # The host name alone, and no pattern.
  host = {
    accepts = isHost;
    wanted = "a host name, such as \"api.example\"";
  };

  rules =
    each:
    tables isHost each {
      wanted = "the names of hosts, such as rules.\"api.example\"";
      most = 100;
    };

  credentials =
    each:
    tables (name: isVariable name && stringLength name <= 64) each {
      wanted = "at most 16 tables, by names of at most 64 characters such as credentials.API_TOKEN";
      most = 16;
    };

  methods = listOf (m: isString m && match "[A-Z]{1,20}" m != null) {
    least = 1;
    most = 20;
    of = "methods";
    wanted = "methods in capital letters, such as [\"GET\", \"HEAD\"]";
  };

  # Each is a path, or whatever begins with what is before its *. Two servers read no such path
  # differently: `PlainPath` of network/policy takes it as it is.
  paths =
    let
      isPath' = p: isString p && stringLength p <= 1000 && match "/[!-)+->@-~]*[*]?" p != null && match ".*(//|/;|/[.][.]?[*]?$|/[.][.]?[/;]|[%#\\]).*" p == null;
    in
    listOf isPath' {
      least = 1;
      most = 100;
      of = "paths";
      wanted = "paths, such as [\"/v1/items\", \"/v1/public/*\"], without %, ?, #, backslashes or dots alone";
    };

  header =
    let
      isFraming =
        v:
        match "(host|connection|content-length|transfer-encoding|te|trailer|upgrade|keep-alive|expect|proxy-.*): .*" (
          lib.toLower v
        ) != null;
    in
    {
      accepts =
        v:
        isString v
        && stringLength v <= 1000
        && match "[A-Za-z0-9-]{1,100}: [ -z|~]*[{][}][ -z|~]*" v != null
        && !(isFraming v);
      explain =
        v:
        lib.optionalAttrs (isString v && isFraming v) {
          why = ", which says how a request is sent";
        };
      example = "\"Authorization: Bearer {}\"";
      wanted = "a header with {} where the secret belongs, such as \"Authorization: Bearer {}\"";
    };

  metricsListen = {
    accepts = v: v != "systemd" && listen.accepts v;
    wanted = "an address with a port, such as \"127.0.0.1:9464\", or \"unix:/run/nix-sandbox-mcp/metrics\"";
  };

  upstream = {
    accepts =
      v:
      isString v
      && (
        let
          parts = match "http://([^:/@]+):([0-9]+)/?" v;
        in
        parts != null
        && (isHostName (lib.head parts) || match "[0-9]{1,3}([.][0-9]{1,3}){3}" (lib.head parts) != null)
        && decimal (lib.last parts) != null
        && decimal (lib.last parts) >= 1
        && decimal (lib.last parts) <= 65535
      );
    wanted = "\"http://HOST:PORT\", without a password, because everybody on the machine can read it";
  };

  # Hosts that a sandbox reaches, each with a port if it is another one.
  hosts =
    let
      isEntry =
        v:
        isString v
        && (
          let
            parts = hostAndPort v;
          in
          (isHostName parts.host || isHostPattern parts.host)
          && !(isLocalHost parts.host)
          && (parts.port == null || isPort (decimal parts.port))
        );
      portsOf = v: lib.unique (lib.filter (p: p != null) (map (entry: (hostAndPort entry).port) v));
      mostPorts = 32;
      explainEntry =
        v:
        let
          parts = hostAndPort v;
          asName = lib.removeSuffix "." (lib.toLower v);
        in
        if !(isString v) then
          { }
        else if match ".*[^ -~].*" v != null then
          {
            why = ", which is not ASCII";
            use = "the name in its ASCII form, such as \"xn--bcher-kva.example\" for bücher.example";
          }
        else if asName != v && isEntry asName then
          {
            why = ", which is not the form in which names are compared";
            use = toJSON asName;
          }
        else if match "[[]?[0-9a-f.:]*:[0-9a-f.:]*:[0-9a-f.:]*[]]?(:.*)?|[0-9][0-9.]*(:[0-9]+)?" (lib.toLower v) != null then
          {
            why = ", an address";
            use = "the host's name";
          }
        else if lib.hasInfix "/" v then
          {
            why = ", which is not a host name alone";
          }
        else if isLocalHost parts.host then
          {
            why = ", which is the sandbox itself";
          }
        else if elem parts.host [ "*" "*.*" "." "" ] || match "\\*\\.[^.]*" parts.host != null then
          {
            why = ", and a sandbox reaches hosts that are named";
          }
        else if lib.hasInfix "*" v && !(isHostPattern parts.host) then
          {
            why = ", and * stands only for what is before the first dot";
          }
        else if parts.port != null && (isHostName parts.host || isHostPattern parts.host) then
          {
            why = ", whose port is not one";
            use = "a port from 1 to 65535 after the colon, and not 53, at which the sandbox's own resolver listens";
          }
        else
          { };
    in
    listOf isEntry {
      least = 1;
      of = "names, and \"*.files.example\" for all names below files.example";
      also = v: length (portsOf v) <= mostPorts;
      wanted = "host names, such as \"files.example\", \"*.files.example\" or \"files.example:8443\"";
      example = "[\"files.example\"], or network = \"none\"";
      explain =
        v:
        if v == [ ] then
          {
            why = " without hosts";
            use = "some, such as [\"files.example\"], or network = \"none\"";
          }
        else if isList v && length (portsOf v) > mostPorts then
          {
            why = " with ${toString (length (portsOf v))} different ports";
            use = "at most ${toString mostPorts} different ports after names";
          }
        else if isList v then
          { }
        else
          explainEntry v;
    };

  # The same, about which a user is asked; "*" is every other host. There may be none.
  askedHosts = hosts // {
    accepts =
      v: isList v && (lib.all (entry: entry == "*") v || hosts.accepts (lib.filter (entry: entry != "*") v));
    example = "[\"*.files.example\"]";
  };

  ports = listOf isPort {
    least = 1;
    most = 32;
    of = "ports";
    wanted = "ports from 1 to 65535, such as [443, 80]";
    explain =
      v:
      lib.optionalAttrs (v == 53) {
        why = ", at which the sandbox's own resolver listens";
        use = "other ports, such as [443, 80]";
      };
  };

  # Networks that are not public, such as "10.1.0.0/16".
  networks =
    let
      four = v: match "([0-9]+)\\.([0-9]+)\\.([0-9]+)\\.([0-9]+)/([0-9]+)" v;
      six = v: match "([0-9a-f:]+)/([0-9]+)" v;
      # { width; numbers; prefix; } of a network as it is written, or null.
      parse =
        v:
        let
          v4 = map decimal (four v);
          v6 = six v;
          groups = groupsOf (lib.head v6);
        in
        if !(isString v) || stringLength v > 50 then
          null
        else if four v != null then
          if all (n: n != null) v4 && all (n: n <= 255) (lib.init v4) then
            {
              width = 8;
              numbers = lib.init v4;
              prefix = lib.last v4;
            }
          else
            null
        else if v6 != null && groups != null && decimal (lib.last v6) != null then
          {
            width = 16;
            numbers = groups;
            prefix = decimal (lib.last v6);
          }
        else
          null;
      # Not the host itself, an unspecified address, or multicast.
      isOfOthers =
        n:
        let
          first = lib.head n.numbers;
        in
        if n.width == 8 then
          first != 0 && first != 127 && first < 224
        else
          first != 0 && first < 65280;
      leastPrefix = n: if n.width == 8 then 8 else 16;
      isNetwork =
        v:
        let
          n = parse v;
        in
        n != null
        && n.prefix >= leastPrefix n
        && n.prefix <= n.width * lib.length n.numbers
        && isMasked n.width n.prefix n.numbers
        && isOfOthers n;
    in
    listOf isNetwork {
      most = 64;
      of = "networks";
      wanted = "networks, such as [\"10.1.0.0/16\"]";
      explain =
        v:
        let
          n = parse v;
        in
        if isList v then
          { }
        else if isString v && parse "${v}/32" != null && (parse "${v}/32").width == 8 then
          { use = toJSON "${v}/32"; }
        else if n == null then
          { }
        else if n.prefix < leastPrefix n then
          {
            why = ", which is larger than a private network";
            use = "a prefix from /${toString (leastPrefix n)}";
          }
        else if !(isOfOthers n) then
          {
            why = ", in which there is no other host";
          }
        else if n.prefix <= n.width * lib.length n.numbers then
          {
            why = ", whose address has bits after its prefix";
            use = "the network's first address before the /";
          }
        else
          { };
    };
}
