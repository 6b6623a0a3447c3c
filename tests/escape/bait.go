package escape

import (
	"bufio"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/creack/pty"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/procfs"
)

// baits are the functions that make baits, by the names of the "with" directive.
// The README lists the variables that each bait gives to the attempt.
var baits = map[string]func(*scene) error{}

// The map refers to functions that refer to it through newScene, which the
// language takes for a loop in a literal.
func init() {
	baits = map[string]func(*scene) error{
		"canary":      canary,
		"drop":        drop,
		"temporary":   temporary,
		"tcp":         tcp,
		"udp":         udp,
		"unix":        unixSocket,
		"abstract":    abstract,
		"victim":      victim,
		"group":       group,
		"init":        initProcess,
		"survivor":    survivor,
		"sysv":        sysv,
		"mqueue":      mqueue,
		"keyring":     keyring,
		"tty":         tty,
		"descriptors": descriptors,
		"environment": environment,
		"loader":      loader,
		"path":        searchPath,
		"project":     project,
		"oddproject":  oddProject,
		"takeover":    takeover,
		"store":       store,
		"frames":      frames,
		"world":       world,
		"channel":     channel,
		"proxy":       proxy,
		"listening":   listening,
	}
}

// canary is a file with a secret.
func canary(s *scene) error {
	path, err := s.write("canary", s.secret+"\n", 0o644)
	s.vars["CANARY"] = path
	return err
}

// drop is an empty folder of the host.
func drop(s *scene) error {
	path := filepath.Join(s.dir, "drop")
	s.vars["DROP"] = path
	return os.Mkdir(path, 0o777)
}

// temporary is a file with a secret in each of the host's folders for
// everybody's temporary files.
func temporary(s *scene) error {
	for _, folder := range []string{"/tmp", "/var/tmp", "/dev/shm"} {
		path := filepath.Join(folder, s.mark)
		if err := os.WriteFile(path, []byte(s.secret+"\n"), 0o644); err != nil {
			continue // not every machine has all of them
		}
		s.closers = append(s.closers, func() { os.Remove(path) })
	}
	if _, err := os.Stat(filepath.Join("/dev/shm", s.mark)); err != nil {
		return errLacking("no /dev/shm to write to")
	}
	s.vars["TEMPORARY"] = s.mark
	return nil
}

// greet accepts connections, at most 64, and tells each the secret.
func (s *scene) greet(listener net.Listener, what string) {
	var count atomic.Int32
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range 64 {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			count.Add(1)
			io.WriteString(conn, s.secret+"\n")
			conn.Close()
		}
	}()
	s.closers = append(s.closers, func() { listener.Close(); <-done })
	s.checks = append(s.checks, func() string {
		if count.Load() == 0 {
			return ""
		}
		return "a connection reached the host's " + what
	})
}

// tcp is a listener on both loopback addresses.
func tcp(s *scene) error {
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return err
	}
	s.greet(listener, "127.0.0.1")
	port := listener.Addr().(*net.TCPAddr).Port
	s.vars["PORT"] = port
	// Not every machine has ::1.
	if six, err := net.Listen("tcp6", fmt.Sprintf("[::1]:%d", port)); err == nil {
		s.greet(six, "::1")
	}
	return nil
}

// udp is a socket on 127.0.0.1 that answers every datagram with the secret.
func udp(s *scene) error {
	conn, err := net.ListenPacket("udp4", "127.0.0.1:0")
	if err != nil {
		return err
	}
	var count atomic.Int32
	done := make(chan struct{})
	go func() {
		defer close(done)
		buf := make([]byte, 512)
		for range 64 {
			_, from, err := conn.ReadFrom(buf)
			if err != nil {
				return
			}
			count.Add(1)
			conn.WriteTo([]byte(s.secret), from)
		}
	}()
	s.closers = append(s.closers, func() { conn.Close(); <-done })
	s.checks = append(s.checks, func() string {
		if count.Load() == 0 {
			return ""
		}
		return "a datagram reached the host's 127.0.0.1"
	})
	s.vars["PORT"] = conn.LocalAddr().(*net.UDPAddr).Port
	return nil
}

