// Topics, brokers, broker clusters, KV config and settings.
import { count, duration, html, moment, plural, query } from "./api.js";
import { useData, useLive } from "./live.js";
import { Action, Pager, Problem, Search, Table, change } from "./parts.js";
import { link, read } from "./route.js";

export const COMPARISON_MS = 8000; // a comparison waits 5 s for a node that stops answering
const ROWS = 100, AGES_MS = 5000; // a heartbeat is no change, so the ages of contacts are read regularly
const PERMISSIONS = (perm) => [perm & 4 ? "read" : "", perm & 2 ? "write" : "", perm & 1 ? "inherit" : ""].filter(Boolean).join(", ") || "none";
const encoded = (name) => encodeURIComponent(name);
const together = (...names) => JSON.stringify(names); // a name can contain any separator

function paged(path, sorts = true) {
  const { q = "", after = "" } = read().fields, sort = sorts ? read().fields.sort ?? "" : "";
  return `${path}${query({ limit: ROWS, q, sort, after, readConsistency: "stale" })}`;
}
const consistent = (path, mode) => (mode === "cp" ? `${path}${path.includes("?") ? "&" : "?"}readConsistency=stale` : path);
const ofMode = (path, mode) => (mode === "cp" ? path : path.replace(/[?&]readConsistency=stale/, (match) => (match[0] === "?" ? "?" : "")));

export function Topics() {
  const { cluster } = useLive();
  const { data, error, at } = useData(cluster && ofMode(paged("v1/topics"), cluster.mode));
  const columns = [
    { title: "Topic", sort: "", cell: (row) => html`<a href=${link("topics", row.topic)}>${row.topic}</a>` },
    { title: "Broker names", sort: "brokerNameCount", number: true, cell: (row) => count(row.brokerNameCount) },
    { title: "Read queues", sort: "readQueueNums", number: true, cell: (row) => count(row.readQueueNums) },
    { title: "Write queues", sort: "writeQueueNums", number: true, cell: (row) => count(row.writeQueueNums) },
    { title: "Changed at revision", sort: "revision", number: true, cell: (row) => count(row.revision) },
  ];
  return html`<h1>Topics</h1><${Search} label="Search topics" /><${Problem} error=${error} data=${data} at=${at} />
    ${data && html`<${Table} caption="Topics" columns=${columns} rows=${data.topics} keyOf=${(row) => row.topic} empty=${read().fields.q ? "No topic matches." : "No topic is registered."} />`}
    <${Pager} answer=${data} shown=${data?.topics.length} />`;
}

