# The paths of a sandbox that are its own, where no project may appear.
[
  "/bin"
  "/dev"
  "/etc"
  "/nix"
  "/proc"
  "/sys"
  "/tmp"
  "/usr"
  "/workspace"
]
