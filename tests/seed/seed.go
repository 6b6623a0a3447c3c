// Package seed gives tests random numbers that can be drawn again.
package seed

import (
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
)

// Variable names the environment variable that holds the seed of a run that is
// to be repeated: a whole number that an earlier run printed.
const Variable = "NIX_SANDBOX_TEST_SEED"

// New returns random numbers for one test, and prints the seed that repeats them.
// Only one goroutine at a time may draw.
func New(t testing.TB) *rand.Rand {
	t.Helper()
	seed := rand.Uint64()
	if text := os.Getenv(Variable); text != "" {
		var err error
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatalf("%s is %q: use the number that an earlier run printed", Variable, text)
		}
	}
	t.Logf("repeat these random numbers with %s=%d", Variable, seed)
	return rand.New(rand.NewPCG(seed, 0))
}
