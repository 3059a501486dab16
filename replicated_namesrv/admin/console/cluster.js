// The cluster page: the leader, whether the nodes agree, the problems of each node, and in AP the differences of their contents.
import { useRef } from "preact/hooks";
import { ask, authorized, bytes, clock, count, duration, html, moment, plural } from "./api.js";
import { dialogIsOpen, live, poll, useData, useLive } from "./live.js";
import { COMPARISON_MS } from "./lists.js";
import { Action, Problem, Table, change } from "./parts.js";
import { link } from "./route.js";

const sinceFetch = () => performance.now() - live.at;
const aged = (node) => (node.ageMs === null ? null : node.ageMs + sinceFetch());
const isStale = (node) => live.error !== null || !node.answers; // also the facts of all nodes while the node of this page does not answer

// A removed node learns nothing more of the cluster.
const isRemoved = ({ nodes, asked }) => nodes.some((node) => node.nodeId === asked && node.replication?.role === "removed");

export function summary(cluster) {
  const silent = cluster.nodes.filter((node) => !node.answers);
  const lines = [];
  if (isRemoved(cluster)) lines.push(html`<strong class="bad">${cluster.asked} was removed from the cluster</strong> and does not know its present state.`);
  else if (cluster.mode === "cp") {
    lines.push(cluster.leader
      ? html`<strong>${cluster.leader} leads</strong> in term ${count(cluster.term)}.`
      : html`<strong class="bad">No node leads.</strong>`);
    if (cluster.digestsEqual === true) lines.push("Nodes at the same log position have equal states.");
    if (cluster.digestsEqual === false) lines.push(html`<strong class="bad">Nodes at the same log position have different states.</strong>`);
    if (cluster.digestsEqual === null && cluster.nodes.length > 1) lines.push("No two nodes of one version are at the same log position at this moment.");
  } else lines.push("Independent nodes (AP): each answers from its own state.");
  lines.push(silent.length
    ? html`<strong class="bad">${plural(silent.length, "node does", "nodes do")} not answer:</strong> ${silent.map((node) => node.nodeId).join(", ")}.`
    : cluster.nodes.length > 1 ? `All ${cluster.nodes.length} nodes answer.` : "");
  return lines;
}

const whatIsEqual = ({ nodes, kvNodes }) => (kvNodes.length === nodes.length ? "brokers, topics and KV config" : "brokers and topics");
function agreement({ nodes, kvNodes, brokersDiffer, topicsDiffer, kvDiffer }) {
  const differing = [brokersDiffer && plural(brokersDiffer, "broker"), topicsDiffer && plural(topicsDiffer, "topic"), kvDiffer && plural(kvDiffer, "KV entry", "KV entries")].filter(Boolean);
  if (differing.length) return html`<strong class="bad">The nodes differ:</strong> ${differing.join(", ")}, listed below.`;
  return nodes.length > 1 ? `${nodes.join(", ")} have the same ${whatIsEqual({ nodes, kvNodes })}.` : "";
}

function standing(node) {
  if (!node.answers) return html`<span class="bad">${node.ageMs === null ? "has not answered yet" : "does not answer"}</span>`;
  if (live.error) return html`<span class="warn">was ${node.replication?.fenced ? "fenced" : node.status.ready ? "ready" : "not ready"}</span>`;
  if (node.replication?.role === "removed") return html`<span class="bad">removed</span>`;
  if (node.replication?.fenced) return html`<span class="bad">fenced</span>`;
  return node.status.ready ? html`<span class="good">ready</span>` : html`<span class="bad">not ready</span>`;
}

const quota = (node) => {
  const used = node.status.quotas?.map((each) => ({ ...each, share: each.limit ? each.used / each.limit : 0 })).sort((a, b) => b.share - a.share)[0];
  return used ? `${(100 * used.share).toFixed(used.share < 0.1 ? 1 : 0)} % of ${used.name}` : "–";
};

