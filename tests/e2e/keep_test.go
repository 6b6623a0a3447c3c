package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/mcptest"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/patience"
)

// keeping starts a server that keeps the files of sessions in a state folder.
func keeping(t testing.TB, state string, variables ...string) *mcptest.Client {
	t.Helper()
	return start(t, append(variables, "SESSION_KEEP_FILES=1", "XDG_STATE_HOME="+state)...)
}

// end ends a server as a client does, and waits for it.
func end(t testing.TB, c *mcptest.Client) {
	t.Helper()
	c.CloseInput()
	if status := c.Wait(patience.For(10 * time.Second)); status != 0 {
		t.Errorf("the server ended with status %d", status)
	}
}

// everyKind makes an entry of every kind that is kept, and describe prints all of them.
const (
	everyKind = `
mkdir -p deep/er 'odd
name'; printf 'é\0binary' >deep/er/data; printf x >"$(printf 'bytes\377')"
ln -s /etc/passwd absolute; ln -s ../../.. out; ln -s nowhere dangling
ln deep/er/data second; mkfifo pipe
printf '#!/bin/sh\necho ran\n' >tool; chmod 755 tool; chmod 1770 deep; : >empty
truncate -s 1T sparse; printf end | dd of=sparse bs=1 seek=1000000000 conv=notrunc status=none
touch -d '2001-02-03 04:05:06.789' tool; chmod 500 deep/er; mkdir -p gone; : >gone/file
`
	describe = `find . -mindepth 1 -printf '%P %y %m %s %l %n ' \( -type f -printf '%T@' -o -true \) -printf '\0' | LC_ALL=C sort -z | grep -azv '^outputs ' | tr '\0' '|'; echo; cat deep/er/data | od -c; ./tool; tail -c +1000000001 sparse | head -c 3`
)

// What a session left is there again in the next server, for the same environment
// alone, and then goes on being kept.
func TestKeep_SurvivesTheServer(t *testing.T) {
	t.Parallel()
	state := t.TempDir()
	c := keeping(t, state)
	in(c, "s", "bash", "x=1;"+everyKind)
	in(c, "s", "bash", "rm -r gone; mkdir replaced; : >replaced/file; y=2")
	in(c, "s", "bash", "rm -r replaced; : >replaced; echo more >>deep/er/data")
	want := in(c, "s", "bash", describe)
	if want.IsError || !strings.Contains(want.Text(), "ran\nend") || strings.Contains(want.Text(), "gone") {
		t.Fatalf("answer %q", want.Text())
	}
	in(c, "s2", "python", "open('f','w').write('python')")
	end(t, c)

	c = keeping(t, state)
	answer := in(c, "s", "bash", describe+"; echo $x")
	if answer.IsError || !strings.HasPrefix(answer.Text(), want.Text()+"\n") {
		t.Errorf("answer\n%q\nwant\n%q", answer.Text(), want.Text())
	}
	if !strings.Contains(answer.Text(), "[new session: the earlier one has ended; its variables are gone, its files in /workspace are kept (") {
		t.Errorf("answer %q", answer.Text())
	}
	expect(t, in(c, "s2", "bash", "ls -A"), "outputs\n")
	in(c, "s", "bash", "chmod -R u+w deep; rm -r deep; echo 2 >second")
	end(t, c)

	c = keeping(t, state)
	if answer := in(c, "s", "bash", "ls; cat second"); answer.IsError || strings.Contains(answer.Text(), "deep") || !strings.Contains(answer.Text(), "tool\n2\n[") {
		t.Errorf("answer %q", answer.Text())
	}
	if answer := in(c, "s2", "python", "open('f').read()"); !strings.HasPrefix(answer.Text(), "'python'\n") {
		t.Errorf("answer %q", answer.Text())
	}
}

// A server that is killed leaves the files as of its last answered call but one, at
// worst.
func TestKeep_SurvivesAKill(t *testing.T) {
	t.Parallel()
	state := t.TempDir()
	c := keeping(t, state)
	for i := range 3 {
		in(c, "s", "bash", fmt.Sprintf("echo %d >n", i))
	}
	c.Signal(syscall.SIGKILL)
	c.Wait(patience.For(10 * time.Second))
	c = keeping(t, state)
	if answer := in(c, "s", "bash", "cat n"); answer.IsError || answer.Text()[0] < '1' || answer.Text()[0] > '2' {
		t.Errorf("answer %q", answer.Text())
	}
}

// A session that ended for its idle time has its files.
func TestKeep_SurvivesIdleTime(t *testing.T) {
	t.Parallel()
	c := keeping(t, t.TempDir(), "SESSION_IDLE_TIMEOUT=1")
	in(c, "s", "python", "x = 1; open('f', 'w').write('file')")
	patience.Until(t, "the end of the session", func() bool { return strings.Contains(c.Log(), "session ended") })
	answer := in(c, "s", "python", "print(open('f').read(), 'x' in globals())")
	if want := "file False\n[new session: the earlier one ended after 1 s idle; its variables are gone, its files in /workspace are kept (2, "; !strings.HasPrefix(answer.Text(), want) {
		t.Errorf("answer %q", answer.Text())
	}
}

// Nothing is written unless it is asked for.
func TestKeep_IsOffByDefault(t *testing.T) {
	t.Parallel()
	for name, variables := range map[string][]string{"unset": nil, "off": {"SESSION_KEEP_FILES=0"}} {
		t.Run(name, func(t *testing.T) {
			home := t.TempDir()
			for _, state := range []string{"", "XDG_STATE_HOME=" + filepath.Join(home, "state")} {
				c := start(t, append(variables, "HOME="+home, state)...)
				in(c, "s", "bash", "echo 1 >f")
				expect(t, in(c, "s", "bash", "cat f"), "1\n")
				end(t, c)
				c = start(t, append(variables, "HOME="+home, state)...)
				expectError(t, in(c, "s", "bash", "cat f"), "No such file")
				end(t, c)
			}
			for _, folder := range []string{"state", ".local"} {
				if _, err := os.Lstat(filepath.Join(home, folder)); !os.IsNotExist(err) {
					t.Errorf("%s: %v", folder, err)
				}
			}
		})
	}
}
