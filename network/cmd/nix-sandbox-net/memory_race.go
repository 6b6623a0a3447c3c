//go:build race

package main

// maxData leaves room for the race detector, which maps terabytes.
const maxData = 1 << 50
