# The text tools, and what asks the kernel in its own way.
set -eu
printf 'b\na\n' | sort >list
[ "$(awk 'END { print NR }' list)" = 2 ]
sed -i s/b/c/ list
grep -q c list
[ "$(find . -name list -print0 | xargs -0 cat | sort -r | head -n 1)" = c ]
tar cf list.tar list && tar tf list.tar | grep -qx list
gzip -k list && gzip -t list.gz
[ "$(yes | head -c 10 | wc -c)" = 10 ]
dd if=/dev/zero of=zeros bs=64k count=16 2>/dev/null
[ "$(stat -c %s zeros)" = 1048576 ]
cp --reflink=auto zeros copy
truncate -s 1G sparse
df . >/dev/null
id -u >/dev/null
nproc >/dev/null
uname -a >/dev/null
date >/dev/null
nice true
nohup true 2>/dev/null
env -i sh -c true
mktemp >/dev/null
ln -s list link && readlink -f link >/dev/null
echo ok
