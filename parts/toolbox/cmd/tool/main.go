// Command tool calls a tool from inside a sandbox, for shells and for every language without a
// module of its own.
//
//	tool SERVER TOOL [NAME=TEXT | NAME:=JSON]...   with these arguments
//	tool SERVER TOOL -                             with the JSON object on standard input
//	tool SERVER [TOOL] --help                      signatures, or what a tool does
//	tool --search WORDS                            signatures of the tools with these words
//
// It prints structured data as JSON, and text as it is; --raw prints the whole result. Images and
// other bytes go to files below /tmp/tools, of which it prints the paths; -o FILE names a file for
// all that it prints. It exits with 1 if the tool failed, 2 if the call was wrong, 3 if it was
// denied, and 4 if it took too long.
package main

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// socket is that of the agent (package inside).
const socket = "@nix-sandbox-tools"

// maxAnswer bounds an answer, in bytes: the largest result_mb, and what is around it.
const maxAnswer = 72 << 20

var statuses = map[string]int{"usage": 2, "denied": 3, "timeout": 4}

// failure is an error with an exit status.
type failure struct {
	status  int
	message string
}

func (f failure) Error() string { return f.message }

func main() {
	err := run(os.Args[1:])
	if err == nil {
		return
	}
	fmt.Fprintf(os.Stderr, "tool: %v\n", err)
	var f failure
	if errors.As(err, &f) {
		os.Exit(f.status)
	}
	os.Exit(1)
}

const help = "usage: tool SERVER TOOL [NAME=TEXT | NAME:=JSON | -]...; tool SERVER [TOOL] --help; tool --search WORDS"

func run(args []string) error {
	raw, out := false, ""
	var words []string
	for i := 0; i < len(args); i++ {
		switch {
		case args[i] == "--raw":
			raw = true
		case args[i] == "-o" && i+1 < len(args):
			i++
			out = args[i]
		default:
			words = append(words, args[i])
		}
	}
	switch {
	case len(words) == 0 || slices.Contains(words, "--help") || words[0] == "--search" || len(words) == 1:
		return show(words)
	}
	arguments, err := read(words[2:])
	if err != nil {
		return err
	}
	result, err := request(words[0], words[1], arguments)
	if err != nil {
		return err
	}
	to := os.Stdout
	if out != "" {
		if to, err = os.Create(out); err != nil {
			return err
		}
		defer to.Close()
	}
	return printResult(to, words[0]+"."+words[1], result, raw)
}

// tool is a tool of the catalogue that Nix made of the lock file.
type tool struct {
	Signature   string          `json:"signature"`
	Description string          `json:"description"`
	Output      json.RawMessage `json:"outputSchema"`
}

// show prints signatures.
func show(words []string) error {
	text, err := os.ReadFile(filepath.Join(os.Getenv("NIX_SANDBOX_TOOLS"), "catalog.json"))
	if err != nil {
		return errors.New("there are no tools here")
	}
	var catalog map[string]map[string]tool
	if err := json.Unmarshal(text, &catalog); err != nil {
		return err
	}
	search := len(words) > 0 && words[0] == "--search"
	if search {
		words = strings.Fields(strings.ToLower(strings.Join(words[1:], " ")))
	}
	words = slices.DeleteFunc(words, func(w string) bool { return w == "--help" })
	found := false
	for _, server := range slices.Sorted(maps.Keys(catalog)) {
		for _, name := range slices.Sorted(maps.Keys(catalog[server])) {
			one := catalog[server][name]
			text := strings.ToLower(server + " " + name + " " + one.Description)
			switch {
			case search && slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(text, w) }):
				continue
			case !search && len(words) > 0 && words[0] != server, !search && len(words) > 1 && words[1] != name:
				continue
			}
			found = true
			fmt.Printf("tool %s %s\n", server, one.Signature)
			if !search && len(words) > 1 {
				fmt.Println(one.Description)
				if len(one.Output) > 0 {
					fmt.Printf("result: %s\n", one.Output)
				}
			}
		}
	}
	if !found {
		return failure{2, "there is no such tool; servers: " + strings.Join(slices.Sorted(maps.Keys(catalog)), ", ")}
	}
	if len(words) == 0 && !search {
		fmt.Println(help)
	}
	return nil
}

// read makes an object of arguments.
func read(words []string) (any, error) {
	if len(words) == 1 && words[0] == "-" {
		text, err := io.ReadAll(io.LimitReader(os.Stdin, 1<<20))
		if err != nil {
			return nil, err
		}
		if !json.Valid(text) {
			return nil, failure{2, "standard input is no JSON: use an object of arguments"}
		}
		return json.RawMessage(text), nil
	}
	arguments := map[string]any{}
	for _, word := range words {
		name, value, found := strings.Cut(word, "=")
		if !found {
			return nil, failure{2, fmt.Sprintf("%q is no argument: use NAME=TEXT, NAME:=JSON, or - for an object on standard input", word)}
		}
		if plain, isJSON := strings.CutSuffix(name, ":"); isJSON {
			if !json.Valid([]byte(value)) {
				return nil, failure{2, fmt.Sprintf("%s:= has %q, which is no JSON: use %s=TEXT for a text", plain, value, plain)}
			}
			arguments[plain] = json.RawMessage(value)
		} else {
			arguments[name] = value
		}
	}
	return arguments, nil
}

