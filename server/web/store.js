// Storage of conversations: this browser's IndexedDB. Without it (a private window), they last until the page is left.

const STORE = "conversations";
let opened = null;

function request(made) {
  return new Promise((resolve, reject) => {
    made.onsuccess = () => resolve(made.result);
    made.onerror = () => reject(made.error);
  });
}

function database() {
  opened ??= (async () => {
    const asked = indexedDB.open("stentor", 1);
    asked.onupgradeneeded = () => asked.result.createObjectStore(STORE, { keyPath: "id" });
    return request(asked);
  })();
  return opened;
}

async function inStore(mode, act) {
  const store = (await database()).transaction(STORE, mode).objectStore(STORE);
  return request(act(store));
}

// All conversations, the last changed first; empty if the browser stores nothing.
export async function stored() {
  try {
    const all = await inStore("readonly", (store) => store.getAll());
    return all.sort((a, b) => b.changed - a.changed);
  } catch {
    return [];
  }
}

export async function keep(conversation) {
  try {
    await inStore("readwrite", (store) => store.put(conversation));
    return true;
  } catch {
    return false;
  }
}

export async function forget(id) {
  try {
    await inStore("readwrite", (store) => store.delete(id));
  } catch {
    // it was never stored
  }
}
