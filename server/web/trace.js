// Loudness of the audio that the server got in the last seconds, with detected speech.

const SVG = "http://www.w3.org/2000/svg";
const WINDOW = 15_000; // milliseconds
const HEIGHT = 30;
const EVERY = 200; // milliseconds between two drawings
const STEP = 100; // milliseconds that are one point

export class Trace {
  constructor(place) {
    this.place = place;
    place.setAttribute("viewBox", `0 0 ${WINDOW} ${HEIGHT}`);
    place.setAttribute("preserveAspectRatio", "none");
    this.clear();
  }

  clear() {
    this.turns = []; // [where speech began, where it ended or null], in milliseconds of the session's sound
    clearTimeout(this.pending);
    this.pending = null;
    this.place.replaceChildren();
  }

  began(ms) {
    this.turns.push([ms, null]);
    if (this.turns.length > 50) this.turns.shift();
  }

  ended(ms) {
    if (this.turns.length) this.turns.at(-1)[1] = ms;
  }

  // Draws `times`, of each piece of sound where it ends, when it was made and how loud it is; soon, and not too often.
  show(times) {
    if (!times.length) return;
    this.pending ??= setTimeout(() => {
      this.pending = null;
      this.draw(times);
    }, EVERY);
  }

  draw(times) {
    const now = times.at(-1)[0];
    const x = (ms) => Math.min(Math.max(WINDOW - now + ms, 0), WINDOW); // a call's server may be ahead of this clock
    const loudest = new Map(); // by step
    for (const [end, , level] of times) {
      if (end <= now - WINDOW) continue;
      const step = Math.ceil(end / STEP);
      loudest.set(step, Math.max(level, loudest.get(step) ?? 0));
    }
    const points = [...loudest].map(([step, level]) => `${x(step * STEP)},${HEIGHT - HEIGHT * level}`);
    const line = shape("polyline", { points: points.join(" ") });
    const turns = this.turns.filter(([, end]) => end === null || end > now - WINDOW);
    const marks = turns.map(([from, to]) => shape("rect", { x: x(from), y: 0, width: x(to ?? now) - x(from), height: HEIGHT }));
    this.place.replaceChildren(...marks, line);
  }
}

function shape(tag, attributes) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
}
