// Command module is what the tests of setup/debpkgs build: it has a dependency, a version and a test.
package main

import (
	"fmt"

	"github.com/tidwall/gjson"
)

var version = "unset"

func answer() int64 { return gjson.Get(`{"answer":42}`, "answer").Int() }

func main() { fmt.Println(version, answer()) }
