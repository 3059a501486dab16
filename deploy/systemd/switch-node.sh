#!/bin/sh
# Switches the node on one machine: switch-node.sh MODE HOST SETTING BACKUP…
# The COMMAND of 'namesrv switch --walk'. Needs ssh as root. If the node's folder is refused, the node starts in its old mode.
set -eu
mode=$1 host=$2 setting=$3
shift 3
case $host in *:*) target="[$host]" ;; *) target=$host ;; esac
scp -q "$@" "root@$target:"
files=$(basename -a "$@" | tr '\n' ' ')
prefer=
if [ "$mode" = cp ]; then prefer="--prefer $(basename "$1")"; fi
ssh "root@$host" "
  file=/etc/namesrv/namesrv.properties
  if ! grep -q '^mode=' \$file; then
    echo \"\$file has no line mode=\" >&2
    exit 1
  fi
  systemctl stop namesrv
  /opt/namesrv/bin/namesrv switch --to $mode /var/lib/private/namesrv -c \$file --backup $files $prefer
  code=\$?
  if [ \$code = 0 ]; then
    set -e
    sed -i 's/^mode=.*/mode=$mode/' \$file
    if [ $mode = cp ]; then
      sed -i -e '/^peers=/d; /^join=/d' -e '\$a\\' \$file
      echo '$setting' >> \$file
    fi
  fi
  systemctl start --no-block namesrv
  exit \$code
"
