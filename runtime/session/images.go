package session

import (
	"context"
	"errors"
	"net/http"
	"path"
	"slices"
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

// readImages reads the images among files into them, as far as they can be shown and the bounds allow.
// Those in /workspace/outputs come before those that were written elsewhere, and the last before
// earlier ones: frames and drafts come before the result. An image that is not read is left as a
// file, with the reason.
func readImages(ctx context.Context, box sandbox.Sandbox, files []sandbox.File) {
	var order []*sandbox.File
	for i := range files {
		if imageTypes[strings.ToLower(path.Ext(files[i].Path))] != "" && files[i].Size > 0 && files[i].Readable() {
			order = append(order, &files[i])
		}
	}
	slices.Reverse(order)
	slices.SortStableFunc(order, func(a, b *sandbox.File) int {
		switch {
		case a.Linked == b.Linked:
			return 0
		case b.Linked:
			return -1
		}
		return 1
	})
	images, tries := 0, 0
	for _, file := range order {
		switch {
		case images == maxImages || tries == maxTries:
			file.Unshown = sandbox.TooMany
			continue
		case file.Size > maxImageBytes:
			file.Unshown = sandbox.TooLarge
			continue
		}
		tries++
		kind := imageTypes[strings.ToLower(path.Ext(file.Path))]
		data, err := sandbox.ReadFile(ctx, box, file.Path, maxImageBytes)
		if err != nil || http.DetectContentType(data) != kind {
			file.Unshown = sandbox.Unreadable
			continue
		}
		switch err := picture.Viewable(data, kind); {
		case errors.Is(err, picture.ErrTooLarge):
			file.Unshown = sandbox.TooLarge
		case err != nil:
			file.Unshown = sandbox.Unreadable
		default:
			file.Content, file.Type = data, kind
			images++
		}
	}
}
