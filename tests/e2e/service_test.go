package e2e

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/httpclient"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/mcpclient"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/mcptest"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/patience"
)

// tests/vm/suite places the units of deploy/ in the machine with systemd, and a file of
// tokens with the hash of this one.
const (
	serviceURL   = "http://127.0.0.1:8080/mcp"
	serviceToken = "nsm_for-the-service-of-the-tests"
)

// The service in deploy/, with all of its hardening, is started by the first connection
// to its socket. Its sandboxes start, are held by control groups, and see another user's
// token as nobody's.
func TestServiceWithSystemd_RunsSandboxes(t *testing.T) {
	managed(t)
	ctx, cancel := context.WithTimeout(t.Context(), patience.For(time.Minute))
	defer cancel()
	stranger := &httpclient.Client{URL: serviceURL, Version: mcptest.Newest, Token: serviceToken + "x"}
	var status *httpclient.StatusError
	if err := stranger.Initialize(ctx); !errors.As(err, &status) || status.Status != http.StatusUnauthorized {
		t.Fatalf("an unknown token: error %v, want status 401", err)
	}
	for _, version := range []string{mcptest.Newest, mcpclient.Stateless} {
		t.Run(version, func(t *testing.T) {
			client := &httpclient.Client{URL: serviceURL, Version: version, Token: serviceToken}
			must.Do(t, client.Initialize(ctx))
			first := must.Get(client.Run(ctx, mcpclient.Arguments{Env: "bash", Code: "x=$((6 * 7)); id -u", Session: "s" + version}))(t)
			if first.IsError || first.Fact("limits_by") != "cgroup" {
				t.Errorf("%q with facts %v, want limits by the control group", first.Text(), first.Meta)
			}
			again := must.Get(client.Run(ctx, mcpclient.Arguments{Env: "bash", Code: "echo $x", Session: "s" + version}))(t)
			if strings.TrimSpace(again.Text()) != "42" {
				t.Errorf("the session answered %q", again.Text())
			}
		})
	}
}
