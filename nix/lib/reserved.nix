# The paths of a sandbox that are its own, where no project may appear.
[
  "/bin"
  "/dev"
  "/etc"
  (import ./inbox.nix)
  "/nix"
  "/proc"
  "/sys"
  "/tmp"
  "/usr"
  "/workspace"
]
