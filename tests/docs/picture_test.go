package docs

import (
	"bytes"
	"flag"
	"image"
	"image/png"
	"os"
)

// update writes the pictures that the pages show anew.
var update = flag.Bool("update", false, "write the pictures of the pages as the server makes them now")

// mostPictureBytes is what a picture may weigh in every checkout.
const mostPictureBytes = 60 << 10

// picture checks that the file is the picture that the page's calls have made.
// The fonts and the version of what draws may differ, so it is the size and
// the colours that are compared, and not each point.
func (s *stage) picture(file string) {
	s.t.Helper()
	if len(s.images) != 1 {
		s.t.Fatalf("the page made %d pictures", len(s.images))
	}
	if *update {
		if err := os.WriteFile(file, s.images[0], 0o644); err != nil {
			s.t.Fatal(err)
		}
	}
	kept, err := os.ReadFile(file)
	if err != nil {
		s.t.Fatal(err)
	}
	if len(kept) > mostPictureBytes {
		s.t.Errorf("%s has %d bytes, %d are allowed", file, len(kept), mostPictureBytes)
	}
	made, shown := s.decode(s.images[0]), s.decode(kept)
	if made.Bounds() != shown.Bounds() {
		s.t.Fatalf("the picture is %v, the page shows one of %v", made.Bounds(), shown.Bounds())
	}
	for i, part := range brightness(made) {
		if other := brightness(shown)[i]; part-other > 0.1 || other-part > 0.1 {
			s.t.Errorf("the picture's part %d is %.2f bright, that of the page %.2f", i, part, other)
		}
	}
}

func (s *stage) decode(data []byte) image.Image {
	s.t.Helper()
	picture, err := png.Decode(bytes.NewReader(data))
	if err != nil {
		s.t.Fatal(err)
	}
	return picture
}

// brightness is how bright each of 16 parts of a picture is, from 0 to 1.
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