const connection = ({ connected, error }) => (connected ? "connected" : html`<span class="bad">not connected${error ? ` (${error})` : ""}</span>`);
function contact({ silentMs, silent }) {
  if ((silentMs ?? null) === null) return html`<span class="bad">no connection from it</span>`;
  const ms = silentMs < 1000 && !live.error ? 0 : silentMs + sinceFetch();
  return html`<span class=${silent ? "bad" : ""}>${ms < 1000 ? "less than 1 s" : duration(ms)} ago</span>`;
}
const FACTS = [
  ["State", standing],
  ["Age of this data", (node) => (node.ageMs === 0 && !live.error ? "now" : node.ageMs === null ? "none" : duration(aged(node)))],
];
const STATUS_FACTS = [
  ["Brokers", (node) => count(node.status.counts.brokers)],
  ["Topics", (node) => count(node.status.counts.topics)],
  ["Revision", (node) => count(node.status.revision)],
  ["Connections", (node) => count(node.status.connections)],
  ["Disk free", (node) => bytes(node.status.diskFreeBytes)],
  ["Fullest limit", quota],
  ["Loop lag, recent maximum", (node) => `${node.status.loopLagRecentMaxMs?.toFixed(1) ?? "–"} ms`],
  ["Up", (node) => duration(node.status.uptimeSeconds * 1000)],
  ["Version", (node) => node.status.version],
  ["RocketMQ address", (node) => node.status.listen ?? html`<span class="bad">not listening</span>`],
];
const RAFT_FACTS = [
  ["Role", (node) => (isStale(node) ? `was ${node.replication.role}` : node.replication.role)],
  ["Term", (node) => count(node.replication.term)],
  ["Leader known to it", (node) => node.replication.leader ?? "none"],
  ["Commit index", (node) => count(node.replication.commitIndex)],
  ["Applied index", (node) => count(node.replication.appliedIndex)],
  ["Lag", (node, cluster) => plural(Math.max(...cluster.nodes.filter((n) => n.replication).map((n) => n.replication.commitIndex)) - node.replication.appliedIndex, "entry", "entries")],
  ["State confirmed", (node) => (node.replication.confirmedMsAgo === null || node.replication.confirmedMsAgo < 0 ? "not yet" : `${duration(node.replication.confirmedMsAgo + (aged(node) ?? 0))} ago`)],
  ["Digest", (node) => html`<code>${node.replication.digest?.slice(0, 12)}</code>`],
  ["Fence", (node) => (isStale(node) ? `was ${node.replication.fenced ? "fenced" : "open"}` : node.replication.fenced ? html`<span class="bad">fenced</span>` : "open")],
];
const PEER_FACTS = [ // what the node of this page knows about another one, also if the other one does not answer
  ["Raft connection from here", connection],
  ["Last contact over Raft", contact],
];

function cell(fact, node, cluster) {
  const isOfStatus = STATUS_FACTS.includes(fact), isOfRaft = RAFT_FACTS.includes(fact);
  if (PEER_FACTS.includes(fact)) return node.nodeId === cluster.asked ? "this node" : node.peer ? fact[1](node.peer) : "–";
  if ((isOfStatus && !node.status) || (isOfRaft && !node.replication)) return "–";
  return fact[1](node, cluster);
}

const NO_LEADER = { level: "bad", problem: "No node leads, so writes and confirmed reads wait.", remedy: "An election takes about a second. If it takes longer, start the nodes that do not answer, or restore the network between the nodes." };
const UNEQUAL = { level: "bad", problem: "Nodes at the same log position have different states.", remedy: "The nodes in the minority stop. docs/alerts.md (NamesrvDigestMismatch) says what to do." };

// Problems of the whole cluster, then those of each node. What does not work comes before what may soon not work.
export function problems(cluster) {
  const { mode, leader, digestsEqual, nodes } = cluster;
  return [...(mode === "cp" && !leader && !isRemoved(cluster) ? [NO_LEADER] : []), ...(digestsEqual === false ? [UNEQUAL] : []),
    ...nodes.flatMap((node) => node.findings.map((finding) => ({ node, ...finding })))].sort((a, b) => (a.level === "warn") - (b.level === "warn"));
}