export function Topic({ name }) {
  const { cluster } = useLive();
  const { data, error, at, reload } = useData(cluster && consistent(`v1/routes/${encoded(name)}`, cluster.mode));
  const brokers = new Map(data?.brokerDatas.map((broker) => [broker.brokerName, broker]));
  const columns = [
    { title: "Broker name", cell: (row) => html`<a href=${link("brokers", row.brokerName)}>${row.brokerName}</a>` },
    { title: "Cluster", cell: (row) => brokers.get(row.brokerName)?.cluster ?? "–" },
    { title: "Read queues", number: true, cell: (row) => count(row.readQueueNums) },
    { title: "Write queues", number: true, cell: (row) => count(row.writeQueueNums) },
    { title: "Permission", cell: (row) => html`<span class=${row.perm & 2 ? "" : "warn"}>${PERMISSIONS(row.perm)}</span>` },
    { title: "Master", cell: (row) => brokers.get(row.brokerName)?.brokerAddrs["0"] ?? html`<span class="bad">none is registered</span>` },
    { title: "Slaves", cell: (row) => Object.entries(brokers.get(row.brokerName)?.brokerAddrs ?? {}).filter(([id]) => id !== "0").map(([id, address]) => `${id}: ${address}`).join(", ") || "none" },
    { title: "Zone", cell: (row) => brokers.get(row.brokerName)?.zoneName || "–" },
  ];
  const wrong = data && [
    ...(data.queueDatas.every((row) => row.perm & 2) ? [] : ["A broker name has no write permission for this topic, so producers do not use it."]),
    ...(data.queueDatas.every((row) => brokers.get(row.brokerName)?.brokerAddrs["0"]) ? [] : ["A broker name has no master, so nothing can be written there."]),
  ];
  return html`<h1>Topic ${name}</h1><${Problem} error=${error} data=${data} at=${at} />
    ${cluster?.mode === "ap" && cluster.nodes.length > 1 && html`<${Agreement} name=${name} brokers=${brokers} />`}
    ${error?.status === 404 && html`<p><a href=${link("topics", "", { q: name })}>Topics whose names contain this text</a></p>`}
    ${data && html`<p class="summary">${plural(data.queueDatas.length, "broker name serves", "broker names serve")} this topic, with ${plural(data.queueDatas.reduce((sum, row) => sum + row.writeQueueNums, 0), "write queue")}.${" "}
      ${wrong.length ? wrong.map((text) => html`<strong class="bad">${text} </strong>`) : "Every broker name has a master and permits writes."}
      ${data.orderTopicConf && ` Order configuration: ${data.orderTopicConf}.`} Changed at revision ${count(data.revision)}.</p>
    <${Table} caption=${`Route of ${name}`} columns=${columns} rows=${data.queueDatas} keyOf=${(row) => row.brokerName} />
    <p><a href=${link("timeline", "", { q: name })}>Time line of this topic</a></p>
    <div class="actions"><${Action} label="Delete topic" title=${`Delete the route of ${name}`} confirm=${name} done=${reload}
      preview=${html`<p>Removes the route through ${data.queueDatas.map((row) => row.brokerName).join(", ")}. Clients no longer find the topic. The brokers keep it: the next registration that contains it restores the route.</p>`}
      run=${() => change("DELETE", `v1/topics/${encoded(name)}`)} /></div>`}`;
}

// In AP each node has its own route. Whether this one is right shows in the routes of the other nodes.
function Agreement({ name, brokers }) {
  const { data, error, at } = useData("v1/differences", AGES_MS, COMPARISON_MS);
  if (!data) return html`<${Problem} error=${error} />`;
  const row = data.topics.find((each) => each.topic === name);
  const lacking = row ? data.nodes.filter((_, i) => row.values[i] === null) : [], others = data.nodes.filter((node) => !lacking.includes(node));
  const differ = [...new Set(data.brokers.map((each) => each.broker.split("|")[1]).filter((each) => brokers.has(each)))];
  const isPartial = data.topicsDiffer > data.topics.length || data.brokersDiffer > data.brokers.length || data.topicsLeftOut > 0;
  const text = lacking.length ? html`<strong class="bad">The nodes differ:</strong> ${others.join(", ")} ${others.length === 1 ? "has" : "have"} a route of this topic, ${lacking.join(", ")} ${lacking.length === 1 ? "has" : "have"} none.`
    : row ? html`<strong class="bad">The nodes differ:</strong> they have different queues or permissions for this topic.`
    : differ.length ? html`<strong class="bad">The nodes differ</strong> in brokers of ${differ.join(", ")}.`
    : isPartial ? "Whether the nodes have the same route is not known, because not all differences are listed."
    : data.nodes.length > 1 ? `${data.nodes.join(", ")} have the same route.` : "No other node answers, so this route cannot be compared.";
  return html`<${Problem} error=${error} data=${data} at=${at} /><p class="agreement">${text} ${data.notCompared.map((each) => html`<span class="warn">${each.node} is not compared: ${each.why}. </span>`)}
    <a href=${link("cluster")}>Where the nodes differ</a></p>`;
}

