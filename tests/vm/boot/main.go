// Command boot runs one command in a Linux kernel of its own, in QEMU, as an
// ordinary user with the closure of a server or of artifacts as its Nix store.
// tests/vm/run builds and starts it.
//
// It promises to end within --time-limit and to leave no QEMU behind, however it
// ends itself. Its exit status is the command's own, 124 where the time limit
// passed, and 125 where the machine failed.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/vm/guest"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/vm/image"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/vm/machine"
)

const (
	statusLeft      = 123
	statusTimeLimit = 124
	statusMachine   = 125
)

// slow is the factor by which tests stretch their time limits where every
// instruction is emulated: bash in a jail takes 0.3 s instead of 13 ms, python
// 0.6 s instead of 30 ms, node 3 s instead of 135 ms.
const slow = "30"

const usage = `usage: tests/vm/run [OPTION]... COMMAND [ARGUMENT]...

Runs the command as uid 1000 in a virtual machine with a kernel of its own.

`

// QEMU's names of the accelerators.
const (
	kvm = "kvm"
	tcg = "tcg"
)

// accelerators returns the accelerators to try, in order.
func accelerators(wanted string, memory machine.Memory) []string {
	if wanted != "auto" {
		return []string{wanted}
	}
	if known, found := memory.Recall(); found && !known.Works {
		return []string{tcg}
	}
	return []string{kvm, tcg}
}

// options are the command line's.
type options struct {
	cache, kernel, init string // from tests/vm/run
	debian              string // likewise, for guest.Systemd alone
	server              string
	store, path, env    []string
	files, chdir        string
	places              []string // FILE=PATH
	policy              string
	mode                guest.Mode
	memory, cpus        int
	gpu                 bool
	accel               string
	limit               int
	console             string
	verbose             bool
	command             []string
}

func main() {
	// QEMU is killed by the kernel when the thread that started it ends; that
	// is this one, the main thread, which ends with the process.
	runtime.LockOSThread()
	options, err := parse(os.Args[1:])
	if errors.Is(err, flag.ErrHelp) {
		return
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "vm: error:", err)
		os.Exit(statusMachine)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	limit := time.Duration(options.limit) * time.Second
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("the time limit of %s passed", limit))
	defer cancel()
	status, err := boot(ctx, options)
	if err != nil {
		fmt.Fprintln(os.Stderr, "vm: error:", err)
	}
	os.Exit(status)
}

