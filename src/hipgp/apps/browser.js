// The browser of a report: slices of a volume or one map on a canvas, with axes, ticks and a colour bar; a click tells the value.
(() => {
  const held = document.getElementById("slices");
  if (!held) return;
  const told = JSON.parse(held.textContent), byId = id => document.getElementById(id);
  const [layer, axis, depth, view] = ["layer", "axis", "depth", "view"].map(byId);
  const FONT = "13px system-ui, sans-serif", INK = "#20242c", ROOM = [520, 440], DAY = 864e5;
  const LEFT = 78, TOP = 14, BOTTOM = 52, BAR = 18, RIGHT = 120;  // around the image, in pixels of the page
  const n = told.coordinates.map(c => c.length), volume = n.length === 3;
  const strides = volume ? [n[1] * n[2], n[2], 1] : [n[1], 1];
  let marked = null, box = null;  // the place that was clicked, and where the image lies

  told.layers.forEach((l, i) => {
    const bytes = Uint8Array.from(atob(l.bytes), c => c.charCodeAt(0)), read = new DataView(bytes.buffer);
    l.value = k => l.least + l.step * read.getUint16(2 * k, true);
    layer.add(new Option(l.name, i));
  });
  const named = name => told.layers.find(l => l.name === name);
  told.axes.forEach((name, i) => axis.add(new Option(name, i)));
  byId("browser").style.display = "block";
  if (volume) axis.value = 2;
  else byId("cuts").style.display = "none";

  const across = () => volume ? +axis.value : -1;
  const sides = () => told.axes.map((_, i) => i).filter(i => i !== across());
  const at = (a, b) => { const [i, j] = sides(); return a * strides[i] + b * strides[j] + (volume ? depth.value * strides[across()] : 0); };
  const edges = i => {
    const c = told.coordinates[i], half = c.length > 1 ? (c[1] - c[0]) / 2 : 0.5;
    return [c[0] - half, c[c.length - 1] + half];
  };
  const label = i => told.units[i] ? `${told.axes[i]} [${told.units[i]}]` : told.axes[i];
  const field = name => `${name === "std" ? "std of " : ""}${told.field}${told.unit ? ` [${told.unit}]` : ""}`;

  const DATES = [1 / 24, .125, .25, .5, 1, 2, 5, 10, 15, 30.4375, 91.3125, 182.625, 365.25, 730.5, 1826.25, 3652.5];  // days
  const ANGLES = [1, 2, 5, 10, 15, 30, 45, 60, 90];
  function steps(low, high, i) {  // places of ticks along axis i, or on the colour bar, and how far apart they are
    const wide = (high - low) / 5, tens = 10 ** Math.floor(Math.log10(wide));
    const own = i === undefined ? null : told.origins[i] !== null ? DATES : told.units[i] === "°" ? ANGLES : null;
    const sizes = own && wide > own[0] / 2 && wide < own[own.length - 1] ? own : [1, 2, 5, 10].map(m => m * tens);
    const step = sizes.find(s => s >= wide) || sizes[sizes.length - 1], out = [];
    for (let k = Math.ceil(low / step - 1e-9); k * step <= high * (1 + 1e-12) + 1e-12; k++) out.push(k * step);
    return [out, step];
  }
  function shown(value, step) {  // with the digits that ticks a step apart need
    const size = Math.abs(value);
    if (size !== 0 && (size >= 1e6 || step < 1e-4)) return value.toExponential(Math.max(0, Math.floor(Math.log10(size)) - Math.floor(Math.log10(step))));
    return value.toFixed(Math.max(0, -Math.floor(Math.log10(step) + 1e-9))).replace(/^-(0\.?0*)$/, "$1");
  }
  function dated(i, value, step) {
    const moment = new Date(told.origins[i] + value * DAY).toISOString();
    return step >= 1 ? moment.slice(0, 10) : moment.slice(0, 16).replace("T", " ");
  }
  const tick = (i, value, step) => told.origins[i] === null ? shown(value, step) : dated(i, value, step);
  const place = (i, value) => told.origins[i] === null
    ? `${told.axes[i]} ${shown(value, spacing(i) / 10)}${told.units[i] === "°" ? "°" : told.units[i] ? ` ${told.units[i]}` : ""}`
    : `${told.axes[i]} ${dated(i, value, spacing(i))}`;
  const spacing = i => n[i] > 1 ? Math.abs(told.coordinates[i][1] - told.coordinates[i][0]) : 1;
  const digits = value => Math.abs(value) >= 1e5 || (value !== 0 && Math.abs(value) < 1e-3) ? value.toExponential(3) : String(+value.toPrecision(4));

  function measured() {  // the size of the image: true to scale where both axes have one unit
    const [i, j] = sides(), [w, h] = [edges(i), edges(j)].map(([a, b]) => b - a), ratio = h / w;
    const alike = told.units[i] === told.units[j] && told.origins[i] === null && told.origins[j] === null && ratio > .2 && ratio < 5;
    if (!alike) return ROOM;
    return ratio * ROOM[0] > ROOM[1] ? [ROOM[1] / ratio, ROOM[1]] : [ROOM[0], ROOM[0] * ratio];
  }
  function draw() {
    const l = told.layers[layer.value], [i, j] = sides(), [wide, high] = measured().map(Math.round), sharp = window.devicePixelRatio || 1;
    box = { left: LEFT, top: TOP, wide, high };
    const size = [LEFT + wide + RIGHT, TOP + high + BOTTOM];
    [view.width, view.height] = size.map(s => s * sharp);
    [view.style.width, view.style.height] = size.map(s => `${s}px`);
    const pen = view.getContext("2d");
    pen.setTransform(sharp, 0, 0, sharp, 0, 0);
    pen.font = FONT;
    drawImage(pen, l, i, j);
    drawAxis(pen, i, true);
    drawAxis(pen, j, false);
    drawBar(pen, l);
    if (volume) byId("place").textContent = place(across(), told.coordinates[across()][depth.value]);
    tell();
  }
  function drawImage(pen, l, i, j) {
    const sheet = document.createElement("canvas"), paint = sheet.getContext("2d");
    [sheet.width, sheet.height] = [n[i], n[j]];
    const image = paint.createImageData(n[i], n[j]), span = l.high - l.low || 1;
    for (let b = 0; b < n[j]; b++) for (let a = 0; a < n[i]; a++) {
      const colour = l.colours[Math.max(0, Math.min(255, Math.round((l.value(at(a, b)) - l.low) / span * 255)))];
      image.data.set([...colour, 255], 4 * ((n[j] - 1 - b) * n[i] + a));
    }
    paint.putImageData(image, 0, 0);
    [pen.imageSmoothingEnabled, pen.imageSmoothingQuality] = [true, "high"];  // cells are no part of the field
    pen.drawImage(sheet, box.left, box.top, box.wide, box.high);
    if (!marked || marked.sides.join() !== sides().join()) return;
    const x = box.left + (marked.a + .5) / n[i] * box.wide, y = box.top + box.high - (marked.b + .5) / n[j] * box.high;
    for (const [colour, width] of [["white", 3.5], [INK, 1.5]]) {
      pen.strokeStyle = colour; pen.lineWidth = width;
      pen.beginPath(); pen.arc(x, y, 6, 0, 7); pen.stroke();
    }
  }
  function line(pen, x0, y0, x1, y1) {
    pen.strokeStyle = "#6b7280"; pen.lineWidth = 1;
    pen.beginPath(); pen.moveTo(x0, y0); pen.lineTo(x1, y1); pen.stroke();
  }
  function text(pen, words, x, y, align, baseline, turned) {
    pen.save();
    pen.fillStyle = INK; pen.textAlign = align; pen.textBaseline = baseline; pen.translate(x, y);
    if (turned) pen.rotate(-Math.PI / 2);
    pen.fillText(words, 0, 0);
    pen.restore();
  }
  function drawAxis(pen, i, level) {
    const [low, high] = edges(i), [places, step] = steps(low, high, i);
    const x = v => box.left + (v - low) / (high - low) * box.wide, y = v => box.top + box.high - (v - low) / (high - low) * box.high;
    const under = box.top + box.high;
    let free = -Infinity;  // where the last label ends
    for (const v of places) {
      const words = tick(i, v, step), half = pen.measureText(words).width / 2;
      if (level) line(pen, x(v), under, x(v), under + 5);
      else line(pen, box.left - 5, y(v), box.left, y(v));
      if (level && x(v) - half < free) continue;
      if (level) free = x(v) + half + 8;
      if (level) text(pen, words, x(v), under + 8, "center", "top");
      else text(pen, words, box.left - 8, y(v), "right", "middle");
    }
    if (level) text(pen, label(i), box.left + box.wide / 2, under + 46, "center", "bottom");
    else text(pen, label(i), 4, box.top + box.high / 2, "center", "top", true);
  }
  function drawBar(pen, l) {
    const x = box.left + box.wide + 22, [places, step] = steps(l.low, l.high);
    l.colours.forEach((c, m) => {
      pen.fillStyle = `rgb(${c})`;
      pen.fillRect(x, box.top + box.high * (255 - m) / 256, BAR, box.high / 256 + .6);
    });
    for (const v of places) {
      const y = box.top + box.high * (1 - (v - l.low) / (l.high - l.low || 1));
      line(pen, x + BAR, y, x + BAR + 4, y);
      text(pen, shown(v, step), x + BAR + 7, y, "left", "middle");
    }
    text(pen, field(l.name), x + BAR + 64, box.top + box.high / 2, "center", "bottom", true);
  }

  function degrees(u, v) {  // between the places at which longitude and latitude are known; u and v from 0 to 1
    const between = table => {
      const m = table.length - 1, a = Math.min(m - 1, Math.floor(u * m)), b = Math.min(m - 1, Math.floor(v * m)), p = u * m - a, q = v * m - b;
      return (1 - p) * ((1 - q) * table[a][b] + q * table[a][b + 1]) + p * ((1 - q) * table[a + 1][b] + q * table[a + 1][b + 1]);
    };
    const lon = (between(told.degrees.lon) + 540) % 360 - 180, lat = between(told.degrees.lat);
    return `${Math.abs(lat).toFixed(4)}°${lat < 0 ? "S" : "N"} ${Math.abs(lon).toFixed(4)}°${lon < 0 ? "W" : "E"}`;
  }
  function tell() {  // the value at the place that was clicked, with its 95% interval
    const out = byId("under");
    if (!marked || marked.sides.join() !== sides().join()) { out.textContent = "Click on the map to read a value."; return; }
    const [i, j] = sides(), { a, b } = marked, k = at(a, b), unit = told.unit ? ` ${told.unit}` : "";
    const where = [place(i, told.coordinates[i][a]), place(j, told.coordinates[j][b])];
    if (volume) where.push(place(across(), told.coordinates[across()][depth.value]));
    if (told.degrees) where.push(degrees(a / (n[i] - 1), b / (n[j] - 1)));
    const mean = named("mean").value(k), std = named("std"), ends = ["lower", "upper"].map(e => named(`${e} end of 95%`));
    let words = `${where.join(", ")}: ${told.field} ${digits(mean)}${unit}`;
    if (std) {
      const s = std.value(k), [low, high] = ends[0] ? ends.map(e => e.value(k)) : [mean - told.halfwidth * s, mean + told.halfwidth * s];
      words += `, 95% interval ${digits(low)} to ${digits(high)}${unit} (std ${digits(s)})`;
    }
    const own = told.layers[layer.value];
    if (own.name.startsWith("draw")) words += `; ${own.name}: ${digits(own.value(k))}${unit}`;
    out.textContent = words;
  }
  view.addEventListener("click", e => {
    const [i, j] = sides(), frame = view.getBoundingClientRect(), room = frame.width / parseFloat(view.style.width);
    const u = ((e.clientX - frame.left) / room - box.left) / box.wide, v = 1 - ((e.clientY - frame.top) / room - box.top) / box.high;
    if (u < 0 || u > 1 || v < 0 || v > 1) return;
    marked = { sides: sides(), a: Math.min(n[i] - 1, Math.floor(u * n[i])), b: Math.min(n[j] - 1, Math.floor(v * n[j])) };
    draw();
  });
  layer.addEventListener("change", draw);
  depth.addEventListener("input", draw);
  axis.addEventListener("change", resized);
  function resized() {
    if (volume) { depth.max = n[across()] - 1; depth.value = Math.floor(n[across()] / 2); }
    draw();
  }
  resized();
})();
