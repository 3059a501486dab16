"""Every command as users type it, rightly and wrongly: exit code, message, no stack trace, and ``--json`` as its schema says.

The nodes are real: a cluster of three, two independent nodes, and one with a token. Commands run in this process, one after the
other, in the order of the table; a few, whose streams matter, run in a process of their own.
"""

import argparse
import asyncio
import contextlib
import importlib
import io
import json
import os
import re
import shlex
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import NamedTuple

import pytest

from replicated_namesrv.cli import watch
from replicated_namesrv.cli.admin import ADMIN_VARIABLE, CA_VARIABLE, CERT_VARIABLE, KEY_VARIABLE, TOKEN_VARIABLE
from replicated_namesrv.cli.main import available_commands, main, parser_of
from replicated_namesrv.client.broker_requests import BrokerIdentity, BrokerVersion, register_request
from replicated_namesrv.client.remoting import RemotingClient
from replicated_namesrv.client.topics import BrokerTopics, TopicConfig, TopicTable
from replicated_namesrv.model import DataVersion
from tests.packaging.json_page import OUTPUTS
from tests.packaging.tree import ROOT
from tests.support.json_outputs import check_output, schema_of
from tests.support.nodes import clean_environment, command
from tests.support.operated import Output, operated

DEADLINE_S = 120.0
TOKEN = "a-tökén-that-is-long-€nough-for-a-test"
ATTEMPTS_MAX = 200
ELECTION = re.compile(r"no leader|no node leads|not ready|fenced|time-out|not comparable|\"digestsEqual\": null")
"""Outputs after which a command is repeated, because a leader can change on a busy machine."""
GOOD, BAD, USAGE = 0, 1, 2
START_FAILED = 255
"""Exit code of ``serve`` and ``mqnamesrv``, as in RocketMQ."""


class Invocation(NamedTuple):
    """One command line and what it has to end with. ``{name}`` stands for a place of ``Places``."""

    line: str
    code: int
    out: str = ""
    """Part of stdout."""
    err: str = ""
    """Part of stderr."""


