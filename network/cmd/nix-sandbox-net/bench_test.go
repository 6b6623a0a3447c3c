package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"testing"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/networktest"
)

const benchPolicy = `{"schema":1,"domains":["files.example:443","files.example:7007","files.example:7008"],"ports":[],"private":[],"connections":1024,"rate":10000,"megabytes":1048576,"names":10,"upstream":null}`

// paths are the two ways to files.example: straight to the host, whose name a
// file of hosts would have, and through the program, with a look-up each time.
func paths(b *testing.B, run func(b *testing.B, dial func(port int) net.Conn)) {
	b.Run("direct", func(b *testing.B) {
		run(b, func(port int) net.Conn {
			return must.Get(net.Dial("tcp", net.JoinHostPort(host, strconv.Itoa(port))))(b)
		})
	})
	b.Run("sandbox", func(b *testing.B) {
		world(b)
		p := startProgram(b, benchPolicy, true)
		for _, socket := range append(sockets[:3:3], socketsAt(7007, 7008)...) {
			p.send(socket)
		}
		p.end()
		go func() {
			for {
				if _, err := p.events.Read(); err != nil {
					return
				}
			}
		}()
		run(b, func(port int) net.Conn {
			address := must.Get(resolve(b, "files.example"))(b)
			return must.Get(net.Dial("tcp", netip.AddrPortFrom(address, uint16(port+shift)).String()))(b)
		})
	})
}

func BenchmarkFirstByte(b *testing.B) {
	networktest.Listen(b, host+":7007", func(conn *net.TCPConn) {
		_, _ = io.Copy(conn, conn)
		conn.Close()
	})
	paths(b, func(b *testing.B, dial func(int) net.Conn) {
		buffer := make([]byte, 1)
		for b.Loop() {
			conn := dial(7007)
			must.Get(conn.Write(buffer))(b)
			must.Get(io.ReadFull(conn, buffer))(b)
			conn.Close()
		}
	})
}

func BenchmarkHTTPS(b *testing.B) {
	key := must.Get(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(b)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), DNSNames: []string{"files.example"}}
	der := must.Get(x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key))(b)
	pool := x509.NewCertPool()
	pool.AddCert(must.Get(x509.ParseCertificate(der))(b))
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		zeros := make([]byte, 1<<20)
		n, _ := strconv.Atoi(q.URL.Path[1:])
		for range n {
			_, _ = w.Write(zeros)
		}
	})}
	listener := must.Get(tls.Listen("tcp", host+":443", &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}}))(b)
	go func() { _ = server.Serve(listener) }()
	b.Cleanup(func() { server.Close() })
	get := func(b *testing.B, path string, dial func(int) net.Conn) {
		transport := &http.Transport{
			TLSClientConfig: &tls.Config{RootCAs: pool},
			DialContext:     func(context.Context, string, string) (net.Conn, error) { return dial(443), nil },
		}
		defer transport.CloseIdleConnections()
		response := must.Get((&http.Client{Transport: transport}).Get("https://files.example/" + path))(b)
		must.Get(io.Copy(io.Discard, response.Body))(b)
		response.Body.Close()
	}
	b.Run("get", func(b *testing.B) {
		paths(b, func(b *testing.B, dial func(int) net.Conn) {
			for b.Loop() {
				get(b, "0", dial)
			}
		})
	})
	b.Run("100MB", func(b *testing.B) {
		paths(b, func(b *testing.B, dial func(int) net.Conn) {
			b.SetBytes(100 << 20)
			for b.Loop() {
				get(b, "100", dial)
			}
		})
	})
}

func BenchmarkTCP100MB(b *testing.B) {
	zeros := make([]byte, 1<<20)
	networktest.Listen(b, host+":7008", func(conn *net.TCPConn) {
		for range 100 {
			if _, err := conn.Write(zeros); err != nil {
				break
			}
		}
		conn.Close()
	})
	paths(b, func(b *testing.B, dial func(int) net.Conn) {
		b.SetBytes(100 << 20)
		for b.Loop() {
			conn := dial(7008)
			if n := must.Get(io.Copy(io.Discard, conn))(b); n != 100<<20 {
				b.Fatal(n)
			}
			conn.Close()
		}
	})
}
