package resolver

import (
	"errors"
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/network/policy"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/event"
)

// A query whose bytes come slowly ends its session at the time for a whole query,
// and so does a response that nobody takes.
func TestSession_EndsWithASlowClient(t *testing.T) {
	p := must.Get(policy.Parse([]byte(`{"schema":1,"domains":["files.example"],"ports":[443],"private":[],"connections":1,"rate":1,"megabytes":1,"names":1,"upstream":"http://proxy.example:3128"}`)))(t)
	query := []byte("\x00\x1f\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x05files\x07example\x00\x00\x01\x00\x01")
	for name, client := range map[string]func(net.Conn) error{
		"slow bytes": func(conn net.Conn) error {
			for i := range query {
				if _, err := conn.Write(query[i : i+1]); err != nil {
					return err
				}
				time.Sleep(time.Second)
			}
			return nil
		},
		"no byte": func(conn net.Conn) error {
			_, err := conn.Read(make([]byte, 1))
			return err
		},
		"a response that is not read": func(conn net.Conn) error {
			if _, err := conn.Write(query); err != nil {
				return err
			}
			time.Sleep(time.Hour)
			_, err := conn.Read(make([]byte, 1))
			return err
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := NewServer(NewNames(p, nil, nil), func(e event.Event) { t.Errorf("%s: %v", name, e) })
			near, server := net.Pipe()
			began := time.Now()
			var took time.Duration
			s.sessions <- struct{}{}
			go func() {
				s.session(server)
				took = time.Since(began)
			}()
			if err := client(near); !errors.Is(err, io.ErrClosedPipe) && !errors.Is(err, io.EOF) {
				t.Errorf("%s: %v", name, err)
			}
			synctest.Wait()
			if took != queryTimeout || len(s.sessions) != 0 {
				t.Errorf("%s: the session took %v", name, took)
			}
		})
	}
}