TABLE = [
    # --- look-ups
    Invocation("route T -n {ap}", GOOD, "topic T, answered by"),
    Invocation("route T -n {ap} --json", GOOD, '"found": true'),
    Invocation("route None -n {ap}", BAD, "has no route for topic None"),
    Invocation("route None -n {cp} --json", BAD, '"found": false'),
    Invocation("route T -n {cp} --read-consistency linearizable --json", BAD, '"freshness"'),
    Invocation("route T -n {cp} --read-consistency stale --max-staleness-ms 60000", BAD, "has no route"),
    Invocation("route T -n {ap} --read-consistency maybe", USAGE, err="invalid choice: 'maybe'"),
    Invocation("route T -n {ap} --max-staleness-ms -1", USAGE, err="--max-staleness-ms"),
    Invocation("route", USAGE, err="required: TOPIC"),
    Invocation("route T -n {nobody}", USAGE, err="Connection refused"),
    Invocation("route T -n nonsense", USAGE, err="nonsense"),
    Invocation("route T -n ''", USAGE, err="has no address: give host:port"),
    Invocation("route T -n 127.0.0.1:99999", USAGE, err="99999"),
    Invocation("route T -n {ap} --timeout-ms 0", USAGE, err="--timeout-ms"),
    Invocation("route T -n {ap} --timeout-ms soon", USAGE, err="'soon' is not a whole number"),
    Invocation("route T -n {ap} --tls-ca {folder}/missing.pem", USAGE, err="missing.pem"),
    Invocation("route T -n {ap} --tls-ca {text}", USAGE, err="text"),
    Invocation("route T -n {ap} --tls-cert {folder}/missing.pem", USAGE, err="missing.pem"),
    Invocation("route T -n {ap} --tls", GOOD, "topic T"),
    Invocation("topics -n {ap}", GOOD, "T"),
    Invocation("topics -n {ap} --json", GOOD, '"topics"'),
    Invocation("topics -n {ap} --cluster C", GOOD, "T"),
    Invocation("topics -n {ap} --system --json", GOOD, '"topics"'),
    Invocation("topics -n {ap} --unit --cluster C", USAGE, err="leave out --cluster"),
    Invocation("topics delete -n {ap}", USAGE, err="'delete' needs a TOPIC"),
    Invocation("topics list T -n {ap}", USAGE, err="'list' takes none"),
    Invocation("topics delete Absent -n {ap} --json", GOOD, '"outcome": "done"'),
    Invocation("topics delete Absent -n {nobody}", USAGE, "Connection refused"),
    Invocation("topics delete T -n {ap} --read-consistency stale", USAGE, err="--read-consistency"),
    Invocation("topics remove T -n {ap}", USAGE, err="invalid choice: 'remove'"),
    Invocation("topics -n {nobody}", USAGE, err="no name server answered"),
    Invocation("brokers -n {ap}", GOOD, "broker-a"),
    Invocation("brokers -n {ap} --json", GOOD, '"brokerName": "broker-a"'),
    Invocation("brokers -n {cp}", GOOD, "has no registered broker"),
    Invocation("brokers --cluster Nowhere -n {ap}", BAD, "of cluster Nowhere"),
    Invocation("brokers wipe-write -n {ap}", USAGE, err="need a broker NAME"),
    Invocation("brokers wipe-write broker-a -n {ap} --json", GOOD, '"outcome": "done"'),
    Invocation("brokers add-write broker-a -n {ap}", GOOD, "topics"),
    Invocation("brokers add-write -n {ap}", USAGE, err="need a broker NAME"),
    Invocation("brokers add-write broker-a -n {nobody} --json", USAGE, '"outcome": "not done"'),
    Invocation("brokers wipe-write broker-a -n {nobody}", USAGE, "Connection refused"),
    Invocation("brokers list broker-a -n {ap}", USAGE, err="'list' takes none"),
    Invocation("brokers -n {nobody} --json", USAGE, err="no name server answered"),
    Invocation("clusters -n {ap}", GOOD, "C"),
    Invocation("clusters -n {ap} --json", GOOD, '"clusters"'),
    Invocation("clusters -n {cp}", GOOD, "has no cluster"),
    Invocation("clusters surplus -n {ap}", USAGE, err="unrecognized arguments: surplus"),
    Invocation("clusters -n {nobody}", USAGE, err="no name server answered"),
    # --- KV and settings, also as files
    Invocation("kv put NS key value -n {cp}", GOOD, "done"),
    Invocation("kv put NS key value -n {apboth} --json", GOOD, '"outcome": "done"'),
    Invocation("kv put OTHER 'a key' 'two words' -n {cp}", GOOD, "done"),
    Invocation("kv get NS key -n {cp}", GOOD, "value"),
    Invocation("kv get NS key -n {cp} --json --read-consistency linearizable", GOOD, '"value": "value"'),
    Invocation("kv get NS absent -n {cp}", BAD, err="has no key absent in namespace NS"),
    Invocation("kv get NS absent -n {cp} --json", BAD, '"found": false'),
    Invocation("kv list NS -n {cp}", GOOD, "key=value"),
    Invocation("kv list NS -n {cp} --json", GOOD, '"key": "value"'),
    Invocation("kv list Absent -n {cp}", BAD, err="has no namespace Absent"),
    Invocation("kv list NS extra -n {cp}", USAGE, err="'kv list' needs NAMESPACE"),
    Invocation("kv put NS key -n {cp}", USAGE, err="'kv put' needs NAMESPACE KEY VALUE, got 2 of 3 words"),
    Invocation("kv put NS key v -n {cp} --max-staleness-ms 1", USAGE, err="are for reading"),
    Invocation("kv put NS key v -n {nobody} --json", USAGE, '"outcome": "not done"'),
    Invocation("kv drop NS key -n {cp}", USAGE, err="invalid choice: 'drop'"),
    Invocation("kv get NS", USAGE, err="'kv get' needs NAMESPACE KEY"),
    Invocation("kv get NS key -n {nobody} --json", USAGE, err="no name server answered"),
    Invocation("kv list NS -n {nobody}", USAGE, err="no name server answered"),
    Invocation("kv delete NS -n {cp}", USAGE, err="'kv delete' needs NAMESPACE KEY"),
    Invocation("kv delete NS key -n {nobody}", USAGE, "Connection refused"),
    Invocation("kv export {folder}/cp.json -n {cp} -a {cpadmin}", GOOD, "entries of 127.0.0.1"),
    Invocation("kv export {folder}/cp.json -n {cp} -a {cpadmin}", BAD, err="choose another name, or replace it with --force"),
    Invocation("kv export {folder}/cp.json -n {cp} -a {cpadmin} --force --json", GOOD, '"entries": 2'),
    Invocation("kv export {pipe} -n {cp} -a {cpadmin} --force", BAD, err="not a regular file and cannot be replaced"),
    Invocation("kv export - -n {cp} -a {cpadmin}", GOOD, '{"configTable":{"', "stdout has the 2 entries of 127.0.0.1"),
    Invocation("kv export - -n {cp} -a {cpadmin} --json", BAD, err="leave --json out"),
    Invocation("kv export {folder}/ns.json -n {ap} --namespace NS --json", GOOD, '"entries": 1'),
    Invocation("kv export {folder}/no.json -n {ap} --namespace Absent", BAD, err="has no namespace Absent"),
    Invocation("kv export {folder}/no.json -n {ap} -a {nobody}", USAGE, err="give its admin port with --admin"),
    Invocation("kv export {folder}/no.json -n {nobody} -a {nobody}", USAGE, err="no name server answered"),
    Invocation("kv export {folder}/none/no.json -n {ap}", BAD, err="there is no folder"),
    Invocation("kv export -n {ap}", USAGE, err="NAMESPACE|FILE"),
    Invocation("kv list NS -n {ap} --force", USAGE, err="are for 'kv export'"),
    Invocation("kv get NS key -n {ap} --token-file {token}", USAGE, err="are for 'kv export'"),
    Invocation("kv import {folder}/cp.json -n {ap} --ca system", USAGE, err="are for 'kv export'"),
    Invocation("kv delete NS key -n {cp}", GOOD, "done"),
    Invocation("kv import {folder}/cp.json -n {cp}", GOOD, "2"),
    Invocation("kv get NS key -n {cp}", GOOD, "value"),
    Invocation("kv import {folder}/cp.json -n {apboth} --json", GOOD, '"entries": 2'),
    Invocation("kv get OTHER 'a key' -n {ap}", GOOD, "two words"),
    Invocation("kv import {folder}/cp.json -n {nobody}", USAGE, "Connection refused"),
    Invocation("kv import {folder}/missing.json -n {cp}", BAD, err="missing.json: No such file"),
    Invocation("kv import {text} -n {cp}", BAD, err="not JSON .*; give a kvConfig.json or a backup"),
    Invocation("kv import {folder} -n {cp}", BAD, err="Is a directory"),
    Invocation("config get -n {ap}", GOOD, "orderMessageEnable"),
    Invocation("config get orderMessageEnable -n {cp} --json", GOOD, '"orderMessageEnable": "false"'),
    Invocation("config get noSuchThing -n {cp}", BAD),
    Invocation("config get orderMessageEnable=true -n {cp}", USAGE, err="did you mean 'config set"),
    Invocation("config get -n {nobody} --json", USAGE, '"failed"'),
    Invocation("config set orderMessageEnable=true -n {cp} --json", GOOD, '"outcome": "done"'),
    Invocation("config set orderMessageEnable=maybe -n {cp}", USAGE, err="orderMessageEnable=maybe"),
    Invocation("config set ordrMessageEnable=true -n {cp}", USAGE, err="did you mean orderMessageEnable?"),
    Invocation("config set orderMessageEnable -n {cp}", USAGE, err="needs KEY=VALUE"),
    Invocation("config set -n {cp}", USAGE, err="at least one KEY=VALUE"),
    Invocation("config set mode=ap -n {cp}", BAD, "refused"),
    Invocation("config set orderMessageEnable=true -n {nobody} --json", USAGE, '"outcome": "not done"'),
    Invocation("config export {folder}/settings -n {cp}", GOOD, "settings of 127.0.0.1"),
    Invocation("config export {folder}/settings -n {cp}", BAD, err="--force"),
    Invocation("config export {folder}/settings -n {cp} --force --json", GOOD, '"entries"'),
    Invocation("config export {pipe} -n {cp} --force", BAD, err="not a regular file and cannot be replaced"),
    Invocation("config export - -n {cp}", GOOD, "orderMessageEnable=", "settings of 127.0.0.1"),
    Invocation("config export {folder}/never -n {nobody}", USAGE, err="no name server answered"),
    Invocation("config export -n {cp}", USAGE, err="needs one FILE"),
    Invocation("config set orderMessageEnable=false -n {cp}", GOOD, "done"),
    Invocation("config import {folder}/settings -n {cp}", GOOD, "done"),
    Invocation("config get orderMessageEnable -n {cp}", GOOD, "true"),
    Invocation("config import {folder}/settings -n {apboth} --json", GOOD, '"outcome": "done"'),
    Invocation("config import {folder}/settings -n {nobody}", USAGE, "Connection refused"),
    Invocation("config import {folder}/missing -n {cp}", BAD, err="give a file of 'namesrv config export'"),
    Invocation("config import {text} -n {cp}", BAD, err="unknown setting 'this'"),
    Invocation("config import {folder}/empty -n {cp}", BAD, err="there is no setting in it"),
    Invocation("config import {folder}/mode -n {cp}", BAD, err="'mode' cannot be changed"),
    Invocation("config import {folder}/settings -n {cp} --force", USAGE, err="--force is for 'config export'"),
    Invocation("config set orderMessageEnable=false -n {apboth}", GOOD, "done"),
    # --- comparison
    Invocation("diff -n {cp} -a {cpadmin}", GOOD, "equal:"),
    Invocation("diff -n {cp} -a {cpadmin} --json", GOOD, '"equal": true'),
    Invocation("diff -n {apboth} -a {apadmin} --json", BAD, '"equal": false'),
    Invocation("diff -n {apboth} -a {apadmin} --limit 1", BAD, "differ between"),
    Invocation("diff -n {cp} -a {locked}", USAGE, "--token-file"),
    Invocation("diff -n {cp} -a {locked} --token-file {text} --json", USAGE, '"equal": false'),
    Invocation("diff -n {cp} -a {locked} --token-file {token}", GOOD, "equal: "),
    Invocation("diff -n {cp} -a {locked} --namespace NS", GOOD, "equal in everything"),
    Invocation("diff -n {ap}", USAGE, err="give two or more"),
    Invocation("diff -n {ap};{nobody} -a {nobody}", USAGE, "not compared: 127.0.0.1:1"),
    Invocation("diff -n {apboth} --limit some", USAGE, err="--limit"),
    Invocation("adopt -n {cp} -a {cpadmin} --json", GOOD, '"ours"'),
    Invocation("adopt -n {ap}", USAGE, err="give all with -n"),
    Invocation("adopt -n {nobody};127.0.0.1:2", USAGE, "not compared: 127.0.0.1:1: cannot connect"),
    Invocation("adopt -n {apboth} -a {apadmin} --only 10.0.0.1:1", USAGE, err="--only 10.0.0.1:1: not in the list"),
    Invocation("adopt -n {cp} -a {cpadmin} --swap ''", USAGE, err="--swap '': give a command"),
    Invocation('adopt -n {cp} -a {cpadmin} --swap "don\'t"', USAGE, err='--swap "don\'t": No closing quotation'),
    Invocation("adopt -n {cp} -a {cpadmin} --save {text}", USAGE, err="text"),
    Invocation("adopt -n {cp} -a {locked}", USAGE, "equal", err="KV namespaces unknown: .*--token-file"),
    Invocation("adopt -n {cp} -a {locked} --namespace n", GOOD, "equal", err="KV namespaces unknown: .*--token-file"),
    Invocation("adopt -n {cp} -a {locked} --save {folder}/unsaved", BAD, err="nothing was saved: KV namespaces are unknown"),
    Invocation("adopt -n {cp} -a {cpadmin} --save {folder}/start", GOOD, "saved"),
    Invocation("adopt -n {cp} -a {cpadmin} --save {folder}/start", USAGE, err="give an empty folder"),
    # --- operation
    Invocation("status -a {cpadmin}", GOOD, "digests equal"),
    Invocation("status -a {cpadmin} --json", GOOD, '"digestsEqual": true'),
    Invocation("status -a {apadmin} --json", GOOD, '"mode": "ap"'),
    Invocation("status -a {nobody}", USAGE, "no answer (Connection refused)"),
    Invocation("status -a {nobody} --json", USAGE, '"answers": false'),
    Invocation("status -a nonsense", BAD, err="nonsense"),
    Invocation("status -a {cpadmin} --token-file {folder}/missing", BAD, err="--token-file"),
    Invocation("status -a {cpadmin} --ca {text}", BAD, err="give a file with certificates in PEM"),
    Invocation("status -a {cpadmin} --cert {text}", BAD, err="give --ca FILE too"),
    Invocation("status -a {cpadmin} --ca system --cert {text}", BAD, err="give certificate and key in PEM"),
    Invocation("status -a {cpadmin} --ca system --cert {folder}/missing", BAD, err="missing: No such file"),
    Invocation("kv get NS key -n {ap} --key {text}", USAGE, err="are for 'kv export'"),
    Invocation("status -a ftp://127.0.0.1:1", BAD, err="http:// or https://"),
    Invocation("status -a https://127.0.0.1:1", BAD, err="give --ca FILE"),
    Invocation("status -a {locked}", USAGE, "--token-file"),
    Invocation("status -a {locked} --token-file {empty}", BAD, err="its first line is empty"),
    Invocation("status -a {cpadmin} --timeout-ms 99999999999999", USAGE, err="is more than 1000000000"),
    Invocation("status -a {locked} --token-file {text}", USAGE, "token"),
    Invocation("status -a {locked} --token-file {token}", GOOD, "independent nodes"),
    Invocation("top -a {cpadmin} --interval 1 --count 1 --json", GOOD, '"rates"'),
    Invocation("top -a {nobody} --interval 1 --count 1", USAGE, "problem:"),
    Invocation("top --interval 0", USAGE, err="--interval"),
    Invocation("top --interval 99999999999", USAGE, err="is more than 1000000"),
    Invocation("doctor --set mode=ap --set listenPort=0 --set adminListen= --data-dir {folder}/dr", GOOD, "settings"),
    Invocation("doctor --set listenPort=0 --set adminListen= --data-dir {folder}/dr --json", GOOD, '"findings"'),
    Invocation("doctor --set mode", BAD, err="give KEY=VALUE"),
    Invocation("doctor --set mode=xp --json", BAD, '"level": "problem"'),
    Invocation("doctor -c {folder}/missing", BAD, "missing"),
    Invocation("watch -a {cpadmin} --from 0 --count 2 --json", GOOD, '"event"'),
    Invocation("watch -a {apadmin} --from 0 --count 1", GOOD, "broker-registered"),
    Invocation("watch -a {cpadmin} --from never --count 1", USAGE, err="never"),
    Invocation("watch -a {locked} --count 1", BAD, err="--token-file"),
    Invocation("watch --count none", USAGE, err="--count"),
    Invocation("watch -a {nobody} --count 1", USAGE, err="no answer (Connection refused)"),
    Invocation("members list -a {cpadmin}", GOOD, "leader"),
    Invocation("members list -a {cpadmin} --json", GOOD, '"members"'),
    Invocation("members list -a {apadmin}", BAD, err="independent"),
    Invocation("members list -a {nobody}", USAGE, err="Connection refused"),
    Invocation("members", USAGE, err="invalid choice|required"),
    Invocation("members add o1 127.0.0.1:1 --observer --within 3 -a {cpadmin}", USAGE, err="o1: observer, not connected; "),
    Invocation("members add o1 127.0.0.1:2 -a {cpadmin}", BAD, err="an observer; use 'namesrv members promote o1'"),
    Invocation("members replace n1 o1 127.0.0.1:1 -a {cpadmin}", BAD, err="use 'namesrv members promote o1'. When it votes"),
    Invocation("members add o2 nonsense -a {cpadmin}", BAD, err="nonsense"),
    Invocation(
        "members add 'o 2' 127.0.0.1:3 -a {cpadmin}",
        BAD,
        err="give a name of at most 200 characters, without blanks, control characters, ',' and '='",
    ),
    Invocation(
        "members add 'o\x1b2' 127.0.0.1:3 -a {cpadmin}",
        BAD,
        err="give a name of at most 200 characters, without blanks, control characters",
    ),
    Invocation("members add o2 'a\nb:3' -a {cpadmin}", BAD, err="not HOST:PORT"),
    Invocation("members add '' 127.0.0.1:3 -a {cpadmin}", USAGE, err="takes NAME HOST:PORT"),
    Invocation("members add o2 127.0.0.1:3 -a {apadmin}", BAD, err="have no members"),
    Invocation("members move o1 127.0.0.1:2 -a {cpadmin} --json", GOOD, '"127.0.0.1:2"'),
    Invocation("members promote o1 -a {cpadmin}", BAD, err="is not connected to the leader"),
    Invocation("members replace o1 o2 127.0.0.1:2 -a {cpadmin}", BAD, err="o1 is an observer, and 'replace' adds a voter: use "),
    Invocation("members remove o1 -a {cpadmin} --json", GOOD, '"changed": true'),
    Invocation("members replace o9 o2 127.0.0.1:2 -a {cpadmin}", BAD, err="o9 is not a member; give one of "),
    Invocation("members replace o1 o1 127.0.0.1:2 -a {cpadmin}", BAD, err="cannot be replaced by a node of the same name"),
    Invocation("members replace o1 o2 127.0.0.1:1 -a {nobody} --within 1", USAGE, err="not finished within 1 s"),
    Invocation("members remove -a {cpadmin}", USAGE, err="takes NAME"),
    Invocation("members move o1 -a {cpadmin}", USAGE, err="takes NAME HOST:PORT"),
    Invocation("members replace o1 o2 -a {cpadmin}", USAGE, err="takes OLD NEW HOST:PORT"),
    Invocation("members add o1 127.0.0.1:1 -a {nobody} --within 1", USAGE, err="no answer (Connection refused)"),
    Invocation("members move o1 127.0.0.1:1 -a {nobody} --within 1", USAGE, err="no answer (Connection refused)"),
    Invocation("members promote o1 -a {nobody} --within 1", USAGE, err="no answer (Connection refused)"),
    Invocation("members remove o1 -a {nobody} --within 1 --json", USAGE, err="no answer (Connection refused)"),
    Invocation("members remove o1 -a {locked}", BAD, err="--token-file"),
    Invocation("leader -a {cpadmin}", GOOD, "term"),
    Invocation("leader -a {cpadmin} --json", GOOD, '"leader"'),
    Invocation("leader -a {apadmin}", BAD, err="have no leader"),
    Invocation("leader -a {nobody}", USAGE, err="Connection refused"),
    Invocation("leader show n1 -a {cpadmin}", USAGE, err="did you mean 'leader transfer'?"),
    Invocation("leader transfer nobody -a {cpadmin}", BAD, err="is not another node"),
    Invocation("leader transfer 'a b&to=n1' -a {cpadmin}", BAD, err="a b&to=n1 is not another node"),
    Invocation("leader transfer n1 -a {nobody}", USAGE, err="no answer (Connection refused)"),
    Invocation("leader transfer -a {cpadmin} --json", GOOD, '"from"'),
    Invocation("drain -a {cpadmin}", USAGE, err="drain takes one node"),
    Invocation("drain -a {nobody}", USAGE, err="Connection refused"),
    Invocation("drain -a {ap2admin} --within 0", USAGE, err="--within"),
    Invocation("drain -a {ap2admin} --within 99999999999", USAGE, err="is more than 1000000"),
    Invocation("drain -a {ap2admin} --within 1 --json", GOOD, '"drained": true'),
    Invocation("drain -a {ap2admin} --undo --json", GOOD, '"drained": false'),
    Invocation("drain -a {locked} --within 1", BAD, err="--token-file"),
    Invocation("drain -c {folder}/missing", BAD, err="missing: No such file or directory; give another path"),
    Invocation("drain -c {text} -a {nobody}", USAGE, err="leave out --admin and --ca, or leave out -c"),
    Invocation("backup {folder}/cp.backup -a {cpadmin}", GOOD, "saved"),
    Invocation("backup {folder}/ap.backup -a {apadmin} --json", GOOD, '"mode": "ap"'),
    Invocation("backup {folder}/cp.backup -a {cpadmin}", BAD, err="replace it with --force"),
    Invocation("backup {pipe} -a {cpadmin} --force", BAD, err="not a regular file and cannot be replaced"),
    Invocation("backup {folder}/none/x -a {cpadmin}", BAD, err="No such file or directory"),
    Invocation("backup {folder}/no.backup -a {nobody}", USAGE, err="Connection refused"),
    Invocation("backup {folder}/no.backup -a {locked}", BAD, err="--token-file"),
    Invocation("backup - -a {cpadmin} --json", BAD, err="without --json"),
    Invocation("backup --check {folder}/cp.backup", GOOD, "is whole"),
    Invocation("backup --check {folder}/cp.backup --json", GOOD, '"revision"'),
    Invocation("backup --check {folder}/missing", BAD, err="No such file"),
    Invocation("backup --check {text}", BAD, err="not a backup"),
    Invocation("kv import {folder}/cp.backup -n {cp} --json", GOOD, '"entries": 2'),
    Invocation("restore {folder}/missing -a {cpadmin}", BAD, err="No such file"),
    Invocation("restore {text} -a {cpadmin}", BAD, err="not a backup"),
    Invocation("restore {folder}/cp.backup -a {cpadmin}", BAD, err="--merge"),
    Invocation("restore {folder}/cp.backup -a {nobody}", USAGE, err="Connection refused"),
    Invocation("restore --merge {folder}/cp.backup -a {cpadmin} --json", GOOD, '"merged"'),
    Invocation("restore --merge {folder}/cp.backup -a {cpadmin};{ap2admin}", BAD, err="different modes"),
    # --- files of stopped nodes
    Invocation("log inspect {data} --json", GOOD, '"segments"'),
    Invocation("log inspect {data} --entries --json", GOOD, '"entries"'),
    Invocation("log inspect {data} --entries x:y", BAD, err="--entries x:y"),
    Invocation("log inspect {folder}/none", USAGE, err="give the dataDir"),
    Invocation("log", USAGE, err="required"),
    Invocation("recover {data} {folder}/recovered --json", GOOD, '"lastIndex"'),
    Invocation("recover {data} {folder}/recovered", BAD, err="--force"),
    Invocation("recover {data} {pipe} --force", BAD, err="not a regular file and cannot be replaced"),
    Invocation("recover {folder}/none", USAGE, err="give the dataDir"),
    Invocation("switch --to ap {data} --backup {folder}/cp.backup --dry-run --json", GOOD, '"done": false'),
    Invocation("switch --to ap {folder} --backup {folder}/cp.backup --dry-run", GOOD, "would: ", err="has no folder raft"),
    Invocation("switch --to ap {folder}/none --backup {folder}/cp.backup", BAD, err="is not a folder"),
    Invocation("switch --to ap {data} --backup {folder}/missing", BAD, err="missing"),
    Invocation("switch --to xp {data} --backup {folder}/cp.backup", USAGE, err="invalid choice: 'xp'"),
    Invocation("access token", GOOD, "tokens ="),
    Invocation("access token --json", GOOD, '"hash"'),
    Invocation("access token surplus", USAGE, err="unrecognized arguments: surplus"),
    Invocation("access report {empty}", GOOD, "Draft made from audit logs"),
    Invocation("access report {brackets}", GOOD, "Draft made", "1 lines are not JSON objects"),
    Invocation("access check {access} --json", GOOD, '"identities"'),
    Invocation("access check {folder}/missing", BAD, err="missing"),
    Invocation("access check {text}", BAD, err="text"),
    Invocation("access report {folder}/missing", BAD, err="give the audit-refusals.log of a node"),
    Invocation("access", USAGE, err="required: ACTION"),
    # --- nodes
    Invocation("serve -p", GOOD, "listenPort"),
    Invocation("serve -c {folder}/missing", START_FAILED, err="missing"),
    Invocation("serve --mode xp", BAD, err="mode=xp (flag): give one of ap, cp"),
    Invocation("serve --set nonsense", BAD, err="nonsense"),
    Invocation("serve --set listenPrt=1 --data-dir {folder}/serve", BAD, err="listenPrt"),
    Invocation("serve --mode cp --data-dir {folder}/serve", BAD, err="peers"),
    Invocation("mqnamesrv -p", GOOD, "listenPort"),
    Invocation("mqnamesrv -c {folder}/missing", START_FAILED, err="missing"),
    Invocation("cluster --nodes 2", BAD, err="2"),
    Invocation("cluster --nodes 2 --json", BAD, '"event": "failed"'),
    Invocation("cluster --listen nonsense", BAD, err="--listen"),
    Invocation("cluster --mode xp", USAGE, err="invalid choice: 'xp'"),
    Invocation("cluster --set nonsense", BAD, err="nonsense"),
    # --- try out
    Invocation("broker -n {nobody} --duration-s 0.1 --json", USAGE, '"registered": 0'),
    Invocation("broker -n {ap} --brokers 0", USAGE, err="--brokers"),
    Invocation("broker -n {ap2} --topics 1 --duration-s 0.1 --json", GOOD, '"registered": 1'),
    Invocation("broker -n {ap} --duration-s soon", USAGE, err="--duration-s"),
    Invocation("simulate --seeds 0:1 --duration-s 1 --processes 1 --json", GOOD, '"summary": true'),
    Invocation("simulate --seeds one", USAGE, err="--seeds"),
    Invocation("simulate --off nothing", USAGE, err="nothing"),
    Invocation("simulate --nodes 4", USAGE, err="--nodes"),
    Invocation("chaos list", GOOD, "isolate-leader"),
    Invocation("chaos list --json", GOOD, '"isolate-leader"'),
    Invocation("chaos", USAGE, err="required: COMMAND"),
    Invocation("chaos run isolate-leadr", USAGE, err="did you mean isolate-leader?"),
    Invocation("chaos run {folder}/missing.toml", USAGE, err="cannot be read"),
    Invocation("chaos run {deep}", USAGE, err="not TOML: maximum recursion depth"),
    Invocation("chaos compare isolate-leadr", USAGE, err="did you mean isolate-leader?"),
    Invocation("chaos run isolate-leader --mode xp", USAGE, err="xp"),
    Invocation("chaos check {folder}/missing", USAGE, err="missing"),
    Invocation("chaos results {folder}/missing", USAGE, err="missing"),
    Invocation("chaos results {text}", USAGE, err="Not a directory; give the folder of a suite"),
    Invocation("chaos history {folder}/missing", USAGE, err="missing"),
    Invocation("chaos suite smoke --hours 1", USAGE, err="--hours"),
    Invocation("chaos sabotage --list --json --only never-fences", GOOD, "never-fences"),
    Invocation("chaos sabotage --only nothing", USAGE, err="nothing"),
    Invocation("study", USAGE, err="required: COMMAND"),
    Invocation("study plan primary", GOOD, "900 of 900 runs are left"),
    Invocation("study plan primary --jobs 2 --json", GOOD, '"study": "primary"'),
    Invocation("study plan primry", USAGE, err="did you mean primary?"),
    Invocation("study plan {folder}/missing.toml", USAGE, err="cannot be read"),
    Invocation("study plan {deep}", USAGE, err="not TOML: maximum recursion depth"),
    Invocation("study run primary --dry-run --keep-traces --hours 1", GOOD, "cp-lease"),
    Invocation("study run primary --hours 0", USAGE, err="--hours 0"),
    Invocation("study run primary --out {folder}", USAGE, err="is not empty"),
    Invocation("study run primary --published {folder} --dry-run", USAGE, err="--published"),
    Invocation("study resume {folder}/missing", USAGE, err="contains no plan.toml"),
    Invocation("study publish {folder}/missing", USAGE, err="contains no plan.toml"),
    Invocation("study publish --to {folder}", USAGE, err="contains no runs.csv|pyarrow is not installed"),
    Invocation("trace generate --rows x --out {folder}/t", USAGE, err="--rows"),
    Invocation("trace generate --rows 10 --out {folder}/t", USAGE, err="10000 to 1000000000 is expected"),
    Invocation("trace generate --rows 10000 --nodes 3 --out {folder}/generated", GOOD),
    Invocation("trace import {folder}/missing --name a --out {folder}/t", USAGE, err="missing"),
    Invocation("trace", USAGE, err="required"),
    Invocation("demo --mode xp", USAGE, err="invalid choice: 'xp'"),
    Invocation("analyze", USAGE, err="required: RUN"),
    Invocation("completion bash", GOOD, "complete"),
    Invocation("completion fish", USAGE, err="invalid choice: 'fish'"),
    # --- no command
    Invocation("", USAGE, err="usage: namesrv COMMAND"),
    Invocation("--help", GOOD, "Run name servers:"),
    Invocation("--version", GOOD, "namesrv "),
    Invocation("stauts", USAGE, err="did you mean 'namesrv status'?"),
    Invocation("help status", GOOD, "exit codes:"),
]


