package machine

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"

	"golang.org/x/sys/unix"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/jail"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/vm/image"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/vm/protocol"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/host"
)

// Project is what machines show of the host, in one image: a project, an inbox, and folders that the description
// names. Its owner calls [Project.Close] when no machine is started with it any more.
type Project struct {
	rules   ProjectSpec
	paths   string // for messages
	folders image.Folders
	// disk is a file without a name, and reader the same for machines, which may only
	// read it.
	disk, reader *os.File
	size         int64 // of the image in it
	// now is the digest of the folders as they were found. known is the digest that the session knew
	// when it was saved, or that of the image. told is the digest that the session is told now.
	now, known, told image.Digest
	spec             *Spec
}

// OpenProject finds the project and the inbox in variables, by get, and the folders of the description. From then
// on, machines are started with a disk for their image: a file in the folder cache, or in the usual one for such
// files if cache is "". Programs in a machine see the folders from [Project.Show] on. Without folders, OpenProject
// returns nil; if they are too large, it returns an error.
func (s *Spec) OpenProject(cache string, get func(string) string) (_ *Project, err error) {
	project, err := s.Project.Read(get("PROJECT_DIR"), get("PROJECT_MOUNT"), get("PROJECT_MODE"))
	if err != nil {
		return nil, err
	}
	inbox, err := jail.ReadInbox(get)
	if err != nil || project.Dir == "" && inbox == "" && len(s.Project.Binds) == 0 {
		return nil, err
	}
	p := &Project{rules: s.Project, spec: s}
	p.folders.MaxFiles, p.folders.MaxBytes = s.Project.MaxFiles, int64(s.Project.MaxMB)<<20
	defer func() {
		if err != nil {
			p.Close()
		}
	}()
	s.shown = &protocol.Project{Mounts: map[string]string{}}
	if project.Dir != "" {
		if err := p.add(protocol.ProjectName, "the project", project.Dir, project.Mount); err != nil {
			return nil, err
		}
		if project.Overlay {
			s.shown.LayerMB = s.Project.LayerMB
		}
	}
	if inbox != "" {
		if err := p.add(protocol.InboxName, "the inbox", inbox, s.Project.Inbox); err != nil {
			return nil, err
		}
	}
	for _, bind := range s.Project.Binds {
		if err := p.add(bind.Name, "the folder", bind.From, bind.To); err != nil {
			return nil, &jail.Refusal{
				Problem: fmt.Sprintf("extra_binds of this sandbox: %v", err),
				Hint:    "make the folder, or build the environment without it; a virtual machine shows no single files",
			}
		}
		if os.Geteuid() == 0 {
			// As in a jail, which root starts as another user.
			added := &p.folders.All[len(p.folders.All)-1]
			added.Owner, added.Group = nobody, nobody
		}
	}
	if p.now, err = p.folders.Measure(); err != nil {
		return nil, p.refusal(err)
	}
	if err = p.makeDisk(cache); err != nil {
		return nil, err
	}
	s.disk = p.reader
	return p, nil
}

// add adds a folder, under a name in the image and a path in the sandbox.
func (p *Project) add(name, what, dir, mount string) error {
	folder, err := openFolder(dir)
	if err != nil {
		return fmt.Errorf("open %s %s: %w", what, dir, err)
	}
	folder.Name = name
	if p.paths != "" {
		p.paths += " with "
	}
	p.paths += what + " " + dir
	p.folders.All = append(p.folders.All, folder)
	p.spec.shown.Mounts[name] = mount
	return nil
}

// openFolder opens a folder as a jail does: its owner's files are the code's, unless
// another user can have its path lead elsewhere and root would lend its rights.
func openFolder(path string) (folder image.Folder, err error) {
	fd, owned, err := jail.OpenProject(path)
	if err != nil {
		return folder, err
	}
	defer unix.Close(fd)
	var stat unix.Stat_t
	if err := unix.Fstat(fd, &stat); err != nil {
		return folder, err
	}
	if folder.Root, err = os.OpenRoot(host.OpenedFolder(fd, path)); err != nil {
		return folder, err
	}
	folder.User = protocol.User
	switch {
	case unix.Geteuid() != 0:
		folder.Owner, folder.Group = uint32(unix.Geteuid()), uint32(unix.Getegid())
	case owned:
		folder.Owner, folder.Group = stat.Uid, stat.Gid
	default:
		folder.Owner, folder.Group = nobody, nobody
	}
	return folder, nil
}

// nobody is the user and group of files with an unmapped owner (user_namespaces(7)).
const nobody = 65534

// imageMB bounds the rest of an image, beside the contents of the files, in MiB: folders, inodes,
// and the unused part of each file's last block.
const imageMB = 512

