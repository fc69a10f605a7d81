// A realtime session over WebRTC: events on a data channel, and sound both ways by the browser itself.

import { call } from "./api.js";
import { t } from "./language.js";
import { Session } from "./session.js";

export const canCall = document.querySelector("meta[name=webrtc]")?.content === "yes" && "RTCPeerConnection" in window;

export class Call extends Session {
  // As Session.open; `stream` is of the microphone. What the server says is played as it comes.
  static async open(model, { onEvent, onSent, onClose }, stream) {
    const session = new Call(onSent);
    const peer = (session.peer = new RTCPeerConnection());
    const channel = (session.channel = peer.createDataChannel("oai-events"));
    const audio = (session.audio = new Audio());
    audio.autoplay = true;
    peer.ontrack = ({ track }) => {
      audio.srcObject = new MediaStream([track]);
    };
    for (const track of stream.getAudioTracks()) peer.addTrack(track, stream);
    try {
      await peer.setLocalDescription();
      const path = `v1/realtime/calls?model=${encodeURIComponent(model)}`;
      const answer = await call(path, { body: peer.localDescription.sdp, type: "application/sdp" });
      await peer.setRemoteDescription({ type: "answer", sdp: await answer.text() });
      await session.hello(onEvent, onClose);
    } catch (error) {
      session.close();
      throw error;
    }
    return session;
  }

  // Resolves once the server has said hello.
  hello(onEvent, onClose) {
    return new Promise((resolve, reject) => {
      let open = false;
      let code = 1000;
      const lost = (why, code) => {
        if (!open) reject(new Error(why || t("The server does not open a session.")));
        onClose(why, code);
      };
      this.channel.onmessage = ({ data }) => {
        const event = JSON.parse(data);
        if (event.type === "session.created") open = true;
        if (event.error?.code === "shutting_down") code = 1012; // as of a WebSocket: another server may be there soon
        onEvent(event);
        resolve();
      };
      this.channel.onclose = () => lost(t("the server has hung up"), code);
      this.peer.onconnectionstatechange = () => {
        if (this.peer.connectionState === "failed") lost(t("the connection was lost"), 1006);
      };
    });
  }

  send(event) {
    if (this.channel.readyState !== "open") return;
    this.channel.send(JSON.stringify(event));
    this.onSent(event);
  }

  // The peer connection has it already.
  hear(piece, level) {
    this.note(piece, level);
  }

  close() {
    this.audio.srcObject = null;
    this.peer.close();
  }
}
