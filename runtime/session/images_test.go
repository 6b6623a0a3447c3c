package session

import (
	"bytes"
	"fmt"
	"image"
	"image/jpeg"
	"image/png"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/sandbox"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/sandboxtest"
)

func encoded(t *testing.T, width, height int) string {
	t.Helper()
	var data bytes.Buffer
	must.Do(t, png.Encode(&data, image.NewGray(image.Rect(0, 0, width, height))))
	return data.String()
}

// read returns the names of the files that readImages reads of those with
// these contents, in order.
func read(t *testing.T, names []string, contents map[string]string) []string {
	t.Helper()
	box := must.Get((&sandboxtest.Machine{}).Start(t.Context(), sandbox.Spec{}))(t)
	defer box.Kill()
	var files []sandbox.File
	for _, name := range names {
		box.(*sandboxtest.Sandbox).WriteFile(name, []byte(contents[name]))
		files = append(files, sandbox.File{Path: "/workspace/" + name, Size: int64(len(contents[name]))})
	}
	readImages(t.Context(), box, files)
	var found []string
	for _, file := range files {
		if file.Content == nil {
			continue
		}
		name := strings.TrimPrefix(file.Path, "/workspace/")
		found = append(found, name)
		if string(file.Content) != contents[name] {
			t.Errorf("%s: %d bytes were read of %d", name, len(file.Content), len(contents[name]))
		}
	}
	return found
}

// What is no image that a model can take is not read as one: one that is only
// named so, that is broken, of another type, too wide or too large.
func TestReadImages_OnlyImages(t *testing.T) {
	var photo bytes.Buffer
	must.Do(t, jpeg.Encode(&photo, image.NewGray(image.Rect(0, 0, 2, 2)), nil))
	contents := map[string]string{
		"a.png": encoded(t, 2, 2), "A.PNG": encoded(t, 2, 2), "b.jpeg": photo.String(), "c.svg": "<svg/>",
		"fake.png": "no image at all", "broken.png": "\x89PNG\r\n\x1a\n broken", "empty.png": "",
		"png.jpg": encoded(t, 1, 1), "wide.png": encoded(t, 8001, 1), "large.png": encoded(t, 2, 2) + strings.Repeat("x", maxImageBytes),
		"notes.txt": "x",
	}
	for name := range contents {
		want := map[string][]string{"a.png": {"a.png"}, "A.PNG": {"A.PNG"}, "b.jpeg": {"b.jpeg"}}[name]
		if diff := cmp.Diff(want, read(t, []string{name}, contents)); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

// Of more images than an answer has, those in outputs come first, and the last ones before earlier
// ones. The others have the reason.
func TestReadImages_TakesResultsBeforeFrames(t *testing.T) {
	box := must.Get((&sandboxtest.Machine{}).Start(t.Context(), sandbox.Spec{}))(t)
	defer box.Kill()
	var files []sandbox.File
	add := func(name, content string, isLinked bool) {
		box.(*sandboxtest.Sandbox).WriteFile(name, []byte(content))
		files = append(files, sandbox.File{Path: "/workspace/" + name, Size: int64(len(content)), Linked: isLinked})
	}
	add("result.png", encoded(t, 2, 2), false)
	for i := range 5 {
		add(fmt.Sprintf("frame-%d.png", i), encoded(t, 2, 2), true)
	}
	add("large.png", encoded(t, 2, 2)+strings.Repeat("x", maxImageBytes), false)
	add("wide.png", encoded(t, 8001, 1), false)
	add("broken.png", "x", false)
	readImages(t.Context(), box, files)
	got := map[string]string{}
	for _, file := range files {
		if got[strings.TrimPrefix(file.Path, "/workspace/")] = string(file.Unshown); file.Content != nil {
			got[strings.TrimPrefix(file.Path, "/workspace/")] = "shown"
		}
	}
	if diff := cmp.Diff(map[string]string{
		"result.png": "shown", "frame-4.png": "shown", "frame-3.png": "shown", "frame-2.png": "shown", "frame-1.png": "many", "frame-0.png": "many",
		"large.png": "large", "wide.png": "large", "broken.png": "broken",
	}, got); diff != "" {
		t.Error(diff)
	}
}

// Their number is bounded, and that of the files which are read in vain.
func TestReadImages_Bounds(t *testing.T) {
	contents := map[string]string{}
	var images, fakes []string
	for i := range maxTries {
		images, fakes = append(images, fmt.Sprintf("i%02d.png", i)), append(fakes, fmt.Sprintf("f%02d.png", i))
		contents[images[i]], contents[fakes[i]] = encoded(t, 2, 2), "x"
	}
	if diff := cmp.Diff(images[maxTries-maxImages:], read(t, images, contents)); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(images[maxTries-1:], read(t, append(images, fakes[1:]...), contents)); diff != "" {
		t.Error(diff)
	}
	if got := read(t, append(images, fakes...), contents); got != nil {
		t.Errorf("after %d that are none: %v", maxTries, got)
	}
}