// makeDisk makes an unlinked file of the size that the disk has in all machines, because copies of
// one machine need the same disks.
func (p *Project) makeDisk(cache string) error {
	if cache != "" {
		_ = os.MkdirAll(cache, 0o700) // the error is that of the file
	}
	file, err := os.CreateTemp(cache, "nix-sandbox-project-")
	if err != nil {
		return fmt.Errorf("make a file for the image of %s: %w", p.paths, err)
	}
	// QEMU may only read it.
	p.disk = file
	p.reader, err = os.Open(file.Name())
	// If root starts them, QEMU and mkfs.erofs run as another user.
	err = errors.Join(err, os.Remove(file.Name()), file.Chmod(0o666), p.resize(file))
	if err != nil {
		p.Close()
		return fmt.Errorf("make a file for the image of %s: %w", p.paths, err)
	}
	return nil
}

func (p *Project) resize(disk *os.File) error {
	return disk.Truncate(int64(p.rules.MaxMB+imageMB) << 20)
}

// Show makes the image of the folders as they are now, and has the program that was started
// in a machine see them.
func (p *Project) Show(m *Machine) error {
	if err := p.makeImage(); err != nil {
		return p.refusal(err)
	}
	return m.Ask(protocol.Request{Do: protocol.Show})
}

// makeImage writes the image into the disk.
func (p *Project) makeImage() (err error) {
	mkfs, err := jail.ParseObject(p.rules.Mkfs)
	if err != nil {
		return fmt.Errorf("the description of mkfs.erofs: %w", err)
	}
	// mkfs.erofs replaces a file that is not empty.
	if err := p.disk.Truncate(0); err != nil {
		return err
	}
	archive, input, err := os.Pipe()
	if err != nil {
		return err
	}
	defer input.Close()
	log, stderr, err := os.Pipe()
	if err != nil {
		archive.Close()
		return err
	}
	defer log.Close()
	// It ends with the thread that starts it.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	process, err := mkfs.StartChild(jail.Child{Stdin: archive, Files: []*os.File{p.disk}, Stderr: stderr})
	archive.Close()
	stderr.Close()
	if err != nil {
		return err
	}
	var printed lastBytes
	read := make(chan struct{})
	go func() {
		defer close(read)
		_, _ = io.Copy(&printed, log)
	}()
	shown, written := p.folders.WriteTar(input)
	var large *image.TooLargeError
	if errors.As(written, &large) {
		_ = process.Kill()
	}
	input.Close()
	state, waitErr := process.Wait()
	<-read
	switch {
	case large != nil:
		return large
	case waitErr != nil:
		return waitErr
	case !state.Success():
		return fmt.Errorf("mkfs.erofs: %v: %s", state, cmp.Or(printed.last(), "it printed nothing"))
	case written != nil:
		return written
	}
	info, err := p.disk.Stat()
	if err != nil {
		return err
	}
	if limit := int64(p.rules.MaxMB+imageMB) << 20; info.Size() > limit {
		return &image.TooLargeError{Reason: fmt.Sprintf("its image has %d MB, more than %d", info.Size()>>20, limit>>20)}
	}
	p.size, p.known, p.told = info.Size(), shown, shown
	return p.resize(p.disk)
}

// Image returns the disk, the size of the image at its beginning, and the digest that the session
// knows. A branch has not been told what the session was told since.
func (p *Project) Image(branch bool) (disk *os.File, size int64, known image.Digest) {
	if branch {
		return p.disk, p.size, p.known
	}
	return p.disk, p.size, p.told
}

// Use takes a disk that was saved with a machine, with the values that Image returned, for the
// machines that are started from now on. The project owns the disk then. Use reports whether the
// folder has changed since; the session is then told.
func (p *Project) Use(disk *os.File, size int64, known image.Digest) (changed bool) {
	p.disk.Close()
	p.disk, p.size, p.spec.disk, p.known, p.told = disk, size, disk, known, p.now
	return known != p.now
}

func (p *Project) refusal(err error) error {
	var large *image.TooLargeError
	if errors.As(err, &large) {
		return &jail.Refusal{
			Problem: fmt.Sprintf("%s is too large for a virtual machine, which has an image of it: %s", p.paths, large.Reason),
			Hint:    "show a smaller folder, or build the environment with backend = \"jail\"",
		}
	}
	return fmt.Errorf("make an image of %s: %w", p.paths, err)
}

// Close closes the folders and the disk, of which machines have copies. It accepts a nil Project.
func (p *Project) Close() {
	if p == nil {
		return
	}
	for _, folder := range p.folders.All {
		folder.Root.Close()
	}
	p.disk.Close() // on nil too, which only returns an error
	p.reader.Close()
}
