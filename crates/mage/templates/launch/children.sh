# `start NAME COMMAND…` starts a server in its own process group, so that it can be stopped with all its child processes.
pids=() names=()
start() {
  names+=("$1")
  shift
  set -m
  "$@" </dev/null &
  set +m
  pids+=($!)
}
signal() { kill "-$1" -- "-$2" 2>/dev/null; }
# Stops all servers with SIGTERM, and after ${STOP_SECONDS:-30} seconds with SIGKILL.
stop() {
  local status=$? pid second
  trap - EXIT
  trap '' INT TERM HUP
  for pid in "${pids[@]}"; do signal TERM "$pid" || true; done
  for ((second = 0; second < ${STOP_SECONDS:-30}; second++)); do
    for pid in "${pids[@]}"; do signal 0 "$pid" && sleep 1 && continue 2; done
    break
  done
  for pid in "${pids[@]}"; do signal KILL "$pid" || true; done
  wait
  exit "$status"
}
trap stop EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP
# Servers should not exit: the first that does stops all others, and its status becomes the exit status.
monitor() {
  local i status
  while :; do
    sleep 1
    for i in "${!pids[@]}"; do
      if ! kill -0 "${pids[i]}" 2>/dev/null; then
        wait "${pids[i]}" && status=0 || status=$?
        echo "${names[i]} exited with status $status; stopping the others" >&2
        [ "$status" != 75 ] || echo "status 75: another SkyRL uses the shared directory; use one directory each (--shared-dir)" >&2
        exit "$status"
      fi
    done
  done
}
