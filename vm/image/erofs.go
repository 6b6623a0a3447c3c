package image

// Mkfs is mkfs.erofs with the options for an image that depends on the files' names,
// modes and contents alone; the image's path and the folder follow. The time is the
// Nix store's, which Python's compiled files remember. Nothing is compressed: reading
// is what counts, and hard disks are large.
var Mkfs = []string{"mkfs.erofs", "--quiet", "--all-root", "-x-1", "-T1", "-U", "6e69782d-7361-6e64-626f-782d6d637000"}
