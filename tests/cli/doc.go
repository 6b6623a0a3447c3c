// Package cli tests the command line of a built server as a person uses it: a
// terminal types, and its screen is compared.
//
// NIX_SANDBOX_MCP_SERVER names the server; without it the tests are skipped.
package cli
