package main

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"syscall"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/question"
)

const (
	// socket is that of the agent (package agent/asking).
	socket = "@nix-sandbox-tools"
	// maxAnswer bounds an answer, in bytes.
	maxAnswer = 4 << 20
)

// ask puts a question to the server.
func ask(q question.Question, result any) error {
	text, err := json.Marshal(map[string]question.Question{"nix": q})
	if err != nil {
		return err
	}
	fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err == nil {
		err = syscall.Connect(fd, &syscall.SockaddrUnix{Name: socket})
	}
	if err != nil {
		return fmt.Errorf("the server of this sandbox cannot be asked for packages: %w", err)
	}
	conn := os.NewFile(uintptr(fd), "server")
	defer conn.Close()
	if _, err := conn.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(text))), text...)); err != nil {
		return fmt.Errorf("ask the server: %w", err)
	}
	header := make([]byte, 4)
	if _, err := io.ReadFull(conn, header); err != nil {
		return errors.New("the server did not answer, because the call of run ended")
	}
	size := binary.BigEndian.Uint32(header)
	if size > maxAnswer {
		return errors.New("the server's answer is too large")
	}
	var answer bytes.Buffer
	if _, err := io.CopyN(&answer, conn, int64(size)); err != nil {
		return fmt.Errorf("the server's answer: %w", err)
	}
	var read struct {
		Result json.RawMessage `json:"result"`
		Error  *struct {
			Message string `json:"message"`
		} `json:"error"`
	}
	if err := json.Unmarshal(answer.Bytes(), &read); err != nil {
		return fmt.Errorf("the server's answer: %w", err)
	}
	if read.Error != nil {
		return errors.New(read.Error.Message)
	}
	return json.Unmarshal(read.Result, result)
}

func search(args []string) error {
	l, err := parse(args, globalFlags.with(flags{"--exclude": {values: 1}, "-e": {values: 1}}))
	if err != nil {
		return err
	}
	if len(l.words) > 0 && !strings.HasPrefix(l.words[0], "nixpkgs") {
		return fmt.Errorf("only nixpkgs can be searched: use nix search nixpkgs %s", strings.Join(l.words, " "))
	}
	if len(l.words) < 2 {
		return errors.New("no word is given: use nix search nixpkgs WORD")
	}
	return show(l.words[1:], l.has("--json"))
}

// show prints the packages with words in their names.
func show(words []string, asJSON bool) error {
	for i, word := range words {
		words[i] = strings.Trim(word, "^$.*")
	}
	var answer question.List
	if err := ask(question.Question{Search: words}, &answer); err != nil {
		return err
	}
	const set = "legacyPackages."
	if asJSON {
		all := map[string]question.Found{}
		for _, one := range answer.Packages {
			all[set+one.Name] = one
		}
		return json.NewEncoder(os.Stdout).Encode(all)
	}
	if len(answer.Packages) == 0 {
		return fmt.Errorf("no package has %q in its name: try another word", strings.Join(words, " "))
	}
	for _, one := range answer.Packages {
		fmt.Printf("* nixpkgs#%s", one.Name)
		if one.Version != "" {
			fmt.Printf(" (%s)", one.Version)
		}
		fmt.Println()
		if one.Description != "" {
			fmt.Printf("  %s\n", one.Description)
		}
	}
	if answer.More > 0 {
		fmt.Printf("\nand %d more: use a longer word\n", answer.More)
	}
	return nil
}

func eval(args []string) error {
	l, err := parse(args, globalFlags)
	if err != nil {
		return err
	}
	if len(l.words) != 1 {
		return errors.New("use nix eval --raw nixpkgs#NAME.version")
	}
	path, err := name(l.words[0])
	if err != nil {
		return err
	}
	// The facts' names have up to two parts.
	parts := strings.Split(path, ".")
	for n := 1; n <= 2 && n < len(parts); n++ {
		package_, fact := strings.Join(parts[:len(parts)-n], "."), strings.Join(parts[len(parts)-n:], ".")
		if !slices.Contains(factNames, fact) {
			continue
		}
		var facts map[string]map[string]string
		if err := ask(question.Question{Facts: []string{package_}}, &facts); err != nil {
			return err
		}
		key := fact
		if fact == "outPath" {
			key = "path"
		}
		value, has := facts[package_][key]
		switch {
		case len(facts[package_]) == 0:
			return fmt.Errorf("there is no package %q: look for its name with nix search nixpkgs WORD", package_)
		case !has:
			return fmt.Errorf("%s has no %s", package_, fact)
		case l.has("--raw"):
			fmt.Print(value)
		default:
			text, _ := json.Marshal(value) // a string
			fmt.Println(string(text))
		}
		return nil
	}
	return fmt.Errorf("%s cannot be evaluated here: of a package, %s can", l.words[0], strings.Join(factNames, ", "))
}

// factNames are the attributes of packages that can be asked for.
var factNames = []string{"name", "pname", "version", "outPath", "meta.description", "meta.homepage", "meta.license", "meta.mainProgram"}
