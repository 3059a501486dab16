// The page and its state are in the URL's fragment: #/PAGE/NAME?field=value.
import { useEffect, useState } from "preact/hooks";

export function read() {
  const [path, fields] = (location.hash.slice(1) || "/cluster").split("?");
  const [, page, ...rest] = path.split("/");
  let name = rest.join("/");
  try {
    name = decodeURIComponent(name);
  } catch {
    // a malformed link: shown as it is
  }
  return { page: page || "cluster", name, fields: Object.fromEntries(new URLSearchParams(fields)) };
}

export function link(page, name = "", fields = {}) {
  const set = Object.entries(fields).filter(([, value]) => value !== "" && value !== undefined && value !== null);
  return `#/${page}${name ? `/${encodeURIComponent(name)}` : ""}${set.length ? `?${new URLSearchParams(set)}` : ""}`;
}

export function useRoute() {
  const [route, set] = useState(read());
  useEffect(() => {
    const changed = () => set(read());
    addEventListener("hashchange", changed);
    changed(); // an effect runs after the first paint, so the fragment may have changed before it
    return () => removeEventListener("hashchange", changed);
  }, []);
  return route;
}

// Changes fields of the present page. Typing replaces the entry in the browser's history, so that Back leaves the page.
export function setFields(fields, replace = false) {
  const { page, name, fields: before } = read();
  const target = link(page, name, { ...before, ...fields });
  if (!replace) {
    location.hash = target;
    return;
  }
  history.replaceState(null, "", target);
  dispatchEvent(new HashChangeEvent("hashchange"));
}
