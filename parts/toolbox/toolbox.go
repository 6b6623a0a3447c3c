// Package toolbox is the part of a server with [tools]: code calls them, as far as the catalogue allows.
package toolbox

import (
	"context"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/parts/toolbox/gate"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/call"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/config"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/service"
)

// Add implements [parts.Tools].
func Add(options *service.Options, server *service.Server) error {
	catalog, err := gate.Load(server.Settings.Metadata)
	if err != nil {
		return &config.Error{Problem: "the tools of this server cannot be used: " + err.Error(), Hint: "build the server again, or set what it asks for"}
	}
	if catalog == nil {
		return nil
	}
	tools := gate.New(catalog, server.Log)
	options.Tool.More = tools.Describe
	options.Layers = append(options.Layers, service.Layer{Session: tools, Executor: func(next call.Executor) call.Executor {
		return tools.Executor(next, options.Tool.Observers)
	}})
	server.Go(func(ctx context.Context) {
		<-ctx.Done()
		tools.Close()
	})
	return nil
}
