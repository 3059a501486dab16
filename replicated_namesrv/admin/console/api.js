// Requests to this node. Text from the node is only ever shown as text, so that a name cannot become markup.
import { h } from "preact";
import htm from "htm";

export const html = htm.bind(h);
const TIMEOUT_MS = 4000, LONGEST_TIMEOUT_MS = 10000;

export class ApiError extends Error {
  constructor(status, body) {
    super(body.error ?? `HTTP status ${status}`);
    this.status = status;
    this.remedy = body.remedy ?? "";
    this.outcome = body.outcome ?? "not done";
    this.timedOut = body.timedOut ?? false;
  }
}

export const token = {
  session: 0, // increases with each change, so that an answer to an earlier token is not shown
  get: () => sessionStorage.getItem("token") ?? "",
  set: (text) => {
    token.session += 1;
    if (text) sessionStorage.setItem("token", text);
    else sessionStorage.removeItem("token");
  },
};

export const authorized = (more = {}) => (token.get() ? { ...more, Authorization: `Bearer ${token.get()}` } : more);

// A URL with this part means another URL, so a name that is "." or ".." cannot be asked for.
const DOTS = /(^|\/)\.\.?(?=[/?]|$)/;

export async function ask(path, options = {}) {
  if (DOTS.test(path)) throw new ApiError(400, { error: "a browser cannot request the names “.” and “..”", remedy: "Use the command namesrv." });
  const ends = new AbortController(), abort = () => ends.abort();
  let timedOut = false;
  const timer = setTimeout(() => { timedOut = true; abort(); }, options.timeoutMs ?? TIMEOUT_MS);
  options.signal?.addEventListener("abort", abort);
  try {
    const answer = await fetch(path, {
      method: options.method ?? "GET", body: options.body, headers: authorized(), cache: "no-store", signal: ends.signal,
    });
    if (!answer.ok) throw new ApiError(answer.status, await answer.json().catch(() => ({})));
    return await answer.json(); // an answer that is cut off is none
  } catch (error) {
    if (error instanceof ApiError) throw error;
    throw new ApiError(0, { error: "this node does not answer", remedy: "Open the console of another node.", outcome: "unknown", timedOut });
  } finally {
    clearTimeout(timer);
    options.signal?.removeEventListener("abort", abort); // the signal lives as long as the page that asks
  }
}

// Returns a function like `ask` for requests that are repeated. Its time limit doubles after each time-out. With a fixed limit, a page
// behind a slow link, or in a browser that gets little processor time, would never receive an answer. A limit without a bound would
// delay the next attempt after a network failure.
export function repeatedly(firstMs = TIMEOUT_MS) {
  let limitMs = firstMs;
  const limit = (ms) => { limitMs = Math.min(Math.max(ms, firstMs), LONGEST_TIMEOUT_MS); };
  return async (path, options = {}) => {
    const began = performance.now();
    try {
      const answer = await ask(path, { ...options, timeoutMs: limitMs });
      limit(2 * (performance.now() - began));
      return answer;
    } catch (error) {
      if (error.timedOut) limit(2 * limitMs);
      throw error;
    }
  };
}

export const query = (fields) => {
  const set = Object.entries(fields).filter(([, value]) => value !== "" && value !== undefined && value !== null);
  return set.length ? `?${new URLSearchParams(set)}` : "";
};

const number = new Intl.NumberFormat("en");
export const count = (value) => (value === null || value === undefined ? "–" : number.format(value));
export const plural = (n, one, many = `${one}s`) => `${count(n)} ${n === 1 ? one : many}`;

export function duration(ms) {
  if (ms === null || ms === undefined) return "–";
  if (ms < 1000) return `${Math.round(ms)} ms`;
  const seconds = Math.floor(ms / 1000);
  if (seconds < 60) return `${seconds} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${seconds % 60} s`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)} h ${Math.floor((seconds % 3600) / 60)} min`;
  return `${Math.floor(seconds / 86400)} d ${Math.floor((seconds % 86400) / 3600)} h`;
}

export function bytes(value) {
  if (value === null || value === undefined) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let at = 0;
  for (; value >= 1024 && at < units.length - 1; at += 1) value /= 1024;
  return `${value >= 100 || at === 0 ? Math.round(value) : value.toFixed(1)} ${units[at]}`;
}

const pad = (value) => String(value).padStart(2, "0");
export function clock(ms) {
  const at = new Date(ms);
  return `${pad(at.getHours())}:${pad(at.getMinutes())}:${pad(at.getSeconds())}`;
}
const day = (at) => `${at.getFullYear()}-${pad(at.getMonth() + 1)}-${pad(at.getDate())}`;
export const moment = (ms) => (ms ? `${day(new Date(ms))} ${clock(ms)}` : "–");
