# How the scripts start and stop `helmr dev`. It is sourced after lib.sh, never run.
dev_pid='' dev_url=''

# await SECONDS WHAT COMMAND...: waits until COMMAND succeeds.
await() {
  local deadline=$((SECONDS + $1)) what=$2
  shift 2
  until "$@" >/dev/null 2>&1; do
    [ "$SECONDS" -lt "$deadline" ] || fail "gave up waiting for $what"
    sleep 0.1
  done
}

dev_ready() {
  [ -n "$dev_pid" ] && kill -0 "$dev_pid" || return 1
  [ "$(sed -n 's/.*"pid": *\([0-9]*\).*/\1/p' "$1/dev.json" 2>/dev/null)" = "$dev_pid" ]
}

# dev_start DATA ADDR: starts helmr dev in the background and waits until it answers. Sets dev_pid and dev_url.
dev_start() {
  local data=$1 addr=$2
  printf '\n%s\n' "$bold\$ helmr dev --data-dir $data --addr $addr &$plain"
  mkdir -p "$data"
  # A session of its own, so that Ctrl-C here reaches this script first and helmr is then stopped in order.
  setsid helmr dev --data-dir "$data" --addr "$addr" >"$data/dev.out" 2>&1 </dev/null &
  dev_pid=$!
  local deadline=$((SECONDS + 60))
  until dev_ready "$data"; do
    if ! kill -0 "$dev_pid" 2>/dev/null; then
      cat "$data/dev.out" >&2
      dev_pid=''
      fail "helmr dev did not start"
    fi
    [ "$SECONDS" -lt "$deadline" ] || fail "helmr dev did not answer within a minute"
    sleep 0.05
  done
  dev_url=$(sed -n 's/.*"url": *"\([^"]*\)".*/\1/p' "$data/dev.json")
  sed -e 's/\(hlmr_sk_....\)[A-Za-z0-9_-]*/\1.../' "$data/dev.out"
}

dev_kill() {
  kill -KILL "$dev_pid"
  wait "$dev_pid" 2>/dev/null || true
  dev_pid=''
}

# dev_stop: an orderly stop of what dev_start started.
dev_stop() {
  [ -n "$dev_pid" ] || return 0
  local pid=$dev_pid
  dev_pid=''
  kill -INT "$pid" 2>/dev/null || return 0
  local deadline=$((SECONDS + 60))
  while kill -0 "$pid" 2>/dev/null; do
    if [ "$SECONDS" -ge "$deadline" ]; then
      kill -KILL "$pid"
      wait "$pid" 2>/dev/null || true
      fail "helmr dev did not stop within a minute"
    fi
    sleep 0.05
  done
  wait "$pid" || fail "helmr dev ended with status $?"
}

# dev_destroy DATA: removes what a killed helmr dev may have left running on a data folder.
dev_destroy() {
  [ -d "$1" ] || return 0
  helmr dev --data-dir "$1" --clear >/dev/null 2>&1
}

# leftovers DATA: what of a helmr dev on a data folder is on this machine. It prints nothing when there is nothing. Other
# helmrs may run beside it: cgroups and networks carry digests of the folders that they belong to.
leftovers() {
  local data sandboxes network
  data=$(readlink -m "${1:?}")
  sandboxes=$(digest_of "$data/worker/sandboxes/runsc")
  network=$(digest_of "$data/worker/network")
  { pgrep -af -- "$data" | sed 's/^/process: /'
    grep -F -- "$data" /proc/self/mountinfo | sed 's/^/mount: /'
    find /sys/fs/cgroup -type d -name "*helmr*$sandboxes*" | sed 's/^/cgroup: /'
    ip netns list | grep -F "helmr-$network" | sed 's/^/namespace: /'
    ip -o link | grep -F "hlmr$network" | sed 's/^/link: /'
    nft list tables | grep -F "helmr-$network" | sed 's/^/firewall: /'
  } 2>/dev/null || true
}
digest_of() { printf %s "$1" | sha256sum | cut -c 1-8; }
