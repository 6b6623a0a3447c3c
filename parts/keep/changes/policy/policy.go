// Package policy decides which files that code made may be written into a user's folder
// without being named one by one.
//
// It allows, and does not forbid: a name passes if it is one of source code, prose or
// plain data, and a line passes if a reviewer sees all of it. New tools and new
// configuration files need no change here, because they are refused already.
package policy

import (
	"bytes"
	"path"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/lazyregexp"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/hostile"
)

// Reasons why a file must be named. Each one ends a line such as "main.so: ...".
const (
	Hidden       = "its path has a name that begins with a dot, as settings of programs do"
	Installed    = "it is in a folder of installed packages"
	Kind         = "its name is not one of source code, prose or plain data"
	Configures   = "files of this kind configure programs"
	Loads        = "a program that loads a file of this kind may run code in it"
	Build        = "tools run or read a file of this name by themselves"
	Instructions = "clients of language models may obey a file of this name"
	OddName      = "its name has characters that are invisible or have a meaning elsewhere"
	Binary       = "it is not text that can be reviewed"
	OddText      = "a new line has invisible or control characters, or is not UTF-8"
	LongLine     = "a new line has more than 4096 bytes"
	Executable   = "it is executable"
)

// maxLine is the longest line that counts as reviewable, in bytes.
const maxLine = 4096

var (
	source = strings.Fields(`asm bash c cc cjs cpp cs css cts cu cxx dart el elm erl ex f90 fish fs glsl go groovy h hh hpp
		hs htm html hxx java jl js jsx kt less lisp lua m mjs ml mli mm mts nim pas php pl pm proto ps1 py pyi pyx r rb rs
		s sass scala scm scss sh sql sv svelte swift tcl ts tsx v vhd vue wgsl zig zsh`)
	prose = strings.Fields("adoc markdown md po rst tex txt")
	data  = strings.Fields("csv golden snap tsv")
	// results are further kinds of data that programs show but do not run.
	results = strings.Fields(`arrow avi avif bib bmp db docx duckdb dxf eps epub feather flac geojson gif glb gltf gpkg gpx gz h5
		hdf5 ico ics ipynb jpeg jpg json jsonl kml log mkv mov mp3 mp4 nc ndjson npy npz obj odp ods odt ogg onnx otf parquet
		pdf ply png pptx rtf safetensors sqlite sqlite3 stl svg tar tgz tif tiff ttf wav webm webp woff woff2 xlsx xml xz zip
		zst`)
	// configures and loads are kinds that people want too, and that act when they are found or loaded.
	configures = strings.Fields("cfg conf ini nix toml yaml yml")
	loads      = strings.Fields("joblib pickle pkl pt pth rda rdata rds")

	// documents are names of prose that need no ending, and may be in capitals.
	documents = strings.Fields(`authors changelog changes code_of_conduct contributing contributors copying history install
		licence license maintainers news notes notice readme roadmap security support todo`)
	installed = strings.Fields("__pycache__ bower_components dist-packages node_modules site-packages vendor")
	// caches are hidden folders that programs make for themselves, beside those with "cache" in their names.
	caches = strings.Fields(".gradle .hypothesis .ipynb_checkpoints .nox .tox .venv")

	// build matches names with an ending of source code or prose that build tools, test
	// runners and interpreters look for.
	build = lazyregexp.New(`^(build|celeryconfig|cmakelists|composer|conanfile|conf|conftest|constraints.*|deno|dodo|fabfile|gems|gruntfile|gulpfile|hatch_build|` +
		`jakefile|locustfile|magefile|makefile|noxfile|package|pavement|pelicanconf|premake.*|publishconf|rakefile|requirements.*|setup|sitecustomize|` +
		`tasks|toxfile|tsconfig.*|usercustomize|wscript|xmake|.*-build|(ipython|jupyter)\w*_config)\.|\.(conf|config|mix|setup|workspace)\.`)
	// instructions are names of prose that clients look for. They are compared without
	// case for file systems that do so; others are recognized by their capitals.
	instructions = lazyregexp.New(`^(agents?|claude|gemini|qwen|skill)$`)
)

// Name returns the reason why a file with this path must be named, or "" if it need not
// be. The path is relative, with slashes.
func Name(name string) string { return judge(name, nil) }

// Result is Name for a file in a folder of results, where further kinds of data are at home.
func Result(name string) string { return judge(name, results) }

// judge judges a path by its name. Further endings are of data.
func judge(name string, further []string) string {
	if reason := Folder(path.Dir(name)); reason != "" {
		return reason
	}
	base := path.Base(name)
	if reason := part(base); reason != "" {
		return reason
	}
	lower := strings.ToLower(base)
	first, _, dotted := strings.Cut(lower, ".")
	ending := strings.TrimPrefix(path.Ext(lower), ".")
	isProse := slices.Contains(prose, ending)
	switch {
	case slices.Contains(documents, first) && (!dotted || isProse):
		return ""
	case further != nil && slices.Contains(configures, ending):
		return Configures
	case further != nil && slices.Contains(loads, ending):
		return Loads
	case !isProse && !slices.Contains(source, ending) && !slices.Contains(data, ending) && !slices.Contains(further, ending):
		return Kind
	case build.MatchString(lower):
		return Build
	case isProse && (strings.Count(base, ".") > 1 || isCapitals(base) || instructions.MatchString(first)):
		return Instructions
	}
	return ""
}

// isCapitals reports whether a name without its ending is in capitals.
func isCapitals(base string) bool {
	stem, _, _ := strings.Cut(base, ".")
	return stem == strings.ToUpper(stem) && stem != strings.ToLower(stem)
}

// Folder returns the reason why every file below a folder must be named, or "".
func Folder(name string) string {
	if name == "." {
		return ""
	}
	for folder := range strings.SplitSeq(name, "/") {
		if reason := part(folder); reason != "" {
			return reason
		}
		if slices.Contains(installed, strings.ToLower(folder)) {
			return Installed
		}
	}
	return ""
}

// Cache reports whether a folder is of installed packages, or holds caches of programs.
func Cache(name string) bool {
	for folder := range strings.SplitSeq(strings.ToLower(name), "/") {
		if slices.Contains(installed, folder) || strings.HasPrefix(folder, ".") && (strings.Contains(folder, "cache") || slices.Contains(caches, folder)) {
			return true
		}
	}
	return false
}

// part judges one part of a path. One that begins with a dash is an option of a command that is
// given all names, such as rm *. A blank at its beginning or end is not seen in a list.
func part(name string) string {
	switch {
	case strings.HasPrefix(name, "."):
		return Hidden
	case strings.HasPrefix(name, "-") || strings.Trim(name, " ") != name || !utf8.ValidString(name) || strings.ContainsFunc(name, hostile.Invisible) || strings.ContainsAny(name, `:\`):
		return OddName
	}
	return ""
}

// Line returns the reason why a file with this new line must be named, or "".
func Line(line []byte) string {
	line = bytes.TrimSuffix(bytes.TrimSuffix(line, []byte("\n")), []byte("\r"))
	if len(line) > maxLine {
		return LongLine
	}
	if !utf8.Valid(line) {
		return OddText
	}
	var before rune
	for _, r := range string(line) {
		// Emoji are a symbol followed by a selector, or several with joiners between them.
		ofEmoji := (r == '\ufe0f' || r == '\u200d') && (unicode.Is(unicode.So, before) || before == '\ufe0f')
		if r != '\t' && hostile.Invisible(r) && !ofEmoji {
			return OddText
		}
		before = r
	}
	return ""
}
