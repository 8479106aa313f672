"use strict";
// What charts are made of: elements, numbers as people read them, scales and ticks.
const svgNames = "http://www.w3.org/2000/svg";

// Text always goes in as text: nothing here is ever parsed as HTML.
function element(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}
function shape(tag, attributes = {}, text) {
  const node = document.createElementNS(svgNames, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  if (text !== undefined) node.textContent = text;
  return node;
}

// --- numbers as people read them

// 18102 -> "18.1k"; at most `digits` significant digits.
function compact(value, digits = 3) {
  const size = Math.abs(value);
  if (value === 0 || !Number.isFinite(value)) return String(value);
  if (size < 1e-3) {
    const [mantissa, exponent] = value.toExponential(digits - 1).split("e");
    return `${Number(mantissa)}e${Number(exponent)}`;
  }
  const units = [[1e15, "e15"], [1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]];
  for (const [unit, name] of units) {
    if (size >= unit * 0.9995) return Number((value / unit).toPrecision(digits)) + name;
  }
  return String(Number(value.toPrecision(digits)));
}
const grouped = value => Math.round(value).toLocaleString("en-US");
const timeUnits = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
function timeUnit(longest) {
  return timeUnits.find(([seconds]) => longest >= 2 * seconds) ?? timeUnits[timeUnits.length - 1];
}
function duration(seconds) {
  const [unit, name] = timeUnit(seconds);
  return `${compact(seconds / unit)} ${name}`;
}

// --- scales

// About `count` multiples of 1, 2 or 5 times a power of ten within [low, high].
function niceTicks(low, high, count) {
  const span = high - low;
  if (!(span > 0)) return [low];
  const power = 10 ** Math.floor(Math.log10(span / count));
  const step = [1, 2, 5, 10].map(x => x * power).find(x => span / x <= count) ?? 10 * power;
  const ticks = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i++) ticks.push(i * step + 0);
  return ticks;
}
function logTicks(low, high) {
  const first = Math.floor(Math.log10(low)), last = Math.ceil(Math.log10(high));
  const decades = last - first;
  const every = Math.max(1, Math.ceil(decades / 6));
  const factors = decades <= 2 ? [1, 2, 5] : [1];
  const ticks = [];
  for (let e = first; e <= last; e += every) {
    for (const factor of factors) ticks.push(factor * 10 ** e);
  }
  const inside = ticks.filter(t => t >= low * (1 - 1e-9) && t <= high * (1 + 1e-9));
  return inside.length >= 2 ? inside : niceTicks(low, high, 4);
}
function makeScale(low, high, from, to, logarithmic) {
  const f = logarithmic ? Math.log : x => x;
  const a = f(low), b = f(high);
  return value => from + (f(value) - a) / (b - a) * (to - from);
}

// The place of the last x that is not above `value`, or its nearer neighbour.
function nearest(xs, value) {
  let low = 0, high = xs.length - 1;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (xs[middle] <= value) low = middle; else high = middle - 1;
  }
  return low + 1 < xs.length && xs[low + 1] - value < value - xs[low] ? low + 1 : low;
}

// Exponential moving average that is not drawn to its start.
function smooth(values, weight) {
  if (weight === 0) return values;
  let sum = 0, norm = 0;
  return values.map(value => {
    sum = weight * sum + (1 - weight) * value;
    norm = weight * norm + (1 - weight);
    return sum / norm;
  });
}

// Has the curve `a` the value of `b` wherever both have a point, which they have at two places at least?
function liesOn(a, b) {
  const values = new Map(b.x.map((x, i) => [x, b.y[i]]));
  let shared = 0;
  for (let i = 0; i < a.x.length; i++) {
    if (!values.has(a.x[i])) continue;
    if (values.get(a.x[i]) !== a.y[i]) return false;
    shared++;
  }
  return shared >= Math.min(2, a.x.length);
}
