// Images and text files of messages. A message may have `images`, a list of { name, url }, where each url is a data:
// address, and `files`, a list of { name, text }.

import { $, button, fault, make, say } from "./elements.js";
import { call } from "./requests.js";

const LONGEST = 1280; // pixels of a side; a photo as a camera makes it would fill the context and the browser's storage
const QUALITY = 0.9;
const MOST_BYTES = 500_000; // of a text file; the browser's storage holds some 5 MB in all
const IMAGE = /\.(avif|bmp|gif|heic|jpe?g|png|tiff?|webp)$/i;

// Return a file as a name, and its text in a fence that is longer than all in it.
function fenced({ name, text }) {
  const longest = Math.max(2, ...[...text.matchAll(/`+/g)].map(([run]) => run.length));
  const fence = "`".repeat(longest + 1);
  return `${name}:\n${fence}\n${text}${text.endsWith("\n") ? "" : "\n"}${fence}`;
}

// Return a message's content in OpenAI's form: its text behind that of its files, or parts if it has images.
export function partsOf({ content, images = [], files = [] }) {
  const text = [...files.map(fenced), content].filter(Boolean).join("\n\n");
  if (!images.length) return text;
  const parts = images.map(({ url }) => ({ type: "image_url", image_url: { url } }));
  return text ? [...parts, { type: "text", text }] : parts;
}

// Show a message's images and files in an element.
export function showAttached({ images = [], files = [] }, parent) {
  if (images.length) {
    const row = make("div", { class: "images" }, parent);
    for (const { name, url } of images) make("img", { src: url, alt: name }, row);
  }
  for (const { name, text } of files) {
    const details = make("details", { class: "file" }, parent);
    make("summary", {}, details, name);
    const box = make("div", { class: "code", tabindex: "0", role: "group", "aria-label": name }, details);
    make("pre", {}, box, text);
  }
}

const dataUrl = (blob) => new Promise((done, failed) => {
  const reader = new FileReader();
  reader.addEventListener("load", () => done(reader.result));
  reader.addEventListener("error", () => failed(reader.error));
  reader.readAsDataURL(blob);
});

// Return an image file as a data: address of a format that the server reads. A PNG that is small enough stays as it
// is. Everything else is drawn anew, because the server knows no WebP, and does not turn photos as their files say.
async function imageOf(file) {
  const image = await createImageBitmap(file);
  const scale = Math.min(1, LONGEST / Math.max(image.width, image.height));
  if (file.type === "image/png" && scale === 1) return dataUrl(file);
  const canvas = document.createElement("canvas");
  canvas.width = Math.max(1, Math.round(image.width * scale));
  canvas.height = Math.max(1, Math.round(image.height * scale));
  const context = canvas.getContext("2d");
  context.fillStyle = "white"; // behind transparent pixels
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.drawImage(image, 0, 0, canvas.width, canvas.height);
  return canvas.toDataURL("image/jpeg", QUALITY);
}

function checkSize(name, size) {
  if (size <= MOST_BYTES) return;
  throw new Error(`${name} has ${(size / 1e6).toFixed(1)} MB of text, and a file may have ${MOST_BYTES / 1e6} MB.`);
}

// Return a file's text. Throw an error that says why it cannot be read.
async function textOf(file) {
  if (/\.pdf$/i.test(file.name)) {
    const response = await call("page/pdf", { method: "POST", body: file })
      .catch(({ message }) => { throw new Error(`${file.name} is not read: ${message}.`); });
    const { text } = await response.json();
    checkSize(file.name, text.length);
    return text;
  }
  checkSize(file.name, file.size);
  try {
    const text = new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer());
    if (!text.includes("\0")) return text;
  } catch { /* it is not UTF-8 */ }
  throw new Error(`${file.name} is no text in UTF-8.`);
}

// The images and files that go with the next message. They come from the button, from the clipboard, or are dropped.
export class Attachments {
  reading = Promise.resolve(); // settles when all files are read
  #items = [];
  #sees = false; // true if the model sees images, once the server has said so

  constructor() {
    $("attach").addEventListener("click", () => $("file").click());
    $("file").addEventListener("change", () => { this.#add($("file").files); $("file").value = ""; });
    $("prompt").addEventListener("paste", (event) => {
      if (!event.clipboardData.files.length) return;
      event.preventDefault();
      this.#add(event.clipboardData.files);
    });
    const carries = (event) => event.dataTransfer?.types.includes("Files");
    for (const name of ["dragover", "drop"]) {
      document.addEventListener(name, (event) => {
        if (!carries(event)) return;
        event.preventDefault(); // else the browser leaves the page and shows the file
        $("composer").classList.toggle("dropping", name === "dragover");
        if (name === "drop") this.#add(event.dataTransfer.files);
      });
    }
    document.addEventListener("dragleave", (event) => { if (!event.relatedTarget) $("composer").classList.remove("dropping"); });
  }

  get any() { return this.#items.length > 0; }

  // Take images from now on, if the model sees.
  allow(sees) {
    this.#sees = Boolean(sees);
    $("attach").title = sees ? "Attach images and text files" : "Attach text files";
  }

  // Return the images and files as a message has them, and forget them.
  take() {
    const images = this.#items.filter((one) => one.url), files = this.#items.filter((one) => !one.url);
    this.#items = [];
    this.#show();
    return { ...(images.length ? { images } : {}), ...(files.length ? { files } : {}) };
  }

  #add(files) {
    for (const file of [...files]) this.reading = this.reading.then(() => this.#addOne(file));
  }

  async #addOne(file) {
    const name = file.name || "Pasted image";
    const isImage = IMAGE.test(name) || (file.type.startsWith("image/") && file.type !== "image/svg+xml");
    try {
      if (isImage && !this.#sees) throw new Error("This model sees no images: start the server with --mmproj.");
      this.#items.push(isImage ? { name, url: await imageOf(file) } : { name, text: await textOf(file) });
    } catch (error) {
      fault(error instanceof DOMException ? `${name} is no image that this browser can read.` : error.message);
      return;
    }
    this.#show();
    say(`${name} is attached.`);
  }

  #remove(item) {
    const at = this.#items.indexOf(item);
    this.#items.splice(at, 1);
    this.#show();
    say(`${item.name} is removed.`);
    ($("attached").querySelectorAll("button")[Math.min(at, this.#items.length - 1)] || $("prompt")).focus();
  }

  #show() {
    $("attached").hidden = !this.any;
    $("attached").replaceChildren();
    for (const one of this.#items) {
      const item = make("li", {}, $("attached"));
      if (one.url) make("img", { src: one.url, alt: one.name }, item); else make("span", {}, item, one.name);
      button("×", item, `Remove ${one.name}`, () => this.#remove(one));
    }
  }
}
