"use strict";
// Functions that all drawings share: elements, number formats, ticks, colours.

const SVG = "http://www.w3.org/2000/svg";

function make(name, attributes, parent, text) {
  const element = name.startsWith("svg:")
    ? document.createElementNS(SVG, name.slice(4))
    : document.createElement(name);
  for (const [key, value] of Object.entries(attributes || {})) element.setAttribute(key, value);
  if (text !== undefined) element.textContent = text;
  if (parent) parent.append(element);
  return element;
}

// Return a number with three digits, without an exponent.
function short(value) {
  const size = Math.abs(value);
  if (size === 0) return "0";
  if (size >= 1000) return Math.round(value).toLocaleString("en");
  return String(+value.toFixed(Math.max(0, 2 - Math.floor(Math.log10(size)))));
}

function inUnit(value, unit) {
  if (value === null || value === undefined) return "–";
  if (unit === "%") return `${(value * 100).toFixed(1)}%`;
  if (unit === "bytes") {
    let scaled = value, i = 0;
    const units = ["B", "KB", "MB", "GB", "TB"];
    while (Math.abs(scaled) >= 1000 && i < units.length - 1) { scaled /= 1000; i += 1; }
    return `${short(scaled)} ${units[i]}`;
  }
  return unit ? `${short(value)} ${unit}` : short(value);
}

function ticks(low, high, count, whole) {
  const rough = (high - low) / Math.max(1, count) || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  let step = power * [1, 2, 5, 10].find((factor) => factor * power >= rough * 0.999);
  if (whole) step = Math.max(1, Math.round(step));
  const list = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i += 1) list.push(i * step);
  return list;
}

// Return a function that maps 0 to 1 to a colour of a ramp. CSS declares the ramp's stops, lowest first.
function rampOf(name) {
  const style = getComputedStyle(document.documentElement);
  const stops = style.getPropertyValue(`--ramp-${name}`).trim().split(/\s+/).map((hex) =>
    [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16)));
  return (at) => {
    const place = Math.min(Math.max(at, 0), 1) * (stops.length - 1);
    const i = Math.min(Math.floor(place), stops.length - 2);
    return stops[i].map((low, channel) => Math.round(low + (stops[i + 1][channel] - low) * (place - i)));
  };
}

// Return the width inside an element, without its padding.
function inside(element) {
  const style = getComputedStyle(element);
  return element.clientWidth - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight);
}
