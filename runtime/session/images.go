package session

import (
	"context"
	"net/http"
	"path"
	"strings"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/picture"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/sandbox"
)

const (
	maxImages     = 4
	maxImageBytes = 1 << 20
	// maxTries bounds the files of one result that are read to see whether
	// they are images: reading takes time after the code's own.
	maxTries = 4 * maxImages
)

// imageTypes are the types of the images that a model's interface takes, by the
// extension of their files. It takes no SVG: that is a file like others.
var imageTypes = map[string]string{
	".png": "image/png", ".jpg": "image/jpeg", ".jpeg": "image/jpeg", ".gif": "image/gif", ".webp": "image/webp",
}

// readImages reads the images among files into them, as far as they can be
// shown and the bounds allow. An image that cannot be read is left as a file.
func readImages(ctx context.Context, box sandbox.Sandbox, files []sandbox.File) {
	images, tries := 0, 0
	for i := range files {
		file := &files[i]
		kind := imageTypes[strings.ToLower(path.Ext(file.Path))]
		if kind == "" || images == maxImages || tries == maxTries || file.Size == 0 || file.Size > maxImageBytes {
			continue
		}
		tries++
		data, err := sandbox.ReadFile(ctx, box, file.Path, maxImageBytes)
		if err != nil || http.DetectContentType(data) != kind || picture.Viewable(data, kind) != nil {
			continue
		}
		file.Content, file.Type = data, kind
		images++
	}
}
