// The command foreign prints a word. Its test builds it for an architecture
// that the filter refuses.
package main

func main() {
	print("it ran\n")
}
