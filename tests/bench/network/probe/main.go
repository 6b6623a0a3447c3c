// Command probe measures a network from where it runs, and prints the figures as one JSON
// object: microseconds of each request, and MB a second of each transfer.
package main

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"time"
)

// Figures are what the probe prints.
type Figures struct {
	FirstByte []int64   `json:"first_byte"` // from connecting to the first byte that comes back
	HTTP      []int64   `json:"http"`       // a request on a connection of its own
	HTTPS     []int64   `json:"https"`
	TCP       []float64 `json:"tcp"` // MB a second
	TLS       []float64 `json:"tls"`
}

func main() {
	requests := flag.Int("n", 100, "how many `requests` of each kind")
	transfers := flag.Int("transfers", 1, "how many `transfers` of 100 MB of each kind")
	address := flag.String("address", "", "the servers' `address`; their names are looked up otherwise")
	flag.Parse()
	figures, err := measure(*requests, *transfers, *address)
	if err == nil {
		err = json.NewEncoder(os.Stdout).Encode(figures)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func measure(requests, transfers int, address string) (f Figures, err error) {
	dial := func(ctx context.Context, network, target string) (net.Conn, error) {
		if address != "" {
			_, port, err := net.SplitHostPort(target)
			if err != nil {
				return nil, err
			}
			target = net.JoinHostPort(address, port)
		}
		return new(net.Dialer).DialContext(ctx, network, target)
	}
	client := &http.Client{Transport: &http.Transport{
		DialContext: dial, DisableKeepAlives: true,
		// What trusting the tests' authority would take differs by the place.
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true},
	}}
	get := func(url string) (int64, error) {
		response, err := client.Get(url)
		if err != nil {
			return 0, err
		}
		defer response.Body.Close()
		n, err := io.Copy(io.Discard, response.Body)
		if err == nil && response.StatusCode != http.StatusOK {
			err = fmt.Errorf("%s: %s", url, response.Status)
		}
		return n, err
	}
	timed := func(list *[]int64, do func() error) error {
		for range requests {
			began := time.Now()
			if err := do(); err != nil {
				return err
			}
			*list = append(*list, time.Since(began).Microseconds())
		}
		return nil
	}
	fast := func(list *[]float64, do func() (int64, error)) error {
		for range transfers {
			began := time.Now()
			n, err := do()
			if err != nil {
				return err
			}
			*list = append(*list, float64(n)/1e6/time.Since(began).Seconds())
		}
		return nil
	}
	addresses, err := net.LookupHost("raw.example")
	if err != nil {
		return f, err
	}
	echo := net.JoinHostPort(addresses[0], "7007")
	if address != "" {
		echo = net.JoinHostPort(address, "7007")
	}
	for _, step := range []func() error{
		func() error {
			return timed(&f.FirstByte, func() error {
				conn, err := net.Dial("tcp", echo)
				if err != nil {
					return err
				}
				defer conn.Close()
				if _, err := conn.Write([]byte{1}); err != nil {
					return err
				}
				_, err = conn.Read(make([]byte, 1))
				return err
			})
		},
		func() error {
			return timed(&f.HTTP, func() error { _, err := get("http://files.example/small"); return err })
		},
		func() error {
			return timed(&f.HTTPS, func() error { _, err := get("https://files.example/small"); return err })
		},
		func() error {
			return fast(&f.TCP, func() (int64, error) {
				conn, err := dial(context.Background(), "tcp", "raw.example:7008")
				if err != nil {
					return 0, err
				}
				defer conn.Close()
				return io.Copy(io.Discard, struct{ io.Reader }{conn})
			})
		},
		func() error {
			return fast(&f.TLS, func() (int64, error) { return get("https://files.example/big") })
		},
	} {
		if err := step(); err != nil {
			return f, err
		}
	}
	return f, nil
}
