package main

import (
	"io"
	"os"
	"regexp"
	"runtime/debug"
	"strings"

	"github.com/tidwall/gjson"
)

// version is set by the linker; without it the module's is used.
var version string

// release is the version that was built.
func release() string {
	if version != "" {
		return version
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "unknown"
}

// maxServerMetadata bounds the server's metadata, in bytes.
const maxServerMetadata = 4 << 20

// validRevision is a commit, as git and Nix write it.
var validRevision = regexp.MustCompile(`^[0-9a-f]{40}(-dirty)?$`)

// revision is the commit that the server was built from; empty where it is
// not known. It stands in the server's metadata and not in this program, which
// would be built anew for each commit.
func revision() string {
	text := os.Getenv("NIX_SANDBOX_METADATA")
	if !strings.HasPrefix(strings.TrimSpace(text), "{") {
		file, err := os.Open(text)
		if err != nil {
			return ""
		}
		defer file.Close()
		data, err := io.ReadAll(io.LimitReader(file, maxServerMetadata))
		if err != nil {
			return ""
		}
		text = string(data)
	}
	if !gjson.Valid(text) {
		return ""
	}
	if commit := gjson.Get(text, "revision").String(); validRevision.MatchString(commit) {
		return commit
	}
	return ""
}
