//go:build !race

package main

// maxData bounds the writable memory of this process, in bytes. 300 connections with headers of the
// largest size take a fifth of it; the runtime of Go reserves 64 MiB at a time.
const maxData = 384 << 20
