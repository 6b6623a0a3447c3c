# Job control, traps, background processes, wait for any, kill, ulimit.
set -eu
set -m
sleep 60 &
# A bash that has a trap can lose a signal to a job that it has just started.
until ! kill -TERM %1 2>/dev/null; do sleep 0.01; done
wait $! || [ $? = 143 ]
jobs=()
for n in 1 2 3; do (exit $n) & jobs+=($!); done
sum=0
for job in "${jobs[@]}"; do wait "$job" || sum=$((sum + $?)); done
[ $sum = 6 ]
sleep 0.2 &
wait -n || [ $? = 127 ] # which it is where the job has already ended
caught=no
trap 'caught=yes' USR1
kill -USR1 $$
[ $caught = yes ]
[ "$(trap 'echo bye' EXIT; true)" = bye ]
(ulimit -n 100 && [ "$(ulimit -n)" = 100 ])
timeout 0.1 sleep 60 || [ $? = 124 ]
echo ok
