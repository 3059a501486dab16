// Parts that pages share: tables, pages of rows, problems, and actions with a preview and a typed confirmation.
import { useEffect, useId, useRef, useState } from "preact/hooks";
import { ask, count, duration, html } from "./api.js";
import { live, useLive } from "./live.js";
import { read, setFields } from "./route.js";

const SEARCH_EVERY_MS = 100; // the URL changes at most this often: browsers limit its changes to 100 in 10 s

// `at`: when the data came that is still shown. The age is no part of the alert, so that screen readers do not read it each second.
export function Problem({ error, data, at }) {
  if (!error) return null;
  return html`<p class="problem" role="alert"><strong>${error.message}.</strong> ${error.remedy}</p>
    ${data && html`<p class="problem age">What is shown below is ${duration(performance.now() - at)} old.</p>`}`;
}

// The text in the URL counts, unless it was typed here a moment ago. Then the newer text in the box counts.
export function Search({ label }) {
  const given = read().fields.q ?? "";
  const [text, set] = useState(given);
  const timer = useRef(0), own = useRef(given), last = useRef(-Infinity);
  useEffect(() => {
    if (given === own.current) return;
    clearTimeout(timer.current);
    own.current = given;
    set(given);
  }, [given]);
  useEffect(() => () => clearTimeout(timer.current), []); // the page was left
  const typed = (event) => {
    const q = event.target.value;
    set(q);
    clearTimeout(timer.current);
    const search = () => {
      last.current = performance.now();
      own.current = q;
      setFields({ q, after: "", page: "" }, true);
    };
    const waits = last.current + SEARCH_EVERY_MS - performance.now();
    if (waits > 0) timer.current = setTimeout(search, waits);
    else search();
  };
  return html`<label class="search">${label} <input type="search" value=${text} onInput=${typed} /></label>`;
}

// columns: {title, sort, number, wide, cell: row => content}. Rows are keyed, so that focus stays on a row when data changes. `sort` is
// the server's name of the order, "" for the order without one. A column with `by: row => value` is sorted here, by the title.
export function Table({ caption, columns, rows, keyOf, empty }) {
  const { sort = "" } = read().fields;
  const region = useRef(null), focused = useRef(null);
  useEffect(() => {
    if (focused.current === null || focused.current.isConnected) return;
    focused.current = null; // its row is gone: the focus stays at the table
    if (document.activeElement === document.body) region.current.focus({ preventScroll: true });
  });
  const descends = sort.startsWith("-"), name = descends ? sort.slice(1) : sort;
  const here = columns.find((column) => column.by && column.title === name);
  const before = (a, b) => (here.number ? here.by(a) - here.by(b) : here.by(a).localeCompare(here.by(b), "en", { numeric: true }));
  const ordered = here ? [...rows].sort((a, b) => (descends ? before(b, a) : before(a, b))) : rows;
  const left = ({ target }) => setTimeout(() => { if (target.isConnected && focused.current === target) focused.current = null; });
  const heading = (column) => {
    const own = column.by ? column.title : column.sort;
    if (own === undefined) return html`<th scope="col" class=${column.number ? "number" : ""}>${column.title}</th>`;
    const direction = name !== own ? "none" : descends ? "descending" : "ascending";
    const next = own === "" ? "" : direction === "descending" || (column.by && direction === "none" && !column.number) ? own : `-${own}`;
    const mark = { none: "", ascending: " ▲", descending: " ▼" }[direction];
    return html`<th scope="col" aria-sort=${direction} class=${column.number ? "number" : ""}>
      <button type="button" class="sort" onClick=${() => setFields({ sort: next, after: "", page: "" })}>${column.title}${mark}</button></th>`;
  };
  return html`<div class="scroll" tabindex="0" role="region" aria-label=${caption} ref=${region}
    onFocusIn=${({ target }) => { focused.current = target; }} onFocusOut=${left}>
    <table><caption class="hidden">${caption}</caption>
      <thead><tr>${columns.map(heading)}</tr></thead>
      <tbody>${rows.length === 0 && html`<tr key="none"><td class="empty" colspan=${columns.length}>${empty ?? "Nothing here."}</td></tr>`}
      ${ordered.map((row) => html`<tr key=${keyOf(row)}>${columns.map((column) => html`<td class=${column.number ? "number" : column.wide ? "wide" : ""}>${column.cell(row)}</td>`)}</tr>`)}</tbody>
    </table></div>`;
}