class Places:
    """Addresses and files that the table names."""

    def __init__(self, folder: Path) -> None:
        self.values = {"nobody": "127.0.0.1:1", "folder": str(folder)}
        for name, text in (
            ("text", "this is no file of ours\n"),
            ("token", TOKEN + "\n"),
            ("access", '[identities.ops]\nroles = ["admin"]\nnetworks = ["127.0.0.1/32"]\n'),
            ("empty", ""),
            ("deep.toml", f"name = {'[' * 100_000}"),
            ("brackets", "[" * 100_000),
            ("mode", "mode=ap\n"),
        ):
            file = folder / name
            file.write_text(text)
            file.chmod(0o600)
            self.values[name.removesuffix(".toml")] = str(file)
        self.values["pipe"] = str(folder / "pipe")
        os.mkfifo(self.values["pipe"])


def _registration() -> tuple[BrokerIdentity, bytes]:
    topics = BrokerTopics(TopicTable([]), TopicTable([TopicConfig("T", 4, 4), TopicConfig("U", 1, 1)]))
    body = topics.encode(BrokerVersion.V5_3, DataVersion(0, 0, 0), 0, compressed=False)
    return BrokerIdentity("C", "broker-a", 0, "127.0.0.1:10911", "127.0.0.1:10921"), body


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Nodes in an event loop of their own, and the table's names for their addresses."""
    folder = tmp_path_factory.mktemp("invocations")
    found = Places(folder).values
    started, end = threading.Event(), asyncio.Event()
    loops: list[asyncio.AbstractEventLoop] = []
    failures: list[BaseException] = []

    async def serve() -> None:
        loops.append(asyncio.get_running_loop())
        async with AsyncExitStack() as stack:
            cluster = await stack.enter_async_context(operated(folder / "cp"))
            independent = await stack.enter_async_context(operated(folder / "ap", 2, "ap"))
            locked = await stack.enter_async_context(operated(folder / "locked", 1, "ap", adminTokenFile=found["token"]))
            identity, body = _registration()
            client = RemotingClient()
            stack.push_async_callback(client.close)
            request = register_request(
                identity,
                BrokerVersion.V5_3,
                body,
                compressed=False,
                oneway=False,
                enable_acting_master=True,
                heartbeat_timeout_ms=None,
                zone_name=None,
            )
            first = independent.namesrv.split(";")[0]
            assert (await client.request(first, request)).code == 0
            found["cp"], found["cpadmin"] = cluster.namesrv, cluster.admin
            found["apboth"], found["ap"] = independent.namesrv, first
            found["ap2"] = independent.namesrv.split(";")[1]
            found["apadmin"] = independent.admin
            found["ap2admin"], found["locked"] = independent.admin.split(";")[1], locked.admin
            found["data"] = str(folder / "stopped")
            started.set()
            await end.wait()

    def work() -> None:
        try:
            asyncio.run(serve())
        except BaseException as failure:
            failures.append(failure)
            started.set()

    thread = threading.Thread(target=work)
    thread.start()
    assert started.wait(DEADLINE_S)
    assert not failures, failures
    yield found
    loops[0].call_soon_threadsafe(end.set)
    thread.join(DEADLINE_S)


