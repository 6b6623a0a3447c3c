# The users of a machine in the mode "restricted": all but user namespaces, as Ubuntu's kernel does it for programs
# without a profile. Programs that have one get it.
profile restricted flags=(attach_disconnected,mediate_deleted) {
  deny userns,

  capability,
  dbus,
  file rwlkm /{**,},
  io_uring,
  mount,
  mqueue,
  network,
  pivot_root,
  ptrace,
  remount,
  signal,
  umount,
  unix,

  pix /**,
}
