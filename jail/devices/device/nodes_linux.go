package device

import (
	"errors"
	"fmt"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/jail"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/jail/devices/cdi"
)

// node is a device node that the sandbox gets.
type node struct {
	path  string // on the host, without links
	stat  unix.Stat_t
	named bool // by the operator, not by a specification
	// permissions are the letters of rwm that the specification grants.
	permissions string
}

// unsafeNodes are nodes that let code leave a sandbox, read data that is not its own, or
// stop the machine, by major and minor number: see Documentation/admin-guide/devices.txt of
// Linux. all means every minor number.
var unsafeNodes = []struct {
	major, minor uint32
	all          bool
	what         string
}{
	{1, 1, false, "the memory of the machine"}, {1, 2, false, "the memory of the machine"}, {1, 4, false, "the ports of the machine"}, {1, 11, false, "the log of the kernel"},
	{4, 0, true, "a terminal"}, {5, 0, true, "a terminal"}, {7, 0, true, "a terminal"}, {229, 0, true, "a terminal"}, {204, 0, true, "a terminal"}, {166, 0, true, "a terminal"}, {188, 0, true, "a terminal"},
	{9, 0, true, "a tape"}, {21, 0, true, "a disk"}, {90, 0, true, "memory of the machine"}, {162, 0, true, "a disk"},
	{10, 130, false, "a watchdog"}, {10, 144, false, "the memory of the machine"}, {10, 200, false, "TUN"}, {10, 223, false, "the input of the machine"},
	{10, 229, false, "FUSE"}, {10, 232, false, "KVM"}, {10, 234, false, "a disk"}, {10, 235, false, "mounts of the machine"}, {10, 236, false, "a disk"}, {10, 237, false, "a disk"},
	{10, 238, false, "KVM"}, {10, 239, false, "the input of the machine"}, {10, 241, false, "KVM"}, {10, 242, false, "the input of the machine"},
	{13, 0, true, "the input of the machine"}, {202, 0, true, "the processors of the machine"}, {203, 0, true, "the processors of the machine"},
}

// isUnsafe returns the name of a node that takes unsafe_devices, or "" for another node.
func isUnsafe(stat unix.Stat_t) string {
	if stat.Mode&unix.S_IFMT == unix.S_IFBLK {
		return "a disk"
	}
	major, minor := unix.Major(uint64(stat.Rdev)), unix.Minor(uint64(stat.Rdev))
	// Unix98 terminals.
	if major >= 136 && major <= 143 {
		return "a terminal"
	}
	for _, u := range unsafeNodes {
		if u.major == major && (u.all || u.minor == minor) {
			return u.what
		}
	}
	return ""
}

var ownNodes = []string{"console", "core", "fd", "full", "mqueue", "null", "ptmx", "pts", "random", "shm", "stderr", "stdin", "stdout", "tty", "urandom", "zero"}

// isOwnNode reports whether every sandbox has a path in /dev, or a folder above it.
func isOwnNode(path string) bool {
	name, _, _ := strings.Cut(strings.TrimPrefix(path, "/dev/"), "/")
	return slices.Contains(ownNodes, name)
}

// addNode adds a node of a specification.
func (p *planner) addNode(n cdi.Node) error {
	from := n.HostPath
	if from == "" {
		from = n.Path
	}
	refuse := func(format string, args ...any) error {
		return &jail.Refusal{
			Problem: fmt.Sprintf("%s asks for the device node %s: ", n.File, from) + fmt.Sprintf(format, args...),
			Hint:    "write the specification again with the vendor's generator, or fix it",
		}
	}
	to := filepath.Clean(n.Path)
	if !strings.HasPrefix(to, "/dev/") || isOwnNode(to) {
		return refuse("it would be %s in the sandbox, where no device belongs", to)
	}
	real, stat, err := p.resolve(from)
	if err != nil {
		return refuse("%v", err)
	}
	kind := stat.Mode & unix.S_IFMT
	if kind != unix.S_IFCHR && kind != unix.S_IFBLK {
		return refuse("it is not a device node")
	}
	if n.Type == "p" || n.Type != "" && (n.Type == "b") != (kind == unix.S_IFBLK) {
		return refuse("its type is %s, and the specification has %s", map[uint32]string{unix.S_IFCHR: "c", unix.S_IFBLK: "b"}[kind], n.Type)
	}
	major, minor := int64(unix.Major(uint64(stat.Rdev))), int64(unix.Minor(uint64(stat.Rdev)))
	// 0 means that the specification has no number.
	if n.Major != 0 && n.Major != major || n.Minor != 0 && n.Minor != minor {
		return refuse("its numbers are %d:%d, and the specification has %d:%d", major, minor, n.Major, n.Minor)
	}
	if what := isUnsafe(stat); what != "" && !p.spec.Devices.Unsafe {
		return &jail.Refusal{
			Problem: fmt.Sprintf("%s asks for the device node %s, which is %s", n.File, from, what),
			Hint:    "leave the device out, or write unsafe_devices = true beside it",
		}
	}
	permissions := n.Permissions
	if permissions == "" {
		permissions = "rwm"
	}
	return p.place(node{path: real, stat: stat, permissions: permissions}, to, refuse)
}