// unixSocket is a socket by path.
func unixSocket(s *scene) error {
	path := filepath.Join(s.dir, "socket")
	listener, err := net.Listen("unix", path)
	if err != nil {
		return err
	}
	s.greet(listener, "Unix socket")
	s.vars["SOCKET"] = path
	return nil
}

// abstract is a socket by abstract name.
func abstract(s *scene) error {
	listener, err := net.Listen("unix", "@"+s.mark)
	if err != nil {
		return err
	}
	s.greet(listener, "abstract Unix socket")
	s.vars["ABSTRACT"] = s.mark
	return nil
}

// victimScript says each SIGWINCH, which hurts nobody else, and ends with
// what it waits for, which is longer than an attempt in an emulated machine.
const victimScript = `trap 'echo signal' WINCH; sleep 900 & while kill -0 $!; do wait $!; done 2>/dev/null`

// startVictim starts a process of the host with a secret in its arguments,
// its environment and its descriptor 3, and watches what is done to it.
func (s *scene) startVictim(attr *syscall.SysProcAttr) (int, error) {
	shell, err := exec.LookPath("sh")
	if err != nil {
		return 0, errLacking("no sh for a victim")
	}
	return s.startVictimOf(shell, attr)
}

// startVictimOf is startVictim with a shell of the caller's.
func (s *scene) startVictimOf(shell string, attr *syscall.SysProcAttr) (int, error) {
	secret, err := s.write("victim", s.secret+"\n", 0o644)
	if err != nil {
		return 0, err
	}
	file, err := os.OpenFile(secret, os.O_RDWR, 0)
	if err != nil {
		return 0, err
	}
	defer file.Close()
	cmd := exec.Command(shell, "-c", victimScript, "victim", s.secret)
	cmd.Env = append(os.Environ(), "VICTIM="+s.secret)
	cmd.ExtraFiles = []*os.File{file}
	cmd.SysProcAttr = attr
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return 0, err
	}
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	pid := cmd.Process.Pid
	var signals atomic.Int32
	var gone atomic.Bool
	done := make(chan struct{})
	go func() {
		defer close(done)
		lines := bufio.NewScanner(stdout)
		for lines.Scan() {
			signals.Add(1)
		}
		gone.Store(true)
	}()
	s.closers = append(s.closers, func() {
		syscall.Kill(-pid, syscall.SIGKILL)
		<-done
		cmd.Wait()
	})
	// So that there is something to lower where all this runs with the lowest
	// priority; root alone may.
	_ = syscall.Setpriority(syscall.PRIO_PROCESS, pid, 0)
	nice, _ := syscall.Getpriority(syscall.PRIO_PROCESS, pid)
	s.checks = append(s.checks, func() string {
		// The victim says what it got a moment after it got it. A control is
		// known to have reached it, and is waited for on a busy machine.
		rounds := 10
		if !s.inside {
			rounds = 400
		}
		for range rounds {
			state := processState(pid)
			now, err := syscall.Getpriority(syscall.PRIO_PROCESS, pid)
			switch {
			case signals.Load() > 0:
				return "a signal reached a process of the host"
			case gone.Load(), state == "Z", state == "":
				return "a process of the host was ended"
			case state == "T", state == "t":
				return "a process of the host was stopped"
			case err == nil && now != nice:
				return "a process of the host has another priority"
			}
			time.Sleep(5 * time.Millisecond)
		}
		return ""
	})
	// Only when the trap is set may signals come.
	return pid, awaitChild(pid)
}

