// Package question has what code asks the server for packages with, and what it is answered, both as JSON. A question
// is {"nix": Question}; its answer is {"result": …} or {"error": {"kind": …, "message": …}}. The program nix of
// sandboxes (agent/cmd/nix) asks, and package parts/packages answers.
package question

// Question is one of its fields.
type Question struct {
	// Add names packages to add to the sandbox, as attributes of the package set. The result is {"packages": []Added},
	// in the order of these names.
	Add []string `json:"add,omitempty"`
	// Search has words of the names of packages. The result is a [List].
	Search []string `json:"search,omitempty"`
	// Facts names packages to describe. The result has an object for each name, with facts by their name.
	Facts []string `json:"facts,omitempty"`
	// Flake is a part of a flake to add. The result is {"packages": []Added}.
	Flake *Flake `json:"flake,omitempty"`
}

// Flake is a part of a flake of code's files.
type Flake struct {
	// Source is an archive (tar) in the workspace.
	Source string `json:"source"`
	// Attribute names the part, or is "" for the default. Want is build, run or develop.
	Attribute string `json:"attribute"`
	Want      string `json:"want"`
}

// Added is a package in a sandbox.
type Added struct {
	Name string `json:"name"`
	// Paths are those of its outputs in the store.
	Paths []string `json:"paths"`
	// Program is the name or the path of its main program, or "".
	Program string `json:"program"`
}

// List is what a search finds: packages, and how many more there are.
type List struct {
	Packages []Found `json:"packages"`
	More     int     `json:"more"`
}

// Found is a package that a search finds.
type Found struct {
	Name        string `json:"name"`
	Version     string `json:"version,omitempty"`
	Description string `json:"description,omitempty"`
}
