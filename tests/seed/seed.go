// Package seed gives tests random numbers that can be drawn again.
package seed

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
)

// Variable names the environment variable that holds the seed of a run that is
// to be repeated: a whole number that an earlier run printed.
const Variable = "NIX_SANDBOX_TEST_SEED"

// Pick returns the seed of [Variable], or another one each time.
func Pick() (uint64, error) {
	text := os.Getenv(Variable)
	if text == "" {
		return rand.Uint64(), nil
	}
	seed, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%s is %q: use the number that an earlier run printed", Variable, text)
	}
	return seed, nil
}

// New returns random numbers for one test, and prints the seed that repeats them.
// Only one goroutine at a time may draw.
func New(t testing.TB) *rand.Rand {
	t.Helper()
	seed, err := Pick()
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("repeat these random numbers with %s=%d", Variable, seed)
	return rand.New(rand.NewPCG(seed, 0))
}
