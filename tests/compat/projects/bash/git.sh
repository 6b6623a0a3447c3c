# Looks at the history of the project, clones it, and commits to it where it may be
# written to.
set -eu
command -v git >/dev/null || { echo 'skip: this environment has no git'; exit; }
export HOME=$PWD
git config --global safe.directory '*'
git config --global user.name sandbox
git config --global user.email sandbox@example.org
cd /project
[ "$(git log --oneline | wc -l)" = 1 ]
git status --short
git grep -q content
git clone -q /project /workspace/clone
if [ -w /project ]; then
  echo more >>file
  git commit -qam more
  [ "$(git log --oneline | wc -l)" = 2 ]
  git gc -q
fi
echo ok
