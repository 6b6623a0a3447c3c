# Lets the launcher of sandboxes make user namespaces where AppArmor keeps other programs from it, as on Ubuntu
# since 23.10. The launcher is static, starts bubblewrap without a variable, and lets no caller choose what has
# capabilities: whatever either of them executes has none, because the second profile is stacked on the first.
# Bubblewrap sets no_new_privs, so that its children could not leave the first one.
abi <abi/4.0>,

profile @name@ @launcher@ flags=(attach_disconnected,mediate_deleted) {
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
  userns,

  @launcher@ ix,
  @bubblewrap@ ix,
  pix /** -> &@name@-code,
}

profile @name@-code flags=(attach_disconnected,mediate_deleted) {
  deny capability,

  dbus,
  file rwlkm /{**,},
  io_uring,
  mqueue,
  network,
  ptrace,
  signal,
  unix,

  pix /** -> &@name@-code,
}
