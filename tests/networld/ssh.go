package networld

import (
	"crypto/ed25519"
	"crypto/rand"
	"io"
	"net"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/crypto/ssh"
)

// serveSSH lets everybody in, to clone the repository and for nothing else.
func (w *World) serveSSH(conn net.Conn) {
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return
	}
	signer, err := ssh.NewSignerFromKey(key)
	if err != nil {
		return
	}
	config := &ssh.ServerConfig{NoClientAuth: true, ServerVersion: "SSH-2.0-networld"}
	config.AddHostKey(signer)
	conn.SetDeadline(time.Now().Add(clientTimeout))
	server, channels, requests, err := ssh.NewServerConn(conn, config)
	if err != nil {
		return
	}
	defer server.Close()
	go ssh.DiscardRequests(requests) // ends with the connection
	for asked := range channels {
		if asked.ChannelType() != "session" {
			asked.Reject(ssh.UnknownChannelType, "there are sessions only")
			continue
		}
		channel, requests, err := asked.Accept()
		if err != nil {
			return
		}
		w.tasks.Go(func() { w.serveSession(channel, requests) })
	}
}

func (w *World) serveSession(channel ssh.Channel, requests <-chan *ssh.Request) {
	defer channel.Close()
	for request := range requests {
		if request.Type != "exec" {
			request.Reply(request.Type == "env", nil)
			continue
		}
		var command struct{ Line string }
		err := ssh.Unmarshal(request.Payload, &command)
		request.Reply(err == nil, nil)
		status := byte(1)
		if err == nil && w.runSSH(channel, command.Line) == nil {
			status = 0
		}
		channel.SendRequest("exit-status", false, []byte{0, 0, 0, status})
		return
	}
}

// runSSH is what a command of a session does: git's server, or a greeting.
func (w *World) runSSH(channel ssh.Channel, line string) error {
	if !strings.HasPrefix(line, "git-upload-pack ") {
		_, err := io.WriteString(channel, Greeting+"\n")
		return err
	}
	folder, err := w.repository()
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(w.stopped, "git", "upload-pack", filepath.Join(folder, "hello.git"))
	cmd.Env = append(gitEnvironment(w.dir), "GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=safe.directory", "GIT_CONFIG_VALUE_0=*")
	cmd.Stdout, cmd.Stderr = channel, io.Discard
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	w.tasks.Go(func() { // ends with the channel, which the caller closes
		io.Copy(stdin, channel)
		stdin.Close()
	})
	return cmd.Run()
}
