# To be sourced in the virtual machine: functions for tests in steps.
results=/dev/ttyS1
export DEBIAN_FRONTEND=noninteractive
cd /root || exit

# step NAME COMMAND…: runs the command, and writes `ok` or `FAILED`, the step and its seconds to the
# second serial port.
step() {
    local name=$1 result=ok begun=$EPOCHREALTIME
    shift
    echo "=== $name"
    "$@" || result=FAILED
    printf '%s\t%s\t%s s\n' $result "$name" "$(seconds_since "$begun")" | tee -a $results
}
seconds_since() { awk -v begun="$1" -v ended="$EPOCHREALTIME" 'BEGIN { printf "%.1f", ended - begun }'; }

until_true() {
    local left
    for ((left = 200; left > 0; left--)); do
        "$@" > /dev/null 2>&1 && return
        sleep 0.1
    done
    return 1
}

# The service's log, and the end of the machine.
finish() {
    journalctl -q --no-pager -u 'tandem*' | tail -n 80
    echo finished >> $results
    sync
    systemctl poweroff -f
}
