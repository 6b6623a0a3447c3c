package picture

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"hash/crc32"
	"image"
	"image/color"
	"image/color/palette"
	"image/gif"
	"image/jpeg"
	"image/png"
	"strings"
	"testing"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
)

// drawing is an image with something in it.
func drawing(width, height int) *image.Paletted {
	drawn := image.NewPaletted(image.Rect(0, 0, width, height), palette.Plan9)
	for i := range drawn.Pix {
		drawn.Pix[i] = uint8(i * i / 7)
	}
	return drawn
}

func asPNG(t testing.TB, drawn image.Image) []byte {
	t.Helper()
	var out bytes.Buffer
	must.Do(t, png.Encode(&out, drawn))
	return out.Bytes()
}

func asJPEG(t testing.TB, drawn image.Image) []byte {
	t.Helper()
	var out bytes.Buffer
	must.Do(t, jpeg.Encode(&out, drawn, nil))
	return out.Bytes()
}

func asGIF(t testing.TB, frames ...*image.Paletted) []byte {
	t.Helper()
	var out bytes.Buffer
	must.Do(t, gif.EncodeAll(&out, &gif.GIF{Image: frames, Delay: make([]int, len(frames))}))
	return out.Bytes()
}

// The smallest pictures of libwebp: one pixel, with losses and without.
func asWebP(t testing.TB, lossless bool) []byte {
	t.Helper()
	text := "UklGRiIAAABXRUJQVlA4IBYAAAAwAQCdASoBAAEADsD+JaQAA3AAAAAA"
	if lossless {
		text = "UklGRhoAAABXRUJQVlA4TA0AAAAvAAAAEAcQERGIiP4HAA=="
	}
	data := must.Get(base64.StdEncoding.DecodeString(text))(t)
	return data
}

// extended is a WebP with a canvas of a size and these chunks.
func extended(width, height int, chunks ...[]byte) []byte {
	canvas := make([]byte, 10)
	for i := range 3 {
		canvas[4+i], canvas[7+i] = byte((width-1)>>(8*i)), byte((height-1)>>(8*i))
	}
	return riff(append([][]byte{chunk("VP8X", canvas)}, chunks...)...)
}

func riff(chunks ...[]byte) []byte {
	body := append([]byte("WEBP"), bytes.Join(chunks, nil)...)
	return append(binary.LittleEndian.AppendUint32([]byte("RIFF"), uint32(len(body))), body...)
}

func chunk(kind string, body []byte) []byte {
	out := append(binary.LittleEndian.AppendUint32([]byte(kind), uint32(len(body))), body...)
	return append(out, make([]byte, len(body)%2)...)
}

// header is a PNG of a size that ends after its header.
func header(width, height uint32, depth, colour byte) []byte {
	body := binary.BigEndian.AppendUint32(nil, width)
	body = append(binary.BigEndian.AppendUint32(body, height), depth, colour, 0, 0, 0)
	return append([]byte(signaturePNG), chunkOfPNG("IHDR", body)...)
}

func chunkOfPNG(kind string, body []byte) []byte {
	named := append([]byte(kind), body...)
	out := append(binary.BigEndian.AppendUint32(nil, uint32(len(body))), named...)
	return binary.BigEndian.AppendUint32(out, crc32.ChecksumIEEE(named))
}

var kinds = []string{"image/png", "image/jpeg", "image/gif", "image/webp"}

func whole(t testing.TB) map[string][][]byte {
	rgba, deep := image.NewNRGBA(image.Rect(0, 0, 33, 7)), image.NewNRGBA64(image.Rect(0, 0, 5, 5))
	rgba.Set(3, 3, color.NRGBA{1, 2, 3, 4})
	deep.Set(1, 1, color.NRGBA{1, 2, 3, 4})
	still := asWebP(t, true)[12:]
	return map[string][][]byte{
		"image/png": {
			asPNG(t, drawing(40, 30)), asPNG(t, rgba), asPNG(t, deep), asPNG(t, image.NewGray(image.Rect(0, 0, 9, 9))),
			append(asPNG(t, drawing(1, 1)), "more"...), // readers stop at the end
		},
		"image/jpeg": {asJPEG(t, drawing(40, 30)), asJPEG(t, image.NewGray(image.Rect(0, 0, 17, 9)))},
		"image/gif":  {asGIF(t, drawing(40, 30)), asGIF(t, drawing(20, 20), drawing(20, 20))},
		"image/webp": {
			asWebP(t, true), asWebP(t, false), extended(1, 1, still),
			extended(1, 1, chunk("ANIM", make([]byte, 6)), chunk("ANMF", append(make([]byte, 16), still...))),
		},
	}
}

func TestViewable_TakesWholeImages(t *testing.T) {
	for kind, images := range whole(t) {
		for i, data := range images {
			if err := Viewable(data, kind); err != nil {
				t.Errorf("%s %d: %v", kind, i, err)
			}
		}
	}
}