// awaitChild waits until a process has started another.
func awaitChild(pid int) error {
	for range 400 {
		if len(procfs.Descendants(pid)) > 0 {
			return nil
		}
		time.Sleep(5 * time.Millisecond)
	}
	return fmt.Errorf("process %d has no child after 2 s", pid)
}

// processState returns the letter that stands for it, or nothing where there
// is no such process.
func processState(pid int) string {
	p, _ := procfs.Read(pid)
	return p.State
}

// victim is a process of the host.
func victim(s *scene) error {
	pid, err := s.startVictim(&syscall.SysProcAttr{Setsid: true})
	s.vars["VICTIM"] = pid
	return err
}

// group is a process of the host in whose group bin/run is started, as a
// shell without job control would.
func group(s *scene) error {
	pid, err := s.startVictim(&syscall.SysProcAttr{Setpgid: true})
	s.vars["VICTIM"] = pid
	s.group = pid
	return err
}

// initProcess is pid 1 inside and, for the control or where the sandbox shows
// the host's processes, a process of the host in its place: nothing is ever
// tried on the host's own pid 1.
func initProcess(s *scene) error {
	if s.inside && !s.open {
		s.vars["INIT"] = 1
		return nil
	}
	pid, err := s.startVictim(&syscall.SysProcAttr{Setsid: true})
	s.vars["INIT"] = pid
	return err
}

// survivor has the scene searched for a process with the scene's mark after the end.
func survivor(s *scene) error {
	s.left = true
	return nil
}

// tty makes a new terminal the controlling one of bin/run, and its stderr.
func tty(s *scene) error {
	master, terminal, err := pty.Open()
	if err != nil {
		return errLacking("no terminal can be made: " + err.Error())
	}
	output := &terminalReader{done: make(chan struct{})}
	go output.read(master)
	s.closers = append(s.closers, func() { terminal.Close(); master.Close(); <-output.done })
	s.tty, s.hear = terminal, output.copy
	s.vars["TERMINAL"] = terminal.Name()
	return nil
}

// terminalReader keeps the beginning of what is written to a terminal.
type terminalReader struct {
	mu   sync.Mutex
	kept []byte
	done chan struct{}
}

func (t *terminalReader) read(master *os.File) {
	defer close(t.done)
	buf := make([]byte, 4096)
	for {
		n, err := master.Read(buf)
		t.mu.Lock()
		t.kept = append(t.kept, buf[:min(n, keepOutput-len(t.kept))]...)
		t.mu.Unlock()
		if err != nil {
			return
		}
	}
}

// copy hands on what has come so far: a terminal is read as it is written,
// so what an ended program wrote is there after a moment.
func (t *terminalReader) copy(w io.Writer) {
	time.Sleep(20 * time.Millisecond)
	t.mu.Lock()
	defer t.mu.Unlock()
	w.Write(t.kept)
}

// descriptors are a file, a folder, a listener and a pipe that bin/run
// inherits.
func descriptors(s *scene) error {
	path, err := s.write("inherited/file", s.secret+"\n", 0o644)
	if err != nil {
		return err
	}
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	s.closers = append(s.closers, func() { file.Close() })
	folder, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	s.closers = append(s.closers, func() { folder.Close() })
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return err
	}
	s.closers = append(s.closers, func() { listener.Close() })
	socket, err := listener.(*net.TCPListener).File()
	if err != nil {
		return err
	}
	s.closers = append(s.closers, func() { socket.Close() })
	reader, writer, err := os.Pipe()
	if err != nil {
		return err
	}
	s.closers = append(s.closers, func() { writer.Close(); reader.Close() })
	s.checks = append(s.checks, func() string {
		reader.SetReadDeadline(time.Now().Add(time.Millisecond))
		buf := make([]byte, 4096)
		if n, _ := reader.Read(buf); n > 0 {
			return "bytes came through an inherited pipe"
		}
		return ""
	})
	s.files = append(s.files, file, folder, socket, writer)
	return nil
}

