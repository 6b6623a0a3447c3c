// Command static is a program without libraries, as operators bring it: it fetches a page
// over TLS with Go's own resolver, and one over a plain connection.
package main

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run() error {
	response, err := http.Get("https://files.example/small")
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if _, err := io.Copy(os.Stdout, response.Body); err != nil {
		return err
	}
	conn, err := net.Dial("tcp", "raw.example:7007")
	if err != nil {
		return err
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, "echo"); err != nil {
		return err
	}
	_, err = io.CopyN(os.Stdout, conn, 4)
	return err
}