func parse(arguments []string) (options, error) {
	var o options
	list := func(into *[]string) func(string) error {
		return func(value string) error { *into = append(*into, value); return nil }
	}
	mode := func(mode guest.Mode) func(string) error {
		return func(string) error { o.mode = mode; return nil }
	}
	flags := flag.NewFlagSet("vm", flag.ContinueOnError)
	flags.Usage = func() {}
	flags.SetOutput(io.Discard)
	flags.StringVar(&o.cache, "cache", "", "the `folder` of images (tests/vm/run gives it)")
	flags.StringVar(&o.kernel, "kernel", "", "the kernel's `folder` (tests/vm/run gives it)")
	flags.StringVar(&o.init, "init", "", "the first `program` (tests/vm/run gives it)")
	flags.StringVar(&o.debian, "debian", "", "the `image` of a Debian with systemd (tests/vm/run gives it)")
	flags.StringVar(&o.server, "server", "", "the `path` of a built server: in the store, and as NIX_SANDBOX_MCP_SERVER")
	flags.Func("store", "the `path` of something in the store, taken with its closure (repeatable)", list(&o.store))
	flags.Func("path", "the same, and its bin/ is on the PATH: `path` (repeatable)", list(&o.path))
	flags.StringVar(&o.files, "files", "", "a `folder` to be seen as /tests, where the command starts")
	flags.Func("place", "with --systemd, a text file at a path of Debian's: `FILE=PATH` (repeatable)", list(&o.places))
	flags.StringVar(&o.chdir, "chdir", "", "the `folder` where the command starts instead")
	flags.Func("env", "an environment variable of the command: `NAME=VALUE` (repeatable)", list(&o.env))
	flags.BoolFunc("delegate", "a cgroup subtree of the user's own (the default)", mode(guest.Delegate))
	flags.BoolFunc("no-delegate", "no cgroup of the user's own", mode(guest.NoDelegate))
	flags.BoolFunc("no-userns", "that, and user namespaces switched off", mode(guest.NoUserns))
	flags.BoolFunc("restricted", "no cgroup, and only programs with an AppArmor profile may make user namespaces", mode(guest.Restricted))
	flags.StringVar(&o.policy, "policy", "", "with --restricted, a `file` of compiled AppArmor profiles")
	flags.BoolFunc("systemd", "a Debian whose systemd manages the user's services", mode(guest.Systemd))
	flags.IntVar(&o.memory, "memory", 1024, "the machine's memory in `MB`, 256 to 8192")
	flags.IntVar(&o.cpus, "cpus", 2, "its processors, 1 to 8")
	flags.BoolVar(&o.gpu, "gpu", false, "a virtual graphics card, whose render node the user may open")
	flags.StringVar(&o.accel, "accel", "auto", "kvm, tcg (software), or auto (kvm where it answers)")
	flags.IntVar(&o.limit, "time-limit", 300, "`seconds` until it is killed, 1 to 3600")
	flags.StringVar(&o.console, "console", "", "the `file` for the kernel's messages (.cache/vm/console.log)")
	flags.BoolVar(&o.verbose, "verbose", false, "say how long everything took")
	o.mode = guest.Delegate
	if err := flags.Parse(arguments); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			fmt.Print(usage)
			flags.SetOutput(os.Stdout)
			flags.PrintDefaults()
		}
		return o, err
	}
	o.command = flags.Args()
	if o.console == "" {
		o.console = filepath.Join(o.cache, "console.log")
	}
	for _, n := range []struct {
		name             string
		value, low, high int
	}{{"memory", o.memory, 256, 8192}, {"cpus", o.cpus, 1, 8}, {"time-limit", o.limit, 1, 3600}} {
		if n.value < n.low || n.value > n.high {
			return o, fmt.Errorf("--%s is %d: give a number from %d to %d", n.name, n.value, n.low, n.high)
		}
	}
	switch o.accel {
	case "auto", kvm, tcg:
	default:
		return o, fmt.Errorf("--accel is %q: give auto, kvm or tcg", o.accel)
	}
	for _, variable := range o.env {
		if name, _, ok := strings.Cut(variable, "="); !ok || name == "" {
			return o, fmt.Errorf("--env is %q: give NAME=VALUE", variable)
		}
	}
	if o.cache == "" || o.kernel == "" || o.init == "" {
		return o, errors.New("--cache, --kernel and --init are missing: start tests/vm/run")
	}
	if o.mode != guest.Systemd && len(o.places) > 0 {
		return o, errors.New("--place is for a machine with --systemd")
	}
	if o.mode == guest.Systemd && o.debian == "" {
		return o, errors.New("--debian is missing: start tests/vm/run")
	}
	if len(o.command) == 0 {
		return o, errors.New("no command was given: see --help")
	}
	if o.server == "" && len(o.store) == 0 && len(o.path) == 0 {
		return o, errors.New("the machine's store would be empty: give --server, --store or --path")
	}
	return o, nil
}

// boot makes the images, starts the machine and returns the exit status.
func boot(ctx context.Context, o options) (int, error) {
	folder, lock, err := workFolder(o.cache)
	if err != nil {
		return statusMachine, err
	}
	defer lock.Close()
	defer os.RemoveAll(folder)
	say := func(format string, values ...any) {
		if o.verbose {
			fmt.Fprintf(os.Stderr, "vm: "+format+"\n", values...)
		}
	}

	request := guest.Request{
		Mode:    o.mode,
		GPU:     o.gpu,
		Files:   o.files != "",
		Folder:  o.chdir,
		Command: o.command,
		Env:     append([]string{"NIX_SANDBOX_TEST_MACHINE=" + string(o.mode)}, o.env...),
	}
	places, err := placed(o.places)
	if err != nil {
		return statusMachine, err
	}
	request.Places = places
	if o.policy != "" {
		if request.Policy, err = os.ReadFile(o.policy); err != nil {
			return statusMachine, err
		}
	}
	if request.Folder == "" && request.Files {
		request.Folder = "/tests"
	}
	roots, err := resolve(o, &request)
	if err != nil {
		return statusMachine, err
	}
	started := time.Now()
	m := testMachine{memory: o.memory, cpus: o.cpus, gpu: o.gpu}
	if m.store, err = storeImage(ctx, o.cache, folder, roots); err != nil {
		return statusMachine, err
	}
	say("store image: %s", took(started))
	if o.files != "" {
		started = time.Now()
		m.files = filepath.Join(folder, "files.erofs")
		if err := filesImage(ctx, o.files, m.files); err != nil {
			return statusMachine, err
		}
		say("files image: %s", took(started))
	}
	if o.mode == guest.Systemd {
		m.debian = o.debian
	}
	kernel, err := image.OpenKernel(o.kernel, "")
	if err != nil {
		return statusMachine, err
	}
	m.kernel, m.initrd = kernel.Image, filepath.Join(folder, "initrd")
	console, err := os.Create(o.console)
	if err != nil {
		return statusMachine, err
	}
	defer console.Close()

	known := machine.Memory{Folder: o.cache}
	for _, m.accel = range accelerators(o.accel, known) {
		started = time.Now()
		attempt := request
		attempt.Time = started.Unix()
		if m.accel == tcg {
			attempt.Env = append([]string{"NIX_SANDBOX_TEST_PATIENCE=" + slow}, attempt.Env...)
		}
		if err := writeInitrd(ctx, m.initrd, o.init, kernel, attempt); err != nil {
			return statusMachine, err
		}
		say("initial RAM disk: %s", took(started))
		var ended guest.Ended
		ended, err = m.run(ctx, console, os.Stdout, say)
		if errors.Is(err, errNotUp) && m.accel == kvm && o.accel == "auto" {
			say("KVM does not run a machine here (%v)", err)
			if err := known.Remember(machine.Known{Problem: "a machine with KVM does not come up"}); err != nil {
				return statusMachine, err
			}
			continue
		}
		if err != nil {
			status := statusMachine
			if errors.Is(ctx.Err(), context.DeadlineExceeded) {
				status, err = statusTimeLimit, context.Cause(ctx)
			}
			return status, fmt.Errorf("%w; the kernel's messages are in %s", err, o.console)
		}
		if ended.Error != "" {
			return statusMachine, errors.New(ended.Error)
		}
		for _, process := range ended.Left {
			fmt.Fprintln(os.Stderr, "vm: the command left process", process)
		}
		if ended.Status == 0 && len(ended.Left) > 0 {
			return statusLeft, nil
		}
		return ended.Status, nil
	}
	return statusMachine, err
}