// environment is a secret in the environment of bin/run.
func environment(s *scene) error {
	s.env = append(s.env, "ESCAPE_SECRET="+s.secret, "AWS_SECRET_ACCESS_KEY="+s.secret,
		"SSH_AUTH_SOCK="+s.secret, "http_proxy="+s.secret)
	return nil
}

// loader makes every dynamic program that sees the environment of bin/run
// write a file on the host.
func loader(s *scene) error {
	if err := drop(s); err != nil {
		return err
	}
	s.env = append(s.env, "LD_DEBUG=libs", "LD_DEBUG_OUTPUT="+filepath.Join(s.dir, "drop", "loader"))
	return nil
}

// searchPath puts false programs before all others of bin/run's PATH; each
// leaves a file on the host.
func searchPath(s *scene) error {
	if err := drop(s); err != nil {
		return err
	}
	script := fmt.Sprintf("#!/bin/sh\n: >%s/drop/$$\n", s.dir)
	for _, name := range []string{"bwrap", "bash", "sh", "env", "python3", "node", "nix-sandbox-agent", "nix-sandbox-jail"} {
		if _, err := s.write("false/"+name, script, 0o755); err != nil {
			return err
		}
	}
	s.env = append(s.env, "PATH="+filepath.Join(s.dir, "false")+":"+os.Getenv("PATH"))
	return nil
}

// mount is where a project is seen inside.
const mount = "/project"

// setProject gives a folder of the host as project.
func (s *scene) setProject(folder string) {
	s.env = append(s.env, "PROJECT_DIR="+folder)
	s.vars["PROJECT"], s.vars["LAID_OVER"] = folder, 0
	if s.inside {
		s.vars["PROJECT"] = mount
		if os.Getenv("PROJECT_MODE") == "overlay" {
			s.vars["LAID_OVER"] = 1
		}
	}
}

