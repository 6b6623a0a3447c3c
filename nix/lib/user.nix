# The one user of every sandbox.
{
  name = "sandbox";
  uid = 1000;
  gid = 1000;
}
