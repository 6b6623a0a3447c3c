package main

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/question"
)

// plain reports whether a text is the name of a package, and no expression.
func plain(text string) bool {
	return text != "" && !strings.ContainsAny(text, " \t\n(){}[];:\"'/<>")
}

func nixShell(args []string) error {
	known := globalFlags.with(flags{
		"--packages": {}, "-p": {}, "--run": {values: 1}, "--command": {values: 1}, "--pure": {}, "--keep": {values: 1}, "-i": {values: 1}, "-A": {values: 1, refuse: expression},
	})
	script := ""
	// A script names its interpreter and packages in lines at its beginning: #!/usr/bin/env nix-shell, and then
	// #! nix-shell -i python3 -p python3 jq.
	if len(args) > 0 && !strings.HasPrefix(args[0], "-") {
		if own := scriptLines(args[0]); own != nil {
			script = args[0]
			args = append(own, append([]string{"--"}, args[1:]...)...)
		}
	}
	l, err := parse(args, known)
	if err != nil {
		return err
	}
	switch {
	case l.has("--version"):
		fmt.Printf("nix-shell (nix-sandbox-mcp) %s\n", version)
		return nil
	case !l.has("-p") && !l.has("--packages"):
		return errors.New("shell.nix and default.nix are not evaluated here: name packages, as in nix-shell -p jq --run COMMAND")
	}
	var installables []string
	for _, word := range l.words {
		if !plain(word) {
			return errors.New(expression)
		}
		installables = append(installables, "nixpkgs#"+strings.TrimPrefix(word, "pkgs."))
	}
	packages, err := add(installables, "build")
	if err != nil {
		return err
	}
	find(packages)
	importable(packages)
	os.Setenv("IN_NIX_SHELL", "impure")
	for _, name := range []string{"--run", "--command"} {
		if values := l.values[name]; len(values) > 0 {
			return start([]string{"bash", "-c", values[0]})
		}
	}
	if script != "" {
		interpreter := "bash"
		if values := l.values["-i"]; len(values) > 0 {
			interpreter = values[0]
		}
		return start(append([]string{interpreter, script}, l.after...))
	}
	return start(nil)
}

// scriptLines returns the arguments in the first lines of a script for nix-shell, or nil for another file.
func scriptLines(path string) (args []string) {
	file, err := os.Open(path)
	if err != nil {
		return nil
	}
	defer file.Close()
	in := bufio.NewScanner(file)
	for n := 0; n < 32 && in.Scan() && strings.HasPrefix(in.Text(), "#!"); n++ {
		if words := strings.Fields(strings.TrimPrefix(in.Text(), "#!")); len(words) > 1 && words[0] == "nix-shell" {
			args = append(args, words[1:]...)
		}
	}
	return args
}

// importable lets Python find the modules of packages and their dependencies, as nix-shell's hooks do.
func importable(packages []question.Added) {
	var folders, paths []string
	for _, one := range packages {
		paths = append(paths, one.Paths...)
	}
	seen := map[string]bool{}
	for len(paths) > 0 {
		path := paths[0]
		if paths = paths[1:]; seen[path] {
			continue
		}
		seen[path] = true
		found, _ := filepath.Glob(path + "/lib/python3*/*-packages") // Debian's have another name
		folders = append(folders, found...)
		text, _ := os.ReadFile(path + "/nix-support/propagated-build-inputs")
		paths = append(paths, strings.Fields(string(text))...)
	}
	if len(folders) > 0 {
		if before := os.Getenv("PYTHONPATH"); before != "" {
			folders = append(folders, before)
		}
		os.Setenv("PYTHONPATH", strings.Join(folders, ":"))
	}
}

func nixBuild(args []string) error {
	l, err := parse(args, globalFlags.with(flags{"-A": {values: 1}, "--attr": {values: 1}, "-o": {values: 1}, "--out-link": {values: 1}, "--no-out-link": {}}))
	if err != nil {
		return err
	}
	var installables []string
	for _, attribute := range append(l.values["-A"], l.values["--attr"]...) {
		installables = append(installables, "nixpkgs#"+attribute)
	}
	if len(l.words) != 1 || l.words[0] != "<nixpkgs>" || len(installables) == 0 {
		return errors.New("only packages of nixpkgs are built here: use nix build nixpkgs#NAME")
	}
	l.values["--print-out-paths"] = nil
	return makeLinks(l, installables)
}

func nixEnv(args []string) error {
	known := globalFlags.with(flags{
		"-i": {}, "-iA": {}, "-A": {}, "--install": {}, "--attr": {}, "-e": {}, "--uninstall": {}, "-q": {}, "--query": {}, "-qa": {}, "-qaP": {}, "-qaA": {}, "-a": {}, "--available": {}, "--description": {}, "-P": {},
		"-f": {values: 1},
	})
	l, err := parse(args, known)
	if err != nil {
		return err
	}
	var installables []string
	for _, word := range l.words {
		for _, set := range []string{"nixpkgs.", "nixos."} {
			word = strings.TrimPrefix(word, set)
		}
		installables = append(installables, "nixpkgs#"+word)
	}
	switch {
	case l.has("--version"):
		fmt.Printf("nix-env (nix-sandbox-mcp) %s\n", version)
		return nil
	case l.has("-e") || l.has("--uninstall"):
		return remove(installables)
	case l.has("-qa") || l.has("-qaP") || l.has("-qaA") || l.has("-a") || l.has("--available"):
		return show(l.words, false)
	case l.has("-q") || l.has("--query"):
		return list(nil)
	case len(installables) > 0 && (l.has("-i") || l.has("-iA") || l.has("--install") || l.has("-A")):
		return install(installables)
	}
	return errors.New("this does not work here: use nix-env -iA nixpkgs.NAME, nix-env -q or nix-env -e NAME")
}
