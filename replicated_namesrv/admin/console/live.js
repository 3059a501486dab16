// The present state: /v1/cluster every second, and /v1/watch, whose events say that something has changed. The stream is read
// with fetch because an EventSource cannot send the token. It continues after the last event that it has received.
import { useEffect, useRef, useState } from "preact/hooks";
import { ApiError, authorized, repeatedly, token } from "./api.js";

const POLL_MS = 1000, HIDDEN_POLL_MS = 10000, RETRY_MS = 1000, SETTLE_MS = 300, WITHOUT_STREAM_MS = 5000;
const STREAM_SILENT_MS = 25000; // the node sends at least a comment every 10 s

export const live = {
  cluster: null, // the last answer of /v1/cluster
  at: 0, // when it came, performance.now()
  error: null,
  failingSince: 0,
  version: 0, // increases when lists should be read again
  stream: "connecting", // open, connecting, refused
  refusal: "", // why the node does not send the stream
  loadedFrom: null, // version of the node when this page was loaded
};
export const versionOf = (cluster) => cluster?.nodes.find((node) => node.nodeId === cluster.asked)?.status?.version ?? null;
const listeners = new Set();
const tell = () => listeners.forEach((listener) => listener());

export function useLive() {
  const [, set] = useState(0);
  useEffect(() => {
    const listener = () => set((n) => n + 1);
    listeners.add(listener);
    return () => listeners.delete(listener);
  }, []);
  return live;
}

const askCluster = repeatedly(2500);
let pollTimer = 0, polling = false, again = false;
export async function poll() {
  clearTimeout(pollTimer);
  if (polling) {
    again = true;
    return;
  }
  polling = true;
  const { session } = token;
  const [cluster, error] = await askCluster("v1/cluster").then((answer) => [answer, null], (failure) => [null, failure]);
  polling = false;
  if (session === token.session) {
    live.error = error;
    if (error) {
      live.failingSince ||= performance.now();
    } else {
      live.cluster = cluster;
      live.loadedFrom ??= versionOf(cluster);
      live.at = performance.now();
      live.failingSince = 0;
    }
  }
  tell();
  pollTimer = setTimeout(poll, again ? 50 : document.hidden ? HIDDEN_POLL_MS : POLL_MS);
  again = false;
}

let settleTimer = 0;
function changed() {
  settleTimer ||= setTimeout(() => {
    settleTimer = 0;
    live.version += 1;
    tell();
  }, SETTLE_MS);
}

let position = null, attempt = null, wake = null;
const pause = (ms) => new Promise((resolve) => {
  wake = resolve;
  setTimeout(resolve, ms);
});

async function follow() {
  for (;;) {
    while (document.hidden) await pause(HIDDEN_POLL_MS);
    const own = new AbortController(), { signal } = own, { session } = token;
    attempt = own;
    let silence = setTimeout(() => own.abort(), STREAM_SILENT_MS);
    try {
      const answer = await fetch("v1/watch", {
        headers: authorized(position === null ? {} : { "Last-Event-ID": position }), cache: "no-store", signal,
      });
      if (answer.status === 410) {
        position = null;
        changed();
        continue;
      }
      if (!answer.ok) throw new ApiError(answer.status, await answer.json().catch(() => ({})));
      Object.assign(live, { stream: "open", refusal: "" });
      changed();
      poll();
      const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
      let text = "";
      for (;;) {
        const part = await reader.read();
        if (part.done) break;
        clearTimeout(silence);
        silence = setTimeout(() => own.abort(), STREAM_SILENT_MS);
        text += part.value;
        const events = text.split("\n\n");
        text = events.pop();
        events.forEach(received);
      }
      live.stream = "connecting";
    } catch (error) {
      live.stream = error instanceof ApiError && [401, 403].includes(error.status) ? "refused" : "connecting";
      live.refusal = error instanceof ApiError ? `${error.message}; ${error.remedy}` : "";
    } finally {
      clearTimeout(silence);
    }
    tell();
    if (session !== token.session) continue;
    if (live.refusal) changed();
    await pause(live.refusal ? WITHOUT_STREAM_MS : RETRY_MS);
  }
}

function received(event) {
  const fields = Object.fromEntries(event.split("\n").map((line) => [line.slice(0, line.indexOf(":")), line.slice(line.indexOf(":") + 1).trim()]));
  if (!fields.event) return;
  if (fields.id) position = fields.id;
  if (fields.event === "leader" || fields.event === "hello") poll();
  changed();
}

// Data that was shown with another token is dropped, also by the pages: the frame mounts them anew for each session.
export function useToken(text) {
  token.set(text.trim());
  Object.assign(live, { cluster: null, at: 0, error: null, failingSince: 0 });
  position = null;
  attempt?.abort();
  wake?.();
  poll();
  tell();
}

export function begin() {
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) { // a browser opens six connections to a node, also for seven tabs
      attempt?.abort();
    } else {
      wake?.();
      poll();
    }
  });
  poll();
  follow();
}

export const dialogIsOpen = () => document.querySelector("dialog[open]") !== null;

// The answer for `path` as `data`, with the time `at` (performance.now()) at which it came. If `error` is set too, `data` is older than
// the latest attempt. Reads at once, when it changes, and when something has changed on the node. Shows the old answer until then, also while
// the node does not answer or cannot serve. One request is under way at a time, so answers come in order, also if changes come faster
// than answers. A request without an answer is repeated, because the next change may come late. While a dialog is open nothing is
// read, so that its row stays.
export function useData(path, everyMs = 0, timeoutMs = undefined) {
  const [found, set] = useState({ path: null, data: null, error: null, at: 0 });
  const { version } = useLive();
  const reader = useRef(null), seen = useRef(version), asker = useRef(null);
  asker.current ??= repeatedly(timeoutMs); // the page's next paths are probably as slow
  useEffect(() => {
    if (!path) return undefined;
    const ends = new AbortController();
    let busy = false, again = false, retry = 0;
    const read = async () => {
      again = busy || dialogIsOpen();
      if (again) return;
      busy = true;
      clearTimeout(retry);
      const [data, error] = await asker.current(path, { signal: ends.signal }).then((answer) => [answer, null], (failure) => [null, failure]);
      busy = false;
      if (ends.signal.aborted) return;
      const isKept = error && ![401, 403, 404].includes(error.status); // these say that the data is gone, or may not be shown
      set((before) => (isKept && before.path === path ? { ...before, error } : { path, data, error, at: performance.now() }));
      if (again) read();
      else if (error?.status === 0) retry = setTimeout(read, document.hidden ? HIDDEN_POLL_MS : RETRY_MS);
    };
    const closed = () => again && read();
    reader.current = read;
    read();
    document.addEventListener("close", closed, true); // of a dialog: it does not bubble
    const timer = everyMs ? setInterval(read, everyMs) : 0;
    return () => {
      ends.abort();
      clearTimeout(retry);
      clearInterval(timer);
      document.removeEventListener("close", closed, true);
    };
  }, [path, everyMs]);
  useEffect(() => {
    if (seen.current !== version) reader.current?.();
    seen.current = version;
  }, [version]);
  return { ...found, reload: () => reader.current?.() };
}
