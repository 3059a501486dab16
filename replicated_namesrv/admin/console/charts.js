// Charts of the last hour or day, each with a line for every node.
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { bytes, clock, html, repeatedly } from "./api.js";
import { useLive } from "./live.js";
import { read, setFields } from "./route.js";

const ms = (value) => (value === null || value === undefined ? "–" : value < 1 ? `${(value * 1000).toPrecision(3)} ms` : `${value.toPrecision(3)} s`);
const plain = (value) => (value === null || value === undefined ? "–" : value >= 100 ? Math.round(value).toLocaleString("en") : Number(value.toPrecision(3)).toString());
const perSecond = (value) => (value === null || value === undefined ? "–" : `${plain(value)}/s`);
const CHARTS = [
  ["Latency of requests, 99th percentile", ["latency:0.99"], ms],
  ["Latency of requests, median", ["latency:0.5"], ms],
  ["Commit latency, 99th percentile", ["commit:0.99"], ms],
  ["Fsync latency, 99th percentile", ["fsync:0.99"], ms],
  ["Elections", ["elections"], perSecond],
  ["Lag behind the newest commit of any node", ["lag"], plain],
  ["Brokers", ["brokers"], plain],
  ["Connections", ["connections"], plain],
  ["Event loop lag, recent maximum", ["loopLagMax"], ms],
  ["CPU", ["cpu"], (value) => (value === null || value === undefined ? "–" : `${(100 * value).toPrecision(3)} %`)],
  ["Memory", ["memory"], bytes],
  ["Rejections by limits", ["rejections"], perSecond],
];
const POLL_MS = { hour: 2000, day: 30000 };
const PRESENT_S = { hour: 10, day: 150 }; // an older value is shown with its time: some samples have no value, and a node can stop answering
const COLOURS = ["--line-1", "--line-2", "--line-3", "--line-4", "--line-5"];
const DASHES = [[], [8, 4], [2, 3], [10, 3, 2, 3], [4, 2]];

// Keeps the answers of each node and asks only for newer samples. Earlier samples of a node that does not answer are kept.
function useSamples(nodes, asked, span) {
  const [kept, set] = useState({ samples: {}, errors: {} }), present = useRef(nodes);
  present.current = nodes;
  useEffect(() => {
    if (!asked) return undefined;
    let own = {}, timer = 0;
    const ends = new AbortController(), asks = {};
    set({ samples: own, errors: {} });
    const look = async () => {
      const errors = {};
      await Promise.all(present.current.filter((node) => node.answers).map(async ({ nodeId }) => {
        const before = own[nodeId];
        const since = before?.timesMs.at(-2) ?? 0; // the newest may have been incomplete
        const path = `${nodeId === asked ? "v1" : `v1/nodes/${encodeURIComponent(nodeId)}`}/samples?span=${span}&since=${since}`;
        try {
          own[nodeId] = merged(before, await (asks[nodeId] ??= repeatedly())(path, { signal: ends.signal }), span);
        } catch (error) {
          errors[nodeId] = error; // the node's line ends
        }
      }));
      if (ends.signal.aborted) return;
      set({ samples: own = { ...own }, errors });
      timer = setTimeout(look, document.hidden ? 10 * POLL_MS[span] : POLL_MS[span]);
    };
    look();
    return () => { ends.abort(); clearTimeout(timer); };
  }, [asked, span]);
  return kept;
}

function merged(before, answer, span) {
  const series = { ...answer.series };
  if (!before || answer.timesMs.length === 0) return before ?? { timesMs: answer.timesMs, series };
  const keep = before.timesMs.findLastIndex((time) => time < answer.timesMs[0]) + 1;
  const drop = Math.max(0, keep + answer.timesMs.length - (span === "hour" ? 1800 : 1440));
  const joined = {};
  for (const name of new Set([...Object.keys(before.series), ...Object.keys(series)])) {
    const old = before.series[name]?.slice(drop, keep) ?? new Array(keep - drop).fill(null);
    joined[name] = old.concat(series[name] ?? new Array(answer.timesMs.length).fill(null));
  }
  return { timesMs: before.timesMs.slice(drop, keep).concat(answer.timesMs), series: joined };
}

// A node that is cut off does not know what the others commit. So its lag is the difference to the newest commit index of all nodes.
function withLag(samples, names, span) {
  const nodes = names.filter((name) => samples[name]?.series.commitIndex && samples[name].series.appliedIndex);
  const found = { ...samples };
  for (const name of nodes) {
    const { timesMs, series } = samples[name], at = nodes.map(() => -1);
    const lag = timesMs.map((time, i) => {
      let highest = null;
      nodes.forEach((other, n) => {
        const times = samples[other].timesMs, commits = samples[other].series.commitIndex;
        while (at[n] + 1 < times.length && times[at[n] + 1] <= time) at[n] += 1;
        if (at[n] >= 0 && time - times[at[n]] <= 1000 * PRESENT_S[span] && commits[at[n]] !== null) highest = Math.max(highest ?? 0, commits[at[n]]);
      });
      return highest === null || series.appliedIndex[i] === null ? null : Math.max(0, highest - series.appliedIndex[i]);
    });
    found[name] = { ...samples[name], series: { ...series, lag } };
  }
  return found;
}

function lines(samples, names, of) {
  const times = [...new Set(names.flatMap((name) => samples[name]?.timesMs ?? []))].sort((a, b) => a - b);
  const columns = of.map(({ node, series }) => {
    const found = samples[node], values = found?.series[series];
    const at = new Map(found?.timesMs.map((time, i) => [time, values?.[i] ?? null]));
    return times.map((time) => at.get(time) ?? null);
  });
  return [times.map((time) => time / 1000), ...columns];
}

