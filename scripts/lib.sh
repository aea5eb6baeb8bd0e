# Shared by the scripts of this folder: where things are, and how a step is shown. It is sourced, never run.
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
bin=$root/build/bin
stamps=$root/build/stamps
cache=$root/build/cache
export PATH="$bin:$PATH"
# The module's own settings decide how Go builds here, not what the machine happens to set.
export GOFLAGS=-buildvcs=false
# Static programs, and one build cache for programs, tests and linters. No C compiler is needed.
export CGO_ENABLED=0

if [ -t 1 ]; then bold=$'\e[1m' dim=$'\e[2m' red=$'\e[31m' green=$'\e[32m' plain=$'\e[0m'; else bold='' dim='' red='' green='' plain=''; fi

say()  { printf '\n%s\n' "$bold==> $*$plain"; }
note() { printf '%s\n' "    $dim$*$plain"; }
fail() { printf '%s\n' "$red$*$plain" >&2; exit 1; }

# quietly WHAT COMMAND...: runs a command with its output in a log; shows that it is alive; on failure shows the log.
quietly() {
  local what=$1 log began=$SECONDS
  shift
  mkdir -p "$root/build/logs"
  log=$root/build/logs/${what//[^a-zA-Z0-9]/-}.log
  "$@" >"$log" 2>&1 </dev/null &
  local pid=$! shown=0
  trap 'kill "$pid" 2>/dev/null || true; exit 130' INT TERM
  while kill -0 "$pid" 2>/dev/null; do
    sleep 0.2
    if [ -t 1 ]; then
      printf '\r    %s %ds ' "$what" $((SECONDS - began))
    elif [ $((SECONDS - began - shown)) -ge 15 ]; then
      shown=$((SECONDS - began))
      printf '    %s: still at it after %ds\n' "$what" "$shown"
    fi
  done
  trap - INT TERM
  [ -t 1 ] && printf '\r\e[K'
  if ! wait "$pid"; then
    tail -n 40 "$log" >&2
    fail "$what failed after $((SECONDS - began)) s (the whole log: $log)"
  fi
  note "$what: done in $((SECONDS - began)) s"
}

# fresh STAMP FILES...: true if STAMP was written for exactly the present content of FILES (folders count with all that is in them).
fresh() {
  local stamp=$stamps/$1
  shift
  [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$(digest "$@")" ]
}
# stamp STAMP FILES...: remembers the present content of FILES.
stamp() {
  local stamp=$stamps/$1
  shift
  mkdir -p "$stamps"
  digest "$@" >"$stamp"
}
digest() {
  (cd "$root" && find "$@" \( -name node_modules -o -name dist -o -name build \) -prune -o -type f -print0 2>/dev/null | LC_ALL=C sort -z |
    xargs -0 -r sha256sum | sha256sum | cut -d ' ' -f 1)
}