const BROKER_COLUMNS = [
  { title: "Cluster", sort: "", cell: (row) => row.clusterName },
  { title: "Broker name", cell: (row) => html`<a href=${link("brokers", row.brokerName)}>${row.brokerName}</a>` },
  { title: "Id", sort: "brokerId", number: true, cell: (row) => (row.brokerId === 0 ? "0 (master)" : row.brokerId) },
  { title: "Address", cell: (row) => row.brokerAddr },
  { title: "Topics", sort: "topicCount", number: true, cell: (row) => count(row.topicCount) },
  { title: "Registered", sort: "registeredSinceMs", cell: (row) => moment(row.registeredSinceMs) },
  { title: "Last contact", sort: "heartbeatAgeMs", cell: (row) => html`<span class=${row.suspectedSinceMs ? "bad" : ""}>${row.heartbeatAgeMs === null ? "not with this node" : `${duration(row.heartbeatAgeMs)} ago`}${row.suspectedSinceMs ? ", silent" : ""}</span>` },
];

export function Brokers() {
  const { cluster } = useLive();
  const { data, error, at } = useData(cluster && ofMode(paged("v1/brokers"), cluster.mode), AGES_MS);
  return html`<h1>Brokers</h1><${Search} label="Search brokers" /><${Problem} error=${error} data=${data} at=${at} />
    ${data && html`<${Table} caption="Brokers" columns=${BROKER_COLUMNS} rows=${data.brokers} keyOf=${(row) => together(row.clusterName, row.brokerAddr)} empty=${read().fields.q ? "No broker matches." : "No broker is registered."} />`}
    <${Pager} answer=${data} shown=${data?.brokers.length} />`;
}

export function Broker({ name }) {
  const { cluster } = useLive();
  if (!cluster) return html`<h1>Broker ${name}</h1>`;
  return html`<h1>Broker ${name}</h1><${BrokerFacts} name=${name} cluster=${cluster} />`;
}

function BrokerFacts({ name, cluster }) {
  const path = `brokers${query({ q: `|${name}|`, limit: 1000, readConsistency: cluster.mode === "cp" ? "stale" : "" })}`;
  const { data, error, at, reload } = useData(`v1/${path}`, AGES_MS);
  const line = useData(`v1/timeline${query({ q: name, limit: 200 })}`);
  const rows = data?.brokers.filter((row) => row.brokerName === name) ?? [];
  const flaps = line.data?.flapping.filter((row) => row.brokerName === name) ?? [];
  const removals = (row) => line.data?.removals?.find((each) => each.clusterName === row.clusterName && each.brokerAddr === row.brokerAddr)?.removals ?? 0;
  const columns = [
    ...BROKER_COLUMNS.filter((column) => column.title !== "Broker name").map(({ sort, ...column }) => column),
    { title: "Data version", cell: (row) => `${row.dataVersion.counter} of ${moment(row.dataVersion.timestamp)}` },
    { title: "Time-out", cell: (row) => duration(row.heartbeatTimeoutMillis) },
    { title: "Removals, last hour", number: true, cell: (row) => (line.data ? html`<span class=${removals(row) > 1 ? "bad" : ""}>${count(removals(row))}</span>` : "–") },
  ];
  const topics = rows[0]?.topicCount;
  return html`<${Problem} error=${error} data=${data} at=${at} />
    <p class="summary">${flaps.length ? html`<strong class="bad">It flaps:</strong> removed ${Math.max(...flaps.map((row) => row.removals))} times in the last hour.` : line.data ? "It does not flap." : line.error ? `Whether it flaps is not known: ${line.error.message}.` : ""}
      ${data && rows.length === 0 && html`<strong class="bad"> It is not registered on this node.</strong>`}
      ${rows.length > 0 && !rows.some((row) => row.brokerId === 0) && html`<strong class="bad"> It has no master.</strong>`}</p>
    ${data && html`<${Table} caption=${`Registrations of ${name}`} columns=${columns} rows=${rows} keyOf=${(row) => together(row.clusterName, row.brokerAddr)} />`}
    <h2>Last contact with each node</h2>
    <ul>${cluster.nodes.map((node) => html`<${Contact} key=${node.nodeId} node=${node} cluster=${cluster} path=${path} name=${name} />`)}</ul>
    <p><a href=${link("timeline", "", { q: name })}>Time line of this broker</a></p>
    ${rows.length > 0 && html`<div class="actions">
      <${Action} label="Wipe write permission" title=${`Wipe the write permission of ${name}`} confirm=${name} done=${reload}
        preview=${html`<p>Producers stop using ${name} for ${plural(topics, "topic")}. Consumers continue. Restore it with “Restore write permission”.</p>`}
        run=${() => change("POST", `v1/brokers/${encoded(name)}/write-permission?writable=false`)} />
      <${Action} label="Restore write permission" title=${`Restore the write permission of ${name}`} done=${reload}
        preview=${html`<p>Sets the permission of ${plural(topics, "topic")} on ${name} to read and write, also of topics that were read-only before.</p>`}
        run=${() => change("POST", `v1/brokers/${encoded(name)}/write-permission?writable=true`)} /></div>`}`;
}