// workFolder makes a folder for one run in the cache and removes the folders of
// runs that were killed. Each run locks its own folder, so a folder that can be
// locked belongs to no run.
func workFolder(cache string) (string, *os.File, error) {
	old, err := filepath.Glob(filepath.Join(cache, "run-*"))
	if err != nil {
		return "", nil, err
	}
	for _, name := range old {
		folder, err := os.Open(name)
		if err != nil {
			continue // another run removed it
		}
		if syscall.Flock(int(folder.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil {
			err = os.RemoveAll(name)
		}
		folder.Close()
		if err != nil {
			return "", nil, err
		}
	}
	name, err := os.MkdirTemp(cache, "new-")
	if err != nil {
		return "", nil, err
	}
	folder, err := os.Open(name)
	if err != nil {
		return "", nil, err
	}
	if err := syscall.Flock(int(folder.Fd()), syscall.LOCK_EX); err != nil {
		return "", nil, err
	}
	// Under its name it is locked from the beginning.
	locked := filepath.Join(cache, "run-"+strings.TrimPrefix(filepath.Base(name), "new-"))
	return locked, folder, os.Rename(name, locked)
}

// placed reads the files of FILE=PATH, by their paths.
func placed(places []string) (map[string]string, error) {
	texts := map[string]string{}
	for _, place := range places {
		file, path, ok := strings.Cut(place, "=")
		if !ok || !filepath.IsAbs(path) {
			return nil, fmt.Errorf("--place is %q: give FILE=PATH, with an absolute path", place)
		}
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		texts[path] = string(text)
	}
	return texts, nil
}

// resolve follows the links of everything that the store has to contain, and
// sets the variables of the command in the request.
func resolve(o options, request *guest.Request) ([]string, error) {
	var roots []string
	root := func(path string) (string, error) {
		real, err := filepath.EvalSymlinks(path)
		if err != nil {
			return "", err
		}
		if real, err = filepath.Abs(real); err != nil {
			return "", err
		}
		if !strings.HasPrefix(real, storeFolder+"/") {
			return "", fmt.Errorf("%s is %s, not in %s: give a store path or a link to one", path, real, storeFolder)
		}
		roots = append(roots, real)
		return real, nil
	}
	if o.server != "" {
		server, err := root(o.server)
		if err != nil {
			return nil, err
		}
		request.Env = append([]string{"NIX_SANDBOX_MCP_SERVER=" + server + "/bin/nix-sandbox-mcp"}, request.Env...)
	}
	for _, path := range o.store {
		if _, err := root(path); err != nil {
			return nil, err
		}
	}
	for _, path := range o.path {
		program, err := root(path)
		if err != nil {
			return nil, err
		}
		request.Path = append(request.Path, program+"/bin")
	}
	return roots, nil
}

func took(since time.Time) string { return fmt.Sprintf("%.2f s", time.Since(since).Seconds()) }
