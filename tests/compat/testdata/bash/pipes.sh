# Pipelines, process substitution, here documents, a coprocess, named pipes.
set -euo pipefail
[ "$(seq 1000 | sort -rn | tail -n 2 | tr '\n' ,)" = 2,1, ]
[ "$(seq 100000 | { head -n 1; cat >/dev/null; })" = 1 ]
[ "$(diff <(seq 3) <(seq 4) || [ $? = 1 ])" = $'3a4\n> 4' ]
[ "$(cat <(echo a) <(echo b) | tr -d '\n')" = ab ]
[ "$(cat <<<here)" = here ]
coproc upper { tr a-z A-Z; }
echo quiet >&"${upper[1]}"
to=${upper[1]} from=${upper[0]}
exec {to}>&-
read -r word <&"$from"
[ "$word" = QUIET ]
mkfifo pipe
echo through >pipe &
read -r word <pipe
wait
[ "$word" = through ]
echo ok
