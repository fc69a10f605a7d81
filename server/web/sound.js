// Sound in and out, as pcm of 24 kHz. A source calls `onPiece(Int16Array)` in real time until it is closed.

import { t } from "./language.js";

export const RATE = 24000;
const PIECE = RATE / 25;
const WORKLETS = new URL("./worklets.js", import.meta.url);

export async function microphone(onPiece, device) {
  if (!navigator.mediaDevices) throw new Error(t("A microphone can be used on localhost or over https only; play a file."));
  const stream = await navigator.mediaDevices.getUserMedia({
    audio: { ...(device ? { deviceId: { exact: device } } : {}), echoCancellation: true, noiseSuppression: true, autoGainControl: true, channelCount: 1 },
  });
  const close = (context) => {
    for (const track of stream.getTracks()) track.stop();
    context?.close();
  };
  let context;
  try {
    context = new AudioContext({ sampleRate: RATE });
    let source;
    try {
      source = context.createMediaStreamSource(stream);
    } catch {
      await context.close(); // a browser that does not resample a microphone: the worklet does
      context = new AudioContext();
      source = context.createMediaStreamSource(stream);
    }
    await context.audioWorklet.addModule(WORKLETS);
    const node = new AudioWorkletNode(context, "microphone", { numberOfOutputs: 0, channelCount: 1, channelCountMode: "explicit" });
    node.port.onmessage = ({ data }) => onPiece(new Int16Array(data));
    source.connect(node);
    await context.resume();
  } catch (error) {
    close(context);
    throw error;
  }
  const mute = (muted) => {
    for (const track of stream.getTracks()) track.enabled = !muted;
  };
  return { close: () => close(context), muting: true, stream, mute };
}

// A file as if it were spoken, and silence after it.
export async function recording(file, onPiece, onEnd) {
  const context = new OfflineAudioContext(1, 1, RATE);
  const decoded = await context.decodeAudioData(await file.arrayBuffer());
  const samples = new Float32Array(decoded.length);
  for (let channel = 0; channel < decoded.numberOfChannels; channel++) {
    const data = decoded.getChannelData(channel);
    for (let at = 0; at < samples.length; at++) samples[at] += data[at] / decoded.numberOfChannels;
  }
  const began = performance.now();
  let at = 0;
  const timer = setInterval(() => {
    const due = ((performance.now() - began) / 1000) * RATE;
    for (; at + PIECE <= due; at += PIECE) {
      const piece = new Int16Array(PIECE);
      for (let i = 0; i < PIECE; i++) piece[i] = Math.max(-1, Math.min(1, samples[at + i] ?? 0)) * 32767;
      onPiece(piece);
      if (at < samples.length && at + PIECE >= samples.length) onEnd?.();
    }
  }, 20);
  return { close: () => clearInterval(timer) };
}

export class Player {
  // `onBegan(item)` is called when the first sample of an item sounds, `onDrained(item)` when nothing is left to play.
  static async open({ onBegan, onDrained }) {
    const context = new AudioContext({ sampleRate: RATE });
    await context.audioWorklet.addModule(WORKLETS);
    const player = new Player();
    player.context = context;
    player.node = new AudioWorkletNode(context, "loudspeaker", { numberOfInputs: 0, outputChannelCount: [1] });
    player.node.connect(context.destination);
    player.waiting = [];
    player.pending = 0;
    player.samples = new Map(); // of each item, that were put in
    player.node.port.onmessage = ({ data }) => {
      if (data.began) onBegan(data.began);
      if (data.drained) {
        player.pending = 0;
        onDrained(data.drained);
      }
      if (data.stopped) player.waiting.shift()?.(data);
    };
    await context.resume();
    return player;
  }

  push(item, pcm) {
    const samples = Float32Array.from(pcm, (sample) => sample / 32768);
    this.pending += samples.length;
    this.samples.set(item, (this.samples.get(item) ?? 0) + samples.length);
    this.node.port.postMessage({ item, samples }, [samples.buffer]);
  }

  get playing() {
    return this.pending > 0;
  }

  // How many milliseconds of an item have been heard, if it has not been stopped and nothing is left to play.
  heard(item) {
    return Math.floor(((this.samples.get(item) ?? 0) * 1000) / RATE);
  }

  // Stops playback; returns the item that was playing, and its played milliseconds.
  stop() {
    return new Promise((resolve) => {
      this.pending = 0;
      this.waiting.push(({ item, unfinished, played }) =>
        resolve({ item, unfinished, ms: Math.floor((played * 1000) / RATE) }),
      );
      this.node.port.postMessage({});
    });
  }

  close() {
    this.context.close();
  }
}

export function levelOf(piece) {
  let sum = 0;
  for (const sample of piece) sum += sample * sample;
  const decibel = 20 * Math.log10(Math.sqrt(sum / piece.length) / 32768 + 1e-6);
  return Math.max(0, Math.min(1, (decibel + 60) / 55));
}

export function toBase64(pcm) {
  const bytes = new Uint8Array(pcm.buffer, pcm.byteOffset, pcm.byteLength);
  let text = "";
  for (let at = 0; at < bytes.length; at += 0x2000) text += String.fromCharCode(...bytes.subarray(at, at + 0x2000));
  return btoa(text);
}

export function fromBase64(text) {
  const binary = atob(text);
  const bytes = new Uint8Array(binary.length & ~1);
  for (let at = 0; at < bytes.length; at++) bytes[at] = binary.charCodeAt(at);
  return new Int16Array(bytes.buffer);
}
