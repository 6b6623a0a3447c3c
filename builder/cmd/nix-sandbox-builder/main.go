// Command nix-sandbox-builder builds with Nix beside a server. The server's start script starts it
// (nix/wrapper/start.sh), with its plan first on its standard input. It listens for orders at
// FOLDER/.orders (package order), and ends when its standard input does, which the server holds open: however that
// ends, this ends with all that it started, and removes FOLDER.
//
//	nix-sandbox-builder -folder FOLDER -cache FOLDER -start FILE -shell PROGRAM -scripts FOLDER [-watch FILE]
package main

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"sync"
	"syscall"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/builder"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/order"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintf(os.Stderr, "nix-sandbox-mcp: error: nothing is built: %v\n", err)
		os.Exit(1)
	}
}

func run() error {
	folder := flag.String("folder", "", "the folder of this start, which it removes at its end")
	cache := flag.String("cache", "", "the folder of results for later starts")
	start := flag.String("start", "", "the file with the expressions of the server")
	shell := flag.String("shell", "", "the program of bash")
	scripts := flag.String("scripts", "", "the folder of start.sh and project.sh")
	watch := flag.String("watch", "", "a configuration that is read again when it changes")
	flag.Parse()
	defer os.RemoveAll(*folder)
	// Signals may be meant for the server, which has the same process group. What is started would inherit that they are
	// ignored.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGINT, syscall.SIGHUP, syscall.SIGTERM)
	builder.WithoutPrograms()
	in := bufio.NewReader(os.Stdin)
	plan, err := builder.ReadPlan(in)
	if err != nil {
		return err
	}
	listener, err := order.Listen(filepath.Join(*folder, ".orders"))
	if err != nil {
		return err
	}
	ctx, end := context.WithCancel(context.Background())
	go func() {
		_, _ = io.Copy(io.Discard, in)
		end()
	}()
	nix := &builder.Nix{Start: *start, Log: os.Stderr}
	project := []string{*shell, filepath.Join(*scripts, "project.sh")}
	environments := builder.NewEnvironments(builder.Environments{
		Nix: nix, Folder: *folder, Cache: *cache, Watched: *watch,
		Replan:   []string{*shell, "-c", `. "$0"; replan`, filepath.Join(*scripts, "start.sh")},
		Evaluate: append(slices.Clone(project), "project"),
	}, plan)
	var running sync.WaitGroup
	running.Go(func() { environments.Run(ctx) })
	orders := builder.New(nix, filepath.Join(*cache, "packages"), environments.Again)
	orders.AllowFlakes(project, *folder)
	err = orders.Serve(ctx, listener)
	running.Wait()
	return err
}
