package program

import (
	"cmp"
	"encoding/json"
	"errors"
	"io"
	"net"
	"syscall"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/config"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/machine"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/registry"
)

// check prints findings about HTTP for the command doctor, in the form of an artifact's bin/check.
func check(out io.Writer) error {
	settings, base, err := config.Load()
	if err != nil {
		return err
	}
	return json.NewEncoder(out).Encode(map[string]any{"findings": findings(settings, base.Serve)})
}

// findings returns nil if there are only default settings: then HTTP is probably not used.
func findings(settings config.Config, serve *registry.Serve) []machine.Finding {
	if serve == nil {
		return nil
	}
	tokens, address := cmp.Or(settings.TokenFile, serve.TokenFile), cmp.Or(settings.HTTP, serve.Listen)
	if tokens == "" && settings.HTTP == "" && serve.Proxy == nil && serve.OAuth == nil {
		return nil
	}
	f := &front{serve: serve}
	callers := machine.Of("callers", f.readCallers(tokens))
	if callers.OK {
		callers.Found = f.callers()
	}
	all := []machine.Finding{callers}
	// A socket cannot be checked without making it.
	if _, _, err := net.SplitHostPort(address); err != nil {
		return all
	}
	listener, err := listen(address, len(f.chain) > 0)
	at := machine.Of("address", err)
	if at.OK {
		at.Found = address + " is free"
		listener.Close()
	} else if errors.Is(err, syscall.EADDRINUSE) {
		at.Found, at.Fix = address+" is in use", "leave it so if the server listens there; otherwise end the program that does, or choose another address"
	}
	// A running server has its address.
	at.Needed = !errors.Is(err, syscall.EADDRINUSE)
	return append(all, at)
}
