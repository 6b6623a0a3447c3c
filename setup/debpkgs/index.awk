# Reads packages.list, then the stanzas of `apt-cache show`; writes index.json.
# Keeps what the wanted packages reach by Pre-Depends and Depends; of alternatives, the first that apt chose.
# Variables: release (code name), architecture, wanted (names, separated by spaces).

FNR == NR {
	if ($1 ~ /^-/) skipped[substr($1, 2)] = 1
	next
}

/^Package: / { name = $2; if (name in version) name = ""; else order[++count] = name }
name == "" { next }
/^Version: / { version[name] = $2 }
/^Filename: / { path[name] = $2 }
/^Size: / { size[name] = $2 }
/^SHA256: / { sha256[name] = $2 }
/^(Pre-)?Depends: / { sub(/^[^:]*: */, ""); needs[name] = needs[name] (needs[name] == "" ? "" : ",") $0 }
/^Provides: / {
	sub(/^[^:]*: */, "")
	n = split($0, list, /,/)
	for (i = 1; i <= n; i++) {
		virtual = bare(list[i])
		if (!(virtual in provider)) provider[virtual] = name
	}
}

# "libc6:any (>= 2.4)" -> "libc6"
function bare(s) { sub(/^ */, "", s); sub(/[ :(].*$/, "", s); return s }

function quoted(s) { gsub(/[\\"]/, "\\\\&", s); return "\"" s "\"" }

# the dependencies of a package, as names of packages, separated by spaces
function dependencies(package,    groups, n, i, alternatives, m, j, found, ignore, one, result) {
	n = split(needs[package], groups, /,/)
	result = ""
	for (i = 1; i <= n; i++) {
		m = split(groups[i], alternatives, /\|/)
		found = ""; ignore = 0
		for (j = 1; j <= m; j++) {
			one = bare(alternatives[j])
			if ((one in skipped) && !(package in skipped)) ignore = 1
			else if (found == "" && (one in version)) found = one
		}
		for (j = 1; j <= m && found == ""; j++) {
			one = bare(alternatives[j])
			if (one in provider) found = provider[one]
		}
		if (!ignore && found != "" && found != package && index(" " result " ", " " found " ") == 0)
			result = result (result == "" ? "" : " ") found
	}
	return result
}

END {
	todo = split(wanted, queue, / +/)
	for (i = 1; i <= todo; i++) {
		if (queue[i] in kept || !(queue[i] in version)) continue
		kept[queue[i]] = dependencies(queue[i])
		n = split(kept[queue[i]], list, / /)
		for (j = 1; j <= n; j++) queue[++todo] = list[j]
	}
	printf "{\n \"release\": %s,\n \"architecture\": %s,\n \"packages\": {", quoted(release), quoted(architecture)
	separator = "\n"
	for (i = 1; i <= count; i++) {
		package = order[i]
		if (!(package in kept)) continue
		# a store name knows no "~", ":" or "%"
		file = path[package]
		sub(/^.*\//, "", file)
		gsub(/[^A-Za-z0-9+._?=-]/, "_", file)
		depends = ""
		n = split(kept[package], list, / /)
		for (j = 1; j <= n; j++) depends = depends (j > 1 ? ", " : "") quoted(list[j])
		printf "%s  %s: { \"version\": %s, \"file\": %s, \"size\": %d, \"sha256\": %s, \"depends\": [%s] }", \
			separator, quoted(package), quoted(version[package]), quoted(file), size[package], quoted(sha256[package]), depends
		separator = ",\n"
	}
	print "\n }\n}"
}
