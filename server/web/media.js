// Pictures, sounds, videos and documents of stored messages, from their content parts.

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

// A blob URL for a data URL, since the page's policy allows pictures from nowhere else. It lives as long as the page.
const addresses = new Map();

function local(url) {
  if (!url.startsWith("data:")) return "";
  if (!addresses.has(url)) {
    const [, type, text] = /^data:([^;,]*)[^,]*,(.*)$/s.exec(url) ?? [null, "", ""];
    addresses.set(url, URL.createObjectURL(new Blob([decoded(text)], { type })));
  }
  return addresses.get(url);
}

// Empty for invalid base64, which may come from an imported file.
function decoded(text) {
  try {
    return Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
  } catch {
    return new Uint8Array();
  }
}
