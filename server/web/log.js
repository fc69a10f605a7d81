// The list of events of a session, those of late.

const MOST = 500;
const NAMES = /^(id|object|.*_(id|index))$/; // in the way of a reader; the whole event is in the title
const AUDIO = new Set(["input_audio_buffer.append", "response.output_audio.delta"]);

export class EventLog {
  constructor(list, count, withAudio) {
    this.list = list;
    this.count = count;
    this.withAudio = withAudio;
    this.clear();
  }

  clear() {
    this.began = performance.now();
    this.seen = 0;
    this.list.replaceChildren();
    this.count.textContent = "0";
  }

  add(event, sent) {
    this.count.textContent = ++this.seen;
    if (AUDIO.has(event.type) && !this.withAudio.checked) return;
    const line = document.createElement("li");
    line.dataset.type = event.type;
    if (sent) line.className = "sent";
    if (event.type === "error" || event.type.endsWith(".failed")) line.className = "wrong";
    const time = document.createElement("time");
    time.textContent = `${((performance.now() - this.began) / 1000).toFixed(2)} s`;
    const type = document.createElement("span");
    type.textContent = `${sent ? "→" : "←"} ${event.type}`;
    const rest = document.createElement("code");
    rest.textContent = detail(event, NAMES);
    rest.title = detail(event);
    line.append(time, type, rest);
    const atEnd = this.list.scrollHeight - this.list.scrollTop - this.list.clientHeight < 40;
    this.list.append(line);
    while (this.list.childElementCount > MOST) this.list.firstChild.remove();
    if (atEnd) this.list.scrollTop = this.list.scrollHeight;
  }
}

// As JSON in one line, with sound by its size, and without what `left` matches.
function detail({ type, event_id, ...rest }, left) {
  const text = JSON.stringify(rest, (name, value) => {
    if (left?.test(name)) return undefined;
    const sound = typeof value === "string" && (name === "audio" || (name === "delta" && AUDIO.has(type)));
    return sound ? `(${Math.floor((value.length * 3) / 4)} bytes)` : value;
  });
  return text.length > 2000 ? `${text.slice(0, 2000)} …` : text;
}