// A value between two gaps has no line, so it is drawn as a point.
function isolated({ data }, series) {
  const values = data[series], isGap = (at) => (values[at] ?? null) === null;
  return [...values.keys()].filter((at) => !isGap(at) && isGap(at - 1) && isGap(at + 1));
}
const hours = (_, times, _axis, _space, step) => times.map((time) => clock(1000 * time).slice(0, step < 60 ? 8 : 5));

function latest([times, ...columns], at, show, span) {
  const found = columns[at]?.findLastIndex((value) => value !== null) ?? -1;
  if (found < 0) return show(null);
  return `${show(columns[at][found])}${times.at(-1) - times[found] > PRESENT_S[span] ? ` at ${clock(1000 * times[found])}` : ""}`;
}

function Chart({ title, data, labels, show, span }) {
  const box = useRef(null), drawn = useRef(null);
  const key = labels.join("\n");
  useEffect(() => {
    let ended = false, watch = null, scheme = matchMedia("(prefers-color-scheme: dark)");
    const build = async () => {
      const { default: UPlot } = await import("./vendor/uPlot.esm.js");
      if (ended || !box.current) return;
      drawn.current?.destroy();
      const style = getComputedStyle(document.documentElement), colour = (name) => style.getPropertyValue(name).trim();
      const axis = { stroke: colour("--text"), grid: { stroke: colour("--border"), width: 1 }, ticks: { stroke: colour("--border") } };
      drawn.current = new UPlot({
        width: Math.max(240, box.current.clientWidth), height: 170, legend: { live: true }, cursor: { sync: { key: "time" } },
        axes: [{ ...axis, values: hours }, { ...axis, size: 72, values: (_, values) => values.map(show) }],
        scales: { y: { range: (_, low, high) => [Math.min(0, low ?? 0), (high ?? 0) > 0 ? high * 1.1 : 1] } },
        series: [{ value: (_, value) => (value ? new Date(value * 1000).toLocaleTimeString("en-GB") : "–") },
          ...labels.map((label, at) => ({ label, stroke: colour(COLOURS[at % 5]), dash: DASHES[at % 5], width: 1.5, spanGaps: false, points: { show: false, filter: isolated, size: 4 }, value: (_, value) => show(value) }))],
      }, data.current, box.current);
      watch?.disconnect();
      // The page may have been left: then its elements are gone before this effect ends.
      watch = new ResizeObserver(([{ target }]) => target.isConnected && drawn.current?.setSize({ width: Math.max(240, target.clientWidth), height: 170 }));
      watch.observe(box.current);
    };
    build();
    scheme.addEventListener("change", build);
    return () => { ended = true; watch?.disconnect(); scheme.removeEventListener("change", build); drawn.current?.destroy(); drawn.current = null; };
  }, [key]);
  useEffect(() => { drawn.current?.setData(data.current); });
  const now = labels.map((label, at) => `${label} ${latest(data.current, at, show, span)}`).join(", ");
  return html`<figure><figcaption>${title} <span class="weak">${now}</span></figcaption><div ref=${box} class="chart" role="img" aria-label=${`${title}: ${now}`}></div></figure>`;
}

function Plot({ samples, names, of, ...shown }) {
  const data = useRef([]);
  data.current = lines(samples, names, of);
  return html`<${Chart} ...${shown} data=${data} />`;
}

export function Charts() {
  const { cluster } = useLive();
  const { span = "hour" } = read().fields;
  const chosen = span === "day" ? "day" : "hour";
  const { samples: sampled, errors } = useSamples(cluster?.nodes ?? [], cluster?.asked, chosen);
  const names = cluster?.nodes.map((node) => node.nodeId) ?? [];
  const samples = useMemo(() => withLag(sampled, names, chosen), [sampled, names.join("\n"), chosen]);
  const silent = cluster?.nodes.filter((node) => !node.answers) ?? [];
  const has = (name) => names.some((node) => samples[node]?.series[name]);
  const requests = [...new Set(names.flatMap((node) => Object.keys(samples[node]?.series ?? {}).filter((name) => name.startsWith("request:"))))].sort();
  return html`<h1>Charts</h1>
    <fieldset class="choice"><legend>Span</legend>${["hour", "day"].map((one) => html`<label key=${one}><input type="radio" name="span" checked=${chosen === one} onChange=${() => setFields({ span: one })} /> last ${one === "hour" ? "hour" : "24 hours"}</label>`)}</fieldset>
    ${silent.map((node) => html`<p class="warn" role="status" key=${node.nodeId}>${node.nodeId} does not answer, so its values are not the present ones.</p>`)}
    ${Object.entries(errors).map(([node, error]) => html`<p class="warn" role="status" key=${node}>There are no new samples of ${node}: ${error.message}.</p>`)}
    <div class="charts">${requests.map((name) => html`<${Plot} key=${name} title=${`Requests: ${name.slice(8)}`} samples=${samples} names=${names} labels=${names} span=${chosen} of=${names.map((node) => ({ node, series: name }))} show=${perSecond} />`)}
    ${CHARTS.filter(([, [name]]) => has(name)).map(([title, [name], show]) => html`<${Plot} key=${title} title=${title} samples=${samples} names=${names} labels=${names} span=${chosen} of=${names.map((node) => ({ node, series: name }))} show=${show} />`)}</div>
    ${requests.length === 0 && !has("memory") && Object.keys(errors).length === 0 && html`<p>The first sample comes within some seconds.</p>`}`;
}
