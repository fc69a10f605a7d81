// How long a voice session lets its speaker wait, in milliseconds as they are heard here.

import { element } from "./dom.js";

export class Stopwatch {
  constructor() {
    this.reset();
  }

  reset() {
    this.sounds = []; // of each answer, from the end of the speech to its first sound
    this.turn = this.words = null; // when speech ended whose answer has not been heard, or read
    this.interruption = null;
    this.turns = 0;
    for (const id of ["latency", "median", "words", "interruption"]) show(id, undefined);
    element("voice-count").textContent = "0";
  }

  // Speech has ended, at `time` of performance.now(); null where it goes on.
  asked(time) {
    this.turn = this.words = time;
  }

  // The first sound of an answer has come.
  sounded() {
    if (this.turn === null) return;
    this.sounds.push(performance.now() - this.turn);
    this.turn = null;
    show("latency", this.sounds.at(-1));
    show("median", median(this.sounds));
  }

  // Words of an answer have come.
  worded() {
    if (this.words === null) return;
    show("words", performance.now() - this.words);
    this.words = null;
  }

  interrupted() {
    this.interruption = performance.now();
  }

  silent() {
    if (this.interruption === null) return;
    show("interruption", performance.now() - this.interruption);
    this.interruption = null;
  }

  answered() {
    element("voice-count").textContent = ++this.turns;
  }
}

function show(id, value) {
  element(`voice-${id}`).textContent = value === undefined ? "–" : `${Math.round(value)} ms`;
}

function median(values) {
  const sorted = [...values].sort((a, b) => a - b);
  const middle = sorted.length >> 1;
  return sorted.length % 2 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
}