function Problems({ cluster }) {
  const found = problems(cluster);
  if (found.length === 0) return live.error ? null : html`<p class="good">No node has a problem.</p>`;
  return html`<ul class="findings" aria-label="What is wrong">${found.map((finding) => html`<li key=${(finding.node?.nodeId ?? "") + finding.problem.slice(0, 20)} class=${finding.level}>
    ${finding.node?.answers && html`<strong>${finding.node.nodeId}</strong>: `}${finding.problem}
    ${finding.node && !finding.node.answers && (finding.node.ageMs === null ? " There is no data of it yet." : ` Its data is ${duration(aged(finding.node))} old.`)}
    <span class="remedy"> ${finding.remedy}</span></li>`)}</ul>`;
}

export function Cluster() {
  const { cluster } = useLive();
  const { data: line } = useData("v1/timeline?limit=1");
  const isCompared = cluster?.mode === "ap" && cluster.nodes.length > 1;
  const compared = useData(isCompared ? "v1/differences" : null, 5000, COMPARISON_MS);
  if (!cluster) return html`<h1>Cluster</h1><p>Asking this node …</p>`;
  const facts = [...FACTS, ...(cluster.mode === "cp" ? [...PEER_FACTS, ...RAFT_FACTS] : []), ...STATUS_FACTS];
  return html`<h1>Cluster</h1>
    ${live.error && html`<p class="bad age">What is shown below is ${duration(sinceFetch())} old: ${live.error.message}.</p>`}
    <p class="summary" role="status">${summary(cluster).map((part) => html`<span>${part} </span>`)}
    ${isCompared && compared.data && html`<span>${agreement(compared.data)} </span>`}
    ${line && (line.flapping.length ? html`<a href=${link("timeline", "", { q: line.flapping[0].brokerName })}>${plural(line.flapping.length, "broker flaps", "brokers flap")}.</a>` : "No broker flaps.")}</p>
    <${Problems} cluster=${cluster} />
    <div class="scroll" tabindex="0" role="region" aria-label="Facts of each node">
    <table class="facts"><caption class="hidden">Facts of each node</caption><thead><tr><th scope="col">Node</th>
      ${cluster.nodes.map((node) => html`<th scope="col" key=${node.nodeId} class=${isStale(node) ? "stale" : ""}>${node.nodeId}
        ${node.nodeId === cluster.leader && html` <span class="badge">leader</span>`}
        ${node.nodeId === cluster.asked && html` <span class="badge">this page</span>`}
        ${node.address && html` <a href=${`${location.protocol}//${node.address}/`} rel="noreferrer">console<span class="hidden"> of ${node.nodeId}</span></a>`}</th>`)}</tr></thead>
    <tbody>${facts.map((fact) => html`<tr key=${fact[0]}><th scope="row">${fact[0]}</th>
      ${cluster.nodes.map((node) => html`<td key=${node.nodeId} class=${isStale(node) ? "stale" : ""}>${cell(fact, node, cluster)}</td>`)}</tr>`)}</tbody></table></div>
    ${isCompared && html`<${Differences} ...${compared} />`}
    <${Nodes} cluster=${cluster} /><${Operations} cluster=${cluster} />`;
}

// Nodes with the same queues of a topic, or the same value of a KV entry, have the same letter.
function valueOf(row, value) {
  if (value === undefined) return html`<span class="warn">not compared</span>`;
  if (value === null) return "missing";
  const different = [...new Set(row.values.filter((each) => (each ?? null) !== null))], letter = String.fromCharCode(65 + different.indexOf(value));
  if (row.kind === "broker") {
    const [counter, timestamp] = String(value).split("/");
    return `data version ${counter} of ${moment(Number(timestamp))}`;
  }
  return different.length === 1 ? "there" : row.kind === "topic" ? `queues ${letter}` : `value ${letter}`;
}

function Differences({ data, error, at }) {
  if (!data) return html`<h2 id="differences">Where the nodes differ</h2>${error ? html`<${Problem} error=${error} />` : html`<p>Comparing the nodes …</p>`}`;
  const kvOf = (row) => data.nodes.map((node) => row.values[data.kvNodes.indexOf(node)]); // undefined: its KV config is not compared
  const rows = [
    ...data.brokers.map((row) => ({ key: row.broker, kind: "broker", title: "broker", to: link("brokers", row.broker.split("|")[1]), text: row.broker.split("|").join(" "), ...row })),
    ...data.topics.map((row) => ({ key: row.topic, kind: "topic", title: "topic", to: link("topics", row.topic), text: row.topic, ...row })),
    ...data.kv.map((row) => ({ ...row, key: `${row.namespace}/${row.key}`, kind: "kv", title: "KV entry", to: link("kv", "", { q: row.key }), text: `${row.namespace} / ${row.key}`, values: kvOf(row) })),
  ];
  const differing = data.brokersDiffer + data.topicsDiffer + data.kvDiffer;
  return html`<h2 id="differences">Where the nodes differ</h2><${Problem} error=${error} data=${data} at=${at} />
    ${data.notCompared.map((each) => html`<p class="warn" key=${each.node}>${each.node} is not compared: ${each.why}.</p>`)}
    ${data.kvNotCompared.map((each) => html`<p class="warn" key=${each.node}>The KV config of ${each.node} is not compared: ${each.why}.</p>`)}
    ${data.topicsLeftOut > 0 && html`<p class="warn">${plural(data.topicsLeftOut, "topic is", "topics are")} not compared: a comparison covers the first topics by name.</p>`}
    ${data.kvLeftOut > 0 && html`<p class="warn">${plural(data.kvLeftOut, "KV entry is", "KV entries are")} not compared: a comparison covers the first entries by name.</p>`}
    ${rows.length === 0 ? html`<p class="good">${data.nodes.length > 1 ? `The nodes that answer have the same ${whatIsEqual(data)}.` : "Only one node answers, so there is nothing to compare."}</p>`
    : html`<p>${[data.brokersDiffer && plural(data.brokersDiffer, "broker differs", "brokers differ"), data.topicsDiffer && plural(data.topicsDiffer, "topic differs", "topics differ"), data.kvDiffer && plural(data.kvDiffer, "KV entry differs", "KV entries differ")].filter(Boolean).join(", ")}${differing > rows.length ? `; the first ${rows.length} are shown` : ""}.</p>
    <div class="scroll" tabindex="0" role="region" aria-label="What differs">
    <table><caption class="hidden">What differs</caption><thead><tr><th scope="col">Broker, topic or KV entry</th>
      ${data.nodes.map((node) => html`<th scope="col" key=${node}>${node}</th>`)}<th scope="col">Since</th></tr></thead>
    <tbody>${rows.map((row) => html`<tr key=${row.kind + row.key}><th scope="row">${row.title} <a href=${row.to}>${row.text}</a></th>
      ${row.values.map((value, at) => html`<td key=${at} class=${value === null ? "bad" : ""}>${valueOf(row, value)}</td>`)}
      <td>${moment(row.sinceMs)}${row.orEarlier ? " or earlier" : ""}</td></tr>`)}</tbody></table></div>`}`;
}

async function download() {
  const answer = await fetch("v1/backup", { headers: authorized() });
  if (!answer.ok) {
    const body = await answer.json();
    throw Object.assign(new Error(body.error), { remedy: body.remedy, outcome: body.outcome });
  }
  const url = URL.createObjectURL(await answer.blob());
  const anchor = Object.assign(document.createElement("a"), { href: url, download: `namesrv-${clock(Date.now()).replaceAll(":", "")}.backup` });
  anchor.click();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
  return "The browser saves the file.";
}

async function drain() {
  const done = await ask("v1/drain", { method: "POST", timeoutMs: 60000 });
  return `Drained: ${plural(done.moved + done.cut, "connection was", "connections were")} closed${done.cut ? `, ${count(done.cut)} of them with an unanswered request` : ""}. Others that serve: ${done.othersServing.join(", ") || "not known"}.`;
}

// Why an action of the leader cannot be done at this node; null if it can.
const notHere = (cluster) => (isRemoved(cluster) ? `${cluster.asked} was removed from the cluster.` : !cluster.leader ? "No node leads."
  : cluster.leader !== cluster.asked ? `Only the leader can: open the console of ${cluster.leader}.` : null);

// The members with their addresses and progress, and what can be done with each. In CP the leader knows the progress.
function Nodes({ cluster }) {
  const { asked, leader, mode } = cluster, elsewhere = notHere(cluster);
  const { data, error, at } = useData(mode !== "cp" ? null : leader && leader !== asked ? `v1/nodes/${encodeURIComponent(leader)}/members` : "v1/members", 2000);
  const nodes = useRef(cluster.nodes); // while a dialog is open its row stays, also that of a member that was removed
  if (!dialogIsOpen()) nodes.current = cluster.nodes;
  const rows = nodes.current.map((node) => ({ node, member: data?.members.find((member) => member.nodeId === node.nodeId) }));
  const others = rows.filter(({ node }) => node.nodeId !== asked && node.status?.listen && node.answers).map(({ node }) => node.status.advertisedAddress);
  const serves = ({ node, member }) => (!node.answers ? (member?.serves ? `did less than 4 s ago, says ${leader ?? asked}` : html`<span class="bad">not known</span>`)
    : node.status.drained ? html`<span class="warn">drained</span>` : node.status.listen ? "yes" : html`<span class="bad">no</span>`);
  const cannot = ({ nodeId, answers, replication, peer }) => (nodeId === leader ? "It leads." : elsewhere ?? (!answers ? "It does not answer." : peer?.silent ? "Nothing arrives from it over Raft." : replication?.fenced ? "It is fenced." : null));
  const transfer = ({ node }) => html`<${Action} label="Transfer leadership" needs="operate" title=${`Transfer leadership to ${node.nodeId}`} disabled=${cannot(node)} done=${poll}
    preview=${html`<p>${asked} stops leading, and ${node.nodeId} becomes the leader. Requests wait for some milliseconds.</p>`}
    run=${() => change("POST", `v1/leader/transfer?to=${encodeURIComponent(node.nodeId)}`)} />`;
  // A member that leads hands leadership over before it is removed.
  const remove = ({ node: { nodeId }, member }) => html`<${Action} label="Remove" needs="operate" title=${`Remove ${nodeId} from the cluster`} confirm=${nodeId} done=${poll}
    disabled=${nodeId === leader ? "It leads. Transfer leadership first." : elsewhere}
    preview=${html`<p>${nodeId}, ${member.role === "observer" ? "an observer" : "a voter"} at ${member.peerAddress}, stops serving brokers and clients and keeps its disk. ${rest(nodeId)} To return, it must be added again.</p>`}
    run=${() => change("POST", `v1/members/${encodeURIComponent(nodeId)}/remove`)} />`;
  const rest = (without) => {
    const voters = rows.filter(({ node, member }) => member && member.role !== "observer" && node.nodeId !== without).length;
    return `${plural(voters, "voter remains", "voters remain")}, of which ${count(Math.floor((voters - 1) / 2))} may fail.`;
  };
  const promote = ({ node: { nodeId } }) => html`<${Action} label="Promote" needs="operate" title=${`Make ${nodeId} a voter`} disabled=${elsewhere} done=${poll}
    preview=${html`<p>${nodeId} votes from then on. A majority then needs ${plural(Math.floor((rows.filter(({ member }) => member && member.role !== "observer").length + 1) / 2) + 1, "voter")}.</p>`}
    run=${() => change("POST", `v1/members/${encodeURIComponent(nodeId)}/promote`)} />`;
  // A new leader does not know what a node has on its disk before the node has answered it.
  const known = (value, member) => (member?.matchIndex === 0 && member.lag > 0 ? html`<span class="weak">not known</span>` : count(value));
  const ownDrain = ({ node }) => html`<${Action} label="Drain" needs="operate" title=${`Drain ${asked}`} confirm=${asked} run=${drain} done=${poll} disabled=${node.status?.drained ? "It is drained." : null}
      preview=${html`<p>Closes the ${plural(node.status?.connections ?? 0, "connection")} of brokers and clients to ${asked} once their requests are answered, and takes no new ones until “Serve again” or a restart. Clients use the other name servers: ${others.join(", ") || "none of them is known to serve"}.</p>`} />
    <${Action} label="Serve again" needs="operate" title=${`${asked} serves again after a drain`} done=${poll} disabled=${node.status?.drained ? null : "It is not drained."}
      preview=${html`<p>${asked} listens for brokers and clients again.</p>`} run=${async () => { await ask("v1/drain", { method: "DELETE" }); return "It serves."; }} />`;
  const columns = [
    { title: "Node", cell: ({ node }) => html`<bdi>${node.nodeId}</bdi>` },
    { title: "Role", cell: ({ node, member }) => member?.role ?? node.replication?.role ?? (mode === "cp" ? "–" : "independent") },
    ...(mode === "cp" ? [
      { title: "Raft address", cell: ({ member }) => member?.peerAddress ?? "–" },
      { title: "Log index", number: true, cell: ({ member }) => known(member?.matchIndex, member) },
      { title: "Lag", number: true, cell: ({ member }) => known(member?.lag, member) },
    ] : []),
    { title: "RocketMQ address", cell: ({ node, member }) => member?.address ?? node.status?.advertisedAddress ?? "–" },
    { title: "Serves", cell: serves },
    { title: "Actions", cell: (row) => html`${mode === "cp" && row.node.nodeId !== asked && transfer(row)}
      ${row.member && remove(row)} ${row.member?.role === "observer" && promote(row)}
      ${row.node.nodeId === asked ? ownDrain(row) : html`<${Action} label="Drain" disabled=${`Open the console of ${row.node.nodeId}.`} />`}` },
  ];
  return html`<section class="nodes"><h2>Nodes</h2><${Problem} error=${error} data=${data} at=${at} /><${Table} caption="Nodes and actions" columns=${columns} rows=${rows} keyOf=${({ node }) => node.nodeId} /></section>`;
}

// NAME=HOST:PORT, as in the setting `peers`.
function changeMember(action, text, suffix = "") {
  const [name, address] = text.split("=").map((part) => part.trim());
  if (!name || !address) throw Object.assign(new Error("this is not NAME=HOST:PORT"), { remedy: "Give the peer port, for example n4=10.0.0.4:9896" });
  return change("POST", `v1/members/${encodeURIComponent(name)}/${action}?address=${encodeURIComponent(address)}${suffix}`);
}

function MemberOperations({ cluster }) {
  const disabled = notHere(cluster);
  const input = { label: "NAME=HOST:PORT of its peer port", rows: 1, value: "" };
  return html`<${Action} label="Add a voter" needs="operate" title="Add a voter" disabled=${disabled} input=${input} done=${poll} run=${async (text) => changeMember("add", text)}
      preview=${html`<p>The node receives the state without a vote, and becomes a voter when it keeps up. Start it before, on an empty disk, with <code>join</code>.</p>`} />
    <${Action} label="Add an observer" needs="operate" title="Add an observer" disabled=${disabled} input=${input} done=${poll} run=${async (text) => changeMember("add", text, "&observer=true")}
      preview=${html`<p>The node receives the state, and does not vote until it is promoted. Its loss affects no other node. Start it before, on an empty disk, with <code>join</code>.</p>`} />
    <${Action} label="Move a member" needs="operate" title="Give a member another address" disabled=${disabled} input=${input} done=${poll} run=${async (text) => changeMember("move", text)}
      preview=${html`<p>The other nodes look for the member at the new address from then on. Start it there with the same disk.</p>`} />`;
}

function Operations({ cluster }) {
  return html`<h2>Operations</h2><div class="actions">
    ${cluster.mode === "cp" ? html`<${MemberOperations} cluster=${cluster} />` : html`<${Action} label="Transfer leadership" disabled="Independent nodes have no leader." />`}
    <${Action} label="Back up" needs="backup" title="Back up the state"
      preview=${html`<p>Reads the whole state at one revision: topics, brokers, KV config and shared settings. Nothing is changed. <code>namesrv restore</code> loads the file into a new cluster.</p>`} run=${download} />
    </div>`;
}
