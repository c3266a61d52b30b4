#!/usr/bin/env bash
# kill.sh FOURFOLD LAUNCHER: kill -9 of one rank at a random moment; the same command goes on from the last committed
# step and ends with the weights of an unbroken run, bit for bit. Three times, ten with FOURFOLD_FULL=1.
set -u
fourfold=$1 launcher=$2
. "$(dirname "$0")/small_run.sh"
RANDOM=${FOURFOLD_SEED:-$((20261130 % 32768))}
rounds=3
[ "${FOURFOLD_FULL:-0}" = 1 ] && rounds=10

unbroken_run
killed=0 resumed=0
for round in $(seq 1 30); do
  [ "$killed" = "$rounds" ] && break
  rm -rf "$work/run"
  victim_index=$((RANDOM % ranks))
  delay=$(times "$(between 0.05 0.95)" "$whole")
  start train small.yaml
  victim=$(rank_process "$victim_index")
  sleep "$delay"
  if [ -z "$victim" ] || ! kill -9 "$victim" 2>/dev/null; then
    wait "$job"
    continue # it was over already
  fi
  begin=$(seconds_now)
  wait "$job"
  code=$?
  [ "$code" != 0 ] || fail "round $round: the launcher returned 0 after a kill"
  awk -v a="$begin" -v b="$(seconds_now)" 'BEGIN {exit !(b - a < 10)}' || fail "round $round: not gone within 10 s"
  killed=$((killed + 1))
  ls "$work"/run/checkpoints/*.commit >/dev/null 2>&1 && resumed=$((resumed + 1))
  launch "$ranks" train small.yaml || fail "round $round: the restart: exit code $?: $(tail -5 "$work/log")"
  same_end "round $round, rank $victim_index killed after $delay s of $whole s"
done
[ "$killed" = "$rounds" ] || fail "only $killed of $rounds kills met a running job"
[ "$resumed" -gt 0 ] || fail "no restart had a committed step to go on from"
echo "$killed kills, $resumed restarts from a committed step, $failures failures"
[ "$failures" = 0 ]
