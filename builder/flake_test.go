package builder

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
)

// entry is one of an archive.
type entry struct {
	name, text, link string
	kind             byte
	mode             int64
}

func archive(t testing.TB, entries ...entry) io.Reader {
	t.Helper()
	var text bytes.Buffer
	out := tar.NewWriter(&text)
	for _, one := range entries {
		if one.kind == 0 {
			one.kind = tar.TypeReg
		}
		must.Do(t, out.WriteHeader(&tar.Header{Name: one.name, Linkname: one.link, Typeflag: one.kind, Size: int64(len(one.text)), Mode: one.mode, Format: tar.FormatPAX}))
		must.Get(io.WriteString(out, one.text))(t)
	}
	must.Do(t, out.Close())
	return &text
}

func TestUnpack_WritesFiles(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "source")
	must.Do(t, unpack(archive(t,
		entry{name: "flake.nix", text: "{ }"}, entry{name: "a/b/run", text: "#!/bin/sh\n", mode: 0o4777},
		entry{name: "link", link: "/etc/passwd", kind: tar.TypeSymlink}, entry{name: "empty/", kind: tar.TypeDir},
	), folder))
	got := map[string]string{}
	must.Do(t, filepath.Walk(folder, func(path string, info os.FileInfo, err error) error {
		name, _ := filepath.Rel(folder, path)
		got[name] = info.Mode().String()
		return err
	}))
	want := map[string]string{
		".": "drwxr-xr-x", "a": "drwxr-xr-x", "a/b": "drwxr-xr-x", "a/b/run": "-rwxr-xr-x", "empty": "drwxr-xr-x",
		"flake.nix": "-rw-r--r--", "link": "Lrwxrwxrwx",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// An archive of code's writes only below its folder, however its names and links are put together.
func TestUnpack_Attempts(t *testing.T) {
	for name, test := range map[string]struct {
		entries []entry
		want    string
	}{
		"above":                 {[]entry{{name: "../escaped", text: "x"}}, "leads out of the folder"},
		"above, hidden":         {[]entry{{name: "a/../../escaped", text: "x"}}, "leads out of the folder"},
		"absolute":              {[]entry{{name: "/tmp/escaped", text: "x"}}, "leads out of the folder"},
		"through a link":        {[]entry{{name: "a", link: "..", kind: tar.TypeSymlink}, {name: "a/escaped", text: "x"}}, "escapes from parent"},
		"through an absolute":   {[]entry{{name: "a", link: "/", kind: tar.TypeSymlink}, {name: "a/escaped", text: "x"}}, "escapes from parent"},
		"through two links":     {[]entry{{name: "d/a", link: "..", kind: tar.TypeSymlink}, {name: "b", link: "d/a/..", kind: tar.TypeSymlink}, {name: "b/escaped", text: "x"}}, "escapes from parent"},
		"folder over a link":    {[]entry{{name: "a", link: "/", kind: tar.TypeSymlink}, {name: "a/", kind: tar.TypeDir}}, "escapes from parent"},
		"file over a link":      {[]entry{{name: "a", link: "../escaped", kind: tar.TypeSymlink}, {name: "a", text: "x"}}, "file exists"},
		"file over a file":      {[]entry{{name: "a", text: "x"}, {name: "a", text: "y"}}, "file exists"},
		"hard link":             {[]entry{{name: "a", link: "/etc/passwd", kind: tar.TypeLink}}, "is no file, folder or link"},
		"device":                {[]entry{{name: "a", kind: tar.TypeBlock}}, "is no file, folder or link"},
		"pipe":                  {[]entry{{name: "a", kind: tar.TypeFifo}}, "is no file, folder or link"},
		"the folder itself":     {[]entry{{name: ".", text: "x"}}, ""},
		"a name without an end": {[]entry{{name: strings.Repeat("x", 300), text: "x"}}, "file name too long"},
	} {
		base := t.TempDir()
		folder := filepath.Join(base, "source")
		err := unpack(archive(t, test.entries...), folder)
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v", name, err)
		}
		if entries := must.Get(os.ReadDir(base))(t); len(entries) != 1 {
			t.Errorf("%s left %v", name, entries)
		}
		if _, err := os.Lstat("/tmp/escaped"); err == nil {
			t.Fatalf("%s wrote to /tmp", name)
		}
	}
	var many []entry
	for i := range maxFiles + 1 {
		many = append(many, entry{name: fmt.Sprint(i)})
	}
	if err := unpack(archive(t, many...), filepath.Join(t.TempDir(), "source")); err == nil || !strings.Contains(err.Error(), "20000 files") {
		t.Errorf("too many: %v", err)
	}
	var large bytes.Buffer
	must.Do(t, tar.NewWriter(&large).WriteHeader(&tar.Header{Name: "x", Size: maxSource + 1, Typeflag: tar.TypeReg}))
	if err := unpack(&large, filepath.Join(t.TempDir(), "source")); err == nil || !strings.Contains(err.Error(), "64 MiB") {
		t.Errorf("too large: %v", err)
	}
	if err := unpack(strings.NewReader(strings.Repeat("no archive", 100)), filepath.Join(t.TempDir(), "source")); err == nil {
		t.Error("what is no archive is unpacked")
	}
}

func TestFetches(t *testing.T) {
	for text, want := range map[string]string{
		`Derive([("out","/nix/store/x","","")],[("/nix/store/y.drv",["out"])],[],"x86_64-linux","/bin/sh",[],[("outputHash","sha256-x")])`: "false",
		`Derive([("dev","/nix/store/x","",""),("out","/nix/store/y","","")],[],[],"x","y",[],[])`:                                          "false",
		`Derive([("out","/nix/store/x","sha256","abc")],[],[],"x","y",[],[])`:                                                              "true",
		`Derive([("out","/nix/store/x","r:sha256","abc")],[],[],"x","y",[],[])`:                                                            "true",
		`Derive([("out","","r:sha256","")],[],[],"x","y",[],[])`:                                                                           "true",
		`Derive([("out","","r:sha256","impure")],[],[],"x","y",[],[])`:                                                                     "true",
		`Derive([("a","/nix/store/x","",""),("out","/nix/store/x","sha256","abc")],[],[],"x","y",[],[])`:                                   "true",
		`Derive([("out","/nix/store/x","",""`:                                                                                              "error",
		`DrvWithVersion("xp-dyn-drv",[("out","/nix/store/x","","")],[],[],"x","y",[],[])`:                                                  "error",
		``: "error",
	} {
		path := filepath.Join(t.TempDir(), "x.drv")
		must.Write(t, path, text, 0o644)
		got, err := fetches(path)
		if said := fmt.Sprint(got); err != nil && want != "error" || err == nil && said != want {
			t.Errorf("%s: %s, %v", text, said, err)
		}
	}
}

func FuzzUnpack(f *testing.F) {
	f.Add(must.Get(io.ReadAll(archive(f, entry{name: "a/b", text: "x"}, entry{name: "l", link: "..", kind: tar.TypeSymlink})))(f))
	f.Fuzz(func(t *testing.T, text []byte) {
		base := t.TempDir()
		_ = unpack(bytes.NewReader(text), filepath.Join(base, "source"))
		if entries := must.Get(os.ReadDir(base))(t); len(entries) != 1 {
			t.Errorf("left %v", entries)
		}
	})
}