def invoke(*arguments: str) -> Output:
    """``namesrv ARGUMENT …`` in this process."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = main(arguments)
        except SystemExit as end:  # argparse
            code = int(end.code or 0)
    return Output(code, out.getvalue(), err.getvalue())


def judge(done: Output, line: str) -> None:
    """Check the rules for every invocation."""
    assert done.code in (GOOD, BAD, USAGE, START_FAILED), f"{line}: exit code {done.code}"
    assert "Traceback" not in done.out + done.err, f"{line}: {done}"
    if done.code != GOOD:
        assert (done.out + done.err).strip(), f"{line} ended with {done.code} and said nothing"


def test_each_ends_as_the_table_says(
    places: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("NAMESRV_ADDR", ADMIN_VARIABLE, TOKEN_VARIABLE, CA_VARIABLE, CERT_VARIABLE, KEY_VARIABLE):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(watch, "GIVE_UP_S", 1.0)
    wrong = []
    for row in TABLE:
        if "{data}" in row.line and not Path(places["data"]).exists():  # a copy, to which no node writes meanwhile
            shutil.copytree(Path(places["folder"]) / "cp" / "n1", places["data"])
        arguments = tuple(shlex.split(re.sub(r"\{(\w+)\}", lambda name: shlex.quote(places[name[1]]), row.line)))
        for _ in range(ATTEMPTS_MAX):
            done = invoke(*arguments)
            if done.code == row.code or not ELECTION.search(done.out + done.err):
                break
        try:
            judge(done, row.line)
            assert done.code == row.code, f"exit code {done.code}, not {row.code}: {done.out[-300:]} {done.err[-300:]}"
            assert row.out in done.out, f"stdout has no {row.out!r}: {done.out[-300:]} {done.err[-300:]}"
            assert re.search(row.err, done.err) or row.err in done.err, f"stderr has no {row.err!r}: {done.err[-300:]}"
            check_output(arguments, done.out)
        except AssertionError as failure:
            wrong.append(f"{row.line}\n    {failure}")
    assert not wrong, f"{len(wrong)} of {len(TABLE)} invocations:\n" + "\n".join(wrong)
    assert not [record for record in caplog.records if record.exc_info], caplog.text


LOCAL = (
    "access",
    "analyze",
    "chaos",
    "cluster",
    "completion",
    "demo",
    "log",
    "mqnamesrv",
    "recover",
    "serve",
    "simulate",
    "study",
    "switch",
    "trace",
)
"""Commands that connect to no node, or only to nodes that they start."""
_GROW = "tests/cli/test_members_command.py::test_grow_to_five_remove_the_leader_and_replace_a_dead_node"
ELSEWHERE = {
    ("analyze", "right"): "tests/packaging/test_distribution.py::test_chaos_and_analyze_run_without_a_checkout",
    ("chaos check", "right"): "tests/chaos/test_reports.py::test_check_exits_by_the_verdict",
    ("chaos compare", "right"): "tests/chaos/test_runs.py::test_json_of_commands_that_make_runs",
    ("chaos history", "right"): "tests/chaos/test_reports.py::test_history_prints_one_operation_a_line",
    ("chaos results", "right"): "tests/chaos/test_reports.py::test_summary_of_a_job_has_a_line_and_a_time_line_for_each_run",
    ("chaos run", "right"): "tests/packaging/test_distribution.py::test_chaos_and_analyze_run_without_a_checkout",
    ("chaos suite", "right"): "tests/chaos/test_runs.py::test_json_of_commands_that_make_runs",
    ("cluster", "right"): "tests/cli/test_cluster_command.py::test_once_is_a_health_check",
    ("demo", "right"): "tests/cli/test_demo.py::test_the_demo_on_real_processes",
    ("doctor", "unreachable"): "tests/cli/test_doctor.py::test_nodes_that_were_not_compared_are_a_finding",
    ("members add", "right"): _GROW,
    (
        "members promote",
        "right",
    ): _GROW,
    (
        "members replace",
        "right",
    ): _GROW,
    ("study resume", "right"): "tests/chaos/test_studies.py::test_a_stopped_study_continues_where_it_was",
    ("study publish", "right"): "tests/spark/test_study_publish.py::test_publish_from_a_small_recorded_set",
    ("trace import", "right"): "tests/spark/test_foreign.py::test_command",
}
"""Uses that have no line because they take long or need Spark or Toxiproxy, and for each use the test that has it."""


def words_of_commands() -> set[str]:
    """Every command with its action, such as ``kv put``."""
    found = set()
    for name in available_commands():
        for parser in parsers(parser_of(name)[0]):
            words = " ".join([name, *parser.prog.split()[2:]])
            kinds = [each for each in parser._actions if each.dest == "action"]
            if not any(isinstance(each, argparse._SubParsersAction) for each in parser._actions):
                found |= {f"{words} {action}" for each in kinds for action in each.choices or ()} or {words}
    return found


def uses() -> set[tuple[str, str]]:
    """(command, use) of each line: right, wrong or unreachable. If an optional action is left out, the first action counts."""
    commands = words_of_commands()
    found = set()
    for row in TABLE:
        name, _, rest = row.line.partition(" ")
        second = f"{name} {rest.partition(' ')[0]}"
        first = next((each for each in ("list", "show") if f"{name} {each}" in commands), "")
        command_line = second if second in commands else f"{name} {first}".strip()
        use = "unreachable" if "{nobody}" in row.line else "right" if row.code == GOOD else "wrong"
        found.add((command_line, use))
    return found


def test_the_table_has_every_command_with_right_and_wrong_use_and_nodes_that_do_not_answer() -> None:
    assert len(TABLE) >= 150
    wanted = {(name, use) for name in words_of_commands() for use in ("right", "wrong", "unreachable")}
    wanted -= {(name, use) for name, use in wanted if use == "unreachable" and name.split()[0] in LOCAL}
    missing = wanted - uses() - ELSEWHERE.keys()
    remedy = "add one, name the test in ELSEWHERE, or add a command that connects to no node to LOCAL"
    assert not missing, f"TABLE in this file has no line for {sorted(missing)}; {remedy}"
    assert not ELSEWHERE.keys() & uses(), "TABLE has these lines: remove them from ELSEWHERE"
    for (command_line, _), test in ELSEWHERE.items():
        file, _, name = test.partition("::")
        source, word = (ROOT / file).read_text(encoding="utf-8"), command_line.split()[-1]
        assert f"def {name}(" in source, f"{file} has no test {name}"
        assert re.search(rf'"{word}["\s]', source), f"{file} does not run {command_line}"


def parsers(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """The parser and those of its actions."""
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                yield from parsers(below)


@pytest.mark.parametrize("name", available_commands())
def test_every_option_has_help_and_refuses_what_it_cannot_be(name: str) -> None:
    """The test tries an unknown option. For each option that takes a number or one of several words, it tries another word."""
    unknown = invoke(name, "--no-such-option-at-all")
    judge(unknown, name)
    assert unknown.code in (USAGE, BAD)
    for parser in parsers(parser_of(name)[0]):
        for action in parser._actions:
            assert action.help or not action.option_strings, f"{parser.prog}: {action.dest} has no help"
            if not action.option_strings or (action.choices is None and action.type not in (int, float)):
                continue
            words = [*parser.prog.split()[2 if name != "mqnamesrv" else 1 :], action.option_strings[-1], "no-such-value"]
            done = invoke(name, *words)
            judge(done, " ".join([name, *words]))
            assert done.code == USAGE, f"{name} {words}: {done}"
            assert action.option_strings[-1] in done.err, f"{name} {words}: the message does not name the option: {done.err}"


def with_json() -> set[str]:
    """All command lines that have ``--json``, without options."""
    found = set()
    for name in available_commands():
        for parser in parsers(parser_of(name)[0]):
            if "--json" not in parser._option_string_actions:
                continue
            words = " ".join(parser.prog.split()[1:])
            actions = next((each.choices for each in parser._actions if each.dest == "action" and each.choices), None)
            optional = any(each.dest == "action" and each.nargs == "?" for each in parser._actions)
            if actions is None or optional:
                found.add(words)
            found |= {f"{words} {action}" for action in actions or ()}
    return found


def test_every_command_with_json_has_a_schema_and_the_reverse() -> None:
    documented = {line for output in OUTPUTS.values() for line in output.commands}
    wrong = [
        f"'namesrv {line}' has --json: add it to OUTPUTS in tests/packaging/json_page.py" for line in with_json() - documented
    ]
    wrong += [f"OUTPUTS in tests/packaging/json_page.py: 'namesrv {line}' has no --json" for line in documented - with_json()]
    assert not wrong, "\n".join(wrong)
    for line in documented:
        assert schema_of(tuple(line.split())) is not None


@pytest.mark.parametrize("line", ["--help", "status --help", "chaos list", "access token --json"])
def test_a_reader_that_closes_the_pipe_sees_no_error(line: str) -> None:
    text = f"{shlex.join(command(*shlex.split(line)))} | true"
    done = subprocess.run(
        ["sh", "-c", text], capture_output=True, text=True, check=False, env=clean_environment(), timeout=DEADLINE_S
    )
    shown = [text for text in done.stderr.splitlines() if not re.fullmatch(r"\s*[\d.]+ s {2}.*\bstill running\b.*", text)]
    assert (done.returncode, shown) == (0, []), "a slow command shows its progress, and nothing else"


def test_modules_of_commands_say_their_exit_codes() -> None:
    """The help names the exit codes, except for commands that run until they are stopped or print a fixed text."""
    silent = {"serve", "mqnamesrv", "completion"}
    for name in set(available_commands()) - silent:
        text = "".join(parser.format_help() for parser in parsers(parser_of(name)[0]))
        assert re.search(r"exit (codes?:? )?0", " ".join(text.split()), re.IGNORECASE), (
            f"namesrv {name} --help names no exit codes: give the parser an epilog with them, in cli/{name}.py"
        )
        assert importlib.import_module(f"replicated_namesrv.cli.{name}").HELP


def test_json_of_a_failed_command_is_json_or_nothing() -> None:
    done = invoke("brokers", "-n", "127.0.0.1:1", "--json")
    assert (done.code, done.out) == (USAGE, "")
    done = invoke("config", "get", "-n", "127.0.0.1:1", "--json")
    assert json.loads(done.out)["nameServers"] == {}
