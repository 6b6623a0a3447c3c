package registry

import (
	"encoding/binary"
	"hash/maphash"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// seed makes fingerprints of one process comparable.
var seed = maphash.MakeSeed()

// Fingerprint returns a number that changes if anything changes that [Set.With] would read from
// these folders: entries, the targets of links, the files of artifacts, and whether builds still
// run. It costs a few system calls an entry and opens no artifact's file.
func (p Folders) Fingerprint() uint64 {
	var hash maphash.Hash
	hash.SetSeed(seed)
	for _, folder := range append([]string{p.Builds}, p.Folders...) {
		if folder == "" {
			continue
		}
		hash.WriteString(folder)
		hash.WriteByte(0)
		entries, err := list(folder)
		if err != nil {
			hash.WriteString(err.Error())
		}
		for _, entry := range entries {
			path := filepath.Join(folder, entry.Name())
			hash.WriteString(entry.Name())
			hash.WriteByte(0)
			if entry.Type().IsRegular() {
				if strings.HasSuffix(path, building) && !alive(tail(path)) {
					hash.WriteString("dead")
				}
				trace(&hash, path)
				continue
			}
			// A link may point to another link. The fingerprint has to change when any
			// of them is replaced.
			target, err := filepath.EvalSymlinks(path)
			if err != nil {
				hash.WriteString(err.Error())
				continue
			}
			hash.WriteString(target)
			for _, file := range []string{"metadata.json", "bin/run", "bin/session-run"} {
				trace(&hash, filepath.Join(target, file))
			}
		}
	}
	return hash.Sum64()
}

// trace adds the attributes that change with a file, among them its ctime, which programs cannot
// set.
func trace(hash *maphash.Hash, path string) {
	var stat unix.Stat_t
	if err := unix.Stat(path, &stat); err != nil {
		hash.WriteString(err.Error())
		return
	}
	for _, number := range []uint64{uint64(stat.Dev), stat.Ino, uint64(stat.Mode), uint64(stat.Size), uint64(stat.Ctim.Nano())} {
		hash.Write(binary.NativeEndian.AppendUint64(nil, number))
	}
}
