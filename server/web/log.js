// The list of events of a session: like ones in a row are one line, a line opens to the whole event, all can be saved.

import { copy, download, make } from "./dom.js";
import { t } from "./language.js";

const MOST = 500; // lines
const KEPT = 5000; // events that are saved
const NAMES = /^(id|object|.*_(id|index))$/; // in the way of a reader; the whole event is below
const AUDIO = new Set(["input_audio_buffer.append", "response.output_audio.delta"]);

export class EventLog {
  // `list` shows them, `count` says how many there were, `withAudio` is a checkbox, `filter` a field of words.
  constructor({ list, count, withAudio, filter, save }) {
    Object.assign(this, { list, count, withAudio, filter });
    filter.addEventListener("input", () => {
      for (const line of list.children) this.sift(line);
    });
    save.addEventListener("click", () => download("events.json", "application/json", JSON.stringify(this.events, null, 1)));
    this.clear();
  }

  clear() {
    this.began = performance.now();
    this.seen = 0;
    this.events = []; // without sound
    this.last = null; // the line that was added last: its type, direction and events
    this.list.replaceChildren();
    this.count.textContent = "0";
  }

  add(event, sent) {
    this.count.textContent = ++this.seen;
    const seconds = (performance.now() - this.began) / 1000;
    const quiet = silenced(event);
    this.events.push({ seconds: Number(seconds.toFixed(3)), sent, event: quiet });
    if (this.events.length > KEPT) this.events.shift();
    if (AUDIO.has(event.type) && !this.withAudio.checked) return;
    const atEnd = this.list.scrollHeight - this.list.scrollTop - this.list.clientHeight < 40;
    const repeats = this.last?.type === event.type && this.last.sent === sent && /delta$|append$/.test(event.type);
    if (!repeats) this.begin(event, sent, seconds);
    this.last.events.push(quiet);
    const { events, times, rest } = this.last;
    times.textContent = events.length > 1 ? ` × ${events.length}` : "";
    rest.textContent = events.length > 1 ? events.map(({ delta }) => delta ?? "").join("").slice(-200) : short(quiet);
    if (atEnd) this.list.scrollTop = this.list.scrollHeight;
  }

  // A line of its own for an event.
  begin(event, sent, seconds) {
    const isWrong = event.type === "error" || event.type.endsWith(".failed");
    const times = make("span", {});
    const rest = make("code", {});
    const events = [];
    const type = make("span", {}, `${sent ? "→" : "←"} ${event.type}`, times);
    const summary = make("summary", {}, make("time", {}, `${seconds.toFixed(2)} s`), type, rest);
    const whole = make("details", {}, summary);
    whole.addEventListener("toggle", () => {
      whole.querySelector("div")?.remove();
      if (!whole.open) return;
      const text = JSON.stringify(events.length > 1 ? events : events[0], null, 2);
      const button = make("button", { type: "button", onclick: () => copy(text, button) }, t("Copy"));
      whole.append(make("div", {}, button, make("pre", { tabIndex: 0 }, text)));
    });
    const line = make("li", { className: isWrong ? "wrong" : sent ? "sent" : "" }, whole);
    line.dataset.type = event.type;
    this.sift(line);
    this.list.append(line);
    while (this.list.childElementCount > MOST) this.list.firstChild.remove();
    this.last = { type: event.type, sent, events, times, rest };
  }

  sift(line) {
    line.hidden = !line.dataset.type.includes(this.filter.value.trim());
  }
}

// The event with sound by its size.
function silenced({ type, ...rest }) {
  const quiet = JSON.stringify(rest, (name, value) => {
    const sound = typeof value === "string" && (name === "audio" || (name === "delta" && AUDIO.has(type)));
    return sound ? `(${Math.floor((value.length * 3) / 4)} bytes)` : value;
  });
  return { type, ...JSON.parse(quiet) };
}

// What a reader wants of it, in one line.
function short({ type, event_id, ...rest }) {
  const text = JSON.stringify(rest, (name, value) => (NAMES.test(name) ? undefined : value));
  return text.length > 500 ? `${text.slice(0, 500)} …` : text;
}
