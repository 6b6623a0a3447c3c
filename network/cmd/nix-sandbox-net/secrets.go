package main

import (
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/network/policy"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/bounded"
)

// maxSecret is the longest secret, in bytes.
const maxSecret = 16 << 10

// readSecrets reads the secrets of credentials from their descriptors and closes
// them. The launcher has checked them. No error shows any byte of a secret.
func readSecrets(credentials []policy.Credential) ([]string, error) {
	if len(credentials) == 0 {
		return nil, nil
	}
	// No other process of the same user reads this one's memory (ptrace(2)).
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return nil, fmt.Errorf("keep secrets from other processes: %w", err)
	}
	var secrets []string
	for i, credential := range credentials {
		secret, err := readSecret(firstSecret + i)
		if err != nil {
			return nil, fmt.Errorf("read the secret of the credential %s: %w", credential.Name, err)
		}
		secrets = append(secrets, secret)
	}
	return secrets, nil
}

func readSecret(descriptor int) (string, error) {
	if !isGiven(descriptor) {
		return "", fmt.Errorf("the launcher gave no descriptor %d", descriptor)
	}
	file := os.NewFile(uintptr(descriptor), "secret")
	defer file.Close()
	text, err := bounded.Read(file, maxSecret)
	return strings.TrimSuffix(strings.TrimSuffix(string(text), "\n"), "\r"), err
}
