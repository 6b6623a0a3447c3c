package e2e

import (
	"os"
	"testing"
)

// quiet skips a test that failed on a machine that was busy with other tests, until its
// design allows for that.
func quiet(t *testing.T) {
	t.Helper()
	if os.Getenv("NIX_SANDBOX_TEST_SOAK") == "" {
		t.Skip("it wants a machine that nothing else keeps busy: set NIX_SANDBOX_TEST_SOAK")
	}
}
