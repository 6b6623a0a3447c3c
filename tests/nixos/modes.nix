# What an ordinary user of the machine may do, and which tests are about it, by
# their names (patterns of Go's -test.run and -test.skip).
{
  # A cgroup subtree of the user's own.
  delegate = {
    run = ".";
    skip = "NoDelegate|NoUserns";
  };
  # No cgroup to write to.
  no-delegate = {
    run = ".";
    skip = "WithDelegate|NoUserns";
  };
  # That, and no user namespaces.
  no-userns = {
    run = "NoUserns";
    skip = "WithDelegate";
  };
}
