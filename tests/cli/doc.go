// Package cli tests the command line of a built server: testdata holds a script
// for what commands do without a terminal, and the tests in Go press keys at a
// terminal and compare its screen.
//
// Package undertest names the server; without it the tests are skipped.
package cli