// An image that ends anywhere before its end is none, and one of another kind
// neither.
func TestViewable_RefusesWhatIsCutShort(t *testing.T) {
	for kind, images := range whole(t) {
		for i, data := range images {
			data = bytes.TrimSuffix(data, []byte("more"))
			for size := range data {
				if Viewable(data[:size], kind) == nil {
					t.Errorf("%s %d: the first %d of %d bytes are taken for all", kind, i, size, len(data))
				}
			}
			for _, other := range kinds {
				if other != kind && Viewable(data, other) == nil {
					t.Errorf("%s %d is taken for %s", kind, i, other)
				}
			}
		}
	}
}

func TestViewable_Refuses(t *testing.T) {
	small := asPNG(t, drawing(4, 4))
	changed := bytes.Clone(small)
	changed[len(changed)-20] ^= 1
	lossless := func(width, height int) []byte {
		body := binary.LittleEndian.AppendUint32([]byte{0x2f}, uint32(width-1|(height-1)<<14))
		return riff(chunk("VP8L", append(body, make([]byte, 9)...)))
	}
	tests := []struct {
		name, kind string
		data       []byte
		want       string
	}{
		{"nothing", "image/png", nil, "too early"},
		{"a type that is not known", "image/tiff", small, "no such type"},
		{"a header alone", "image/png", header(10, 10, 8, 2), "too early"},
		{"no rows", "image/png", append(header(10, 10, 8, 2), chunkOfPNG("IEND", nil)...), "no rows"},
		{"rows that are none", "image/png", append(append(header(10, 10, 8, 2), chunkOfPNG("IDAT", []byte("rows"))...), chunkOfPNG("IEND", nil)...), "zlib"},
		{"a wrong checksum", "image/png", changed, "checksum"},
		{"a bomb of 16 bits", "image/png", header(8000, 8000, 16, 6), "unpack to more than 64 MiB"},
		{"a wide one", "image/png", header(8001, 1, 8, 0), "at most 8000"},
		{"no width", "image/png", header(0, 1, 8, 0), "non-positive dimension"},
		{"a width beyond all numbers", "image/png", header(0xffffffff, 0xffffffff, 8, 0), "non-positive dimension"},
		{"colours of 3 bits", "image/png", header(1, 1, 3, 0), "bit depth 3"},
		{"13 bytes", "image/gif", []byte("GIF89a\x01\x00\x01\x00\x00\x00\x00"), "unexpected EOF"},
		{"no scan", "image/jpeg", []byte("\xff\xd8\xff\xc0\x00\x0b\x08\x00\x01\x00\x01\x01\x01\x11\x00\xff\xd9"), "missing SOS"},
		{"arithmetic coding", "image/jpeg", []byte("\xff\xd8\xff\xc9\x00\x0b\x08\x00\x01\x00\x01\x01\x01\x11\x00\xff\xd9"), "unsupported JPEG feature"},
		{"a size of 16,383", "image/webp", lossless(16383, 16383), "at most 8000"},
		{"one that unpacks to much", "image/webp", lossless(8000, 8000), "unpack to more than"},
		{"a canvas of 16 million", "image/webp", extended(1<<24, 1, asWebP(t, true)[12:]), "at most 8000"},
	}
	for _, test := range tests {
		if err := Viewable(test.data, test.kind); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: error %v, want one with %q", test.name, err, test.want)
		}
	}
}

// What is taken for a whole PNG or GIF, the standard library decodes; and what it
// takes of the others has the size that the library reads.
func FuzzViewable(f *testing.F) {
	for kind, images := range whole(f) {
		for _, data := range images {
			for i, name := range kinds {
				if name == kind {
					f.Add(data, uint8(i))
				}
			}
		}
	}
	f.Fuzz(func(t *testing.T, data []byte, kind uint8) {
		name := kinds[int(kind)%len(kinds)]
		if Viewable(data, name) != nil || name == "image/webp" {
			return
		}
		config, _, err := image.DecodeConfig(bytes.NewReader(data))
		if err != nil {
			t.Fatalf("%s: its size: %v", name, err)
		}
		if config.Width < 1 || config.Height < 1 || config.Width > maxSide || config.Height > maxSide {
			t.Fatalf("%s of %d by %d pixels", name, config.Width, config.Height)
		}
		if config.Width*config.Height > 1<<16 || name == "image/jpeg" {
			return
		}
		if _, _, err := image.Decode(bytes.NewReader(data)); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	})
}

func BenchmarkViewable(b *testing.B) {
	data := asPNG(b, drawing(2000, 1500))
	b.SetBytes(int64(len(data)))
	for b.Loop() {
		must.Do(b, Viewable(data, "image/png"))
	}
}
