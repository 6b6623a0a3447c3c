package image

// Mkfs is mkfs.erofs with the options for a reproducible image: it depends only on the files'
// names, modes and contents. The image's path and the folder follow. The time is the Nix store's,
// which Python's compiled files contain. Nothing is compressed, because reading must be fast and
// disks are large.
var Mkfs = []string{"mkfs.erofs", "--quiet", "--all-root", "-x-1", "-T1", "-U", "6e69782d-7361-6e64-626f-782d6d637000"}
