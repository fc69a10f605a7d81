// Pictures, sounds, videos and documents of messages that were kept, from their content parts.

import { make } from "./dom.js";
import { t } from "./language.js";

const TAGS = { image_url: "img", audio_url: "audio", video_url: "video" };

// What shows the parts of a message that are not text.
export function mediaOf({ content }) {
  if (!Array.isArray(content)) return [];
  return content.filter(({ type }) => type !== "text").map(shown);
}

function shown(part) {
  const tag = TAGS[part.type];
  if (!tag) return make("span", { className: "document" }, part.file?.filename ?? part.type);
  const media = make(tag, { src: local(part[part.type].url) });
  if (tag === "img") media.alt = t("Attached picture");
  else media.controls = true;
  return media;
}

// A blob's address for a data URL: the page's policy lets pictures come from nowhere else. It lives as long as the page.
const addresses = new Map();

function local(url) {
  if (!url.startsWith("data:")) return "";
  if (!addresses.has(url)) {
    const [, type, text] = /^data:([^;,]*)[^,]*,(.*)$/s.exec(url) ?? [null, "", ""];
    addresses.set(url, URL.createObjectURL(new Blob([decoded(text)], { type })));
  }
  return addresses.get(url);
}

// Nothing of what is no base64: it may come from a file that was imported.
function decoded(text) {
  try {
    return Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
  } catch {
    return new Uint8Array();
  }
}
