"use strict";
// Three planes through one relevance map, or through two with one crosshair: by mouse, wheel, touch, keys or millimetres;
// smoothed or as it is; zoom; window and threshold; opacity. The wheel turns the page until a slice has been clicked.
for (const root of document.querySelectorAll(".viewer")) startViewer(root);

async function startViewer(root) {
  const {
    AXES, GREYS, PLANES, atlas, colour, drawSlice, index, json, millimetres, number, outlineSlice, smoothed, unpacked,
    voxelAt,
  } = window.heatlas;
  const LEVELS = 127;
  const find = (selector) => root.querySelector(selector);
  const { maps, brains, start, outlined, scaled, percents, window: ends, fwhm } = json(find("script"));
  const space = await atlas();
  const { shape, regions } = space;
  const choose = { group: find("[name=group]"), method: find("[name=method]"), region: find("[name=region]"), second: find("[name=second]"),
    colours: find("[name=colours]") };
  const limit = { low: find("[name=low]"), high: find("[name=high]") };
  const slide = { threshold: find("[name=threshold]"), opacity: find("[name=opacity]") };
  const mirror = find("[name=mirrored]");
  const outline = find("[name=outline]");
  const smooth = find("[name=smooth]");
  const MOST = 8; // times larger than the whole slice
  const NOTCH = 50; // pixels of a wheel per slice: half a notch of a mouse, and a little way on a touchpad
  // A row of three planes: the map that is chosen, and beside it a second one.
  const panes = ["plane", "second"].map((key) => ({ key, canvases: [...root.querySelectorAll(`canvas[data-${key}]`)] }));
  const [main, beside] = panes;
  let map, cross, focus;
  let zoom = 1;

  // Codes of a map as unsigned bytes, and the brain under it, unpacked when they are first looked at.
  async function unpack(one) {
    one.codes ??= new Uint8Array(await unpacked(one.data));
    const own = brains[one.group];
    one.brain ??= own ? new Uint8Array(await unpacked(own)) : space.brain;
  }

  // Maps of one method that set its colours: those of the classes, if there are any.
  const peersOf = (one) => {
    const found = maps.filter(({ group, method }) => method === one.method && scaled.includes(group));
    return found.length ? found : [one];
  };
  const load = (chosen) => Promise.all([...new Set([chosen, ...peersOf(chosen)])].map(unpack));

  const share = (code) => Math.sign(code) * (code / LEVELS) ** 2;
  const signed = (byte) => (byte << 24) >> 24;
  const valueOf = (code, { top }) => top * share(code);
  const errorOf = (code, { top }) => (top * (Math.abs(code) + 0.25)) / LEVELS ** 2;

  // What is drawn of a map, coded like it: the map itself, or smoothed, which is done once.
  function seen(one) {
    const kind = smooth.checked ? "smooth" : "plain";
    if (!one[kind]) {
      const drawn = smooth.checked ? smoothedCodes(one) : { codes: one.codes, top: one.top };
      one[kind] = { ...drawn, ...spread(drawn, one.brain) };
      if (one.levels) one[kind].levels = one.levels[kind]; // of the whole brain, where the page has a part of it
    }
    return one[kind];
  }

  function smoothedCodes(one) {
    const values = Float32Array.from({ length: 256 }, (_, byte) => valueOf(signed(byte), one));
    const found = smoothed(new Float32Array(one.codes).map((byte) => values[byte]), one.brain, shape, space.voxel, fwhm);
    const top = found.reduce((most, value) => Math.max(most, Math.abs(value)), 0);
    const code = (value) => Math.sign(value) * Math.round(LEVELS * Math.sqrt(Math.abs(value) / (top || 1)));
    return { codes: new Uint8Array(found.map(code)), top };
  }

  // Percentiles of the absolute values inside the brain, and the share of the map that is below 0.
  function spread({ codes, top }, brain) {
    const counts = new Array(257).fill(0);
    codes.forEach((byte, at) => { if (brain[at]) counts[byte] += 1; });
    const sizes = Array.from({ length: LEVELS + 1 }, (_, code) => counts[code] + (code ? counts[256 - code] : 0));
    const sum = (of) => sizes.reduce((total, _, code) => total + of[code] * share(code), 0);
    const negative = sum(sizes.map((_, code) => counts[256 - code])) / (sum(sizes) || 1);
    return { levels: percents.map((percent) => top * rootAt(sizes, percent) ** 2), negative };
  }

  // Below which share of the largest root the roots of some per cent of the voxels are; `sizes`: voxels of each code.
  function rootAt(sizes, percent) {
    let left = (percent / 100) * sizes.reduce((sum, n) => sum + n, 0);
    const code = sizes.findIndex((n) => (left -= n) <= 0);
    return Math.min(Math.max(code + 0.5 + left / (sizes[code] || 1), 0), LEVELS) / LEVELS;
  }

  // The absolute value below which some per cent of the brain's voxels lie.
  function level({ levels }, percent) {
    const at = Math.max(percents.findIndex((one) => one >= percent), 1);
    const part = (percent - percents[at - 1]) / (percents[at] - percents[at - 1]);
    return (1 - part) * levels[at - 1] + part * levels[at];
  }

  function ownScale(one) {
    const peers = peersOf(one).map(seen);
    const low = Math.min(...peers.map((peer) => level(peer, ends[0])));
    return { low, high: level(peers[0], ends[1]), signed: peers.some(({ negative }) => negative > 0.01) };
  }

  // Maps of one method share the window that is chosen; another method has other units, and keeps its own.
  function scaleOf(one) {
    const chosen = one.method === map.method ? { low: Number(limit.low.value), high: Number(limit.high.value) } : {};
    return { ...ownScale(one), ...chosen };
  }

  const threshold = (one = map) => level(seen(one), Number(slide.threshold.value));
  const tableOf = (value) => space.colours[value < 0 ? "cool" : choose.colours.value];
  const strengthIn = ({ low, high }, value) => (Math.abs(value) - low) / (high - low || 1);

  function paletteOf(one) {
    const [scale, low, alpha] = [scaleOf(one), threshold(one), Math.round(2.55 * slide.opacity.value)];
    return Uint32Array.from({ length: 256 }, (_, byte) => {
      const value = valueOf(signed(byte), seen(one));
      if (value === 0 || Math.abs(value) < low) return 0;
      return colour(tableOf(value), strengthIn(scale, value), alpha);
    });
  }

  const flipped = (across) => mirror.checked && across === 0;
  // Where the middle of a voxel lies on a whole slice: (across, down), as shares.
  function placeOf(voxel, { across, up }) {
    const x = (voxel[across] + 0.5) / shape[across];
    return [flipped(across) ? 1 - x : x, 1 - (voxel[up] + 0.5) / shape[up]];
  }
  // Upper left corner of what is shown of a slice, as shares of the whole one.
  const corner = (plane) => placeOf(focus, plane).map((part) => Math.min(Math.max(part - 0.5 / zoom, 0), 1 - 1 / zoom));

  function drawPane({ key, canvases, map: shown, brain, palette }) {
    for (const canvas of canvases) {
      const name = canvas.dataset[key];
      const { through, across, up, edges } = PLANES[name];
      const context = canvas.getContext("2d");
      const { width, height } = canvas;
      const mirrored = mirror.checked;
      const [left, top] = corner(PLANES[name]);
      context.setTransform(1, 0, 0, 1, 0, 0);
      context.fillStyle = "#0b0f14";
      context.fillRect(0, 0, width, height);
      context.setTransform(zoom, 0, 0, zoom, -left * zoom * width, -top * zoom * height);
      drawSlice(context, brain, shape, name, cross[through], GREYS, { smooth: true, mirrored });
      drawSlice(context, seen(shown).codes, shape, name, cross[through], palette, { smooth: smooth.checked, mirrored });
      if (outline.checked) outlineSlice(context, space.labels, lined(), shape, name, cross[through], mirrored, 2 / zoom);
      context.setTransform(1, 0, 0, 1, 0, 0);
      const place = placeOf(cross, { across, up });
      const [x, y] = [(place[0] - left) * zoom * width, (place[1] - top) * zoom * height];
      context.strokeStyle = "rgba(230, 159, 0, 0.75)";
      context.lineWidth = 1;
      context.beginPath();
      context.moveTo(x, 0);
      context.lineTo(x, height);
      context.moveTo(0, y);
      context.lineTo(width, y);
      context.stroke();
      context.font = `bold ${Math.round(width / 18)}px sans-serif`;
      context.textBaseline = "middle";
      context.fillStyle = "#e8edf2";
      for (const [end, align] of [[0, "left"], [1, "right"]]) {
        context.textAlign = align;
        context.fillText(edges[flipped(across) ? 1 - end : end], end ? width - 6 : 6, height / 2);
      }
    }
  }

  // Codes of the labels that have a line around them, their places in the list of regions from 1.
  function lined() {
    const chosen = [...outlined.map(String), choose.region.value];
    return new Set(regions.flatMap((region, place) => (chosen.includes(String(region.number)) ? [place + 1] : [])));
  }

  function draw() {
    panes.filter((pane) => pane.map).forEach(drawPane);
    const mm = millimetres(space, cross);
    AXES.forEach((axis, k) => { find(`[name=${axis}]`).value = mm[k]; });
  }

  // The crosshair stays where it is; what is shown is around it.
  function zoomTo(times) {
    zoom = Math.min(Math.max(times, 1), MOST);
    focus = cross;
    root.dataset.zoom = zoom;
    draw();
  }

  // A value of the file; with its rounding error where that is more than a tenth of it, and with what is drawn of it.
  function said(one, at) {
    const code = signed(one.codes[at]);
    const [value, error] = [valueOf(code, one), errorOf(code, one)];
    const about = code && error > Math.abs(value) / 10 ? ` ± ${number(error, 1)}` : "";
    const drawn = smooth.checked ? `, smoothed ${number(valueOf(signed(seen(one).codes[at]), seen(one)))}` : "";
    return { value, error, text: `${number(value)}${about} ${one.unit}${drawn}` };
  }

  function tell(voxel) {
    const at = index(shape, voxel);
    const region = regions[space.labels[at] - 1];
    const mm = millimetres(space, voxel).map((value) => number(value)).join(", ");
    const readout = find(".readout");
    const { value, error, text } = said(main.map, at);
    Object.assign(readout.dataset, { value, error, voxel: voxel.join(" ") });
    find(".where").textContent = region ? region.name : main.brain[at] ? "outside the atlas" : "outside the brain";
    find(".value").textContent = text;
    find(".at").textContent = `at x, y, z = ${mm} mm`;
    const also = beside.map && said(beside.map, at);
    if (also) readout.dataset.second = also.value;
    else delete readout.dataset.second;
    find(".also").textContent = also ? `· second map: ${also.text}` : "";
  }

  function bar() {
    const context = find(".bar canvas").getContext("2d");
    const { width, height } = context.canvas;
    const [scale, least] = [scaleOf(map), threshold()];
    const opaque = (packed) => `rgb(${packed & 255} ${(packed >> 8) & 255} ${(packed >> 16) & 255})`;
    for (let x = 0; x < width; x++) {
      const part = x / (width - 1);
      const value = scale.high * (scale.signed ? 2 * part - 1 : part);
      context.fillStyle = Math.abs(value) < least ? "#0b0f14" : opaque(colour(tableOf(value), strengthIn(scale, value)));
      context.fillRect(x, 0, 1, height);
    }
    find(".low").textContent = scale.signed ? `≤ ${number(-scale.high)}` : "0";
    find(".middle").textContent = scale.signed ? "0" : "";
    find(".high").textContent = `≥ ${number(scale.high)}`;
    find(".unit").textContent = `${map.unit}${smooth.checked ? `, smoothed ${fwhm} mm` : ""}`;
    find(".threshold").textContent = `${strongestShare()}, from ${number(least, 2)}`;
    root.dataset.threshold = least;
    find(".opacity").textContent = `${slide.opacity.value} %`;
  }

  function strongestShare() {
    const hidden = Number(slide.threshold.value);
    return hidden ? `top ${number(100 - hidden)} % of voxels` : "all voxels";
  }

  // The window of the method, for maps as they are drawn.
  function rescale() {
    const { low, high } = ownScale(map);
    [limit.low.value, limit.high.value] = [low, high].map((value) => Number(value.toPrecision(3)));
  }

  function recolour() {
    for (const pane of panes) if (pane.map) pane.palette = paletteOf(pane.map);
    bar();
    draw();
  }

  function move(voxel) {
    cross = voxel.map((n, axis) => Math.min(Math.max(n, 0), shape[axis] - 1));
    const hidden = Object.values(PLANES).some((plane) => {
      const from = corner(plane);
      return placeOf(cross, plane).some((part, k) => part < from[k] || part > from[k] + 1 / zoom);
    });
    if (hidden) focus = cross;
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
    const another = chosen.method !== map?.method;
    [map, main.map, main.brain] = [chosen, chosen, chosen.brain];
    if (another) rescale();
    for (const option of choose.second?.options ?? []) option.disabled = option.value === String(maps.indexOf(chosen));
    find(".title").textContent = map.title;
    cross ??= regions.find((region) => region.number === outlined[0])?.at ?? start;
    focus ??= cross;
    recolour();
    tell(cross);
    root.dataset.ready = `${group} ${method}`;
  }

  // A second map in a row of its own; none where nothing is chosen.
  async function showBeside() {
    const wanted = choose.second.value;
    const chosen = wanted === "" ? undefined : maps[Number(wanted)];
    if (chosen) await load(chosen);
    if (wanted !== choose.second.value) return;
    [beside.map, beside.brain] = [chosen, chosen?.brain];
    for (const part of root.querySelectorAll(".beside")) part.hidden = !chosen;
    find(".second").textContent = chosen ? chosen.title : "";
    recolour();
    tell(cross);
    root.dataset.beside = wanted;
  }

  // What is shown, without the controls: a row of planes per map.
  function save() {
    const rows = panes.filter((pane) => pane.map).map((pane) => pane.canvases);
    const sheet = document.createElement("canvas");
    sheet.width = rows[0].reduce((sum, { width }) => sum + width, 0);
    const tall = Math.max(...rows[0].map(({ height }) => height));
    const line = Math.max(14, Math.round(sheet.width / 60));
    const band = Math.round(line * 1.6);
    sheet.height = (tall + band) * rows.length + 3 * band;
    const context = sheet.getContext("2d");
    context.fillStyle = "#0b0f14";
    context.fillRect(0, 0, sheet.width, sheet.height);
    context.font = `${line}px sans-serif`;
    context.fillStyle = "#e8edf2";
    const write = (text, y) => context.fillText(text, line / 2, y + line, sheet.width - line);
    const shown = panes.filter((pane) => pane.map);
    rows.forEach((row, place) => {
      const top = place * (tall + band);
      write(shown[place].map.title, top);
      row.reduce((x, canvas) => {
        context.drawImage(canvas, x, top + band + (tall - canvas.height) / 2);
        return x + canvas.width;
      }, 0);
    });
    const below = (tall + band) * rows.length;
    context.drawImage(find(".bar canvas"), line / 2, below + line / 2, sheet.width / 3, line / 2);
    write(["low", "middle", "high", "unit"].map((part) => find(`.${part}`).textContent).filter(Boolean).join("   "), below + line);
    write(`${find(".at").textContent}. Shown: ${find(".threshold").textContent}. ${find(".convention").textContent}`, below + line + band);
    sheet.toBlob((blob) => {
      const link = document.createElement("a");
      link.href = URL.createObjectURL(blob);
      link.download = `${map.title.replace(/[^A-Za-z0-9]+/g, "-")}.png`;
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), 1000);
    });
  }

  function strongest() {
    let best = 0;
    const { codes } = seen(map);
    codes.forEach((byte, at) => {
      if (Math.abs(signed(byte)) > Math.abs(signed(codes[best]))) best = at;
    });
    const row = Math.floor(best / shape[0]);
    return [best % shape[0], row % shape[1], Math.floor(row / shape[1])];
  }

  const touching = new Map(); // places of the fingers on a slice, by pointer
  let pinched; // distance of two fingers, and the zoom, when the second came down
  const apart = () => {
    const [one, other] = [...touching.values()];
    return Math.hypot(one[0] - other[0], one[1] - other[1]) || 1;
  };

  for (const { key, canvas } of panes.flatMap((pane) => pane.canvases.map((one) => ({ key: pane.key, canvas: one })))) {
    const plane = canvas.dataset[key];
    const { through, across, up } = PLANES[plane];
    const under = (event) => {
      const box = canvas.getBoundingClientRect();
      const from = corner(PLANES[plane]);
      const point = [(event.clientX - box.left) / box.width, (event.clientY - box.top) / box.height];
      return voxelAt(shape, plane, cross[through], point.map((part, k) => from[k] + part / zoom), mirror.checked);
    };
    let turned = 0;
    canvas.addEventListener("wheel", (event) => {
      const clicked = panes.some((pane) => pane.canvases.includes(document.activeElement));
      if (!clicked && !event.ctrlKey && !event.shiftKey) return; // the page scrolls
      event.preventDefault();
      turned += (event.deltaY || event.deltaX) * (event.deltaMode ? NOTCH : 1); // lines or pixels; with Shift sideways
      if (event.ctrlKey) { // a pinch on a touchpad
        zoomTo(zoom * Math.exp(-turned / 200));
        turned = 0;
      } else if (Math.abs(turned) >= NOTCH) {
        const next = [...cross];
        next[through] -= Math.sign(turned);
        turned = 0;
        move(next);
      }
    }, { passive: false });
    canvas.addEventListener("pointerdown", (event) => {
      canvas.setPointerCapture(event.pointerId);
      touching.set(event.pointerId, [event.clientX, event.clientY]);
      if (touching.size === 2) pinched = { apart: apart(), zoom };
      else if (touching.size === 1) move(under(event));
    });
    canvas.addEventListener("pointermove", (event) => {
      if (touching.has(event.pointerId)) touching.set(event.pointerId, [event.clientX, event.clientY]);
      if (touching.size === 2) zoomTo((pinched.zoom * apart()) / pinched.apart);
      else if (event.buttons) move(under(event));
      else tell(under(event));
    });
    for (const kind of ["pointerup", "pointercancel"]) {
      canvas.addEventListener(kind, (event) => touching.delete(event.pointerId));
    }
    canvas.addEventListener("pointerleave", () => tell(cross));
    canvas.addEventListener("keydown", (event) => {
      const right = flipped(across) ? -1 : 1;
      const steps = {
        ArrowLeft: [across, -right], ArrowRight: [across, right], ArrowUp: [up, 1], ArrowDown: [up, -1],
        PageUp: [through, 1], PageDown: [through, -1],
      };
      if (event.key === "+" || event.key === "-") zoomTo(event.key === "+" ? zoom * 1.5 : zoom / 1.5);
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
    else draw();
  });
  choose.group.addEventListener("change", show);
  choose.method.addEventListener("change", show);
  slide.threshold.addEventListener("input", recolour);
  slide.opacity.addEventListener("input", recolour);
  for (const field of [choose.colours, ...Object.values(limit)]) field.addEventListener("change", recolour);
  choose.second?.addEventListener("change", showBeside);
  outline.addEventListener("change", draw);
  smooth.addEventListener("change", () => {
    rescale();
    recolour();
    tell(cross);
  });
  find("[name=closer]").addEventListener("click", () => zoomTo(zoom * 1.5));
  find("[name=farther]").addEventListener("click", () => zoomTo(zoom / 1.5));
  find("[name=save]").addEventListener("click", save);
  mirror.addEventListener("change", () => {
    find(".convention").textContent = mirror.checked ? "Radiological: left is right." : "Neurological: left is left.";
    draw();
  });
  find("[name=strongest]").addEventListener("click", () => move(strongest()));
  for (const select of [choose.group, choose.method]) select.parentElement.hidden = select.options.length === 1;
  for (const part of root.querySelectorAll(".controls, .keys, .more")) part.hidden = false;
  await show();
}
