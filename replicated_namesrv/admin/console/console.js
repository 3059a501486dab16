// Read-only console of one node. Everything shown comes from the same paths that scripts use (/v1/...); text from the node is
// only ever set as textContent, so that a topic's name cannot become markup.
"use strict";

const PAGE_ROWS = 200;
const ROWS_MAX = 1000; // more than a reader scrolls through, and what the node gives at once
const byId = (id) => document.getElementById(id);
const view = { table: "brokers", limit: PAGE_ROWS, timer: 0, status: null, round: 0 };

const TABLES = {
  brokers: {
    path: "v1/brokers",
    columns: ["cluster", "broker name", "id", "address", "topics#", "data version", "heard"],
    rows: (answer) => answer.brokers.map((b) => ({
      cells: [b.clusterName, b.brokerName, b.brokerId === 0 ? "0 (master)" : b.brokerId, b.brokerAddr, b.topicCount,
        `${b.dataVersion.counter} / ${b.dataVersion.stateVersion}`, b.heartbeatAgeMs === null ? "not here" : `${seconds(b.heartbeatAgeMs)} ago`],
      detail: () => show(`${b.brokerName} ${b.brokerAddr}`, b),
    })),
  },
  topics: {
    path: "v1/topics",
    columns: ["topic", "broker names#", "read queues#", "write queues#", "changed at revision#"],
    rows: (answer) => answer.topics.map((t) => ({
      cells: [t.topic, t.brokerNameCount, t.readQueueNums, t.writeQueueNums, t.revision],
      detail: async () => show(t.topic, await ask(`v1/routes/${encodeURIComponent(t.topic)}?readConsistency=stale`)),
    })),
  },
  nodes: {
    path: "v1/status",
    columns: ["name server", ""],
    rows: (answer) => answer.nameServerAddresses.map((address) => ({
      cells: [address, address === answer.advertisedAddress ? "this node" : ""],
    })),
  },
  kv: {
    path: "v1/kv",
    columns: ["namespace", "key", "value"],
    rows: (answer) => answer.entries.map((e) => ({ cells: [e.namespace, e.key, e.value] })),
  },
};

function seconds(ms) {
  return ms < 60000 ? `${(ms / 1000).toFixed(1)} s` : `${Math.floor(ms / 60000)} min`;
}

async function ask(path) {
  const token = sessionStorage.getItem("token");
  const answer = await fetch(path, { headers: token ? { Authorization: `Bearer ${token}` } : {}, cache: "no-store" });
  const body = await answer.json();
  if (answer.status === 401) byId("token-form").hidden = false;
  if (!answer.ok) throw new Error(`${body.error}; ${body.remedy}`);
  return body;
}

function badge(id, text, kind) {
  byId(id).textContent = text;
  byId(id).className = `badge ${kind}`;
}

function showStatus(status, readiness) {
  view.status = status;
  document.title = `${status.nodeId} · name server`;
  byId("node-id").textContent = status.nodeId;
  badge("mode", status.mode, "");
  badge("ready", readiness.ready ? "ready" : `not ready: ${readiness.failedLayer}`, readiness.ready ? "good" : "bad");
  const facts = {
    "RocketMQ address": status.listen ?? "not listening",
    brokers: status.counts.brokers,
    topics: status.counts.topics,
    connections: status.connections,
    requests: status.requests,
    revision: status.revision,
    "loop lag": `${status.loopLagRecentMaxMs.toFixed(1)} ms`,
    up: seconds(status.uptimeSeconds * 1000),
    version: status.version,
  };
  byId("facts").replaceChildren(...Object.entries(facts).map(([name, value]) => {
    const box = document.createElement("div");
    box.append(element("dt", name), element("dd", value));
    return box;
  }));
}

function element(tag, text, className) {
  const made = document.createElement(tag);
  made.textContent = text ?? "";
  if (className) made.className = className;
  return made;
}

function showTable(table, answer) {
  const numeric = table.columns.map((name) => name.endsWith("#"));
  const kind = (i) => (numeric[i] ? "number" : "");
  const head = document.createElement("tr");
  head.append(...table.columns.map((name, i) => element("th", name.replace("#", ""), kind(i))));
  byId("head").replaceChildren(head);
  const rows = table.rows(answer).filter((row) => answer.next !== undefined || matches(row));
  byId("rows").replaceChildren(...rows.map((row) => {
    const line = document.createElement("tr");
    line.append(...row.cells.map((cell, i) => element("td", cell, kind(i))));
    if (row.detail) {
      line.tabIndex = 0;
      const open = () => Promise.resolve(row.detail()).catch(complain);
      line.addEventListener("click", open);
      line.addEventListener("keydown", (event) => event.key === "Enter" && open());
    }
    return line;
  }));
  if (rows.length === 0) {
    const nothing = element("td", "nothing here", "empty");
    nothing.colSpan = table.columns.length;
    const line = document.createElement("tr");
    line.append(nothing);
    byId("rows").replaceChildren(line);
  }
  byId("count").textContent = answer.total === undefined ? "" : `${rows.length} of ${answer.total}`;
  byId("more").hidden = !answer.next || view.limit >= ROWS_MAX;
}

function matches(row) {
  const wanted = byId("search").value.toLowerCase();
  return !wanted || row.cells.some((cell) => String(cell).toLowerCase().includes(wanted));
}

function show(title, value) {
  byId("detail-title").textContent = title;
  byId("detail-text").textContent = JSON.stringify(value, null, 2);
  byId("detail").hidden = false;
}

function complain(error) {
  byId("problem").textContent = error instanceof TypeError ? "this node does not answer" : error.message;
}

async function refresh() {
  clearTimeout(view.timer);
  const round = ++view.round;
  const table = TABLES[view.table];
  try {
    const readiness = await fetch("readyz?format=json", { cache: "no-store" }).then((answer) => answer.json());
    const status = await ask("v1/status");
    const query = new URLSearchParams({ limit: view.limit, q: byId("search").value, readConsistency: "stale" });
    const answer = table.path === "v1/status" ? status : await ask(`${table.path}?${query}`);
    if (round !== view.round) return;
    showStatus(status, readiness);
    showTable(table, answer);
    byId("problem").textContent = "";
    byId("token-form").hidden = true;
  } catch (error) {
    complain(error);
  }
  const interval = Number(byId("interval").value);
  if (round === view.round && interval) view.timer = setTimeout(refresh, interval);
}

function choose(wanted) {
  const name = Object.hasOwn(TABLES, wanted) ? wanted : "brokers";
  history.replaceState(null, "", `#${name}`);
  view.table = name;
  view.limit = PAGE_ROWS;
  for (const button of document.querySelectorAll("nav button")) {
    button.toggleAttribute("aria-current", button.dataset.table === name);
  }
  refresh();
}

for (const button of document.querySelectorAll("nav button")) button.addEventListener("click", () => choose(button.dataset.table));
byId("interval").addEventListener("change", refresh);
byId("search").addEventListener("input", () => { clearTimeout(view.timer); view.timer = setTimeout(refresh, 200); });
byId("more").addEventListener("click", () => { view.limit += PAGE_ROWS; refresh(); });
byId("detail-close").addEventListener("click", () => { byId("detail").hidden = true; });
document.addEventListener("keydown", (event) => { if (event.key === "Escape") byId("detail").hidden = true; });
byId("token-form").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem("token", byId("token").value);
  refresh();
});
choose(location.hash.slice(1));
