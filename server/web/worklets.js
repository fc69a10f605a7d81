// Code of the audio thread: the microphone in pieces of 40 ms, and a loudspeaker that knows what it has played.

const RATE = 24000;
const PIECE = RATE / 25;

class Microphone extends AudioWorkletProcessor {
  constructor() {
    super();
    this.piece = new Int16Array(PIECE);
    this.filled = 0;
    this.step = sampleRate / RATE; // samples that one of ours is the mean of
    this.missing = this.step;
    this.sum = 0;
  }

  process([channels]) {
    const [samples] = channels;
    for (const sample of samples ?? []) this.take(sample);
    return true;
  }

  take(sample) {
    let left = 1;
    while (left > 0) {
      const part = Math.min(left, this.missing);
      this.sum += sample * part;
      this.missing -= part;
      left -= part;
      if (this.missing > 1e-9) continue;
      this.put(this.sum / this.step);
      this.missing = this.step;
      this.sum = 0;
    }
  }

  put(sample) {
    this.piece[this.filled++] = Math.max(-1, Math.min(1, sample)) * 32767;
    if (this.filled < PIECE) return;
    this.port.postMessage(this.piece.buffer, [this.piece.buffer]);
    this.piece = new Int16Array(PIECE);
    this.filled = 0;
  }
}

class Loudspeaker extends AudioWorkletProcessor {
  constructor() {
    super();
    this.queue = []; // {item, samples}
    this.at = 0; // in the first of them
    this.item = null; // that was heard last
    this.played = 0; // samples of it
    this.port.onmessage = ({ data }) => this.told(data);
  }

  told(message) {
    if (message.samples) {
      this.queue.push(message);
      return;
    }
    const unfinished = this.queue.length > 0;
    const item = this.item ?? this.queue[0]?.item ?? null;
    this.port.postMessage({ stopped: true, item, unfinished, played: this.played });
    this.queue = [];
    this.at = 0;
  }

  process(_inputs, [[out]]) {
    let filled = 0;
    while (filled < out.length && this.queue.length) {
      const { item, samples } = this.queue[0];
      if (item !== this.item) {
        this.item = item;
        this.played = 0;
        this.port.postMessage({ began: item });
      }
      const count = Math.min(out.length - filled, samples.length - this.at);
      out.set(samples.subarray(this.at, this.at + count), filled);
      filled += count;
      this.at += count;
      this.played += count;
      if (this.at < samples.length) continue;
      this.queue.shift();
      this.at = 0;
      if (!this.queue.length) this.port.postMessage({ drained: item });
    }
    return true;
  }
}

registerProcessor("microphone", Microphone);
registerProcessor("loudspeaker", Loudspeaker);
