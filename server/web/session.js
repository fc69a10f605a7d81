// A realtime session: events as JSON both ways, and a clock that knows when each sample left the microphone.

import { realtimeAddress } from "./api.js";
import { t } from "./language.js";
import { RATE, toBase64 } from "./sound.js";

const KEPT = 3000; // pieces whose time is remembered: two minutes

export class Session {
  constructor(onSent) {
    this.onSent = onSent;
    this.sentMs = 0;
    this.times = [];
  }

  // Resolves after the server's first event. `onEvent(event)` gets its events, `onSent(event)` sent ones.
  static open(model, { onEvent, onSent, onClose }) {
    return new Promise((resolve, reject) => {
      const session = new Session(onSent);
      const socket = (session.socket = new WebSocket(...realtimeAddress(model)));
      let open = false;
      socket.onmessage = ({ data }) => {
        const event = JSON.parse(data);
        onEvent(event);
        if (!open && event.type === "session.created") {
          open = true;
          resolve(session);
        }
      };
      socket.onclose = ({ code, reason }) => {
        const why = reason || (code === 1000 ? "" : t("the connection ended ({})", code));
        if (!open) reject(new Error(why || t("The server does not open a session; is the key right?")));
        onClose(why, code);
      };
    });
  }

  send(event) {
    if (this.socket.readyState !== WebSocket.OPEN) return;
    this.socket.send(JSON.stringify(event));
    this.onSent(event);
  }

  hear(piece, level) {
    if (this.socket.bufferedAmount > 4 << 20) return; // the network is far behind: dropped audio cannot be recovered
    this.note(piece, level);
    this.send({ type: "input_audio_buffer.append", audio: toBase64(piece) });
  }

  note(piece, level) {
    this.sentMs += (piece.length * 1000) / RATE;
    this.times.push([this.sentMs, performance.now(), level]);
    if (this.times.length > KEPT) this.times.shift();
  }

  // When the sound at so many milliseconds of this session was made, by performance.now().
  timeOf(ms) {
    const found = this.times.find(([end]) => end >= ms);
    return found ? found[1] - (found[0] - ms) : performance.now();
  }

  // When the speech ended after which there was silence up to so many milliseconds, by how loud it was.
  voicedUntil(ms) {
    const turn = this.times.filter(([end]) => end <= ms).slice(-250);
    const loud = Math.max(...turn.map(([, , level]) => level), 0) * 0.6;
    const last = turn.findLast(([, , level]) => level >= loud);
    return last ? last[1] : performance.now();
  }

  close() {
    this.socket.close(1000);
  }
}
