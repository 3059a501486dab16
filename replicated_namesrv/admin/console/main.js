// The frame of the console: navigation, state of this node, token, and the page that the URL names.
import { render } from "preact";
import { useEffect, useErrorBoundary, useState } from "preact/hooks";
import { duration, html, plural, token } from "./api.js";
import { Charts } from "./charts.js";
import { Cluster, problems } from "./cluster.js";
import { Broker, Brokers, Clusters, Kv, Settings, Topic, Topics } from "./lists.js";
import { begin, useLive, useToken, versionOf } from "./live.js";
import { Problem } from "./parts.js";
import { link, useRoute } from "./route.js";
import { TimeLine } from "./timeline.js";

const PAGES = [
  ["cluster", "Cluster", Cluster], ["topics", "Topics", Topics, Topic], ["brokers", "Brokers", Brokers, Broker], ["clusters", "Broker clusters", Clusters],
  ["kv", "KV config", Kv], ["settings", "Settings", Settings], ["timeline", "Time line", TimeLine], ["charts", "Charts", Charts],
];

function State() {
  const { cluster, error, failingSince, at } = useLive();
  if (error && error.status === 0) {
    const age = at ? `; what is shown is ${duration(performance.now() - at)} old` : "", silent = performance.now() - failingSince;
    return html`<span class="badge bad" role="alert">this node does not answer${silent < 1000 ? "" : ` for ${duration(silent)}`}${age}</span>`;
  }
  if (!cluster || error) return null;
  const found = problems(cluster), warnings = found.filter(({ level }) => level === "warn").length, wrong = found.length - warnings;
  const text = [wrong && plural(wrong, "problem"), warnings && plural(warnings, "warning")].filter(Boolean).join(", ");
  return html`<a class=${`badge ${wrong ? "bad" : warnings ? "warn" : "good"}`} href=${link("cluster")}>${text || "no problems"}</a>`;
}

function Token() {
  const { error, stream, refusal, at } = useLive();
  const [text, set] = useState("");
  const asked = error?.status === 401;
  if (!asked && !token.get() && stream !== "refused") return null;
  const submit = (event) => {
    event.preventDefault();
    useToken(text);
    set("");
  };
  return html`<form class="token" aria-label="Access to this node" onSubmit=${submit}>
    ${asked && html`<p role="alert"><strong>This node needs its token:</strong> the first line of its adminTokenFile. ${token.get() && error.message}</p>`}
    ${asked && at > 0 && html`<p>What is shown is ${duration(performance.now() - at)} old.</p>`}
    ${!asked && stream === "refused" && html`<p>Changes are not shown at once: ${refusal}</p>`}
    ${(asked || stream === "refused") && html`<label>Token <input type="password" autocomplete="off" value=${text} onInput=${(event) => set(event.target.value)} /></label><button type="submit">Use</button>`}
    ${token.get() && html`<button type="button" onClick=${() => useToken("")}>Forget the token</button>`}
  </form>`;
}

// One step from each page to the route of a topic.
function FindTopic() {
  const [text, set] = useState("");
  const submit = (event) => {
    event.preventDefault();
    if (!text.trim()) return;
    location.hash = link("topics", text.trim());
    set("");
  };
  return html`<form class="find" role="search" onSubmit=${submit}><label><span class="hidden">Route of a topic</span>
    <input placeholder="Topic: show its route" value=${text} onInput=${(event) => set(event.target.value)} /></label></form>`;
}

// Nodes of other versions can give answers that this page does not expect.
function Shown({ Page, name }) {
  const [error] = useErrorBoundary((thrown) => reportError(thrown));
  const remedy = "Reload the page. If nodes run different versions, open the console of a node with the newest one.";
  return error ? html`<${Problem} error=${{ message: `This page cannot be shown: ${error.message}`, remedy }} />` : html`<${Page} name=${name} />`;
}

function Outdated() {
  const { cluster, loadedFrom } = useLive();
  const version = versionOf(cluster);
  if (!version || version === loadedFrom) return null;
  return html`<p class="warn" role="status">This page was loaded from version ${loadedFrom}, and the node now runs ${version}. <button type="button" onClick=${() => location.reload()}>Reload</button></p>`;
}

// Lists of a node that is fenced in CP show its own state, which can be old.
function Fenced({ own }) {
  const { at } = useLive(), { fenced, confirmedMsAgo } = own?.replication ?? {};
  if (!fenced) return null;
  const age = confirmedMsAgo === null || confirmedMsAgo < 0 ? "not confirmed since its start" : `last confirmed ${duration(confirmedMsAgo + performance.now() - at)} ago`;
  return html`<p class="bad" role="status">This node is fenced. Its state, which is shown here, was ${age}. <a href=${link("cluster")}>What is wrong</a></p>`;
}

// A node that has too many watchers, for example, sends no stream. A token would not help.
function Unstreamed() {
  const { stream, refusal } = useLive();
  return stream === "connecting" && refusal && html`<p class="warn" role="status">Changes are not shown at once: ${refusal}</p>`;
}

function NoPage() {
  return html`<${Problem} error=${{ message: "There is no page at this address", remedy: "Choose a page above." }} />`;
}

function App() {
  const { page, name } = useRoute();
  const { cluster, stream, error } = useLive();
  const [id, title, List, One] = PAGES.find(([each]) => each === page) ?? [page, "No such page", NoPage];
  const own = cluster?.nodes.find((node) => node.nodeId === cluster.asked);
  useEffect(() => { document.title = `${(One && name) || title} · ${cluster?.asked ?? "name server"}`; }, [title, name, cluster?.asked]);
  const Page = name && One ? One : List;
  return html`<a class="skip" href="#main" onClick=${(event) => { event.preventDefault(); document.getElementById("main").focus(); }}>Skip to the content</a>
    <header><p class="title">Name server <strong><bdi>${cluster?.asked}</bdi></strong></p>
      ${own && html`<span class="badge">${cluster.mode.toUpperCase()}</span>`}
      <${State} />
      <${FindTopic} />
      <span class="weak stream">${error?.status === 0 ? "disconnected" : { open: "live", connecting: "connecting", refused: "not live" }[stream]}</span></header>
    <nav aria-label="Pages"><ul>${PAGES.map(([each, label]) => html`<li key=${each}><a href=${link(each)} aria-current=${each === id ? "page" : undefined}>${label}</a></li>`)}</ul></nav>
    <${Token} /><${Unstreamed} /><${Outdated} />${id !== "cluster" && html`<${Fenced} own=${own} />`}
    <main id="main" tabindex="-1">${error && error.status !== 0 && error.status !== 401 && html`<${Problem} error=${error} />`}<${Shown} key=${`${token.session}/${id}/${name}`} Page=${Page} name=${name} /></main>`;
}

render(html`<${App} />`, document.getElementById("app"));
begin();
