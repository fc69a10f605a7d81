// What models are called, and lists of them to choose from.

// A model's short name: the last part of its path.
export function shortName(id) {
  return id.replace(/^[a-z]+:/, "").split("/").findLast(Boolean) ?? id;
}

// Fills a list with models, keeping the choice; `none` is the entry for no model.
export function offer(select, ids, none) {
  const before = select.value;
  const short = ids.map(shortName);
  const label = (id, at) => (short.indexOf(short[at]) === short.lastIndexOf(short[at]) ? short[at] : id);
  select.replaceChildren(...ids.map((id, at) => new Option(label(id, at), id)));
  if (!ids.length && none) select.append(new Option(none, ""));
  if (ids.includes(before)) select.value = before;
}
