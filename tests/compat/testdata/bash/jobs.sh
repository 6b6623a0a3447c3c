# Job control, traps, background processes, wait for any, kill, ulimit.
set -eu
set -m
sleep 60 &
kill -TERM %1
wait %1 || [ $? = 143 ]
for n in 1 2 3; do (exit $n) & done
sum=0
for _ in 1 2 3; do wait -n || sum=$((sum + $?)); done
[ $sum = 6 ]
caught=no
trap 'caught=yes' USR1
kill -USR1 $$
[ $caught = yes ]
[ "$(trap 'echo bye' EXIT; true)" = bye ]
(ulimit -n 100 && [ "$(ulimit -n)" = 100 ])
timeout 0.1 sleep 60 || [ $? = 124 ]
echo ok
