# A repository: commit, branch, merge, clone, garbage collection.
set -eu
command -v git >/dev/null || { echo 'skip: this environment has no git'; exit; }
git init -q first
cd first
git config user.name sandbox
git config user.email sandbox@example.org
echo one >file
git add file
git commit -qm one
git checkout -qb side
echo two >>file
git commit -qam two
git checkout -q -
git merge -q side
git clone -q . ../second
cd ../second
[ "$(git log --oneline | wc -l)" = 2 ]
git gc -q
git fsck 2>/dev/null
git status --short
echo ok
