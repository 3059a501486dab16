#!/bin/sh
# Runs faults against name servers in a CI job, and writes a summary in Markdown. deploy/ci/README.md says how jobs use it.
#
#   usage: chaos.sh [ARGUMENT of 'namesrv chaos' ...]      default: suite smoke
#
# CHAOS_PACKAGE     what pip installs: a folder, a wheel, or a URL such as git+https://…; required
# CHAOS_OUT         folder for runs and the environment (default: chaos-runs)
# CHAOS_SUMMARY     file that the summary is appended to (default: CHAOS_OUT/summary.md)
# TOXIPROXY_SERVER  a Toxiproxy server that is already there. Otherwise one is built with Go, once, into
#                   $XDG_CACHE_HOME/replicated-namesrv or ~/.cache/replicated-namesrv, which the job should cache.
#
# Exit codes: those of 'namesrv chaos': 0 all promises kept, 1 one was broken, 2 unknown or not run.
set -eu

if [ -z "${CHAOS_PACKAGE:-}" ]; then
  echo "chaos.sh: CHAOS_PACKAGE is not set; give what pip installs: a folder, a wheel or a URL (git+https://...)" >&2
  exit 2
fi
out=${CHAOS_OUT:-chaos-runs}
summary=${CHAOS_SUMMARY:-$out/summary.md}
[ $# -gt 0 ] || set -- suite smoke

extras=chaos
if [ -z "${TOXIPROXY_SERVER:-}" ] && ! command -v toxiproxy-server >/dev/null && ! command -v go >/dev/null; then
  extras=chaos,go
fi
case $CHAOS_PACKAGE in
  *://*) requirement="replicated-namesrv[$extras] @ $CHAOS_PACKAGE" ;;
  *) requirement="$CHAOS_PACKAGE[$extras]" ;;
esac

mkdir -p "$out"
echo "chaos.sh: installing $requirement" >&2
python3 -m venv "$out/.venv" || exit 2
"$out/.venv/bin/pip" install --disable-pip-version-check --quiet --retries 5 "$requirement" || exit 2

code=0
"$out/.venv/bin/namesrv" chaos "$@" --out "$out" || code=$?
for suite in "$out"/*/; do
  case $suite in */latest/) continue ;; esac
  set -- "$suite"*/logs
  if [ -e "$1" ]; then
    "$out/.venv/bin/namesrv" chaos results --summary "$suite" >>"$summary" || echo "chaos.sh: no summary of $suite" >&2
  fi
done
[ ! -e "$summary" ] || echo "chaos.sh: summary in $summary" >&2
exit "$code"
