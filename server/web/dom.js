// Elements, made and found.

export const element = (id) => document.getElementById(id);

// An element with properties, also of `dataset` and of ARIA, and with its content: text and elements.
export function make(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === undefined || value === null) continue;
    if (name.includes("-") || name === "role" || name === "for") made.setAttribute(name, value);
    else if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else made[name] = value;
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

// Sets `children` to `list` without touching present ones, which keep focus, sound and scroll position.
export function arrange(list, children) {
  children.forEach((child, place) => {
    if (list.children[place] !== child) list.insertBefore(child, list.children[place] ?? null);
  });
  while (list.children.length > children.length) list.lastElementChild.remove();
}

const heights = new WeakMap(); // of lists, when they were last followed

// Keeps the end in sight, however much has come at once, unless its reader has scrolled up.
export function follow(list) {
  const before = Math.min(heights.get(list) ?? Infinity, list.scrollHeight);
  if (before - list.scrollTop - list.clientHeight < 160) list.scrollTop = list.scrollHeight;
  heights.set(list, list.scrollHeight);
}

// A bubble with a name; text goes into its `said`.
export function bubble(role, name) {
  const said = make("div", { className: "said" });
  return make("div", { className: `message ${role}` }, make("b", {}, name), said);
}

// Puts text on the clipboard, and says so on the button. The clipboard's own interface is only there under https and on
// this machine.
export async function copy(text, button) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const carrier = make("textarea", { value: text, className: "unseen" });
    document.body.append(carrier);
    carrier.select();
    document.execCommand("copy");
    carrier.remove();
    button.focus();
  }
  const before = button.textContent;
  button.textContent = "✓";
  setTimeout(() => (button.textContent = before), 1200);
}

// Gives the reader a file.
export function download(name, type, text) {
  const address = URL.createObjectURL(new Blob([text], { type }));
  make("a", { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}
