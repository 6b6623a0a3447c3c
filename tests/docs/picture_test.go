package docs

import (
	"bytes"
	"flag"
	"image"
	"image/png"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
)

// update makes the tests write the images of the pages and the recording.
var update = flag.Bool("update", false, "write the images of the pages and the recording from the answers of the server")

// mostPictureBytes bounds an image, which every checkout contains.
const mostPictureBytes = 60 << 10

// picture checks that the file is the image that the calls of the page made.
func (s *stage) picture(file string) {
	s.t.Helper()
	if len(s.images) != 1 {
		s.t.Fatalf("the calls of the page made %d images, not 1", len(s.images))
	}
	if *update {
		must.Do(s.t, os.WriteFile(file, s.images[0], 0o644))
	}
	kept := must.Get(os.ReadFile(file))(s.t)
	if len(kept) > mostPictureBytes {
		s.t.Errorf("%s has %d bytes, %d are allowed", file, len(kept), mostPictureBytes)
	}
	s.compareImages(s.images[0], kept)
}

// compareImages checks that two PNG files have the same size and, in each of
// 16 parts, about the same brightness. Fonts and the version of the library
// that draws may differ, so it does not compare single pixels.
func (s *stage) compareImages(made, kept []byte) {
	s.t.Helper()
	madeImage, keptImage := s.decode(made), s.decode(kept)
	if madeImage.Bounds() != keptImage.Bounds() {
		s.t.Fatalf("the new image is %v, the one in the checkout %v", madeImage.Bounds(), keptImage.Bounds())
	}
	for i, part := range brightness(madeImage) {
		if other := brightness(keptImage)[i]; part-other > 0.1 || other-part > 0.1 {
			s.t.Errorf("part %d of the new image has brightness %.2f, in the checkout %.2f", i, part, other)
		}
	}
}

func (s *stage) decode(data []byte) image.Image {
	s.t.Helper()
	picture := must.Get(png.Decode(bytes.NewReader(data)))(s.t)
	return picture
}

// brightness returns the mean brightness of 16 parts of an image, from 0 to 1.
func brightness(picture image.Image) [16]float64 {
	var sums, counts [16]float64
	bounds := picture.Bounds()
	for y := bounds.Min.Y; y < bounds.Max.Y; y++ {
		for x := bounds.Min.X; x < bounds.Max.X; x++ {
			part := (y-bounds.Min.Y)*4/bounds.Dy()*4 + (x-bounds.Min.X)*4/bounds.Dx()
			r, g, b, _ := picture.At(x, y).RGBA()
			sums[part] += float64(r+g+b) / (3 * 0xffff)
			counts[part]++
		}
	}
	for i := range sums {
		sums[i] /= counts[i]
	}
	return sums
}

// mostArchitectureBytes bounds the picture of the architecture.
const mostArchitectureBytes = 20 << 10

// pictured is a text in the picture of the architecture that names a folder.
var pictured = regexp.MustCompile(`<text class="path"[^>]*>([^<]*)</text>`)

// The picture of the architecture names folders that exist.
func TestArchitecture_NamesFolders(t *testing.T) {
	data := must.Get(os.ReadFile(filepath.Join(root(t), "docs/architecture.svg")))(t)
	if len(data) > mostArchitectureBytes {
		t.Errorf("it has %d bytes, %d are allowed", len(data), mostArchitectureBytes)
	}
	folders := pictured.FindAllSubmatch(data, -1)
	if len(folders) == 0 {
		t.Fatal("it names no folder")
	}
	for _, match := range folders {
		if info, err := os.Stat(filepath.Join(root(t), string(match[1]))); err != nil || !info.IsDir() {
			t.Errorf("%s is not a folder of the checkout", match[1])
		}
	}
}

// mostTouched is how many files a change may touch beside its own.
const mostTouched = 6

// quoted is what stands between back quotes in a page.
var quoted = regexp.MustCompile("`([^`]+)`")

// The table of changes names files that exist, and at most six for each change.
func TestArchitecture_ChangesTouchFewFiles(t *testing.T) {
	page := string(must.Get(os.ReadFile(filepath.Join(root(t), "docs/architecture.md")))(t))
	_, table, _ := strings.Cut(page, "| change | its own | edited by hand |\n| --- | --- | --- |\n")
	table, _, found := strings.Cut(table, "\n\n")
	rows := strings.Split(table, "\n")
	if !found || len(rows) < 10 {
		t.Fatalf("there are %d changes", len(rows))
	}
	for _, row := range rows {
		cells := strings.Split(row, "|")
		for _, match := range quoted.FindAllStringSubmatch(row, -1) {
			if !strings.Contains(match[1], "/") {
				continue // a name of Go
			}
			if _, err := os.Stat(filepath.Join(root(t), match[1])); err != nil {
				t.Errorf("%s: %v", cells[1], err)
			}
		}
		if touched := len(quoted.FindAllString(cells[len(cells)-2], -1)); touched > mostTouched {
			t.Errorf("%s: %d files are touched, at most %d may be", cells[1], touched, mostTouched)
		}
	}
}
