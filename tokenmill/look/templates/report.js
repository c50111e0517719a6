"use strict";
// Opens a row's text. The documents lie in the page once, as bytes and the bytes of each token; every packing's rows
// are parts of them: [document, first token, tokens, BOS inserted, filler, cropped].
// A part of a document after the last one is padding. Documents of a chat set have a byte for each token: 1 bears loss.
const data = JSON.parse(document.getElementById("data").textContent);
const byId = (id) => document.getElementById(id);
const reader = byId("reader");
const utf8 = new TextDecoder("utf-8", { ignoreBOM: true });
const unpacked = new Map();
let at = { packing: 0, row: 0 };

function bytesOf(text) {
  return Uint8Array.from(atob(text), (char) => char.charCodeAt(0));
}

// A document's bytes, and where each of its tokens begins in them.
function documentOf(number) {
  if (!unpacked.has(number)) {
    const { bytes, lengths, loss } = data.documents[number];
    const sizes = new Uint16Array(bytesOf(lengths).buffer);
    const offsets = new Uint32Array(sizes.length + 1);
    sizes.forEach((size, i) => { offsets[i + 1] = offsets[i] + size; });
    unpacked.set(number, { bytes: bytesOf(bytes), offsets, loss: loss && bytesOf(loss) });
  }
  return unpacked.get(number);
}

// The text of each token, every second one in an element of its own, so that their boundaries show, and those from
// `learned` on that bear loss. A character whose bytes lie in several tokens is the last one's.
function tokensOf(number, first, count, learned) {
  const { bytes, offsets, loss } = documentOf(number);
  const texts = [];
  for (let i = first; i < first + count; i += 1) {
    const bears = loss && i >= learned && loss[i] === 1;
    texts.push([utf8.decode(bytes.subarray(offsets[i], offsets[i + 1]), { stream: true }), bears]);
  }
  texts.push([utf8.decode(), false]);
  return texts.filter(([text]) => text).map(([text, bears], i) => {
    const names = [i % 2 && "t", bears && "l"].filter(Boolean).join(" ");
    return names ? element("span", names, text) : text;
  });
}

function tokenOf(number, i) {
  const { bytes, offsets } = documentOf(number);
  return utf8.decode(bytes.subarray(offsets[i], offsets[i + 1]));
}

function element(name, className, text) {
  const made = document.createElement(name);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}

function colorOf(number) {
  return number === data.documents.length ? "p" : `d${number % data.hues}`;
}

function factsOf([number, first, count, inserted, filler, cropped]) {
  const format = (value) => value.toLocaleString("en");
  if (number === data.documents.length) return `padding: ${format(count)} tokens`;
  const { name, tokens } = data.documents[number];
  const part = count === tokens ? `all ${format(tokens)} tokens` : `tokens ${format(first)} to ${format(first + count - 1)} of ${format(tokens)}`;
  const notes = [inserted && "BOS inserted", filler && "filler", cropped && "the rest is dropped"].filter(Boolean);
  return [`${name}: ${part}`, ...notes].join(", ");
}

function show(packing, row) {
  at = { packing, row };
  const parts = data.packings[packing].rows[row];
  byId("reader-title").textContent = `${data.packings[packing].name}, row ${row}`;
  byId("pieces").replaceChildren(...parts.map((part) => {
    const item = element("li");
    item.append(element("i", colorOf(part[0])), element("span", "", factsOf(part)));
    return item;
  }));
  const texts = parts.filter(([number]) => number < data.documents.length);
  byId("text").replaceChildren(...texts.map(([number, first, count, inserted, filler]) => {
    const span = element("span", `${colorOf(number)}${filler ? " f" : ""}`);
    const headed = first === 0;
    if (inserted) span.append(element("b", "inserted", data.bos));
    if (headed) span.append(element("b", "", tokenOf(number, 0)));
    span.append(...tokensOf(number, first + headed, count - headed, first));
    return span;
  }));
  byId("back").disabled = row === 0;
  byId("on").disabled = row === data.packings[packing].rows.length - 1;
  if (!reader.open) reader.showModal();
  byId("text").scrollTop = 0;
}

function step(by) {
  const row = at.row + by;
  if (row >= 0 && row < data.packings[at.packing].rows.length) show(at.packing, row);
}

function rowsOf(panel) {
  return [...panel.querySelectorAll(".row")];
}

// Those that are behind "more" are shown before one of them is gone to.
function reveal(row) {
  const more = row.closest("details");
  if (more) more.open = true;
}

// One row of a panel is in the order of the Tab key; arrows go to the others.
function focusRow(panel, number) {
  const rows = rowsOf(panel);
  const next = rows[Math.max(0, Math.min(number, rows.length - 1))];
  rows.forEach((row) => { row.tabIndex = row === next ? 0 : -1; });
  reveal(next);
  next.focus();
}

document.querySelectorAll(".panel").forEach((panel) => {
  const packing = Number(panel.dataset.packing);
  panel.addEventListener("click", (event) => {
    const row = event.target.closest(".row");
    if (row) show(packing, Number(row.dataset.row));
  });
  panel.addEventListener("keydown", (event) => {
    const row = event.target.closest(".row");
    const moves = { ArrowDown: 1, ArrowUp: -1, ArrowRight: 1, ArrowLeft: -1, PageDown: 10, PageUp: -10, Home: -Infinity, End: Infinity };
    if (!row || !(event.key in moves)) return;
    event.preventDefault();
    focusRow(panel, Number(row.dataset.row) + moves[event.key]);
  });
});

byId("back").addEventListener("click", () => step(-1));
byId("on").addEventListener("click", () => step(1));
byId("close").addEventListener("click", () => reader.close());
reader.addEventListener("click", (event) => { if (event.target === reader) reader.close(); });
reader.addEventListener("keydown", (event) => {
  if (event.key === "ArrowLeft") step(-1);
  if (event.key === "ArrowRight") step(1);
});
reader.addEventListener("close", () => focusRow(document.querySelector(`.panel[data-packing="${at.packing}"]`), at.row));