// Pages go forward by the server's `next` and back through the browser's history.
export function Pager({ answer, shown }) {
  const { after, page = "1" } = read().fields;
  if (!answer) return null;
  return html`<p class="pager"><span role="status">${count(shown)} of ${count(answer.total)}, page ${page}</span>
    ${after && html`<button type="button" onClick=${() => setFields({ after: "", page: "" })}>First page</button>`}
    ${after && html`<button type="button" onClick=${() => history.back()}>Previous page</button>`}
    ${answer.next && html`<button type="button" onClick=${() => setFields({ after: answer.next, page: Number(page) + 1 })}>Next page</button>`}</p>`;
}

// An action: its button, the reason why it is disabled, its effects, and the text that has to be typed to confirm it.
export function Action({ label, disabled = null, title, preview, confirm = "", input = null, needs = "change", run, done }) {
  useLive();
  const dialog = useRef(null), id = useId(), turn = useRef(0);
  const [typed, setTyped] = useState(""), [value, setValue] = useState(""), [result, setResult] = useState(null);
  const [busy, setBusy] = useState(false);
  const why = live.cluster?.may[needs] ?? disabled;
  const open = () => {
    if (why) return;
    turn.current += 1; // the answer to a request of an earlier turn is not shown here
    setBusy(false);
    setTyped("");
    setValue(input?.value ?? "");
    setResult(null);
    dialog.current.showModal();
  };
  const submit = async (event) => {
    event.preventDefault();
    if (typed !== confirm || busy) return;
    setBusy(true);
    const own = turn.current;
    const outcome = await run(value).then(
      (text) => ({ good: true, text: text ?? "Done." }),
      (error) => ({ good: false, text: `${error.outcome === "unknown" ? "Outcome unknown" : "Not done"}: ${error.message}. ${error.remedy ?? ""}` }),
    );
    done?.();
    if (own !== turn.current) return;
    setResult(outcome);
    setBusy(false);
  };
  return html`<span class="action">
    <button type="button" aria-disabled=${why ? "true" : "false"} aria-describedby=${why ? `${id}-why` : undefined} onClick=${open}>${label}</button>
    ${why && html`<span class="why" id=${`${id}-why`}>${why}</span>`}
    <dialog ref=${dialog} aria-labelledby=${`${id}-title`}>
      <form onSubmit=${submit}>
        <h2 id=${`${id}-title`}>${title}</h2>
        <div class="preview" tabindex="0" role="region" aria-label="What the action changes">${preview}</div>
        ${input && html`<label>${input.label}<textarea autofocus rows=${input.rows ?? 2} value=${value} onInput=${(event) => setValue(event.target.value)} /></label>`}
        ${confirm && html`<label>Type <code>${confirm}</code> to confirm<input autofocus autocomplete="off" value=${typed} onInput=${(event) => setTyped(event.target.value)} /></label>`}
        ${result && html`<p role="status" class=${result.good ? "good" : "problem"}>${result.text}</p>`}
        <p class="buttons"><button type="button" onClick=${() => dialog.current.close()}>${result?.good ? "Close" : "Cancel"}</button>
        ${!result?.good && html`<button type="submit" class="danger" disabled=${typed !== confirm || busy}>${label}</button>`}</p>
      </form>
    </dialog></span>`;
}

export const change = async (method, path, body) => {
  const answer = await ask(path, { method, body, timeoutMs: 15000 });
  return answer.changed === false ? "Nothing had to be changed." : `Done${answer.revision === undefined ? "" : `, revision ${answer.revision}`}.`;
};
