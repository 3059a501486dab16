// The time line of the last hour. Each entry links to its topic or broker.
import { clock, count, duration, html, plural } from "./api.js";
import { useData, useLive } from "./live.js";
import { Problem, Search } from "./parts.js";
import { link, read } from "./route.js";

const address = (entry) => html`<a href=${link("brokers", "", { q: entry.brokerAddr })}><bdi>${entry.brokerAddr}</bdi></a> of <bdi>${entry.clusterName}</bdi>`;
const broker = (entry) => html`<a href=${link("brokers", entry.brokerName)}><bdi>${entry.brokerName}</bdi></a> ${entry.brokerId === 0 ? "master" : entry.brokerId === undefined ? "" : `slave ${entry.brokerId}`} ${address(entry)}`;
const topics = (entry) => (!entry.topics?.length ? "" : html` (${entry.topics.map((topic, at) => html`${at ? ", " : ""}<a href=${link("topics", topic)}><bdi>${topic}</bdi></a>`)}${entry.topicCount > entry.topics.length ? ` and ${count(entry.topicCount - entry.topics.length)} more` : ""})`);
const kv = (entry) => html`<a href=${link("kv", "", { q: entry.key })}><bdi>${entry.namespace}</bdi> / <bdi>${entry.key}</bdi></a>`;

const itself = (entry) => (entry.node ? html`<strong><bdi>${entry.node}</bdi></strong>` : html`<strong>this node</strong>`);
const peer = (entry) => html`<a href=${link("cluster")}><bdi>${entry.peer}</bdi></a>`;
const seenBy = ({ seenBy }) => html`<strong><bdi>${seenBy.join(", ")}</bdi></strong>`;

const TEXTS = {
  leader: (entry) => (entry.leader ? html`<strong>${entry.leader}</strong> leads in term ${entry.term}` : html`no leader is known in term ${entry.term}`),
  "peer-lost": (entry) => html`${seenBy(entry)} lost contact with node ${peer(entry)}: ${entry.why}. Last contact at ${clock(entry.sinceMs)}`,
  "peer-back": (entry) => html`${seenBy(entry)} ${entry.seenBy.length === 1 ? "has" : "have"} contact with node ${peer(entry)} again, after ${duration(entry.timeMs - entry.sinceMs)}`,
  stalled: (entry) => html`${itself(entry)} stalled for ${duration(entry.durationMs)}: its process was paused, or its event loop was blocked`,
  fenced: (entry) => html`${itself(entry)} <strong>fenced itself</strong>: it reaches no leader that has a majority`,
  unfenced: (entry) => html`${itself(entry)} serves again: it reaches a leader that has a majority`,
  serving: (entry) => html`${itself(entry)} listens for brokers and clients`,
  "not-serving": (entry) => html`${itself(entry)} no longer listens for brokers and clients`,
  "broker-registered": (entry) => html`broker ${broker(entry)} registered${topics(entry)}`,
  "broker-changed": (entry) => html`broker ${broker(entry)} changed its registration${topics(entry)}`,
  "broker-unregistered": (entry) => html`broker ${broker(entry)} unregistered`,
  "broker-expired": (entry) => html`broker ${broker(entry)} was removed: no contact within its time-out`,
  "broker-lost": (entry) => html`broker ${broker(entry)} was removed: its connections ended`,
  "broker-suspected": (entry) => html`broker ${address(entry)} has made no contact for a third of its time-out`,
  "broker-cleared": (entry) => html`broker ${address(entry)} made contact again, or was removed`,
  "broker-group-changed": (entry) => html`a registration of <a href=${link("brokers", entry.brokerName)}><bdi>${entry.brokerName}</bdi></a> was refused, but changed the brokers of this name`,
  "topic-registered": (entry) => html`a topic was registered${topics(entry)}`,
  "topic-deleted": (entry) => html`a topic was deleted${topics(entry)}`,
  "write-perm-wiped": (entry) => html`the write permission of <a href=${link("brokers", entry.brokerName)}><bdi>${entry.brokerName}</bdi></a> was wiped${topics(entry)}`,
  "write-perm-added": (entry) => html`the write permission of <a href=${link("brokers", entry.brokerName)}><bdi>${entry.brokerName}</bdi></a> was restored${topics(entry)}`,
  "kv-put": (entry) => html`KV entry ${kv(entry)} was written`,
  "kv-deleted": (entry) => html`KV entry ${kv(entry)} was deleted`,
  "settings-changed": (entry) => html`settings were changed: <a href=${link("settings", "", { q: Object.keys(entry.settings ?? {})[0] })}>${Object.entries(entry.settings ?? {}).map(([name, value]) => `${name}=${value}`).join(", ")}</a>`,
  requested: (entry) => html`<strong><bdi>${entry.by}</bdi></strong> requested ${entry.method} <bdi>${entry.path}</bdi> ${entry.node ? html`at <bdi>${entry.node}</bdi>` : "at this node"}${entry.status === null ? "" : entry.status === 200 ? ": done" : `: refused or failed, HTTP status ${entry.status}`}`,
  restored: () => "the whole state was read: from the disk at the start, from a backup, or from the leader's snapshot",
  "changes-missed": () => "changes before this entry are missing: there were more than the node keeps (watchHistoryBytes)",
};
const HOUR_MS = 3600000;
const BAD = new Set(["fenced", "not-serving", "broker-expired", "broker-lost", "broker-suspected", "peer-lost", "stalled"]);

// A node keeps its time line in memory.
function sinceStart({ beganMs }, cluster) {
  if (!cluster || beganMs < cluster.timeMs - HOUR_MS) return "";
  return ` This node started at ${clock(beganMs)}, and ${cluster.mode === "cp" ? "knows earlier changes only from its log and from the other nodes" : "has no changes of the time before"}.`;
}

export function TimeLine() {
  const { cluster } = useLive();
  const { q = "" } = read().fields;
  const { data, error, at } = useData(`v1/timeline?${new URLSearchParams({ limit: 500, q, nodes: "all" })}`, 5000);
  return html`<h1>Time line of the last hour</h1><${Search} label="Search the time line" /><${Problem} error=${error} data=${data} at=${at} />
    ${data?.flapping.length > 0 && html`<div class="findings" role="status"><strong>${plural(data.flapping.length, "broker flaps", "brokers flap")}:</strong> ${data.flapping.slice(0, 10).map((row, at) => html`${at ? ", " : ""}<a href=${link("brokers", row.brokerName)}>${row.brokerName} ${row.brokerAddr}</a> (removed ${row.removals} times)`)}</div>`}
    ${data && html`<p role="status">${count(data.entries.length)} of ${plural(data.total, "entry", "entries")}, the newest first.${sinceStart(data, cluster)}</p>
    ${data.notAsked?.map(({ node, why }) => html`<p class="warn" key=${node} role="status">Requests that ${node} received, and what it saw of the other nodes, are not shown: ${why}.</p>`)}
    <ol class="timeline">${data.entries.map((entry) => html`<li key=${entry.number} class=${BAD.has(entry.kind) ? "bad-mark" : ""}><time dateTime=${new Date(entry.timeMs).toISOString()}>${clock(entry.timeMs)}</time>
      <span>${(TEXTS[entry.kind] ?? (() => entry.kind))(entry)}${entry.over && html` , by <strong><bdi>${entry.by}</bdi></strong> through ${entry.over}`}${entry.revision ? html` <span class="weak">revision ${count(entry.revision)}</span>` : ""}</span></li>`)}</ol>`}`;
}