function Contact({ node, cluster, path, name }) {
  const own = node.nodeId === cluster.asked;
  const { data, error, at } = useData(node.answers ? (own ? `v1/${path}` : `v1/nodes/${encoded(node.nodeId)}/${path}`) : null, AGES_MS);
  const rows = data?.brokers.filter((row) => row.brokerName === name);
  const text = !node.answers ? "does not answer" : error && !rows ? error.message : !rows ? "…" : rows.length === 0 ? "not registered there"
    : rows.map((row) => `${row.brokerAddr} ${row.heartbeatAgeMs === null ? "no contact with this node" : `${duration(row.heartbeatAgeMs)} ago`}`).join("; ");
  return html`<li><strong>${node.nodeId}</strong>: ${text}${node.answers && error && rows && html`<span class="bad"> (${duration(performance.now() - at)} old: ${error.message})</span>`}</li>`;
}

export function Clusters() {
  const { cluster } = useLive();
  const { data, error, at } = useData(cluster && `v1/clusters${cluster.mode === "cp" ? "?readConsistency=stale" : ""}`);
  const { q = "" } = read().fields;
  const rows = data?.clusters.filter((row) => row.clusterName.toLowerCase().includes(q.toLowerCase()));
  const columns = [
    { title: "Cluster", by: (row) => row.clusterName, cell: (row) => html`<a href=${link("brokers", "", { q: `${row.clusterName}|` })}>${row.clusterName}</a>` },
    { title: "Broker names", number: true, by: (row) => row.brokerNames, cell: (row) => count(row.brokerNames) },
    { title: "Brokers", number: true, by: (row) => row.brokers, cell: (row) => count(row.brokers) },
    { title: "Without a master", number: true, by: (row) => row.withoutMaster, cell: (row) => html`<span class=${row.withoutMaster ? "bad" : ""}>${count(row.withoutMaster)}</span>` },
  ];
  return html`<h1>Broker clusters</h1><${Search} label="Search broker clusters" /><${Problem} error=${error} data=${data} at=${at} />
    ${rows && html`<${Table} caption="Broker clusters" columns=${columns} rows=${rows} keyOf=${(row) => row.clusterName} empty=${q ? "No broker cluster matches." : "No broker is registered."} />`}`;
}