// addNamedNode adds a node that the operator named.
func (p *planner) addNamedNode(path string) error {
	refuse := func(format string, args ...any) error {
		return &jail.Refusal{
			Problem: fmt.Sprintf("the sandbox has the device %s: ", path) + fmt.Sprintf(format, args...),
			Hint:    "load its driver, or build the sandbox with other devices",
		}
	}
	real, stat, err := p.resolve(path)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) {
		return refuse("this machine does not have it")
	}
	if err != nil {
		return refuse("%v", err)
	}
	if kind := stat.Mode & unix.S_IFMT; kind != unix.S_IFCHR && kind != unix.S_IFBLK {
		return refuse("it is not a device node")
	}
	if what := isUnsafe(stat); what != "" && !p.spec.Devices.Unsafe {
		return &jail.Refusal{
			Problem: fmt.Sprintf("the sandbox has the device %s, which is %s", path, what),
			Hint:    "leave the device out, or write unsafe_devices = true beside it",
		}
	}
	return p.place(node{path: real, stat: stat, named: true, permissions: "rwm"}, filepath.Clean(path), refuse)
}

// place adds a node at a path of the sandbox.
func (p *planner) place(n node, to string, refuse func(string, ...any) error) error {
	// If root starts the sandbox, its user is another one.
	if p.user != 0 && int(n.stat.Uid) == p.user {
		return refuse("it belongs to %s, and code could change its mode on the host: give it to root, and to a group that may open it", userName(p.user))
	}
	isNew, err := p.take(to, n.path)
	if err != nil {
		return refuse("it would be %v", err)
	}
	if !isNew {
		return nil
	}
	p.plan.Mounts = append(p.plan.Mounts, jail.DeviceMount{From: n.path, To: to, IsNode: true})
	p.nodes = append(p.nodes, n)
	p.addKernelFiles(n)
	return nil
}

// addGroups adds the groups that the nodes require, and the groups in asked, which the
// specifications require.
func (p *planner) addGroups(asked []uint32) {
	var groups []int
	for _, n := range p.nodes {
		if n.stat.Mode&0o060 != 0 && n.stat.Mode&0o006 != 0o006 {
			groups = append(groups, int(n.stat.Gid))
		}
	}
	for _, group := range asked {
		groups = append(groups, int(group))
	}
	slices.Sort(groups)
	// Root's group would open more than devices.
	p.plan.Groups = slices.DeleteFunc(slices.Compact(groups), func(group int) bool { return group == 0 })
}

// usable checks, as the sandbox's user, which nodes may be opened. Every node that the
// operator named must be among them, and at least one node of the specifications.
func (p *planner) usable() (notes []string, err error) {
	opens := 0
	var refusals []*jail.Refusal
	for _, n := range p.nodes {
		var mode uint32
		for _, access := range []struct {
			letter string
			mode   uint32
		}{{"r", unix.R_OK}, {"w", unix.W_OK}} {
			if strings.Contains(n.permissions, access.letter) {
				mode |= access.mode
			} else if unix.Faccessat(unix.AT_FDCWD, n.path, access.mode, unix.AT_EACCESS) == nil {
				// The specification relies on control groups, which can keep a process from
				// opening a node despite its mode, but which only root can set up.
				return nil, &jail.Refusal{
					Problem: fmt.Sprintf("the specification of %s grants %q, and its mode lets this user do more", n.path, n.permissions),
					Hint:    "change the mode of the device node on the host, or grant rw in the specification",
				}
			}
		}
		if mode == 0 {
			continue
		}
		err := unix.Faccessat(unix.AT_FDCWD, n.path, mode, unix.AT_EACCESS)
		if err == nil {
			opens++
			continue
		}
		refusal := n.refused()
		if n.named {
			return nil, refusal
		}
		refusals = append(refusals, refusal)
	}
	if opens == 0 && len(refusals) > 0 {
		return nil, refusals[0]
	}
	for _, refusal := range refusals {
		notes = append(notes, refusal.Problem)
	}
	return notes, nil
}

// refused returns why this user may not open a node, and a hint.
func (n node) refused() *jail.Refusal {
	me := userName(unix.Geteuid())
	group := groupName(int(n.stat.Gid))
	mode := n.stat.Mode & 0o777
	refusal := &jail.Refusal{
		Problem: fmt.Sprintf("%s cannot be opened by %s: it is for its owner %s alone (mode %04o)", n.path, me, userName(int(n.stat.Uid)), mode),
		Hint:    fmt.Sprintf("give the node to a group with a rule of udev, such as %s with GROUP=\"render\", MODE=\"0660\"", filepath.Base(n.path)),
	}
	if mode&0o060 == 0o060 && n.stat.Gid != 0 {
		refusal.Problem = fmt.Sprintf("%s cannot be opened by %s: it is for the group %s", n.path, me, group)
		refusal.Hint = fmt.Sprintf("add the user to the group (usermod -aG %s %s) and log in again; for a service of systemd, SupplementaryGroups=%s", group, me, group)
	}
	return refusal
}

// userName and groupName return a name, or the number if it has no name.
func userName(id int) string {
	if u, err := user.LookupId(strconv.Itoa(id)); err == nil {
		return u.Username
	}
	return "user " + strconv.Itoa(id)
}

func groupName(id int) string {
	if g, err := user.LookupGroupId(strconv.Itoa(id)); err == nil {
		return g.Name
	}
	return strconv.Itoa(id)
}
