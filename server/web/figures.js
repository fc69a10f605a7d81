// What two answers of /v1/stats say of the time between them.

// Of the observations made in between, the value in seconds that `share` of them do not exceed; null without any.
export function percentile({ bounds, counts }, before, share) {
  const made = counts.map((count, at) => count - (before?.counts[at] ?? 0));
  const wanted = share * made.reduce((sum, count) => sum + count, 0);
  if (!wanted) return null;
  let reached = 0;
  for (const [at, high] of bounds.entries()) {
    reached += made[at];
    if (reached < wanted) continue;
    const low = at ? bounds[at - 1] : 0;
    return high - ((high - low) * (reached - wanted)) / made[at];
  }
  return bounds.at(-1);
}

// Growth of a counter over all models; a counter that restarted with its engine has grown by its value.
export function grown(now, before, name) {
  const earlier = new Map((before?.models ?? []).map((model) => [model.model, model[name]]));
  return now.models.reduce((sum, model) => {
    const old = earlier.get(model.model) ?? model[name];
    return sum + (model[name] >= old ? model[name] - old : model[name]);
  }, 0);
}

export function total(stats, name) {
  return stats.models.reduce((sum, model) => sum + (model[name] ?? 0), 0);
}

export function milliseconds(seconds) {
  return seconds === null ? "–" : seconds < 0.01 ? `${(seconds * 1000).toFixed(1)} ms` : `${Math.round(seconds * 1000)} ms`;
}

export function bytes(count) {
  return count >= 2 ** 30 ? `${(count / 2 ** 30).toFixed(1)} GiB` : `${Math.round(count / 2 ** 20)} MiB`;
}

export function percent(share) {
  return share === null ? "–" : `${(share * 100).toFixed(share < 0.1 ? 1 : 0)} %`;
}