// request calls a tool.
func request(server, name string, arguments any) (json.RawMessage, error) {
	question, err := json.Marshal(map[string]any{"server": server, "tool": name, "arguments": arguments})
	if err != nil {
		return nil, err
	}
	// Package net has threads that wait for each other, which takes longer than the call.
	fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err == nil {
		err = syscall.Connect(fd, &syscall.SockaddrUnix{Name: socket})
	}
	if err != nil {
		return nil, errors.New("tools are reached while a call of run is going on, and not from here")
	}
	conn := os.NewFile(uintptr(fd), socket)
	if _, err := conn.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(question))), question...)); err != nil {
		return nil, err
	}
	var size uint32
	if err := binary.Read(conn, binary.BigEndian, &size); err != nil || size > maxAnswer {
		return nil, errors.New("the connection to the tools has ended")
	}
	text := make([]byte, size)
	if _, err := io.ReadFull(conn, text); err != nil {
		return nil, errors.New("the connection to the tools has ended")
	}
	var answer struct {
		Result json.RawMessage
		Error  *struct {
			Kind, Message string
			Near          []string
		}
	}
	if err := json.Unmarshal(text, &answer); err != nil {
		return nil, err
	}
	if e := answer.Error; e != nil {
		for _, near := range e.Near {
			e.Message += "\n  tool " + strings.Replace(near, ".", " ", 1)
		}
		return nil, failure{max(1, statuses[e.Kind]), e.Message}
	}
	return answer.Result, nil
}

// printResult prints what a shell wants of a result.
func printResult(to io.Writer, name string, text json.RawMessage, raw bool) error {
	// Not into a struct: keys in other letters, which the gate does not check, would fill it.
	var result map[string]json.RawMessage
	if err := json.Unmarshal(text, &result); err != nil {
		return err
	}
	var content []struct {
		Type, Text, Data, MIMEType, URI string
		Resource                        struct{ Text, Blob, MIMEType string }
	}
	if has := result["content"]; len(has) > 0 {
		if err := json.Unmarshal(has, &content); err != nil {
			return err
		}
	}
	structured, isText := result["structuredContent"], len(content) > 0
	var lines []string
	for _, item := range content {
		isText = isText && item.Type == "text"
		switch {
		case raw:
		case item.Type == "text":
			lines = append(lines, item.Text)
		case item.Type == "resource_link":
			lines = append(lines, item.URI)
		case item.Type == "resource" && item.Resource.Blob == "":
			lines = append(lines, item.Resource.Text)
		default:
			path, err := store(item.Data+item.Resource.Blob, item.MIMEType+item.Resource.MIMEType)
			if err != nil {
				return err
			}
			lines = append(lines, path)
		}
	}
	all := strings.Join(lines, "\n")
	switch {
	case raw:
		all = string(text)
	case string(result["isError"]) == "true":
		return failure{1, name + ": " + all}
	case len(structured) > 0 && !(isText && wraps(structured, all)):
		all = string(structured)
	}
	if all != "" && !strings.HasSuffix(all, "\n") {
		all += "\n"
	}
	_, err := io.WriteString(to, all)
	return err
}

// wraps reports whether structured data is an object with one value, which is the text, or a
// number, boolean or null that the text is as JSON: many servers wrap them, because structured
// data was an object once.
func wraps(structured json.RawMessage, text string) bool {
	var object map[string]any
	if json.Unmarshal(structured, &object) != nil || len(object) != 1 {
		return false
	}
	for _, only := range object {
		switch only := only.(type) {
		case string:
			return only == text
		case map[string]any, []any:
			return false
		default:
			var read any
			return json.Unmarshal([]byte(text), &read) == nil && read == only
		}
	}
	return false
}

// store writes bytes to a new file.
func store(data, kind string) (string, error) {
	bytes, err := base64.StdEncoding.DecodeString(data)
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll("/tmp/tools", 0o755); err != nil {
		return "", err
	}
	_, extension, _ := strings.Cut(kind, "/")
	if strings.Trim(extension, "abcdefghijklmnopqrstuvwxyz0123456789") != "" || extension == "" {
		extension = "bin"
	}
	file, err := os.CreateTemp("/tmp/tools", "*."+extension)
	if err != nil {
		return "", err
	}
	defer file.Close()
	_, err = file.Write(bytes)
	return file.Name(), err
}
