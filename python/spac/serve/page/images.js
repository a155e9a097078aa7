// Images of messages. A message has `images`, a list of { name, url }; each url is a data: address.

import { $, button, fault, make, say } from "./elements.js";

const LONGEST = 1280; // pixels of a side; a photo as a camera makes it would fill the context and the browser's storage
const QUALITY = 0.9;

// Return a message's content in OpenAI's form: its text, or parts if it has images.
export function partsOf({ content, images = [] }) {
  if (!images.length) return content;
  const parts = images.map(({ url }) => ({ type: "image_url", image_url: { url } }));
  return content ? [...parts, { type: "text", text: content }] : parts;
}

// Show a message's images in an element.
export function thumbnails({ images = [] }, parent) {
  if (!images.length) return;
  const row = make("div", { class: "images" }, parent);
  for (const { name, url } of images) make("img", { src: url, alt: name }, row);
}

const dataUrl = (blob) => new Promise((done, failed) => {
  const reader = new FileReader();
  reader.addEventListener("load", () => done(reader.result));
  reader.addEventListener("error", () => failed(reader.error));
  reader.readAsDataURL(blob);
});

// Return an image file as a data: address of a format that the server reads. A PNG that is small enough stays as it
// is. Everything else is drawn anew, because the server knows no WebP, and does not turn photos as their files say.
async function read(file) {
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

// The images that go with the next message. They come from the button, from the clipboard, or are dropped.
export class Attachments {
  reading = Promise.resolve(); // settles when all files are read
  #images = [];
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
        $("composer").classList.toggle("dropping", name === "dragover" && this.#sees);
        if (name === "drop") this.#add(event.dataTransfer.files);
      });
    }
    document.addEventListener("dragleave", (event) => { if (!event.relatedTarget) $("composer").classList.remove("dropping"); });
  }

  get any() { return this.#images.length > 0; }

  // Offer the button if the model sees images.
  allow(sees) {
    this.#sees = Boolean(sees);
    $("attach").hidden = !sees;
  }

  // Return the images, and forget them.
  take() {
    const taken = this.#images;
    this.#images = [];
    this.#show();
    return taken;
  }

  #add(files) {
    if (!this.#sees) { fault("This model sees no images: start the server with --mmproj."); return; }
    for (const file of [...files]) this.reading = this.reading.then(() => this.#addOne(file));
  }

  async #addOne(file) {
    const name = file.name || "Pasted image";
    try {
      this.#images.push({ name, url: await read(file) });
    } catch {
      fault(`${name} is no image that this browser can read.`);
      return;
    }
    this.#show();
    say(`${name} is attached.`);
  }

  #remove(image) {
    const at = this.#images.indexOf(image);
    this.#images.splice(at, 1);
    this.#show();
    say(`${image.name} is removed.`);
    ($("attached").querySelectorAll("button")[Math.min(at, this.#images.length - 1)] || $("prompt")).focus();
  }

  #show() {
    $("attached").hidden = !this.any;
    $("attached").replaceChildren();
    for (const image of this.#images) {
      const item = make("li", {}, $("attached"));
      make("img", { src: image.url, alt: image.name }, item);
      button("×", item, `Remove ${image.name}`, () => this.#remove(image));
    }
  }
}