// project is a folder in which somebody has planted what might carry a
// sandbox out of it.
func project(s *scene) error {
	if err := canary(s); err != nil {
		return err
	}
	folder := filepath.Join(s.dir, "project")
	if _, err := s.write("project/file", "content\n", 0o666); err != nil {
		return err
	}
	if _, err := s.write("project/sub/deep/file", "content\n", 0o666); err != nil {
		return err
	}
	at := func(name string) string { return filepath.Join(folder, name) }
	if err := errors.Join(
		os.Chmod(folder, 0o777),
		os.Symlink(filepath.Join(s.dir, "canary"), at("absolute")),
		os.Symlink("../canary", at("relative")),
		os.Symlink("../../../canary", at("sub/deep/up")),
		os.Symlink(s.dir, at("folder")),
		os.Symlink("hop2", at("hop1")),
		os.Symlink("sub/../hop3", at("hop2")),
		os.Symlink("folder/canary", at("hop3")),
		os.Symlink("/proc/self/root"+filepath.Join(s.dir, "canary"), at("through-proc")),
		os.Symlink("/", at("root")),
		os.Link(filepath.Join(s.dir, "canary"), at("hardlink")),
		syscall.Mkfifo(at("fifo"), 0o666),
		os.Chmod(at("fifo"), 0o666),
	); err != nil {
		return err
	}
	// Only root makes devices; the attempt says what it lacks without one.
	const zero = 1<<8 | 5 // major 1, minor 5
	_ = syscall.Mknod(at("zero"), syscall.S_IFCHR|0o666, zero)

	listener, err := net.Listen("unix", at("socket"))
	if err != nil {
		return err
	}
	s.greet(listener, "Unix socket in the project")

	// Open at both ends, so that opening it never waits.
	fifo, err := os.OpenFile(at("fifo"), os.O_RDWR|syscall.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	s.closers = append(s.closers, func() { fifo.Close() })
	s.checks = append(s.checks, func() string {
		fifo.SetReadDeadline(time.Now().Add(time.Millisecond))
		buf := make([]byte, 4096)
		if n, _ := fifo.Read(buf); n > 0 {
			return "bytes came through a FIFO in the project"
		}
		return ""
	})
	s.setProject(folder)
	return nil
}

// oddProject is a project whose name a shell would obey: it would make a
// file where it runs.
func oddProject(s *scene) error {
	name := "a b;echo>pwned;$(echo>pwned)`echo>pwned`\n' \" --cap-add ALL #"
	folder := filepath.Join(s.dir, name)
	if err := os.Mkdir(folder, 0o755); err != nil {
		return err
	}
	s.vars["START"] = s.launch
	s.setProject(folder)
	return nil
}

// takeover plants, in the project, files that interpreters run before the
// code that they are given, if told by the environment or the folder in
// which they start. Each shows the secret. It comes after project.
func takeover(s *scene) error {
	folder := filepath.Join(s.dir, "project")
	for name, content := range map[string]string{
		"sitecustomize.py": "import os; os.write(1, b'SECRET\\n')\n",
		"usercustomize.py": "import os; os.write(1, b'SECRET\\n')\n",
		"contextlib.py":    "import os; os.write(1, b'SECRET\\n')\n",
		"json.py":          "import os; os.write(1, b'SECRET\\n')\n",
		"planted.pth":      "import os; os.write(1, b'SECRET\\n')\n",
		".bashrc":          "echo SECRET\n",
		".bash_profile":    "echo SECRET\n",
		".profile":         "echo SECRET\n",
		"bash_env":         "echo SECRET\n",
		"require.js":       "process.stdout.write('SECRET\\n')\n",
		"package.json":     `{"name":"planted","main":"require.js","type":"commonjs"}` + "\n",

		"node_modules/planted/index.js": "process.stdout.write('SECRET\\n')\n",
	} {
		if _, err := s.write("project/"+name, strings.ReplaceAll(content, "SECRET", s.secret), 0o644); err != nil {
			return err
		}
	}
	seen, _ := s.vars["PROJECT"].(string)
	s.vars["START"] = folder
	s.launch = folder
	s.env = append(s.env,
		"PYTHONPATH="+seen, "PYTHONSTARTUP="+seen+"/sitecustomize.py", "PYTHONUSERBASE="+seen,
		"BASH_ENV="+seen+"/bash_env", "ENV="+seen+"/bash_env", "BASH_FUNC_command%%=() { echo "+s.secret+"; }",
		"NODE_OPTIONS=--require="+seen+"/require.js", "NODE_PATH="+seen+"/node_modules")
	return nil
}

// store is the Nix store as the host has it; for the control, a folder laid
// out like it, because what is tried there would succeed.
func store(s *scene) error {
	if s.inside {
		s.vars["STORE"], s.vars["NIXVAR"] = "/nix/store", "/nix/var/nix"
		return nil
	}
	for _, name := range []string{"0000-secret.drv", ".links/0000", "1111-other/file"} {
		if _, err := s.write("store/"+name, s.secret+"\n", 0o644); err != nil {
			return err
		}
	}
	if _, err := s.write("var/db/db.sqlite", s.secret+"\n", 0o644); err != nil {
		return err
	}
	path := filepath.Join(s.dir, "var/daemon-socket/socket")
	if err := os.Mkdir(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	listener, err := net.Listen("unix", path)
	if err != nil {
		return err
	}
	s.greet(listener, "Nix daemon")
	s.vars["STORE"], s.vars["NIXVAR"] = filepath.Join(s.dir, "store"), filepath.Join(s.dir, "var")
	return nil
}

// frames are frames that only an agent may send, in hexadecimal.
func frames(s *scene) error {
	s.vars["FORGED"] = hex.EncodeToString(forgery(s.token))
	return nil
}

// ipcKey is a random key for System V objects, never IPC_PRIVATE.
func ipcKey() int { return 1 + rand.IntN(1<<30) }