export function Kv() {
  const { cluster } = useLive();
  const { data, error, at, reload } = useData(cluster && ofMode(paged("v1/kv", false), cluster.mode)); // sorted here, page by page
  const why = cluster?.may.secrets;
  const put = (namespace, key) => (value) => change("PUT", `v1/kv/${encoded(namespace)}/${encoded(key)}`, value);
  const columns = [
    { title: "Namespace", by: (row) => row.namespace, cell: (row) => row.namespace },
    { title: "Key", by: (row) => row.key, cell: (row) => row.key },
    { title: "Value", by: (row) => row.value ?? "", cell: (row) => html`<span class="value">${row.value}</span>` },
    { title: "Actions", cell: (row) => html`<${Action} label="Change" disabled=${why} title=${`Change ${row.namespace} / ${row.key}`} done=${reload}
        preview=${html`<p>Present value: <code>${row.value}</code></p>`} input=${{ label: "New value", rows: 3, value: row.value }} run=${put(row.namespace, row.key)} />
      <${Action} label="Delete" disabled=${why} title=${`Delete ${row.namespace} / ${row.key}`} confirm=${row.key} done=${reload}
        preview=${html`<p>Removes this entry, whose value is <code>${row.value}</code></p>`} run=${() => change("DELETE", `v1/kv/${encoded(row.namespace)}/${encoded(row.key)}`)} />` },
  ];
  const parse = (text) => {
    const [head, ...rest] = text.split("=");
    const [namespace, ...key] = head.split("/");
    if (rest.length === 0 || !namespace.trim() || !key.join("/").trim()) throw Object.assign(new Error("this is not NAMESPACE/KEY=VALUE"), { remedy: "Give for example ORDER_TOPIC_CONFIG/orders=broker-a:4" });
    return put(namespace.trim(), key.join("/").trim())(rest.join("="));
  };
  return html`<h1>KV config</h1><${Search} label="Search namespaces, keys and values" /><${Problem} error=${error} data=${data} at=${at} />
    ${data && html`<${Table} caption="KV config" columns=${columns} rows=${data.entries} keyOf=${(row) => together(row.namespace, row.key)} empty=${read().fields.q ? "No entry matches." : "There is no entry."} />`}
    <${Pager} answer=${data} shown=${data?.entries.length} />
    <div class="actions"><${Action} label="Put an entry" disabled=${why} title="Put an entry" done=${reload}
      preview=${html`<p>An entry that exists is replaced.</p>`} input=${{ label: "NAMESPACE/KEY=VALUE", rows: 2, value: "" }} run=${async (text) => parse(text)} /></div>`;
}

export function Settings() {
  const { cluster } = useLive();
  const { data, error, at, reload } = useData(cluster && consistent("v1/settings", cluster.mode));
  const { q = "" } = read().fields;
  const wanted = q.toLowerCase();
  const rows = data?.settings.filter((row) => `${row.name} ${row.value} ${row.meaning}`.toLowerCase().includes(wanted));
  const columns = [
    { title: "Setting", wide: true, by: (row) => row.name, cell: (row) => html`<code>${row.name}</code>` },
    { title: "Value", by: (row) => String(row.value), cell: (row) => html`<span class=${row.value === row.default ? "value" : "value changed"}>${row.value}</span>` },
    { title: "Default", by: (row) => String(row.default), cell: (row) => row.default },
    { title: "Meaning", wide: true, cell: (row) => row.meaning },
    { title: "Change", cell: (row) => (row.atRunTime
      ? html`<${Action} label="Change" title=${`Change ${row.name}`} done=${reload}
          preview=${html`<p>${row.meaning} Present value: <code>${row.value}</code>. ${row.shared ? "It changes on all nodes (CP) or on this node (AP)." : "It changes on this node only."}</p>`}
          input=${{ label: "New value", rows: 1, value: row.value }} run=${(value) => change("POST", "v1/config", JSON.stringify({ [row.name]: value.trim() }))} />`
      : html`<span class="why">read at the start only</span>`) },
  ];
  return html`<h1>Settings</h1><${Search} label="Search names, values and meanings" /><${Problem} error=${error} data=${data} at=${at} />
    ${rows && html`<${Table} caption="Settings" columns=${columns} rows=${rows} keyOf=${(row) => row.name} empty="No setting matches." />`}
    ${rows && html`<p role="status">${count(rows.length)} of ${count(data.settings.length)}</p>`}`;
}
