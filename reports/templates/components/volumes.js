"use strict";
// Volumes of a page and their slices. A volume is an array of codes, first axis fastest: x to the right of the person,
// y to the front, z upwards. What a code looks like says a palette: one packed colour per code.
window.heatlas ??= (() => {
  const AXES = ["x", "y", "z"];
  // In which direction a plane looks, what runs across it and what upwards, and what is written at its four edges.
  const PLANES = {
    sagittal: { through: 0, across: 1, up: 2, edges: ["P", "A"] },
    coronal: { through: 1, across: 0, up: 2, edges: ["L", "R"] },
    axial: { through: 2, across: 0, up: 1, edges: ["L", "R"] },
  };

  function bytesOf(base64) {
    const letters = atob(base64);
    const bytes = new Uint8Array(letters.length);
    for (let place = 0; place < bytes.length; place++) bytes[place] = letters.charCodeAt(place); // a volume: no callbacks
    return bytes;
  }

  async function unpacked(base64) {
    const stream = new Blob([bytesOf(base64)]).stream().pipeThrough(new DecompressionStream("deflate"));
    return new Response(stream).arrayBuffer();
  }

  const json = (element) => JSON.parse(element.textContent);

  // Labels, brain and colours of this page, unpacked once for everyone who asks.
  let waiting;
  function atlas() {
    waiting ??= (async () => {
      const data = json(document.getElementById("heatlas-atlas"));
      const [labels, brain] = await Promise.all([unpacked(data.labels), data.brain && unpacked(data.brain)]);
      const colours = Object.fromEntries(Object.entries(data.colours).map(([name, table]) => [name, bytesOf(table)]));
      return { ...data, labels: new Uint16Array(labels), brain: brain && new Uint8Array(brain), colours };
    })();
    return waiting;
  }

  const packed = (red, green, blue, alpha) => ((alpha << 24) | (blue << 16) | (green << 8) | red) >>> 0;

  // Colour of a table of 256 at a share between 0 and 1.
  function colour(table, share, alpha = 255) {
    const at = 3 * Math.round(255 * Math.min(Math.max(share, 0), 1));
    return packed(table[at], table[at + 1], table[at + 2], alpha);
  }

  // The brain of the figures: a cool grey that leaves the bright end to the map.
  const GREYS = Uint32Array.from({ length: 256 }, (_, level) => {
    const grey = 0.72 * level;
    return level ? packed(Math.round(0.93 * grey), Math.round(0.96 * grey), Math.round(grey), 255) : 0;
  });

  const index = (shape, [x, y, z]) => x + shape[0] * (y + shape[1] * z);

  // Draws one slice over the whole of a canvas; mirrored: the right of the person is on the left of the picture.
  function drawSlice(context, codes, shape, plane, position, palette, { smooth = false, mirrored = false } = {}) {
    const { through, across, up } = PLANES[plane];
    const [width, height] = [shape[across], shape[up]];
    const picture = new ImageData(width, height);
    const pixels = new Uint32Array(picture.data.buffer);
    const strides = [1, shape[0], shape[0] * shape[1]];
    const flip = mirrored && across === 0;
    for (let row = 0, pixel = 0; row < height; row++) {
      const start = position * strides[through] + (height - 1 - row) * strides[up];
      for (let column = 0; column < width; column++, pixel++) {
        pixels[pixel] = palette[codes[start + (flip ? width - 1 - column : column) * strides[across]]];
      }
    }
    const sheet = document.createElement("canvas");
    [sheet.width, sheet.height] = [width, height];
    sheet.getContext("2d").putImageData(picture, 0, 0);
    context.imageSmoothingEnabled = smooth;
    context.imageSmoothingQuality = "high";
    context.drawImage(sheet, 0, 0, context.canvas.width, context.canvas.height);
  }

  // Draws a line around voxels with one of the codes, along their edges.
  function outlineSlice(context, codes, chosen, shape, plane, position, mirrored, lineWidth = 2) {
    const { through, across, up } = PLANES[plane];
    const [width, height] = [shape[across], shape[up]];
    const [dx, dy] = [context.canvas.width / width, context.canvas.height / height];
    const strides = [1, shape[0], shape[0] * shape[1]];
    const flip = mirrored && across === 0;
    const inside = (column, row) => column >= 0 && row >= 0 && column < width && row < height && chosen.has(
      codes[position * strides[through] + (height - 1 - row) * strides[up]
        + (flip ? width - 1 - column : column) * strides[across]]);
    context.strokeStyle = "#ffffff";
    context.lineWidth = lineWidth;
    context.beginPath();
    for (let row = 0; row <= height; row++) {
      for (let column = 0; column <= width; column++) {
        const here = inside(column, row);
        if (here !== inside(column - 1, row)) {
          context.moveTo(column * dx, row * dy);
          context.lineTo(column * dx, (row + 1) * dy);
        }
        if (here !== inside(column, row - 1)) {
          context.moveTo(column * dx, row * dy);
          context.lineTo((column + 1) * dx, row * dy);
        }
      }
    }
    context.stroke();
    context.lineWidth = 1;
  }

  // The voxel under a point of a plane; `share` is (across, down) between 0 and 1.
  function voxelAt(shape, plane, position, share, mirrored) {
    const { through, across, up } = PLANES[plane];
    const voxel = [0, 0, 0];
    const inside = (axis, part) => Math.min(Math.max(Math.floor(part * shape[axis]), 0), shape[axis] - 1);
    voxel[through] = position;
    voxel[across] = inside(across, mirrored && across === 0 ? 1 - share[0] : share[0]);
    voxel[up] = inside(up, 1 - share[1]);
    return voxel;
  }

  // Weights of a Gaussian at 0, 1, 2 … voxels from its middle, cut after 4 standard deviations as scipy.ndimage does.
  function gaussian(sigma) {
    const weights = Array.from({ length: Math.floor(4 * sigma + 0.5) + 1 }, (_, k) => Math.exp(-0.5 * (k / sigma) ** 2));
    const sum = weights.reduce((total, weight, k) => total + (k ? 2 : 1) * weight, 0);
    return weights.map((weight) => weight / sum);
  }

  // A volume filtered along one axis; there is nothing beyond its ends. Zeros, most of a volume, cost next to nothing.
  function filtered(values, shape, axis, weights) {
    const found = new Float32Array(values.length);
    const stride = shape.slice(0, axis).reduce((product, side) => product * side, 1);
    const [side, reach] = [shape[axis], weights.length - 1];
    for (let from = 0; from < values.length; from++) {
      const value = values[from];
      if (value === 0) continue;
      const place = Math.floor(from / stride) % side;
      const last = Math.min(place + reach, side - 1);
      for (let to = Math.max(place - reach, 0), at = from + (to - place) * stride; to <= last; to++, at += stride) {
        found[at] += weights[to > place ? to - place : place - to] * value;
      }
    }
    return found;
  }

  const blurred = (values, shape, sigmas) =>
    sigmas.reduce((volume, sigma, axis) => filtered(volume, shape, axis, gaussian(sigma)), values);

  // A map after a Gaussian filter that sees nothing outside a mask: G(map · mask) / G(mask), with G as wide at half of
  // its height as `fwhm` says, in mm. What a mask alone becomes is kept for the next map.
  const masks = new WeakMap();
  function smoothed(values, mask, shape, voxel, fwhm) {
    const sigmas = voxel.map((side) => fwhm / Math.sqrt(8 * Math.LN2) / side);
    if (!masks.has(mask)) masks.set(mask, blurred(new Float32Array(mask).map(Boolean), shape, sigmas));
    const reach = masks.get(mask);
    const found = blurred(values.map((value, at) => (mask[at] ? value : 0)), shape, sigmas);
    return found.map((value, at) => (mask[at] ? value / reach[at] : 0));
  }

  const millimetres = ({ origin, voxel }, at) => at.map((n, axis) => origin[axis] + n * voxel[axis]);

  // A number as the rest of the page writes it (reports/words/numbers.py), with a true minus sign.
  function number(value, digits = 3) {
    if (!Number.isFinite(value)) return Number.isNaN(value) ? "n/a" : value > 0 ? "∞" : "−∞";
    const size = Math.abs(value);
    let text;
    if (Number.isInteger(value) || size >= 1000) text = value.toFixed(0).replace(/\B(?=(\d{3})+$)/g, " ");
    else if (size < 1e-3) text = value.toExponential(digits - 1).replace(/e([+-])(\d)$/, "e$10$2");
    else text = value.toFixed(Math.max(digits - 1 - Math.floor(Math.log10(size)), 0));
    return text.replaceAll("-", "−");
  }

  return {
    AXES, GREYS, PLANES, atlas, colour, drawSlice, index, json, millimetres, number, outlineSlice, packed, smoothed,
    unpacked, voxelAt,
  };
})();
