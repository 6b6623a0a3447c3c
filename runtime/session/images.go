package session

import (
	"context"
	"net/http"
	"path"
	"strings"
	"unicode/utf8"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/picture"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/sandbox"
)

const (
	// maxImages and maxImageBytes bound the images of one result.
	maxImages     = 4
	maxImageBytes = 1 << 20
	// maxTries bounds the files of one result that are read to see whether
	// they are images: reading takes time after the code's own.
	maxTries = 4 * maxImages
	svg      = "image/svg+xml"
)

// imageTypes are the types of the images that a client can show, by the
// extension of their files.
var imageTypes = map[string]string{
	".png": "image/png", ".jpg": "image/jpeg", ".jpeg": "image/jpeg", ".gif": "image/gif", ".webp": "image/webp", ".svg": svg,
}

// readImages reads the images among files into them, as far as they can be
// shown and the bounds allow. SVG images are text, and have at most svgBytes
// together. An image that cannot be read is left as a file.
func readImages(ctx context.Context, box sandbox.Sandbox, files []sandbox.File, svgBytes int64) {
	images, tries := 0, 0
	for i := range files {
		file := &files[i]
		kind := imageTypes[strings.ToLower(path.Ext(file.Path))]
		if kind == "" || images == maxImages || tries == maxTries || file.Size == 0 || file.Size > maxImageBytes {
			continue
		}
		tries++
		data, err := box.ReadFile(ctx, file.Path, maxImageBytes)
		if err != nil || !isImage(data, kind) {
			continue
		}
		if kind == svg {
			if int64(len(data)) > svgBytes {
				continue
			}
			svgBytes -= int64(len(data))
		}
		file.Content, file.Type = data, kind
		images++
	}
}

// isImage reports whether data is an image of a type that a model's interface
// takes.
func isImage(data []byte, kind string) bool {
	if kind == svg {
		return utf8.Valid(data)
	}
	return http.DetectContentType(data) == kind && picture.Viewable(data, kind) == nil
}
