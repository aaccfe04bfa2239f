"use strict";
// Three planes through a relevance map: crosshair by mouse, touch, keys or millimetres; threshold; opacity.
for (const root of document.querySelectorAll(".viewer")) startViewer(root);

async function startViewer(root) {
  const {
    AXES, GREYS, PLANES, atlas, colour, drawSlice, index, json, millimetres, number, outlineSlice, scaleOf, unpacked,
    voxelAt,
  } = window.heatlas;
  const LEVELS = 127;
  const find = (selector) => root.querySelector(selector);
  const { maps, brains, start, outlined } = json(find("script"));
  const space = await atlas();
  const { shape, regions } = space;
  const choose = { group: find("[name=group]"), method: find("[name=method]"), region: find("[name=region]") };
  const slide = { threshold: find("[name=threshold]"), opacity: find("[name=opacity]") };
  const mirror = find("[name=mirrored]");
  const outline = find("[name=outline]");
  // Codes of the labels that have a line around them: their places in the list of regions, from 1.
  const lined = new Set(regions.flatMap((region, place) => (outlined.includes(region.number) ? [place + 1] : [])));
  const canvases = [...root.querySelectorAll("canvas[data-plane]")];
  let map, brain, palette, cross;

  // Codes of a map as unsigned bytes, and the brain under it, unpacked when it is first looked at.
  async function load(chosen) {
    chosen.codes ??= new Uint8Array(await unpacked(chosen.data));
    const own = brains[chosen.group];
    chosen.brain ??= own ? new Uint8Array(await unpacked(own)) : space.brain;
  }

  const share = (code) => Math.sign(code) * (code / LEVELS) ** 2;
  const signed = (byte) => (byte << 24) >> 24;
  const valueOf = (code) => map.top * share(code);
  const errorOf = (code) => (map.top * (Math.abs(code) + 0.25)) / LEVELS ** 2;
  const threshold = () => map.high * (slide.threshold.value / 100) ** 2;

  function paletteOf() {
    const [low, alpha] = [threshold(), Math.round(2.55 * slide.opacity.value)];
    return Uint32Array.from({ length: 256 }, (_, byte) => {
      const value = valueOf(signed(byte));
      if (value === 0 || Math.abs(value) < low) return 0;
      const table = value < 0 ? space.colours.cool : space.colours.warm;
      return colour(table, (Math.abs(value) - map.low) / (map.high - map.low || 1), alpha);
    });
  }

  function draw() {
    for (const canvas of canvases) {
      const { plane } = canvas.dataset;
      const { through, across, up, edges } = PLANES[plane];
      const context = canvas.getContext("2d");
      const mirrored = mirror.checked;
      context.fillStyle = "#0b0f14";
      context.fillRect(0, 0, canvas.width, canvas.height);
      drawSlice(context, brain, shape, plane, cross[through], GREYS, { smooth: true, mirrored });
      drawSlice(context, map.codes, shape, plane, cross[through], palette, { mirrored });
      if (outline?.checked) outlineSlice(context, space.labels, lined, shape, plane, cross[through], mirrored);
      const flip = mirrored && across === 0;
      const x = ((flip ? shape[across] - 1 - cross[across] : cross[across]) + 0.5) / shape[across];
      const y = 1 - (cross[up] + 0.5) / shape[up];
      context.strokeStyle = "rgba(230, 159, 0, 0.75)";
      context.beginPath();
      context.moveTo(x * canvas.width, 0);
      context.lineTo(x * canvas.width, canvas.height);
      context.moveTo(0, y * canvas.height);
      context.lineTo(canvas.width, y * canvas.height);
      context.stroke();
      context.font = `bold ${Math.round(canvas.width / 18)}px sans-serif`;
      context.textBaseline = "middle";
      context.fillStyle = "#e8edf2";
      for (const [place, align] of [[0, "left"], [1, "right"]]) {
        context.textAlign = align;
        context.fillText(edges[flip ? 1 - place : place], place ? canvas.width - 6 : 6, canvas.height / 2);
      }
    }
    const mm = millimetres(space, cross);
    AXES.forEach((axis, k) => { find(`[name=${axis}]`).value = mm[k]; });
  }

  function tell(voxel) {
    const at = index(shape, voxel);
    const code = signed(map.codes[at]);
    const region = regions[space.labels[at] - 1];
    const mm = millimetres(space, voxel).map((value) => number(value)).join(", ");
    const readout = find(".readout");
    readout.dataset.value = valueOf(code);
    readout.dataset.error = errorOf(code);
    readout.dataset.voxel = voxel.join(" ");
    find(".where").textContent = region ? region.name : brain[at] ? "outside the atlas" : "outside the brain";
    find(".value").textContent = `${number(valueOf(code))} ± ${number(errorOf(code), 1)} ${map.unit}`;
    find(".at").textContent = `at x, y, z = ${mm} mm`;
  }

  function bar() {
    const context = find(".bar canvas").getContext("2d");
    const { width, height } = context.canvas;
    const opaque = (packed) => `rgb(${packed & 255} ${(packed >> 8) & 255} ${(packed >> 16) & 255})`;
    for (let x = 0; x < width; x++) {
      const part = x / (width - 1);
      const value = map.high * (map.signed ? 2 * part - 1 : part);
      const table = value < 0 ? space.colours.cool : space.colours.warm;
      const strength = (Math.abs(value) - map.low) / (map.high - map.low || 1);
      context.fillStyle = Math.abs(value) < threshold() ? "#0b0f14" : opaque(colour(table, strength));
      context.fillRect(x, 0, 1, height);
    }
    find(".low").textContent = map.signed ? `≤ ${number(-map.high)}` : "0";
    find(".middle").textContent = map.signed ? "0" : "";
    find(".high").textContent = `≥ ${number(map.high)}`;
    find(".unit").textContent = map.unit;
    find(".threshold").textContent = number(threshold());
    find(".opacity").textContent = `${slide.opacity.value} %`;
  }

  function recolour() {
    palette = paletteOf();
    bar();
    draw();
  }

  function move(voxel) {
    cross = voxel.map((n, axis) => Math.min(Math.max(n, 0), shape[axis] - 1));
    draw();
    tell(cross);
  }

  // Methods that the chosen group lacks cannot be chosen.
  function offer() {
    for (const option of choose.method.options) {
      option.disabled = !maps.some((m) => m.group === choose.group.value && m.method === option.value);
    }
    if (choose.method.selectedOptions[0]?.disabled !== false) {
      choose.method.value = [...choose.method.options].find((option) => !option.disabled).value;
    }
  }

  async function show() {
    offer();
    const [group, method] = [choose.group.value, choose.method.value];
    const chosen = maps.find((m) => m.group === group && m.method === method);
    await load(chosen);
    if (group !== choose.group.value || method !== choose.method.value) return; // another one was chosen meanwhile
    if (chosen.method !== map?.method || chosen.high !== map?.high) {
      slide.threshold.value = chosen.high > 0 ? Math.round(100 * Math.sqrt(chosen.low / chosen.high)) : 0;
    }
    [map, brain] = [chosen, chosen.brain];
    find(".title").textContent = map.title;
    cross ??= regions.find((region) => region.number === outlined[0])?.at ?? start;
    recolour();
    tell(cross);
    root.dataset.ready = `${group} ${method}`;
  }

  function strongest() {
    let best = 0;
    map.codes.forEach((byte, at) => {
      if (Math.abs(signed(byte)) > Math.abs(signed(map.codes[best]))) best = at;
    });
    const row = Math.floor(best / shape[0]);
    return [best % shape[0], row % shape[1], Math.floor(row / shape[1])];
  }

  for (const canvas of canvases) {
    const { plane } = canvas.dataset;
    const { through, across, up } = PLANES[plane];
    const scale = scaleOf(shape);
    [canvas.width, canvas.height] = [scale * shape[across], scale * shape[up]];
    canvas.style.flexGrow = shape[across]; // planes beside each other have one scale
    const under = (event) => {
      const box = canvas.getBoundingClientRect();
      const point = [(event.clientX - box.left) / box.width, (event.clientY - box.top) / box.height];
      return voxelAt(shape, plane, cross[through], point, mirror.checked);
    };
    canvas.addEventListener("pointerdown", (event) => {
      canvas.setPointerCapture(event.pointerId);
      move(under(event));
    });
    canvas.addEventListener("pointermove", (event) => (event.buttons ? move(under(event)) : tell(under(event))));
    canvas.addEventListener("pointerleave", () => tell(cross));
    canvas.addEventListener("keydown", (event) => {
      const right = mirror.checked && across === 0 ? -1 : 1;
      const steps = {
        ArrowLeft: [across, -right], ArrowRight: [across, right], ArrowUp: [up, 1], ArrowDown: [up, -1],
        PageUp: [through, 1], PageDown: [through, -1],
      };
      if (!(event.key in steps)) return;
      event.preventDefault();
      const [axis, step] = steps[event.key];
      const next = [...cross];
      next[axis] += step * (event.shiftKey ? 5 : 1);
      move(next);
    });
  }
  AXES.forEach((axis, k) => {
    const field = find(`[name=${axis}]`);
    [field.min, field.step] = [space.origin[k], space.voxel[k]];
    field.max = space.origin[k] + (shape[k] - 1) * space.voxel[k];
    field.addEventListener("change", () => {
      const next = [...cross];
      if (field.value !== "") next[k] = Math.round((Number(field.value) - space.origin[k]) / space.voxel[k]);
      move(next);
    });
  });
  const byName = [...regions].sort((a, b) => a.name.localeCompare(b.name));
  choose.region.append(...byName.map((region) => new Option(region.name, region.number)));
  choose.region.addEventListener("change", () => {
    const region = regions.find((one) => String(one.number) === choose.region.value);
    if (region) move(region.at);
  });
  choose.group.addEventListener("change", show);
  choose.method.addEventListener("change", show);
  slide.threshold.addEventListener("input", recolour);
  slide.opacity.addEventListener("input", recolour);
  outline?.addEventListener("change", draw);
  mirror.addEventListener("change", () => {
    find(".convention").textContent = mirror.checked ? "Radiological: left is right." : "Neurological: left is left.";
    draw();
  });
  find("[name=strongest]").addEventListener("click", () => move(strongest()));
  find(".controls").hidden = false;
  await show();
}
